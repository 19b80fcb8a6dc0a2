"""The client's input, checked before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from trispark_bench.wire import Target

PROTOCOL = 2
"""Of what is measured and how. Two measurements of different protocols are not compared."""


class PlanError(ValueError):
    """The input cannot be run; the text says which field and why."""


@dataclass(frozen=True)
class Workload:
    """Prompts that take turns, and how their answers are drawn. `temperature` 0 is greedy."""

    prompts: tuple[str, ...]
    temperature: float = 0.0
    top_p: float = 1.0

    @classmethod
    def from_json(cls, name: str, data: Any) -> Workload:
        """Raises PlanError."""
        try:
            workload = cls(tuple(data["prompts"]), float(data["temperature"]), float(data["top_p"]))
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError(f"workload {name} needs prompts, temperature and top_p: {error}") from None
        if not workload.prompts or not all(isinstance(prompt, str) and prompt for prompt in workload.prompts):
            raise PlanError(f"workload {name} needs at least one prompt")
        if not 0 <= workload.temperature <= 2 or not 0 < workload.top_p <= 1:
            raise PlanError(f"workload {name}: temperature is from 0 to 2, top_p above 0 and at most 1")
        return workload


@dataclass(frozen=True)
class Mixed:
    """A long prompt that arrives while `width` streams decode."""

    width: int
    prompt: str
    max_tokens: int

    @classmethod
    def from_json(cls, data: Any) -> Mixed:
        """Raises PlanError."""
        try:
            mixed = cls(int(data["width"]), str(data["prompt"]), int(data["max_tokens"]))
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError(f"mixed needs width, prompt and max_tokens: {error}") from None
        if mixed.width < 1 or not mixed.prompt or mixed.max_tokens < 2:
            raise PlanError("mixed needs a width from 1, a prompt and max_tokens from 2")
        return mixed


@dataclass(frozen=True)
class BenchPlan:
    """What to measure: each cell `repetitions` times with `max_tokens` tokens, after one round that does not count.

    A cell is a concurrency and, at 1, a workload; each once for every entry of `contexts`, {name: text that stands
    before each prompt}. `seed` orders the cells and draws sampled answers. `thinking` and `reasoning_effort` hold for
    all requests. `silence_s`: how long a server may send nothing at all to one request.
    """

    base_url: str
    model: str
    repetitions: int
    max_tokens: int
    warmup_tokens: int
    concurrency: tuple[int, ...]
    workloads: dict[str, Workload]
    deadline_s: float
    protocol: int = PROTOCOL
    seed: int = 1
    thinking: bool = False
    reasoning_effort: str | None = None
    contexts: dict[str, str] | None = None
    mixed: tuple[Mixed, ...] = ()
    silence_s: float = 120.0
    api_key: str | None = None
    ca_file: str | None = None

    @classmethod
    def from_json(cls, data: Any) -> BenchPlan:
        """Raises PlanError for a missing, surplus or senseless field."""
        if not isinstance(data, dict):
            raise PlanError("the input is no object")
        known = {each.name for each in fields(cls)}
        surplus = sorted(set(data) - known)
        if surplus:
            raise PlanError(f"unknown fields: {', '.join(surplus)}")
        try:
            plan = cls(
                base_url=str(data["base_url"]).rstrip("/"),
                model=str(data["model"]),
                repetitions=int(data["repetitions"]),
                max_tokens=int(data["max_tokens"]),
                warmup_tokens=int(data["warmup_tokens"]),
                concurrency=tuple(int(c) for c in data["concurrency"]),
                workloads={
                    str(name): Workload.from_json(name, workload) for name, workload in data["workloads"].items()
                },
                deadline_s=float(data["deadline_s"]),
                protocol=int(data["protocol"]),
                seed=int(data["seed"]),
                thinking=bool(data["thinking"]),
                reasoning_effort=data["reasoning_effort"],
                contexts=dict(data["contexts"]) if data.get("contexts") else None,
                mixed=tuple(Mixed.from_json(each) for each in data.get("mixed") or ()),
                silence_s=float(data.get("silence_s", cls.silence_s)),
                api_key=data.get("api_key"),
                ca_file=data.get("ca_file"),
            )
        except KeyError as missing:
            raise PlanError(f"missing field {missing}") from None
        except PlanError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise PlanError(f"a field has a wrong type: {error}") from None
        plan._check()
        return plan

    def target(self) -> Target:
        """Where the requests go. Raises ValueError and OSError (a ca_file that is none)."""
        return Target.of(self.base_url, self.api_key, self.ca_file)

    def _check(self) -> None:
        if self.protocol != PROTOCOL:
            raise PlanError(f"protocol {self.protocol} is asked for, this client measures by protocol {PROTOCOL}")
        try:
            self.target()
        except (ValueError, OSError) as error:
            raise PlanError(str(error)) from None
        if self.repetitions < 1 or self.max_tokens < 2 or self.warmup_tokens < 1:
            raise PlanError("repetitions >= 1, max_tokens >= 2 and warmup_tokens >= 1 are needed")
        if not self.deadline_s > 0 or not self.silence_s > 0:
            raise PlanError("deadline_s and silence_s must be above 0")
        if not self.concurrency or min(self.concurrency) < 1:
            raise PlanError("concurrency must list whole numbers from 1")
        if not self.workloads:
            raise PlanError("at least one workload is needed")
