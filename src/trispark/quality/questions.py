"""What is asked: requests for the agent's verb `request-batch`, in rounds. All of a round are sent at once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trispark.quality.model import EngineQuality, Needle, Task

LOGPROBS = 5
CHAT, NATIVE = "/v1/chat/completions", "/generate"


@dataclass(frozen=True)
class Question:
    """One request. `name` says what for, as `logprobs.prose.0`; names of one plan differ."""

    name: str
    path: str
    body: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Asker:
    """Makes questions for one engine. `model`: the served name; `slots`: requests that run at once."""

    quality: EngineQuality
    model: str
    slots: int

    def short(self, invariant_repeats: bool) -> tuple[Question, ...]:
        """Of every boot, one round: logarithms (twice the same request where its text must repeat and the engine's
        answers do not depend on the batch), a count of verify steps, and tasks that need no sandbox."""
        quality, short = self.quality, self.quality.short
        prompt = quality.workloads[short.workload][0]
        twice = 2 if invariant_repeats and quality.batch_invariant else 1
        asked = [self._text(f"logprobs.{short.workload}.{n}", prompt, short.max_tokens, True) for n in range(twice)]
        asked.append(self._counted(f"acceptance.{short.workload}.0", prompt, short.max_tokens))
        asked += [self._task(quality.task(name)) for name in short.tasks]
        return tuple(asked)

    def rounds(self, repeat: Sequence[str]) -> tuple[tuple[Question, ...], ...]:
        """The long set. `repeat`: workloads whose greedy answers must repeat; they are asked one at a time, for a batch
        may change a text."""
        quality = self.quality
        found: list[tuple[Question, ...]] = []
        for workload, prompts in quality.workloads.items():
            for number, prompt in enumerate(prompts):
                found.append((self._text(f"logprobs.{workload}.{number}", prompt, quality.max_tokens, True),))
            if workload in repeat:
                found += [
                    (self._text(f"repeat.{workload}.{n}", prompts[0], quality.max_tokens, False),)
                    for n in range(quality.repeats)
                ]
            found += [
                (self._counted(f"acceptance.{workload}.{n}", prompt, quality.max_tokens),)
                for n, prompt in enumerate(prompts)
            ]
        found += self._chunks([self._task(task) for task in quality.tasks])
        found += [(question,) for needle in quality.needles for question in self._needles(needle)]
        found.append(self._mixed())
        return tuple(found)

    def _mixed(self) -> tuple[Question, ...]:
        """As many requests as there are slots, greedy and sampled in turn, workloads in turn."""
        pool = [(name, n, p) for name, prompts in self.quality.workloads.items() for n, p in enumerate(prompts)]
        pool.sort(key=lambda each: each[1])
        asked = []
        for place in range(self.slots):
            workload, number, prompt = pool[(place // 2) % len(pool)]
            kind = "sampled" if place % 2 else "greedy"
            name = f"mixed.{kind}.{workload}.{number}.{place}"
            more = {"temperature": 0.7, "top_p": 0.95, "seed": 100 + place} if place % 2 else {}
            asked.append(self._text(name, prompt, self.quality.max_tokens, False, **more))
        return tuple(asked)

    def _needles(self, needle: Needle) -> list[Question]:
        return [
            self._text(
                f"needle.{sentences}.{round(100 * depth)}",
                needle_text(needle, sentences, depth),
                needle.max_tokens,
                False,
            )
            for sentences in needle.sentences
            for depth in needle.depths
        ]

    def _chunks(self, questions: Sequence[Question]) -> list[tuple[Question, ...]]:
        return [tuple(questions[at : at + self.slots]) for at in range(0, len(questions), self.slots)]

    def _text(self, name: str, prompt: str, tokens: int, logprobs: bool, **more: Any) -> Question:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": tokens,
            "stream": False,
            **({"logprobs": True, "top_logprobs": LOGPROBS} if logprobs else {}),
            **self.quality.body,
            **more,
        }
        return Question(name, CHAT, body)

    def _task(self, task: Task) -> Question:
        more: dict[str, Any] = {}
        if task.tool is not None:
            properties = {name: {"type": "string"} for name in task.arguments}
            parameters = {"type": "object", "properties": properties, "required": sorted(properties)}
            more["tools"] = [{"type": "function", "function": {"name": task.tool, "parameters": parameters}}]
        return self._text(f"task.{task.id}", task.prompt, task.max_tokens, False, **more)

    def _counted(self, name: str, prompt: str, tokens: int) -> Question:
        return Question(name, NATIVE, {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": tokens}})


def needle_code(needle: Needle, sentences: int, depth: float) -> str:
    """The word that is hidden: letters from a hash, so that no text and no other needle holds it."""
    digest = hashlib.sha256(f"{needle.fact} {sentences} {depth}".encode()).digest()
    return "".join("bdfghjklmnprstvz"[byte % 16] + "aeiou"[byte % 5] for byte in digest[:4])


def needle_text(needle: Needle, sentences: int, depth: float) -> str:
    """The long text with the fact at its depth, and the question after it."""
    lines = [needle.filler.replace("{number}", str(number)) for number in range(1, sentences + 1)]
    place = round(depth * (sentences - 1))
    lines[place] = needle.fact.replace("{code}", needle_code(needle, sentences, depth))
    return "\n".join([*lines, needle.question])


def requests(questions: Sequence[Question], base_url: str, timeout_s: float) -> list[dict[str, Any]]:
    """For the agent. `base_url`: of the engine on its own node."""
    return [
        {"url": f"{base_url}{each.path}", "method": "POST", "body": dict(each.body), "timeout_s": timeout_s}
        for each in questions
    ]
