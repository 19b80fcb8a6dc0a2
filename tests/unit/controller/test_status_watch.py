"""`status --watch` on a clock that passes by sleeping: what it says, when, how it ends, and the hook of a rollback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.controller.test_fleet_state import DRIFT, HANGS, NO_ENGINES, ROLLBACK, engine, node, serving, silent

from trispark.errors import TrisparkError
from trispark.fleet_state import States
from trispark.status_watch import (
    AGAIN_S,
    INTERVAL_S,
    REPORTED_WITHIN_S,
    Complete,
    Look,
    Timing,
    Watched,
    changes,
    facts,
    watch,
)

ROOT = Path(__file__).resolve().parents[3]
ANSIBLE_S = 1.5
"""Start and end of ansible-playbook beside the calls of the nodes."""
Change = Callable[[dict[str, Any]], None]


class Scene:
    """A fleet that changes at given seconds; each look takes `look_s`."""

    def __init__(self, *events: tuple[float, Change], look_s: float = 2.0, interrupted_at: float | None = None) -> None:
        self.time = 0.0
        self.look_s = look_s
        self.events = list(events)
        self.interrupted_at = interrupted_at
        self.states: dict[str, Any] = serving()
        self.said: list[tuple[float, str]] = []
        self.shown: list[States] = []
        self.looks = 0

    def look(self) -> Look:
        self.looks += 1
        while self.events and self.events[0][0] <= self.time:
            self.events.pop(0)[1](self.states)
        self.time += self.look_s
        if self.interrupted_at is not None and self.time >= self.interrupted_at:
            return Look({}, interrupted=True)
        return Look({name: dict(state) for name, state in self.states.items()})

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def changed(self, line: str) -> None:
        self.said.append((self.time, line))

    def whole(self, states: States) -> None:
        self.shown.append(states)

    def run(self, for_s: float | None = 60, complete: Complete | None = None) -> Watched:
        timing = Timing(lambda: self.time, self.sleep, lambda: "12:00:00")
        return watch(self.look, self, timing, for_s=for_s, complete=complete)

    def when(self, words: str) -> float:
        return next(time for time, line in self.said if words in line)

    @property
    def lines(self) -> list[str]:
        return [line for _, line in self.said]


def back(states: dict[str, Any]) -> None:
    states["spark1"] = serving()["spark1"]


def test_a_fleet_in_which_nothing_changes_has_one_line() -> None:
    scene = Scene()
    watched = scene.run(20)
    assert scene.lines == ["12:00:00  SERVING: generation g1, boot b1, epoch 5"]
    assert (watched.interrupted, len(scene.shown)) == (False, scene.looks)
    assert scene.looks >= 4


@pytest.mark.parametrize("at", [0.1, 3.9, 4.0, 5.0])
def test_a_dead_worker_is_said_within_the_bound_though_the_head_says_ready(at: float) -> None:
    scene = Scene((at, engine("spark1", state="exited", exit_code=137, health=None)))
    scene.run()
    assert scene.when("the engine of rank 1 on spark1 has exited with 137") - at <= REPORTED_WITHIN_S
    assert any("spark1 engine: rank 1 exited with 137" in line for line in scene.lines)


def test_a_completion_that_hangs_is_said_though_every_container_runs() -> None:
    scene = Scene((5, node("spark0", canary=HANGS)))
    scene.run()
    assert scene.when("BROKEN: generation g1") <= 5 + REPORTED_WITHIN_S


@pytest.mark.parametrize("at", [0.1, 3.6, 5.0, 7.3])
def test_a_node_that_is_gone_is_said_within_the_bound_of_a_look_and_the_interval(at: float) -> None:
    """A look then takes as long as a node may take to answer, which status.yml says."""
    scene = Scene((at, silent("spark2")), look_s=ANSIBLE_S + node_bound_s())
    scene.run()
    # A look that began before the node went away may miss it; the next one does not.
    assert scene.when("DEGRADED: no answer from spark2") - at <= INTERVAL_S + 2 * scene.look_s
    # The look before had asked it just before it went away, and ended within a second.
    assert 1 + INTERVAL_S + ANSIBLE_S + node_bound_s() <= REPORTED_WITHIN_S


def node_bound_s() -> float:
    """How long a node may take, as the playbook says."""
    plays = yaml.safe_load((ROOT / "playbooks/status.yml").read_text(encoding="utf-8"))
    task = plays[1]["tasks"][0]["trispark_node"]
    return float(task["deadline_s"].split("default(")[1].split(")")[0])


def test_a_node_that_is_back_is_said_and_what_it_says_as_before_is_not_repeated() -> None:
    scene = Scene((0, node("spark1", drift=[DRIFT])), (5, silent("spark1")), (15, back))
    scene.run()
    differs = "spark1: differs: environment X: expected 3, observed 5"
    assert sum(differs in line for line in scene.lines) == 1, "only that it is gone at the end"
    assert f"12:00:00  no longer: {differs}" in scene.lines
    assert "12:00:00  spark1: answers (before: does not answer: timed out)" in scene.lines
    assert not any("spark1 engine" in line for line in scene.lines)


def test_a_node_that_is_back_with_another_state_says_so() -> None:
    scene = Scene((5, silent("spark1")), (15, back), (15, node("spark1", current="g2")))
    scene.run()
    assert "12:00:00  spark1 current: g2 (before: g1)" in scene.lines


def test_ctrl_c_between_two_looks_and_within_one_ends_the_watch() -> None:
    within = Scene(interrupted_at=9)
    watched = within.run(None)
    assert watched.interrupted
    assert watched.states is not None

    def pressed(_seconds: float) -> None:
        raise KeyboardInterrupt

    between = Scene()
    between.sleep = pressed  # type: ignore[method-assign]
    assert between.run(None).interrupted
    assert between.looks == 1


@pytest.mark.parametrize("for_s", [0, 1, 12])
def test_a_watch_for_some_seconds_looks_at_least_once_and_ends(for_s: float) -> None:
    scene = Scene()
    watched = scene.run(for_s)
    assert (watched.interrupted, scene.looks >= 1) == (False, True)
    assert scene.time <= for_s + scene.look_s


def test_a_look_that_says_nothing_is_named_once_and_is_no_state() -> None:
    scene = Scene()
    failed = [Look({}, failure="TS-PLAY-FAILED: status ended with 4")] * 2
    look = scene.look
    scene.look = lambda: failed.pop() if failed else look()  # type: ignore[method-assign]
    scene.run(10)
    assert scene.lines[0] == "12:00:00  no look: TS-PLAY-FAILED: status ended with 4"
    assert scene.lines[1].startswith("12:00:00  SERVING")


# -- the rollback that waits for a node ------------------------------------------------------------------------------


DOWN = tuple((0, change) for change in NO_ENGINES)


class Completing:
    """Completes the rollback, after as many failures as asked for."""

    def __init__(self, states: dict[str, Any], failures: int = 0, error_id: str = "TS-LOCK-HELD") -> None:
        self.error_id = error_id
        self.states = states
        self.failures = failures
        self.calls: list[Mapping[str, Any]] = []

    def __call__(self, rollback: Mapping[str, Any]) -> list[str]:
        self.calls.append(rollback)
        if len(self.calls) <= self.failures:
            raise TrisparkError(self.error_id, "x", where="x", expected="x", observed="x", remedy="x")
        self.states["spark0"]["rollback"] = None
        return ["rollback to g0 is complete"]


def test_a_rollback_is_completed_when_all_nodes_answer_and_not_before() -> None:
    scene = Scene(*DOWN, (0, node("spark0", rollback=ROLLBACK)), (0, silent("spark1")), (20, back))
    completing = Completing(scene.states)
    scene.run(complete=completing)
    assert completing.calls == [ROLLBACK]
    assert 20 <= scene.when("rollback to g0 is complete") <= 20 + REPORTED_WITHIN_S
    assert "DEGRADED" not in scene.lines[-1]


def test_a_completion_that_fails_is_said_and_tried_again_later() -> None:
    scene = Scene(*DOWN, (0, node("spark0", rollback=ROLLBACK)))
    completing = Completing(scene.states, failures=1)
    scene.run(complete=completing)
    assert len(completing.calls) == 2
    assert scene.when("rollback to g0 is complete") - scene.when("TS-LOCK-HELD") >= AGAIN_S


def test_what_fails_once_is_not_started_again_by_itself() -> None:
    """A boot that takes a node down would be begun again at each of its returns."""
    scene = Scene(*DOWN, (0, node("spark0", rollback=ROLLBACK)))
    completing = Completing(scene.states, failures=9, error_id="TS-RECOVER-WATCH")
    scene.run(300, completing)
    assert len(completing.calls) == 1


def test_a_rollback_that_waits_for_nobody_is_left_to_a_person() -> None:
    scene = Scene(*DOWN, (0, node("spark0", rollback={**ROLLBACK, "missing": []})))
    completing = Completing(scene.states)
    scene.run(60, completing)
    assert completing.calls == []


def test_nothing_is_completed_while_another_command_is_at_work() -> None:
    lock = {"holder": {"alive": True, "reason": "rollback", "user": "ann", "host": "desk", "pid": 7}}
    scene = Scene(*DOWN, (0, node("spark0", rollback=ROLLBACK)), (0, node("spark1", lock=lock)))
    completing = Completing(scene.states)
    scene.run(60, completing)
    assert completing.calls == []


def test_an_agent_that_refuses_is_no_answer_for_a_completion() -> None:
    refused: Change = lambda states: states.update(spark1={"reachable": True, "error": "TS-AGENT-PROTOCOL: x"})  # noqa: E731
    scene = Scene((0, node("spark0", rollback=ROLLBACK)), (0, refused))
    completing = Completing(scene.states)
    scene.run(20, completing)
    assert completing.calls == []


# -- facts -----------------------------------------------------------------------------------------------------------


def test_memory_and_the_time_of_a_canary_are_no_change() -> None:
    before, after = serving(), serving()
    after["spark0"]["memory"] = {"available_bytes": 1, "total_bytes": 2}
    after["spark0"]["canary"] = {**after["spark0"]["canary"], "seconds": 1.9, "why": "busy: not asked"}
    after["spark1"]["engine"]["resident_bytes"] = 7
    assert list(changes(facts(before), facts(after))) == []


def test_a_fact_that_is_gone_is_said() -> None:
    before, after = serving(), serving()
    before["spark1"]["pending"] = [{"verb": "stage", "time": "10:00"}]
    assert list(changes(facts(before), facts(after))) == ["no longer: spark1: begun and not ended: stage (since 10:00)"]
