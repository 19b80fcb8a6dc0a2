"""Whether a measurement is what was planned: every request answered, every repetition there, every token asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trispark.benchstats import decode_tps


def bench_problem(plan: Mapping[str, Any], output: Mapping[str, Any] | None) -> str | None:
    """The first thing wrong, in one line; None when the measurement is complete.

    `plan`: the load client's input; `output`: what it wrote, None when it wrote nothing.
    """
    if not output:
        return "the load client gave no result"
    requests = list(output.get("requests") or [])
    waves = list(output.get("waves") or [])
    for request in requests:
        name = f"{request['tag']} request {request.get('index')}"
        if request.get("error"):
            return f"{name} failed: {request['error']}"
        if request.get("completion_tokens") != plan["max_tokens"]:
            return f"{name} has {request.get('completion_tokens')} tokens, asked for were {plan['max_tokens']}"
        if decode_tps(request) is None:
            return f"{name} has no decode rate: its tokens came in one event"
    for tag, expected in _expected_requests(plan).items():
        found = sum(request["tag"] == tag for request in requests)
        if found != expected:
            return f"{tag} has {found} requests, planned were {expected}"
    for width in plan["concurrency"]:
        found = sum(wave["tag"] == f"c{width}" for wave in waves)
        if width > 1 and found != plan["repetitions"]:
            return f"c{width} has {found} waves, planned were {plan['repetitions']}"
    return None


def _expected_requests(plan: Mapping[str, Any]) -> dict[str, int]:
    expected: dict[str, int] = {}
    for width in plan["concurrency"]:
        tags = [f"c1-{workload}" for workload in plan["workloads"]] if width == 1 else [f"c{width}"]
        for tag in tags:
            expected[tag] = int(plan["repetitions"]) * int(width)
    return expected
