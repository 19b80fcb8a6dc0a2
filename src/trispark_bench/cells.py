"""The cells of a plan and the order in which they are measured."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from trispark_bench.plan import BenchPlan, Mixed, Workload

SHORT = "short"
"""The context without a text of its own; it stands in no tag."""


@dataclass(frozen=True)
class Job:
    """One request of a round."""

    tag: str
    workload: str
    prompt: str
    draw: Workload
    max_tokens: int


@dataclass(frozen=True)
class Cell:
    """What is measured under one tag: rounds of `width` requests which start together, the workloads taking turns."""

    tag: str
    width: int
    workloads: tuple[str, ...]
    context: str = SHORT
    mixed: Mixed | None = None

    def jobs(self, plan: BenchPlan, round_index: int, max_tokens: int) -> list[Job]:
        """The requests of a round. With one stream the prompts take turns by rounds, with several by streams."""
        before = (plan.contexts or {}).get(self.context, "")
        jobs = []
        for slot in range(self.width):
            name = self.workloads[slot % len(self.workloads)]
            workload = plan.workloads[name]
            turn = max(round_index, 0) if self.width == 1 else slot // len(self.workloads)
            prompt = workload.prompts[turn % len(workload.prompts)]
            jobs.append(Job(self.tag, name, f"{before}{prompt}", workload, max_tokens))
        return jobs

    def late_job(self, plan: BenchPlan) -> Job | None:
        """The long prompt that arrives while the others decode."""
        if self.mixed is None:
            return None
        draw = plan.workloads[self.workloads[0]]
        return Job(f"{self.tag}-prefill", "prefill", self.mixed.prompt, draw, self.mixed.max_tokens)


def cells_of(plan: BenchPlan) -> list[Cell]:
    """All cells in the plan's order."""
    every = tuple(plan.workloads)
    cells = []
    for context in plan.contexts or {SHORT: ""}:
        end = "" if context == SHORT else f"-{context}"
        for width in plan.concurrency:
            if width == 1:
                cells += [Cell(f"c1-{name}{end}", 1, (name,), context) for name in every]
            else:
                cells.append(Cell(f"c{width}{end}", width, every, context))
    cells += [Cell(f"mixed-c{mixed.width}", mixed.width, every, SHORT, mixed) for mixed in plan.mixed]
    return cells


def in_drawn_order(cells: Sequence[Cell], seed: int) -> list[Cell]:
    """The cells, shuffled. The same seed gives the same order."""
    drawn = list(cells)
    random.Random(seed).shuffle(drawn)
    return drawn
