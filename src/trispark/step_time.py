"""A step's time from two sides: the streams' own times over the server's verify calls, and the head's decode lines.

They measure the same thing, so they must agree. How far apart they may be is derived, not chosen: what the lines leave
out by rounding, the scatter of the lines, the exactness of the client, and the share of the streams' time in which not
all of them were decoding.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from trispark.bench_windows import WindowCheck
from trispark.benchstats import unreadable
from trispark.logparse import Interval, decode_intervals

CLOCKS_APART: Final = timedelta(seconds=1)
"""The most by which the clocks of two nodes are taken to differ."""
STAMP: Final = timedelta(seconds=1)
"""Stamps are whole seconds, cut off."""
LINES_AT_LEAST: Final = 3
CLIENT_S: Final = 0.002
"""How exact the client is at many streams (docs/measurement.md)."""
ROUNDED: Final = 0.005
"""The lines give two decimals."""
DEVIATIONS: Final = 4.0
"""Standard errors of the lines' mean that are still chance."""


@dataclass(frozen=True)
class StepCheck:
    """One window. `problem` when both sides are known and differ beyond `bound` (a share); `not_checked` says which
    side is missing."""

    tag: str
    lines: int
    from_lines_s: float | None
    from_counters_s: float | None
    difference: float | None
    bound: float | None
    problem: str | None
    not_checked: str | None


def check_steps(output: Mapping[str, Any], checks: Sequence[WindowCheck], log: str | None) -> list[StepCheck]:
    """Each window of the client's output. `log`: the head's decode lines, as it wrote them.

    Raises TS-BENCH-SHAPE.
    """
    intervals = decode_intervals(log or "")
    by_tag = {check.tag: check for check in checks}
    try:
        return [
            _check(window, by_tag.get(str(window["tag"])), output, intervals) for window in output.get("windows") or ()
        ]
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise unreadable(error) from None


def _check(
    window: Mapping[str, Any], counted: WindowCheck | None, output: Mapping[str, Any], intervals: Sequence[Interval]
) -> StepCheck:
    tag, width = str(window["tag"]), int(window["width"])
    counters_s = counted.step_s if counted is not None else None
    spans = _spans(window, _rows(output, tag), width)
    used = [each for each in intervals if _usable(each, width) and any(_within(each, *span) for span in spans)]
    steps = [step for interval in used if (step := interval.decode.step_s) is not None]
    lines_s = statistics.fmean(steps) if len(steps) >= LINES_AT_LEAST else None
    if lines_s is None or counters_s is None or any(row["error"] for row in _rows(output, tag)):
        missing = f"{len(steps)} decode lines of whole streams" if lines_s is None else "verify calls"
        return StepCheck(tag, len(steps), lines_s, counters_s, None, None, None, missing)
    bound = _bound(used, steps, _rows(output, tag), width)
    difference = counters_s / lines_s - 1
    problem = None
    if abs(difference) > bound:
        problem = (
            f"a step takes {counters_s * 1e3:.2f} ms by the counters and {lines_s * 1e3:.2f} ms by {len(steps)} decode "
            f"lines, {abs(difference) * 100:.1f} % apart; up to {bound * 100:.1f} % is chance"
        )
    return StepCheck(tag, len(steps), lines_s, counters_s, difference, bound, problem, None)


def _rows(output: Mapping[str, Any], tag: str) -> list[Mapping[str, Any]]:
    return [row for row in output["requests"] if row["tag"] == tag]


def _spans(window: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], width: int) -> list[tuple[datetime, datetime]]:
    """From when to when all streams of each wave were decoding, in the time of day of the client's node."""
    began, began_ns = datetime.fromisoformat(window["began"]), window["began_ns"]
    return [
        (
            began + timedelta(seconds=max(first for first, _ in wave) - began_ns / 1e9),
            began + timedelta(seconds=min(last for _, last in wave) - began_ns / 1e9),
        )
        for wave in _waves(rows, width)
    ]


def _waves(rows: Sequence[Mapping[str, Any]], width: int) -> list[list[tuple[float, float]]]:
    """(first event with text, last token) of each stream that gave figures, by its round, in seconds of the run."""
    waves: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        if not row["error"]:
            sent_s = row["sent_ns"] / 1e9
            waves.setdefault(row["index"] // width, []).append((sent_s + row["ttft_s"], sent_s + row["total_s"]))
    return list(waves.values())


def _within(interval: Interval, begin: datetime, end: datetime) -> bool:
    """Whether all streams decoded from the line before to this one, whatever the clocks."""
    if interval.since is None or interval.stamp is None:
        return False
    return begin + CLOCKS_APART <= interval.since and interval.stamp + STAMP + CLOCKS_APART <= end


def _usable(interval: Interval, width: int) -> bool:
    return interval.decode.running == width and interval.decode.cuda_graph


def _bound(used: Sequence[Interval], steps: Sequence[float], rows: Sequence[Mapping[str, Any]], width: int) -> float:
    """The share by which both sides may differ."""
    mean = statistics.fmean(steps)
    rounding = max(
        ROUNDED / interval.decode.accept_length + ROUNDED / interval.decode.tokens_per_second for interval in used
    )
    scatter = DEVIATIONS * statistics.stdev(steps) / math.sqrt(len(steps)) / mean
    decoding = [row["total_s"] - row["ttft_s"] for row in rows]
    exactness = 2 * CLIENT_S / statistics.fmean(decoding)
    return rounding + scatter + exactness + _apart(rows, width) / math.fsum(decoding)


def _apart(rows: Sequence[Mapping[str, Any]], width: int) -> float:
    """Seconds of all streams in which another of their wave had not begun to decode, or had ended."""
    total = 0.0
    for wave in _waves(rows, width):
        last_first, first_last = max(first for first, _ in wave), min(last for _, last in wave)
        total += math.fsum((last_first - first) + (last - first_last) for first, last in wave)
    return total


def steps_problem(checks: Sequence[StepCheck]) -> str | None:
    """The first reason why the measurement does not count."""
    return next((f"{check.tag}: {check.problem}" for check in checks if check.problem is not None), None)
