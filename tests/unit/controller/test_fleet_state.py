"""What the answers of three nodes mean together, what is shown of them, and what a script gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.cli.status import exit_of
from trispark.fleet_state import BROKEN, DEGRADED, NAMES, SERVING, STARTING, STOPPED, judge
from trispark.status_view import status_lines

NODES = ("spark0", "spark1", "spark2")
GIB = 2**30
OK = {"ok": True, "seconds": 0.21, "tokens": 2, "running": 0, "why": ""}


def serving() -> dict[str, dict[str, Any]]:
    """Three nodes that serve one boot."""
    return {
        node: {
            "reachable": True,
            "current": "g1",
            "good": [{"generation": "g1"}],
            "epoch": 5,
            "engine": {
                "name": "trispark-engine", "state": "running", "health": "ready", "generation": "g1", "boot_id": "b1",
                "epoch": 5, "rank": rank, "exit_code": None, "resident_bytes": GIB,
            },
            "others": [], "foreign": [], "unknown": [], "drift": [], "pending": [], "problems": [], "damaged": {},
            "memory": {"available_bytes": 3 * GIB, "total_bytes": 8 * GIB, "source": "meminfo"},
            "packed": {"1": True, "14": True},
            "canary": OK if rank == 0 else None,
            "record_head": {"id": "r9"},
            "last_verdict": {"id": "t1", "feature": "wo_a", "value": None, "verdict": "KEEP"},
            "last_boot": {"id": "r9", "boot_id": "b1", "state": "valid", "reason": ""},
            "lock": None,
            "rollback": None,
        }
        for rank, node in enumerate(NODES)
    }  # fmt: skip


def stopped() -> dict[str, dict[str, Any]]:
    return {node: {**state, "engine": None, "canary": None, "packed": None} for node, state in serving().items()}


def engine(node: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda states: states[node]["engine"].update(values)


def node(name: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda states: states[name].update(values)


def silent(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda states: states.update({name: {"reachable": False, "reason": "timed out"}})


def without_engine(name: str) -> Callable[[dict[str, Any]], None]:
    return node(name, engine=None)


ROLLBACK = {"target": "g0", "epoch": 6, "missing": ["spark2"], "since": "10:00"}
NO_ENGINES = [without_engine(f"spark{rank}") for rank in range(3)]
HOLDER = {"alive": True, "reason": "rollback", "user": "ann", "host": "desk", "pid": 7}
HANGS = {**OK, "ok": False, "why": "no answer within 2 s"}
DRIFT = {"what": "environment X", "expected": "3", "observed": "5"}
SHARD = {"what": "shard /srv/engram/a.bin", "expected": "5 bytes", "observed": "4 bytes"}
STATES: dict[str, tuple[list[Callable[[dict[str, Any]], None]], str, int, str]] = {
    "all serve": ([], SERVING, 0, "generation g1, boot b1, epoch 5, healthy by canary in 0.21 s"),
    "busy": ([node("spark0", canary={**OK, "why": "busy: not asked"})], SERVING, 0, "busy: not asked"),
    "not asked": ([node("spark0", canary={**OK, "ok": None, "why": "not asked: x"})], SERVING, 0, "not asked: x"),
    "an older head": ([node("spark0", canary=None)], SERVING, 0, "no canary was asked"),
    "the head says 200 and its ranks do not compute": (
        [node("spark0", canary=HANGS)], BROKEN, 1, "/health of the head says ready, a completion fails: no answer",
    ),
    "a worker has exited while the head says 200": (
        [engine("spark1", state="exited", exit_code=137, health=None)],
        BROKEN, 1, "the engine of rank 1 on spark1 has exited with 137",
    ),
    "a worker is paused": (
        [engine("spark2", state="paused", health=None)], BROKEN, 1, "the engine of rank 2 on spark2 is paused",
    ),
    "a worker has none": ([without_engine("spark1")], BROKEN, 1, "no engine on spark1"),
    "two boots": ([engine("spark1", boot_id="b0")], BROKEN, 1, "engines of different boots"),
    "it starts": (
        [engine("spark0", health="unreachable"), node("spark0", canary={**OK, "ok": None, "why": "not asked: x"})],
        STARTING, 1, "not ready: rank 0 on spark0",
    ),
    "Docker hangs": (
        [node("spark1", engine=None, unknown=["engine"], problems=["engine: no answer within 2 s"])],
        BROKEN, 1, "the Docker Engine of spark1 does not tell what runs",
    ),
    "an agent refuses": (
        [lambda states: states.update(spark1={"reachable": True, "error": "TS-AGENT-PROTOCOL: x"})],
        BROKEN, 1, "the agent of spark1 refuses or fails",
    ),
    "a node is gone": ([silent("spark2")], DEGRADED, 4, "no answer from spark2"),
    "all nodes are gone": ([silent(each) for each in NODES], DEGRADED, 4, "no node answers"),
    "a rollback waits": (
        [silent("spark2"), node("spark0", rollback=ROLLBACK)],
        DEGRADED, 4, "the rollback to g0 waits for spark2 since 10:00; no answer from spark2",
    ),
    "a rollback could be completed": (
        [*NO_ENGINES, node("spark0", rollback=ROLLBACK)], DEGRADED, 1, "waits for spark2 since 10:00; all nodes answer",
    ),
    "a rollback whose boot failed": (
        [*NO_ENGINES, node("spark0", rollback={**ROLLBACK, "missing": []})],
        DEGRADED, 1, "the rollback to g0 did not end with a boot that serves since 10:00",
    ),
    "a rollback that goes on": (
        [*NO_ENGINES, node("spark0", rollback=ROLLBACK), node("spark1", lock={"holder": HOLDER})],
        STARTING, 1, "the rollback to g0 goes on: rollback of ann on desk, pid 7",
    ),
    "a rollback that is forgotten on one node and serves": (
        [node("spark0", rollback=ROLLBACK)], SERVING, 0, "generation g1, boot b1",
    ),
    "serving with drift": ([node("spark1", drift=[DRIFT])], SERVING, 1, "; 1 to look at below"),
    "serving with a changed shard": ([node("spark1", drift=[SHARD])], SERVING, 1, "; 1 to look at below"),
    "a layer that fell back": ([node("spark1", packed={"1": False})], SERVING, 1, "; 1 to look at below"),
    "a foreign container": ([node("spark1", foreign=["trispark-bench"])], SERVING, 1, "to look at below"),
    "epochs differ": ([node("spark1", epoch=4)], SERVING, 1, "to look at below"),
    "records differ": ([node("spark1", record_head={"id": "r8"})], SERVING, 1, "to look at below"),
    "work begun": ([node("spark1", pending=[{"verb": "stage", "time": "t"}])], SERVING, 0, "healthy by canary"),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_every_state_has_its_name_its_reason_and_its_exit_status(name: str) -> None:
    changes, expected, status, words = STATES[name]
    states = serving()
    for change in changes:
        change(states)
    fleet = judge(states)
    assert (fleet.name, exit_of(states)) == (expected, status)
    first = next(status_lines(states))
    assert first.startswith(f"{expected}: ")
    assert words in first


def test_no_answers_at_all_are_no_stopped_fleet() -> None:
    assert (judge({}).name, exit_of({})) == (DEGRADED, 1)


def test_every_name_of_a_state_is_tested() -> None:
    assert {expected for _, expected, _, _ in STATES.values()} | {STOPPED} == set(NAMES)


def test_a_fleet_without_engines_is_stopped_and_consistent() -> None:
    states = stopped()
    assert (judge(states).name, exit_of(states)) == (STOPPED, 0)
    assert list(status_lines(states))[-1].startswith("do: ./trispark play site")
    for state in states.values():
        state["current"] = None
    assert judge(states).do == ()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("a worker has exited while the head says 200", "./trispark rollback"),
        ("the head says 200 and its ranks do not compute", "./trispark rollback"),
        ("a node is gone", "./trispark status --watch"),
        ("it starts", "./trispark status --watch"),
        ("serving with drift", "./trispark play verify"),
        ("serving with a changed shard", "./trispark engram verify"),
        ("a foreign container", "./trispark play adopt"),
        ("a rollback could be completed", "./trispark recover"),
        ("a rollback whose boot failed", "./trispark rollback"),
    ],
)
def test_each_symptom_has_its_command(name: str, command: str) -> None:
    states = serving()
    for change in STATES[name][0]:
        change(states)
    assert any(command in line for line in status_lines(states) if line.startswith("do: "))


def test_three_serving_nodes_fit_on_a_screen() -> None:
    assert list(status_lines(serving())) == [
        "SERVING: generation g1, boot b1, epoch 5, healthy by canary in 0.21 s",
        "spark0  rank 0 running  packed yes  engine 1.0, free 3.0 of 8.0 GiB",
        "spark1  rank 1 running  packed yes  engine 1.0, free 3.0 of 8.0 GiB",
        "spark2  rank 2 running  packed yes  engine 1.0, free 3.0 of 8.0 GiB",
        "all nodes  current g1, last good g1, epoch 5",
        "all nodes  last verdict: wo_a: KEEP (t1)",
    ]


def test_what_is_wrong_is_shown_with_its_node() -> None:
    states = serving()
    states["spark1"].update(
        drift=[DRIFT], problems=["journal: lines 3"], foreign=["trispark-bench"],
        others=[{"name": "old", "state": "exited", "boot_id": "b0", "epoch": 4}],
        pending=[{"verb": "activate", "time": "10:00"}], damaged={"g0": "changed: launch.args"},
        last_boot={"boot_id": "b2", "state": "failed", "reason": "boot.ready"}, baseline={"record": "t1"},
        lock={"holder": {"reason": "stage_c", "user": "u", "host": "h", "pid": 7, "since": "10:00", "alive": False}},
    )  # fmt: skip
    states["spark1"]["engine"].update(state="exited", exit_code=1)
    lines = list(status_lines(states))
    assert lines[2].startswith("spark1  rank 1 exited with 1  ")
    for line in (
        "differs: environment X: expected 3, observed 5",
        "damaged: journal: lines 3",
        "not ours, in our place: trispark-bench",
        "another engine of ours: old is exited, boot b0",
        "begun and not ended: activate (since 10:00)",
        "generation g0 cannot be gone back to: changed: launch.args",
        "last boot: b2 was failed: boot.ready",
        "baseline promoted by t1",
        "lock: stage_c of u on h, pid 7 since 10:00, its lease has ended",
    ):
        assert f"spark1  {line}" in lines


VALUES = st.none() | st.booleans() | st.text(max_size=3)


@given(
    st.dictionaries(
        st.sampled_from(NODES),
        st.fixed_dictionaries(
            {},
            optional={
                "reachable": st.booleans(),
                "error": st.text(max_size=3),
                "reason": st.text(max_size=3),
                "current": VALUES,
                "engine": st.none()
                | st.fixed_dictionaries({}, optional={"state": VALUES, "rank": st.none() | st.integers(0, 2)}),
                "canary": st.none() | st.fixed_dictionaries({}, optional={"ok": st.none() | st.booleans()}),
                "unknown": st.lists(st.just("engine"), max_size=1),
                "good": st.lists(VALUES, max_size=1),
                "epoch": st.integers(0, 3),
            },
        ),
    )
)
def test_no_answer_of_a_node_is_a_traceback(states: dict[str, dict[str, Any]]) -> None:
    assert next(status_lines(states)).split(":")[0] in NAMES
    assert exit_of(states) in (0, 1, 4)
