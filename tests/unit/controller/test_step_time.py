"""Both sides of a step's time must agree within what is derived."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from trispark.bench_windows import check_windows
from trispark.logparse import decode_intervals
from trispark.step_time import StepCheck, check_steps, steps_problem

STEP_S = 0.05
ACCEPT = 2.5


def decode(second: int, *, running: int = 1, step_s: float = STEP_S, graph: bool = True, accept: float = ACCEPT) -> str:
    return (
        f"[2026-01-01 00:{second // 60:02d}:{second % 60:02d} TP0 EP0] Decode batch, #running-req: {running}, "
        f"#full token: 9, full token usage: 0.01, #swa token: 0, swa token usage: 0.00, accept len: {accept:.2f}, "
        f"accept rate: 0.50, cuda graph: {graph}, gen throughput (token/s): {accept * running / step_s:.2f}, "
        "#queue-req: 0"
    )


OUTPUT: dict[str, Any] = {
    "requests": [
        {
            "tag": "c1-prose",
            "index": index,
            "completion_tokens": 501,
            "sent_ns": 7_000_000_000 + index * 10_500_000_000,
            "ttft_s": 0.3,
            "total_s": 10.3,
            "error": None,
        }
        for index in range(4)
    ],
    "waves": [],
    "windows": [
        {
            "tag": "c1-prose",
            "width": 1,
            "began": "2026-01-01T00:00:00.500000Z",
            "began_ns": 7_000_000_000,
            "wall_s": 43.0,
            "identity": [{}, {}],
            "metrics": [{"verify_steps": 0.0}, {"verify_steps": 800.0}],
        }
    ],
}
# The first stream decodes from 0.8 to 10.8 s of the minute, the second from 11.3 to 21.3.
LOG = [decode(second) for second in range(1, 22, 2)]


def check(lines: list[str], output: dict[str, Any] = OUTPUT) -> StepCheck:
    return check_steps(output, check_windows(output), "\n".join(lines))[0]


def test_both_sides_agree() -> None:
    found = check(LOG)
    assert found.problem is None
    assert found.not_checked is None
    assert found.from_lines_s == pytest.approx(STEP_S)
    assert found.from_counters_s == pytest.approx(40 / 800)
    assert found.lines == 5, "3 to 5 and 5 to 7 within the first, 13 to 15, 15 to 17 and 17 to 19 within the second"
    assert found.bound == pytest.approx(0.005 / 2.5 + 0.005 / 50 + 2 * 0.002 / 10, rel=1e-6)


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_a_difference_beyond_the_bound_invalidates(factor: float) -> None:
    found = check([decode(second, step_s=STEP_S * factor) for second in range(1, 22, 2)])
    assert found.problem is not None
    assert "apart" in found.problem
    assert steps_problem([found]) == f"c1-prose: {found.problem}"


def test_scatter_widens_the_bound() -> None:
    scattered = [decode(s, step_s=STEP_S * (0.9 if s % 4 == 1 else 1.14)) for s in range(1, 22, 2)]
    found = check(scattered)
    assert found.problem is None
    assert found.bound is not None
    assert found.bound > 0.1


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [decode(second, running=2) for second in range(1, 22)],
        [decode(second, graph=False) for second in range(1, 22)],
        [decode(second) for second in range(45, 58)],
        [decode(second) for second in (0, 1, 2, 9, 11, 12, 20, 22)],
        [decode(second).split("] ", 1)[1] for second in range(1, 22)],
        [decode(second, running=1 + second % 2) for second in range(1, 22)],
    ],
    ids=["none", "others", "no graph", "after", "edges", "no stamps", "changing"],
)
def test_without_usable_lines_it_is_not_checked(lines: list[str]) -> None:
    found = check(lines)
    assert (found.problem, found.bound) == (None, None)
    assert "decode lines" in (found.not_checked or "")


def test_without_verify_calls_it_is_not_checked() -> None:
    output = copy.deepcopy(OUTPUT)
    output["windows"][0]["metrics"] = [None, None]
    assert check(LOG, output).not_checked == "verify calls"


def test_streams_that_begin_and_end_apart_widen_the_bound() -> None:
    """A wave of two: one decodes two seconds while the other's prompt is still computed, and ends as much earlier."""
    output = copy.deepcopy(OUTPUT)
    output["windows"][0]["width"] = 2
    for request in output["requests"]:
        late = request["index"] % 2
        request.update(sent_ns=7_000_000_000 + request["index"] // 2 * 20_000_000_000)
        request.update(ttft_s=0.3 + 2 * late, total_s=10.3 + 2 * late)
    found = check([decode(second, running=2) for second in range(1, 44)], output)
    assert found.bound == pytest.approx(0.005 / 2.5 + 0.005 / 100 + 2 * 0.002 / 10 + 8 / 40, rel=1e-6)


def test_an_interval_begins_with_the_line_before_of_as_many_requests() -> None:
    log = "\n".join([decode(1), decode(2), "noise", decode(3, running=2), decode(5, running=2)])
    found = [(each.since and each.since.second, each.stamp and each.stamp.second) for each in decode_intervals(log)]
    assert found == [(None, 1), (1, 2), (None, 3), (3, 5)]
    assert decode_intervals("[2026-13-41 99:99:99 TP0] " + decode(1).split("] ", 1)[1])[0].stamp is None
