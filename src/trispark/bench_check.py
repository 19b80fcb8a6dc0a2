"""Whether a measurement is what was planned: every request answered, every repetition there, every token asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trispark.bench_windows import check_windows, windows_problem
from trispark.benchstats import decode_tps
from trispark.workloads import SHORT

PREFILL: Final = "-prefill"
"""Ends the tag of the long prompts of a mixed cell."""


def bench_problem(
    plan: Mapping[str, Any], output: Mapping[str, Any] | None, probe_interval_s: float | None = None
) -> str | None:
    """The first thing wrong, in one line; None when the measurement is complete.

    `plan`: the load client's input; `output`: what it wrote, None when it wrote nothing; `probe_interval_s`: see
    bench_windows.
    """
    if not output:
        return "the load client gave no result"
    if output.get("ended"):
        return f"the measurement ended early: {output['ended']}"
    if output.get("protocol") != plan["protocol"]:
        return f"the load client measured by protocol {output.get('protocol')}, planned was {plan['protocol']}"
    requests = list(output.get("requests") or [])
    waves = list(output.get("waves") or [])
    for request in requests:
        name = f"{request['tag']} request {request.get('index')}"
        if request.get("error"):
            return f"{name} failed: {request['error']}"
        asked = _asked_tokens(plan, request["tag"])
        if request.get("completion_tokens") != asked:
            return f"{name} has {request.get('completion_tokens')} tokens, asked for were {asked}"
        if decode_tps(request) is None:
            return f"{name} has no decode rate: its tokens came in one event"
    for tag, expected in _expected_requests(plan).items():
        found = sum(request["tag"] == tag for request in requests)
        if found != expected:
            return f"{tag} has {found} requests, planned were {expected}"
    for tag in _wave_tags(plan):
        found = sum(wave["tag"] == tag for wave in waves)
        if found != plan["repetitions"]:
            return f"{tag} has {found} waves, planned were {plan['repetitions']}"
    windows = [str(window["tag"]) for window in output.get("windows") or ()]
    missing = sorted({tag for tag in _expected_requests(plan) if not tag.endswith(PREFILL)} - set(windows))
    if missing:
        return f"{missing[0]} has no window: nobody knows what the server counted"
    return windows_problem(check_windows(output, probe_interval_s))


def _ends(plan: Mapping[str, Any]) -> list[str]:
    """What stands at the end of the tags of each context."""
    return ["" if name == SHORT else f"-{name}" for name in plan["contexts"]]


def _wave_tags(plan: Mapping[str, Any]) -> list[str]:
    widths = [f"c{width}{end}" for width in plan["concurrency"] for end in _ends(plan) if width > 1]
    return widths + [f"mixed-c{mixed['width']}" for mixed in plan["mixed"] if mixed["width"] > 1]


def _expected_requests(plan: Mapping[str, Any]) -> dict[str, int]:
    expected: dict[str, int] = {}
    for width in plan["concurrency"]:
        for end in _ends(plan):
            tags = [f"c1-{workload}{end}" for workload in plan["workloads"]] if width == 1 else [f"c{width}{end}"]
            for tag in tags:
                expected[tag] = int(plan["repetitions"]) * int(width)
    for mixed in plan["mixed"]:
        tag = f"mixed-c{mixed['width']}"
        expected[tag] = int(plan["repetitions"]) * int(mixed["width"])
        expected[f"{tag}{PREFILL}"] = int(plan["repetitions"])
    return expected


def _asked_tokens(plan: Mapping[str, Any], tag: str) -> int:
    for mixed in plan["mixed"]:
        if tag == f"mixed-c{mixed['width']}{PREFILL}":
            return int(mixed["max_tokens"])
    return int(plan["max_tokens"])
