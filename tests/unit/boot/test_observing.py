"""An observation waits for the counters that the requests before it must move, and names what did not move them."""

from __future__ import annotations

from typing import Any

import pytest

from trispark.observing import observe


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def log(*lookups: int) -> str:
    return "".join(
        f"Engram layer=1 lookups={count} hit_rate=0.0% reads={count} cache=0.0GiB(4-way) packed=True\n"
        for count in lookups
    )


def seen(*logs: str, phase: str = "boot", awaited: tuple[str, ...] = (), more_than: int = 10) -> dict[str, Any]:
    """A rank whose log is each of `logs` in turn, the last one for ever; asked once a second for five seconds."""
    left, clock = list(logs), Clock()
    return observe(
        lambda: {"log": left.pop(0) if len(left) > 1 else left[0]},
        layers=[1],
        more_than={1: more_than},
        awaited=awaited,
        deadline_s=5,
        interval_s=1,
        phase=phase,
        clock=clock,
        pause=clock.pause,
    )


def test_it_asks_until_the_counters_have_grown() -> None:
    result = seen(log(10), log(10), log(10, 3))
    assert (result["lookups"], result.get("failed")) == ({"1": 13}, None)


@pytest.mark.parametrize(
    ("phase", "check_id", "cause"),
    [("boot", "engram.reads", "the canary"), ("after_load", "after_load.engram.reads", "the measurement")],
)
def test_counters_that_stand_still_fail_the_check_of_their_phase(phase: str, check_id: str, cause: str) -> None:
    result = seen(log(10), phase=phase)
    assert (result["failed"], result["check_id"]) == (True, check_id)
    assert result["msg"].startswith(f"{check_id}: the row store counted no read of {cause} in time; ")
    assert "; do: " in result["msg"]


def test_awaited_lines_that_do_not_come_are_left_to_the_gates() -> None:
    assert "failed" not in seen(log(11), awaited=("twins",))
    assert "twins" in seen(log(11), log(11) + "twins for 4", awaited=("twins",))["answer"]["log"]
