"""Runs a plan against one server: warm-up, then C1 per workload, then waves of C requests that start together."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp

from trispark_bench.plan import BenchPlan
from trispark_bench.request import Sample, chat_body, measure

SILENCE_S = 120.0
"""How long a server may send nothing at all to one request. The gates have passed by then: it is warm, and prompts are
short."""


async def run_plan(plan: BenchPlan, silence_s: float = SILENCE_S) -> dict[str, Any]:
    """Raw results: every request and every wave, and the server's own counters before and after each tag.

    Raises TimeoutError when a request gets nothing for `silence_s`, RuntimeError and aiohttp.ClientError when the
    server fails before the first measured request.
    """
    timeout = aiohttp.ClientTimeout(total=plan.deadline_s, sock_connect=10, sock_read=silence_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        url = f"{plan.base_url}/v1/chat/completions"
        await _warm_up(session, url, plan)
        requests: list[Sample] = []
        waves: list[dict[str, Any]] = []
        phases: list[dict[str, Any]] = []
        for concurrency in plan.concurrency:
            if concurrency == 1:
                for workload in plan.workloads:
                    before = await _server_info(session, plan)
                    requests += await _single_stream(session, url, plan, workload)
                    phases.append(_phase(f"c1-{workload}", before, await _server_info(session, plan)))
            else:
                before = await _server_info(session, plan)
                samples, measured = await _waves(session, url, plan, concurrency)
                requests += samples
                waves += measured
                phases.append(_phase(f"c{concurrency}", before, await _server_info(session, plan)))
    return {"requests": [sample.as_json() for sample in requests], "waves": waves, "server_info": phases}


async def _warm_up(session: aiohttp.ClientSession, url: str, plan: BenchPlan) -> None:
    """One short request a workload and one full wave, discarded. A server that fails here fails the run."""
    for workload, prompts in plan.workloads.items():
        body = chat_body(plan.model, prompts[0], plan.warmup_tokens)
        sample = await measure(session, url, body, tag="warm-up", workload=workload, index=0)
        if sample.error:
            raise RuntimeError(f"warm-up of {workload}: {sample.error}")
    width = max(plan.concurrency)
    if width > 1:
        for sample in await asyncio.gather(*_wave_requests(session, url, plan, width, -1, plan.warmup_tokens)):
            if sample.error:
                raise RuntimeError(f"warm-up wave of {width}: {sample.error}")


async def _single_stream(session: aiohttp.ClientSession, url: str, plan: BenchPlan, workload: str) -> list[Sample]:
    """The first round of each phase is thrown away too: it pays for whatever the phase touches first."""
    prompts = plan.workloads[workload]
    samples = []
    for index in range(-1, plan.repetitions):
        body = chat_body(plan.model, prompts[max(index, 0) % len(prompts)], plan.max_tokens)
        sample = await measure(session, url, body, tag=f"c1-{workload}", workload=workload, index=index)
        if index >= 0:
            samples.append(sample)
    return samples


def _wave_requests(
    session: aiohttp.ClientSession, url: str, plan: BenchPlan, width: int, wave: int, max_tokens: int
) -> list[asyncio.Task[Sample]]:
    """`width` requests at once, the workloads taking turns."""
    names = list(plan.workloads)
    tasks = []
    for slot in range(width):
        workload = names[slot % len(names)]
        prompts = plan.workloads[workload]
        body = chat_body(plan.model, prompts[(slot // len(names)) % len(prompts)], max_tokens)
        tasks.append(
            asyncio.create_task(
                measure(session, url, body, tag=f"c{width}", workload=workload, index=wave * width + slot)
            )
        )
    return tasks


async def _waves(
    session: aiohttp.ClientSession, url: str, plan: BenchPlan, width: int
) -> tuple[list[Sample], list[dict[str, Any]]]:
    samples: list[Sample] = []
    waves: list[dict[str, Any]] = []
    for wave in range(plan.repetitions):
        started = time.perf_counter()
        done = await asyncio.gather(*_wave_requests(session, url, plan, width, wave, plan.max_tokens))
        wall_s = time.perf_counter() - started
        samples += done
        tokens = sum(sample.completion_tokens or 0 for sample in done)
        waves.append(
            {
                "tag": f"c{width}",
                "wave": wave,
                "wall_s": wall_s,
                "tokens": tokens,
                "errors": sum(sample.error is not None for sample in done),
            }
        )
    return samples, waves


async def _server_info(session: aiohttp.ClientSession, plan: BenchPlan) -> dict[str, Any]:
    async with session.get(f"{plan.base_url}/server_info") as response:
        info: dict[str, Any] = await response.json()
    return info


def _phase(tag: str, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Only the counters are kept: the server's arguments are in the record already."""
    return {
        "tag": tag,
        "before": (before.get("internal_states") or [{}])[0],
        "after": (after.get("internal_states") or [{}])[0],
    }
