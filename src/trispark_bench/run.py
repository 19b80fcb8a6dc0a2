"""Runs a plan against one server: warm-up, then its cells in drawn order, each as one window."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trispark_bench.cells import Cell, Job, cells_of, in_drawn_order
from trispark_bench.counters import Counters
from trispark_bench.link import kernel_stamps
from trispark_bench.plan import PROTOCOL, BenchPlan
from trispark_bench.rawfile import RawFile
from trispark_bench.request import Request, chat_body
from trispark_bench.sample import Sample
from trispark_bench.wire import Target


class Aborted(RuntimeError):
    """The measurement cannot go on; the text says why."""


@dataclass
class Results:
    """What was measured so far; complete when `run_plan` returned."""

    plan: BenchPlan
    requests: list[Sample] = field(default_factory=list)
    waves: list[dict[str, Any]] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    windows: list[dict[str, Any]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The client's output."""
        return {
            "protocol": PROTOCOL,
            "seed": self.plan.seed,
            "order": self.order,
            "requests": [sample.as_json() for sample in self.requests],
            "waves": self.waves,
            "server_info": self.phases,
            "windows": self.windows,
        }


async def run_plan(plan: BenchPlan, results: Results, raw: RawFile | None = None) -> None:
    """Fills `results` with every request, wave and window.

    Raises Silence when a request gets nothing for plan.silence_s, Aborted when the warm-up fails, CountersError when
    the server does not tell its counters, OSError when `raw` cannot be written. What was measured before is in
    `results`.
    """
    with kernel_stamps():
        await _Run(plan, results, raw).run()


class _Run:
    def __init__(self, plan: BenchPlan, results: Results, raw: RawFile | None) -> None:
        self._plan = plan
        self._results = results
        self._raw = raw
        self._target: Target = plan.target()
        self._counters = Counters(self._target, plan.silence_s)
        self._begin_ns = time.monotonic_ns()

    async def run(self) -> None:
        cells = in_drawn_order(cells_of(self._plan), self._plan.seed)
        self._results.order = [cell.tag for cell in cells]
        await self._warm_up()
        for cell in cells:
            await self._measure(cell)

    async def _warm_up(self) -> None:
        """One short request a workload, discarded. Widths are warmed by the round of each cell that does not count.

        A server that fails here fails the run.
        """
        for name in self._plan.workloads:
            cell = Cell("warm-up", 1, (name,))
            for sample in await self._round(cell, -1, self._plan.warmup_tokens):
                if sample.error:
                    raise Aborted(f"{cell.tag}, {sample.workload}: {sample.error}")

    async def _measure(self, cell: Cell) -> None:
        """A window: one round that does not count, the counters, the rounds, the counters again."""
        plan, results = self._plan, self._results
        await self._round(cell, -1, plan.max_tokens)
        before = await self._counters.read()
        began, began_ns = _utc(), time.monotonic_ns()
        samples: list[Sample] = []
        with _collector_off():
            for index in range(plan.repetitions):
                done = await self._round(cell, index, plan.max_tokens)
                samples += done
                results.requests += done
                if cell.width > 1:
                    results.waves.append(_wave(cell, index, done))
                if self._raw is not None:
                    self._raw.append([sample.as_json() for sample in done])
        wall_s, ended = (time.monotonic_ns() - began_ns) / 1e9, _utc()
        after = await self._counters.read()
        results.phases.append({"tag": cell.tag, "before": before["state"], "after": after["state"]})
        results.windows.append(
            {
                "tag": cell.tag,
                "width": cell.width,
                "context": cell.context,
                "began": began,
                "began_ns": began_ns - self._begin_ns,
                "ended": ended,
                "wall_s": wall_s,
                "requests": len(samples),
                "identity": [before["identity"], after["identity"]],
                "metrics": [before["metrics"], after["metrics"]],
            }
        )
        if self._raw is not None:
            self._raw.sync()

    async def _round(self, cell: Cell, index: int, max_tokens: int) -> list[Sample]:
        """All connections are opened first; then the requests go out one right after the other."""
        requests = [
            self._request(job, cell, index * cell.width + slot)
            for slot, job in enumerate(cell.jobs(self._plan, index, max_tokens))
        ]
        late = cell.late_job(self._plan)
        late_request = None if late is None else self._request(late, cell, index)
        try:
            await asyncio.gather(
                *(request.prepare(time.monotonic_ns(), self._begin_ns) for request in _all(requests, late_request))
            )
            for request in requests:
                request.send()
            over = [request.over(self._plan.silence_s) for request in requests]
            if late_request is not None:
                over.append(self._late_over(late_request, requests))
            await asyncio.gather(*over)
            return [request.sample(self._begin_ns) for request in _all(requests, late_request)]
        finally:
            for request in _all(requests, late_request):
                request.close()

    def _request(self, job: Job, cell: Cell, index: int) -> Request:
        begun = Sample(job.tag, job.workload, index)
        body = chat_body(self._plan, job.draw, job.prompt, job.max_tokens, index)
        return Request(self._target, body, begun, self._plan.model)

    async def _late_over(self, late: Request, others: list[Request]) -> None:
        """Send it when all others decode, and wait for its end."""
        await asyncio.gather(*(request.flowing(self._plan.silence_s) for request in others))
        late.send()
        await late.over(self._plan.silence_s)


def _all(requests: list[Request], late: Request | None) -> Iterator[Request]:
    yield from requests
    if late is not None:
        yield late


def _wave(cell: Cell, index: int, done: list[Sample]) -> dict[str, Any]:
    """The wall time runs from the first request's sending to the last answer's end."""
    sent = [sample.sent_ns for sample in done]
    ended = [sample.ended_ns if sample.ended_ns is not None else sample.sent_ns for sample in done]
    return {
        "tag": cell.tag,
        "wave": index,
        "wall_s": (max(ended) - min(sent)) / 1e9,
        "start_spread_s": (max(sent[: cell.width]) - min(sent)) / 1e9,
        "tokens": sum(sample.completion_tokens or 0 for sample in done),
        "errors": sum(sample.error is not None for sample in done),
    }


@contextmanager
def _collector_off() -> Iterator[None]:
    """No garbage collection while something is timed; what is alive is not looked at again."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


def _utc() -> str:
    """For joining log lines; no duration is made of it."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
