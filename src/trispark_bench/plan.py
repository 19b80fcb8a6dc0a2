"""The client's input, checked before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class PlanError(ValueError):
    """The input cannot be run; the text says which field and why."""


@dataclass(frozen=True)
class BenchPlan:
    """What to measure: each concurrency in turn, each workload `repetitions` times with `max_tokens` tokens."""

    base_url: str
    model: str
    repetitions: int
    max_tokens: int
    warmup_tokens: int
    concurrency: tuple[int, ...]
    workloads: dict[str, tuple[str, ...]]
    deadline_s: float

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BenchPlan:
        """Raises PlanError for a missing, surplus or senseless field."""
        surplus = sorted(set(data) - set(cls.__dataclass_fields__))
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
                workloads={str(name): tuple(prompts) for name, prompts in data["workloads"].items()},
                deadline_s=float(data["deadline_s"]),
            )
        except KeyError as missing:
            raise PlanError(f"missing field {missing}") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise PlanError(f"a field has a wrong type: {error}") from None
        plan._check()
        return plan

    def _check(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise PlanError(f"base_url must be http(s), not {self.base_url!r}")
        if self.repetitions < 1 or self.max_tokens < 2 or self.warmup_tokens < 1 or self.deadline_s <= 0:
            raise PlanError("repetitions >= 1, max_tokens >= 2, warmup_tokens >= 1 and deadline_s > 0 are needed")
        if not self.concurrency or min(self.concurrency) < 1:
            raise PlanError("concurrency must list whole numbers from 1")
        if not self.workloads or any(not prompts for prompts in self.workloads.values()):
            raise PlanError("each workload needs at least one prompt")
