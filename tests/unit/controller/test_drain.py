"""Waiting until production serves nothing: what the engine answers, and the bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from trispark.drain import LOADS_PATH, METRICS_PATH, drain, requests_of
from trispark.errors import TrisparkError

METRICS = """\
# HELP sglang:num_running_reqs Requests that run.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",engine_type="x"} 2.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:num_used_tokens 900
"""


def loads(*pairs: tuple[int, int]) -> dict[str, Any]:
    found = [{"dp_rank": n, "num_running_reqs": run, "num_waiting_reqs": wait} for n, (run, wait) in enumerate(pairs)]
    return {"status": 200, "body": {"dp_rank_count": len(pairs), "loads": found}}


@pytest.mark.parametrize(
    ("path", "answer", "count"),
    [
        (LOADS_PATH, loads((0, 0)), 0),
        (LOADS_PATH, loads((1, 2), (3, 0)), 6),
        (LOADS_PATH, {"status": 200, "body": [{"num_reqs": 2, "num_waiting_reqs": 1}]}, 3),
        (LOADS_PATH, {"status": 200, "body": [{"num_reqs": 2}]}, 2),
        (LOADS_PATH, {"status": 404, "body": "not found"}, None),
        (LOADS_PATH, {"status": 200, "body": {"loads": []}}, None),
        (LOADS_PATH, {"status": 200, "body": {"loads": [{"num_running_reqs": "2"}]}}, None),
        (LOADS_PATH, {"status": 200, "body": "ok"}, None),
        (METRICS_PATH, {"status": 200, "body": METRICS}, 3),
        (METRICS_PATH, {"status": 200, "body": "sglang:num_running_reqs 1e+01\n"}, 10),
        (METRICS_PATH, {"status": 200, "body": "other 1\n"}, None),
        (METRICS_PATH, {"status": 200, "body": {}}, None),
    ],
)
def test_requests_in_an_answer(path: str, answer: Mapping[str, Any], count: int | None) -> None:
    assert requests_of(path, answer) == count


class Engine:
    """Answers in turn, the last one for ever; time passes by sleeping."""

    def __init__(self, *counts: int, path: str = LOADS_PATH) -> None:
        self.counts = list(counts)
        self.path = path
        self.time = 0.0
        self.asked: list[str] = []

    def ask(self, path: str) -> Mapping[str, Any]:
        self.asked.append(path)
        if path != self.path:
            return {"status": 404, "body": ""}
        count = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        return (
            loads((count, 0)) if path == LOADS_PATH else {"status": 200, "body": f"sglang:num_running_reqs {count}\n"}
        )

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def drain(self, deadline_s: float = 60) -> Any:
        return drain(self.ask, deadline_s, 2, lambda: self.time, self.sleep)


@pytest.mark.parametrize("path", [LOADS_PATH, METRICS_PATH])
def test_it_waits_until_nothing_runs_twice_in_a_row(path: str) -> None:
    engine = Engine(3, 0, 1, 0, 0, path=path)
    drained = engine.drain()
    assert (drained.at_first, drained.seconds) == (3, 8)


def test_an_idle_engine_is_drained_after_the_second_look() -> None:
    engine = Engine(0)
    assert engine.drain().seconds == 2
    assert engine.asked == [LOADS_PATH] * 2


def test_the_wait_has_a_bound_and_says_what_still_runs() -> None:
    engine = Engine(2)
    with pytest.raises(TrisparkError) as caught:
        engine.drain(10)
    assert (caught.value.id, caught.value.observed, engine.time) == ("TS-DRAIN-BUSY", "2 running or waiting", 10)


def test_an_engine_that_does_not_tell_is_not_taken_for_idle() -> None:
    with pytest.raises(TrisparkError) as caught:
        Engine(0, path="/elsewhere").drain()
    assert caught.value.id == "TS-DRAIN-UNKNOWN"
