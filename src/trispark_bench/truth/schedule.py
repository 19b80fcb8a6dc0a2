"""What the server sends to one request, and when: drawn from a seed, so that every client gets the same streams."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

MODEL = "truth"
WORDS = ("quay", "náměstí", "mole", "Möwe", "bell", "灯台", "tide", "chart", "🐎 ", "rope", "Žluť", "lamp")
WARM_UP = -1
"""The number of a request that asks for WARM_UP_TOKENS: a short answer that is no part of the test."""
WARM_UP_TOKENS = 2
FAULTS = (
    "http429",
    "http500",
    "http503",
    "early_end",
    "error_event",
    "no_usage",
    "other_model",
    "empty",
    "nan",
    "cut_event",
)
"""What may go wrong with a request; a client must not make figures of it."""


@dataclass(frozen=True)
class Scenario:
    """The streams of a server. `faults`: {number of the request, from 0: one of FAULTS}.

    events      the n-th request gets events + n % spread of them, so that a client's result can be told by its length
    rate        events a second and stream between stalls, about 61 with them; gaps vary by `jitter` of their mean
    stall       every so many events one comes `stall_ms` later
    tokens      at the most so many in an event
    pack        share of events that go out in one write with the next
    split       share of events that go out in two writes, cut within a character where they have one
    reasoning   share of a stream's events that are reasoning, at its begin
    prepared    so many streams are made before the first request
    """

    seed: int = 1
    events: int = 120
    spread: int = 64
    rate: float = 72.0
    jitter: float = 0.3
    stall: int = 40
    stall_ms: float = 90.0
    tokens: int = 6
    pack: float = 0.06
    split: float = 0.06
    reasoning: float = 0.2
    prepared: int = 0
    first_ms: tuple[float, float] = (20.0, 60.0)
    faults: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Scenario:
        """The same as `as_json` gave."""
        return cls(**{**data, "first_ms": tuple(data["first_ms"])})

    def as_json(self) -> dict[str, Any]:
        """For the server's process."""
        return asdict(self)


@dataclass(frozen=True)
class Event:
    """One event: its bytes, the completion tokens so far, and what it brings (r, c or - for no text)."""

    data: bytes
    tokens: int
    kind: str


@dataclass(frozen=True)
class Write:
    """One write to the socket: `due_ns` after the request came; `events` are those that it completes."""

    due_ns: int
    data: bytes
    events: tuple[Event, ...]


def stream_of(scenario: Scenario, number: int, continuous: bool) -> tuple[list[Write], int]:
    """(the writes of the n-th request, its completion tokens)."""
    draw = random.Random(scenario.seed * 1_000_003 + number)
    fault = scenario.faults.get(str(number))
    events = list(_events(scenario, number, continuous, draw, fault))
    return list(_writes(scenario, events, draw)), events[-1].tokens if events else 0


def _events(
    scenario: Scenario, number: int, continuous: bool, draw: random.Random, fault: str | None
) -> Iterator[Event]:
    """First the role, then the text, the finish reason, the usage and [DONE]; or as far as the fault lets it come."""
    if fault == "empty":
        return
    total = WARM_UP_TOKENS if number == WARM_UP else scenario.events + number % scenario.spread
    counts = [1] + [draw.randint(1, scenario.tokens) for _ in range(total - 1)]
    broken = total // 2 if fault in ("early_end", "error_event", "nan", "cut_event") else None
    model = "another" if fault == "other_model" else MODEL
    so_far = 0

    def event(choices: list[dict[str, Any]], usage: bool, kind: str, **more: Any) -> Event:
        document: dict[str, Any] = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "model": model}
        document |= {"created": 0, "choices": choices, **more}
        if usage and fault != "no_usage":
            document["usage"] = {"prompt_tokens": 7, "completion_tokens": so_far, "total_tokens": so_far + 7}
        return Event(f"data: {json.dumps(document, ensure_ascii=False)}\n\n".encode(), so_far, kind)

    def choice(delta: dict[str, Any], reason: str | None = None, **more: Any) -> list[dict[str, Any]]:
        return [{"index": 0, "delta": delta, "finish_reason": reason, **more}]

    yield event(choice({"role": "assistant", "content": ""}), continuous, "-")
    for place, count in enumerate(counts):
        if place == broken:
            if fault == "error_event":
                yield Event(b'data: {"error": {"message": "out of memory", "code": 500}}\n\n', so_far, "-")
            elif fault == "nan":
                yield event(choice({"content": "x"}, logprobs={"content": [{"logprob": float("nan")}]}), False, "c")
            elif fault == "cut_event":
                yield Event(b'data: {"choices": [', so_far, "-")
            return
        so_far += count
        text = " ".join(draw.choice(WORDS) for _ in range(count))
        reasoning = place < total * scenario.reasoning
        delta = {"reasoning_content" if reasoning else "content": f"{text} "}
        yield event(choice(delta), continuous, "r" if reasoning else "c")
    yield event(choice({}, "stop"), continuous, "-")
    yield event([], True, "-")
    yield Event(b"data: [DONE]\n\n", so_far, "-")


def _writes(scenario: Scenario, events: list[Event], draw: random.Random) -> Iterator[Write]:
    due_ns = round(draw.uniform(*scenario.first_ms) * 1e6)
    gap_ns = 1e9 / scenario.rate
    held: list[Event] = []
    for place, event in enumerate(events):
        last = place == len(events) - 1
        if event.kind != "-" and not last and draw.random() < scenario.pack:
            held.append(event)
            continue
        packed = b"".join(each.data for each in (*held, event))
        cut = _cut(event.data) + len(packed) - len(event.data)
        if event.kind != "-" and draw.random() < scenario.split:
            yield Write(due_ns, packed[:cut], tuple(held))
            due_ns += round(gap_ns / 4)
            yield Write(due_ns, packed[cut:], (event,))
        else:
            yield Write(due_ns, packed, (*held, event))
        held = []
        if event.kind != "-":
            due_ns += round(gap_ns * draw.uniform(1 - scenario.jitter, 1 + scenario.jitter))
            if place % scenario.stall == scenario.stall - 1:
                due_ns += round(scenario.stall_ms * 1e6)


def _cut(data: bytes) -> int:
    """Within the first character of several bytes, else in the middle."""
    for place, byte in enumerate(data):
        if byte >= 0xC0:
            return place + 1
    return len(data) // 2
