"""From the answers of a set of questions to its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trispark.gate_result import GateResult
from trispark.quality import judges, reference
from trispark.quality.answers import Answer, chat, generated
from trispark.quality.model import EngineQuality
from trispark.quality.questions import NATIVE, Question, needle_code

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class Answered:
    """Questions with their answers, by name; a question without one has an answer that says so."""

    chats: Mapping[str, Answer]
    counted: Mapping[str, Any]

    @classmethod
    def of(cls, questions: Sequence[Question], raw: Sequence[Raw]) -> Answered:
        """`raw`: in the order of the questions."""
        missing = [{"error": "no answer"}] * (len(questions) - len(raw))
        pairs = list(zip(questions, [*raw, *missing], strict=False))
        return cls(
            {each.name: chat(answer) for each, answer in pairs if each.path != NATIVE},
            {each.name: generated(answer) for each, answer in pairs if each.path == NATIVE},
        )

    def starting(self, prefix: str) -> dict[str, Answer]:
        """Chat answers whose names begin so."""
        return {name: answer for name, answer in self.chats.items() if name.startswith(prefix)}


def judge_short(
    quality: EngineQuality,
    questions: Sequence[Question],
    raw: Sequence[Raw],
    bands: Sequence[tuple[float, float]],
) -> list[GateResult]:
    """Results of the short set. `bands`: of the accept length, of the configuration."""
    answered = Answered.of(questions, raw)
    texts = answered.starting("logprobs.")
    workload = quality.short.workload
    results = [
        judges.finite_logprobs(texts),
        judges.sane(workload, list(texts.values()), quality.minimum_ascii_share),
        judges.acceptance(workload, list(answered.counted.values()), bands),
    ]
    if len(texts) > 1:
        results.append(judges.repeated(workload, list(texts.values())))
    return [*results, *_tasks(quality, answered, {}, quality.short.tasks)]


def judge_long(
    quality: EngineQuality,
    questions: Sequence[Question],
    raw: Sequence[Raw],
    bands: Sequence[tuple[float, float]],
    repeat: Sequence[str],
    executed: Mapping[str, Sequence[str]],
) -> list[GateResult]:
    """Results of the long set. `executed`: {task: what is wrong with its code} of those that the sandbox ran."""
    answered = Answered.of(questions, raw)
    share = quality.minimum_ascii_share
    results = [judges.finite_logprobs(answered.starting("logprobs."))]
    for workload in quality.workloads:
        texts = list(answered.starting(f"logprobs.{workload}.").values())
        results.append(judges.sane(workload, texts, share))
        if workload in repeat:
            results.append(judges.repeated(workload, list(answered.starting(f"repeat.{workload}.").values())))
        counts = [each for name, each in answered.counted.items() if name.startswith(f"acceptance.{workload}.")]
        results.append(judges.acceptance(workload, counts, bands))
    results += _tasks(quality, answered, executed, [task.id for task in quality.tasks])
    for needle in quality.needles:
        for sentences in needle.sentences:
            for depth in needle.depths:
                name = f"needle.{sentences}.{round(100 * depth)}"
                answer = answered.chats.get(name, Answer("not asked"))
                results.append(
                    judges.needle(name.removeprefix("needle."), needle_code(needle, sentences, depth), answer)
                )
    results += _mixed(quality, answered)
    return results


def _mixed(quality: EngineQuality, answered: Answered) -> list[GateResult]:
    beside = answered.starting("mixed.greedy.")
    alone = {name: answered.chats[_alone(name)] for name in beside if _alone(name) in answered.chats}
    share = quality.minimum_ascii_share
    greedy = judges.mixed(alone, beside, invariant=quality.batch_invariant, share=share)
    return [greedy, judges.sane("sampled", list(answered.starting("mixed.sampled.").values()), share)]


def _alone(name: str) -> str:
    """`logprobs.prose.0`, the question that `mixed.greedy.prose.0.2` repeats beside others."""
    _, _, workload, number, _ = name.split(".")
    return f"logprobs.{workload}.{number}"


def _tasks(
    quality: EngineQuality, answered: Answered, executed: Mapping[str, Sequence[str]], names: Sequence[str]
) -> list[GateResult]:
    return [
        judges.task(quality.task(name), answered.chats.get(f"task.{name}", Answer("not asked")), executed.get(name))
        for name in names
    ]


def code_to_run(quality: EngineQuality, questions: Sequence[Question], raw: Sequence[Raw]) -> list[dict[str, Any]]:
    """[{id, code, checks}] for the sandbox: code tasks that were answered."""
    answered = Answered.of(questions, raw)
    found = []
    for task in quality.tasks:
        answer = answered.chats.get(f"task.{task.id}")
        if task.kind == "code" and answer is not None and answer.problem is None:
            found.append({"id": task.id, "code": judges.code_of(answer.text), "checks": list(task.checks)})
    return found


def compare_all(
    quality: EngineQuality, known: Mapping[str, Answer], questions: Sequence[Question], raw: Sequence[Raw]
) -> dict[str, reference.Compared]:
    """{name: how it compares} of every answer of a reference; what the reference lacks is not compared."""
    texts = Answered.of(questions, raw).starting("logprobs.")
    return {
        name: reference.compare(answer, texts.get(name, Answer("not asked")), quality.equivalence)
        for name, answer in known.items()
    }
