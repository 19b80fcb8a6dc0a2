"""What a rollback says when its first half is over: the fleet can boot, nodes are missing, or one lags behind."""

from __future__ import annotations

from typing import Any

import pytest

from trispark.rollback_outcome import DEGRADED, FAILED, READY, judge


def done(**changes: Any) -> dict[str, Any]:
    answer = {
        "ok": True, "changed": True, "generation": "g1", "previous": "g2", "epoch": 6,
        "stop": {"seconds": 0.3, "killed": False, "log": "/x", "exit_code": 0}, "seconds": {"repointed": 0.4},
    }  # fmt: skip
    return {"answer": {**answer, **changes}}


LATE = {"failed": True, "check_id": "TS-AGENT-LATE", "msg": "TS-AGENT-LATE: the node agent did not end rollback"}
LEFT = {"failed": True, "check_id": "TS-AGENT-PROCESS-LEFT", "msg": "TS-AGENT-PROCESS-LEFT: PIDs 77"}
GONE = {"unreachable": True, "msg": "No route to host"}


@pytest.mark.parametrize(
    ("results", "missing", "state", "names"),
    [
        ([done(), done(), done()], {}, READY, ()),
        ([done(), done(), {"skipped": True}], {"spark2": "No route to host"}, DEGRADED, ("spark2",)),
        ([done(), GONE, done()], {}, DEGRADED, ("spark1",)),
        ([done(), LATE, done()], {}, DEGRADED, ("spark1",)),
        ([done(), LEFT, done()], {}, FAILED, ()),
        ([LEFT, done(), {"skipped": True}], {"spark2": "No route to host"}, FAILED, ("spark2",)),
        ([done(), done(), {}], {}, FAILED, ()),
    ],
    ids=["ready", "missing", "lost", "hangs", "left", "left-and-missing", "never-asked"],
)
def test_state(results, missing, state, names) -> None:
    found = judge("g1", {f"spark{rank}": result for rank, result in enumerate(results)}, missing, 3.21)
    assert (found.state, found.missing) == (state, names)
    assert (found.failure_line() == "") is (state == READY)
    assert found.published()["state"] == state
    assert found.published()["verified"] is False
    assert len(found.lines()) == 4
    if state != READY:
        assert found.failure_line().startswith(f"TS-ROLLBACK-{state}: ")
        assert "nothing serves" in found.lines()[-1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "stopped in 0.3 s, exit code 0; current g1; epoch 6"),
        ({"previous": "g1"}, "stopped in 0.3 s, exit code 0; current g1 as before; epoch 6"),
        ({"stop": None}, "nothing ran; current g1; epoch 6"),
        (
            {"stop": {"seconds": 4.1, "killed": True, "log": "/x", "exit_code": 137}},
            "killed after 4.1 s; current g1; epoch 6",
        ),
    ],
)
def test_words(changes, words) -> None:
    assert judge("g1", {"spark0": done(**changes)}, {}, 1.0).nodes[0].words == words


@pytest.mark.parametrize(
    ("results", "missing", "state", "where"),
    [
        ([done(), done()], {"spark2": "No route to host"}, DEGRADED, "spark2"),
        ([done(), LEFT, done()], {}, FAILED, "spark1"),
    ],
)
def test_a_plan_says_what_a_rollback_would_end_as_and_did_nothing(results, missing, state, where) -> None:
    found = judge("g1", {f"spark{rank}": result for rank, result in enumerate(results)}, missing, 1.0, planned=True)
    line = found.failure_line()
    assert line.startswith(f"TS-ROLLBACK-PLAN: the rollback would end {state}; where: {where}; ")
    assert "nothing was done" in line
    assert len(found.lines()) == 3, "no line on what was stopped"
    assert judge("g1", {"spark0": done()}, {}, 1.0, planned=True).failure_line() == ""


def test_what_would_be_done() -> None:
    answer = {"ok": True, "changed": True, "generation": "g1", "previous": "g2", "epoch": 6}
    assert judge("g1", {"spark0": {"answer": answer}}, {}, 1.0).nodes[0].words == "would be stopped and repointed to g1"
