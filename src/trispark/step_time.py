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

MARGIN: Final = timedelta(seconds=2)
"""At both ends of a window: stamps are whole seconds, and the clocks of two nodes differ by less than one."""
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
    """Each window of the client's output. `log`: the head's decode and prefill lines, as it wrote them.

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
    used = [interval for interval in intervals if _within(interval, window) and _usable(interval, width)]
    steps = [step for interval in used if (step := interval.decode.step_s) is not None]
    lines_s = statistics.fmean(steps) if len(steps) >= LINES_AT_LEAST else None
    if lines_s is None or counters_s is None or any(row["error"] for row in _rows(output, tag)):
        missing = f"{len(steps)} decode lines without a prompt between them" if lines_s is None else "verify calls"
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


def _within(interval: Interval, window: Mapping[str, Any]) -> bool:
    if interval.stamp is None:
        return False
    began, ended = (datetime.fromisoformat(window[side]) for side in ("began", "ended"))
    return began + MARGIN <= interval.stamp <= ended - MARGIN


def _usable(interval: Interval, width: int) -> bool:
    return interval.steady and interval.decode.running == width and interval.decode.cuda_graph


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
    waves: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        sent_s = row["sent_ns"] / 1e9
        waves.setdefault(row["index"] // width, []).append((sent_s + row["ttft_s"], sent_s + row["total_s"]))
    for wave in waves.values():
        last_first, first_last = max(first for first, _ in wave), min(last for _, last in wave)
        total += math.fsum((last_first - first) + (last - first_last) for first, last in wave)
    return total


def steps_problem(checks: Sequence[StepCheck]) -> str | None:
    """The first reason why the measurement does not count."""
    return next((f"{check.tag}: {check.problem}" for check in checks if check.problem is not None), None)
