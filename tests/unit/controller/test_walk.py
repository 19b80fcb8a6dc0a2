"""A walk over the boots of a stage: children that leave records or not, hosts that go down, a clock set by hand."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.errors import TrisparkError
from trispark.reporting import paused
from trispark.walk import BootRequest, ChildEnd, Walker, WalkInterrupted, changed_hosts
from trispark.walk_journal import Journal
from trispark.walk_plan import Slot, TrialOfWalk, WalkPlan
from trispark.walk_slots import goes_on
from trispark.walk_time import BootTimes

BASE, WALK = "g" + "0" * 16, "t20260102T030405Z-a1b2"
NODES = ("spark0", "spark1", "spark2")
START = datetime(2026, 1, 2, 22, 0, tzinfo=UTC)
BOOT_S = 60.0


def generation(label: str) -> str:
    return "g" + label.encode().hex()[:16].ljust(16, "f")


def make_plan(*labels: str, tune: bool = False) -> WalkPlan:
    """One shared boot of the baseline, then one of each candidate; with `tune` an uncounted one before it."""
    slots = [Slot(0, "baseline", True, False, tuple(range(len(labels))), None, "baseline", BASE, "measures")]
    for index, label in enumerate(labels):
        for counted in (False, True) if tune else (True,):
            slots.append(
                Slot(len(slots), "candidate", counted, False, (index,), label, label, generation(label), "measures")
            )
    trials = tuple(
        TrialOfWalk(
            WALK if len(labels) == 1 else f"{WALK}.{label}", f"p{index}", label, label, (), BASE, generation(label)
        )
        for index, label in enumerate(labels)
    )
    resolved = {gen: {"settings": {}} for gen in (BASE, *(generation(label) for label in labels))}
    return WalkPlan(WALK, "lab", "c", "wo_a", None, BASE, None, tuple(slots), trials, resolved)


class HandClock:
    def __init__(self) -> None:
        self.time = START

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


class Killed(Exception):
    """The controller is gone; nothing after it happens."""


@dataclass
class World:
    """Three nodes and what the boots on them leave. `script`: {slot: outcomes in turn}, `valid` where nothing is said.

    Outcomes: valid, invalid, failed (recorded); none (no record); changed (refused, no record); down:NODE (no record
    and the node started anew); invalid-down:NODE (recorded, and so); silent:NODE (no record, and the node stays away);
    killed (the controller dies before the record), killed-after (after it), killed-after-invalid, interrupted.
    """

    script: dict[int, list[str]] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    booted: list[tuple[int, str]] = field(default_factory=list)
    clock: HandClock = field(default_factory=HandClock)
    starts: dict[str, str] = field(default_factory=lambda: dict.fromkeys(NODES, "k:1"))
    away: dict[str, int] = field(default_factory=dict)
    serving: str | None = BASE
    asked: int = 0
    blind: int = 0
    """So many looks at the nodes fail from now on."""

    def boot(self, request: BootRequest) -> ChildEnd:
        self.booted.append((request.slot, request.purpose))
        outcomes = self.script.get(request.slot) or []
        outcome = outcomes.pop(0) if outcomes else "valid"
        self.clock.sleep(BOOT_S)
        kind, _, node = outcome.partition(":")
        if kind not in ("changed", "refused"):
            self.serving = None
        if kind in ("valid", "invalid", "failed", "killed-after", "killed-after-invalid", "invalid-down"):
            states = {"killed-after": "valid", "killed-after-invalid": "invalid", "invalid-down": "invalid"}
            state = states.get(kind, kind)
            self.serving = request.generation if state == "valid" else None
            self._record(request, state)
        if kind.startswith("killed"):
            raise Killed
        if kind.endswith("down"):
            self.starts[node] += "+"
        if kind == "silent":
            self.away[node] = 10**6
        lines = {
            "changed": "TS-PLAN-CHANGED: the candidate is not the planned one",
            "refused": "TS-X-Y: refused",
            "lost": "TS-LOCK-LOST: this command does not hold it; observed: broken by rollback of ben",
            "held": "TS-LOCK-HELD: another command works; observed: boot of ben",
        }
        ok = kind == "valid"
        return ChildEnd(ok, kind == "interrupted", () if ok else (lines.get(kind, f"TS-BOOT-X: {outcome}"),), BOOT_S)

    def _record(self, request: BootRequest, state: str) -> None:
        trial = None if request.purpose == "rollback" else WALK
        slot = None if request.purpose == "rollback" else request.slot
        self.records.append(
            {
                "kind": "boot",
                "id": f"b{len(self.records)}",
                "seq": len(self.records) + 1,
                "requested": {"trial": trial, "slot": slot, "purpose": request.purpose},
                "resolved": {"generation": request.generation},
                "outcome": {"state": state, "reason": "all gates passed" if state == "valid" else "a gate"},
            }
        )

    def statuses(self) -> dict[str, Any]:
        self.asked += 1
        if self.blind:
            self.blind -= 1
            raise TrisparkError(
                "TS-WALK-STATUS", "a look at the nodes failed", "status.yml", "states", "nothing", "look"
            )
        answers: dict[str, Any] = {}
        for node in NODES:
            left = self.away.get(node, 0)
            self.away[node] = max(0, left - 1)
            engine = {
                "state": "running", "health": "ready", "generation": self.serving, "boot_id": "b", "epoch": 1,
            }  # fmt: skip
            answers[node] = (
                None
                if left
                else {
                    "host_boot": self.starts[node],
                    "current": self.serving,
                    "engine": engine if self.serving else None,
                }
            )
        return answers


@pytest.fixture
def world() -> World:
    return World()


def walk_in(directory: Path, world: World, plan: WalkPlan, deadline: datetime | None = None) -> Any:
    """Walks a plan in a world as a new controller would; returns the end and the lines."""
    lines: list[str] = []
    walker = Walker(
        plan=plan,
        journal=Journal(directory / plan.walk),
        records=lambda: world.records,
        children=world,
        clock=world.clock,
        say=lines.append,
        times=BootTimes(BOOT_S, BOOT_S),
        statuses=world.statuses(),
        deadline=deadline,
        return_s=300,
    )
    return walker.walk(), lines


@pytest.fixture
def walk(tmp_path: Path) -> Callable[..., Any]:
    return partial(walk_in, tmp_path)


def slots(world: World) -> list[int]:
    return [slot for slot, _ in world.booted]


def test_a_trial_is_its_boots_in_order_and_the_baseline_again(world: World, walk: Any) -> None:
    end, lines = walk(world, make_plan("x"))
    assert (end.state, end.reason, end.restored) == ("complete", "", "b2")
    assert world.booted == [(0, "trial"), (1, "trial"), (2, "restore")]
    assert lines == [
        "slot 1/3 baseline: valid, 60 s; about 2 min left",
        "slot 2/3 candidate x: valid, 60 s; about 60 s left",
        "slot 3/3 restore baseline: valid, 60 s",
    ]
    assert world.asked == 1, "no look at the nodes besides the first while all goes well"


def test_a_boot_that_is_not_counted_says_so(world: World, walk: Any) -> None:
    plan = make_plan("x")
    tuning = replace(plan.slots[0], arm="candidate", label="x", counted=False)
    _, lines = walk(world, replace(plan, slots=(tuning, *plan.slots[1:])))
    assert lines[0].startswith("slot 1/3 candidate x (not counted): valid, ")
    assert [line for line in lines if "not counted" in line] == lines[:1]


def test_a_sweep_shares_the_baseline(world: World, walk: Any) -> None:
    end, _ = walk(world, make_plan("2", "4", "5"))
    assert slots(world) == [0, 1, 2, 3, 4]
    assert (end.state, end.restored) == ("complete", "b4")


def test_a_walk_that_ends_with_the_baseline_needs_no_further_boot(world: World, walk: Any) -> None:
    plan = make_plan("x")
    last = Slot(2, "baseline", True, False, (0,), None, "baseline", BASE, "measures")
    plan = WalkPlan(**{**plan.__dict__, "slots": (*plan.slots, last)})
    end, _ = walk(world, plan)
    assert slots(world) == [0, 1, 2]
    assert end.restored == "b2"


@pytest.mark.parametrize("killed_in", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["killed", "killed-after"])
def test_a_killed_controller_goes_on_at_the_exact_boot(world: World, walk: Any, killed_in: int, how: str) -> None:
    plan = make_plan("4", "5")
    world.script = {killed_in: [how]}
    with pytest.raises(Killed):
        walk(world, plan)
    before = [record["id"] for record in world.records]
    end, lines = walk(world, plan)
    assert (end.state, end.reason) == ("complete", "")
    assert end.restored == world.records[-1]["id"]
    assert [record["id"] for record in world.records][: len(before)] == before, "no record is lost"
    repeated = [slot for slot in range(4) if slots(world).count(slot) > 1]
    assert repeated == ([killed_in] if how == "killed" else [])
    recorded = [record["requested"]["slot"] for record in world.records]
    assert recorded == [0, 1, 2, 3], "every boot is recorded once, in order"
    assert sum("done before" in line for line in lines) == (killed_in if how == "killed" else min(killed_in + 1, 3))


def test_a_walk_that_has_ended_boots_nothing_more(world: World, walk: Any) -> None:
    first, _ = walk(world, make_plan("x"))
    count = len(world.booted)
    second, _ = walk(world, make_plan("x"))
    assert len(world.booted) == count
    assert (second.state, second.restored) == (first.state, first.restored)


def test_a_resumed_walk_restores_a_baseline_that_something_else_replaced(world: World, walk: Any) -> None:
    walk(world, make_plan("x"))
    world.serving = generation("x")
    end, _ = walk(world, make_plan("x"))
    assert world.booted[-1] == (2, "restore")
    assert end.restored == world.records[-1]["id"]


def test_a_boot_is_begun_twice_at_most(world: World, walk: Any) -> None:
    plan = make_plan("x")
    world.script = {1: ["killed", "killed", "valid"]}
    for _ in range(2):
        with pytest.raises(Killed):
            walk(world, plan)
    end, _ = walk(world, plan)
    assert slots(world) == [0, 1, 1, 2]
    assert end.state == "stopped"
    assert "begun 2 times and left no record" in end.reason
    assert end.restored is not None


def test_a_boot_without_a_record_is_repeated_once(world: World, walk: Any) -> None:
    world.script = {1: ["none", "valid"]}
    end, _ = walk(world, make_plan("x"))
    assert slots(world) == [0, 1, 1, 2]
    assert end.state == "complete"


def test_two_failed_starts_stop_the_walk_with_the_baseline_restored(world: World, walk: Any) -> None:
    world.script = {1: ["none", "none"]}
    end, _ = walk(world, make_plan("4", "5"))
    assert slots(world) == [0, 1, 1, 3]
    assert (end.state, end.restored) == ("stopped", "b1")
    assert "2 boots did not start" in end.reason


def test_candidates_that_do_not_become_ready_count_over_the_values(world: World, walk: Any) -> None:
    world.script = {1: ["failed"], 2: ["failed"]}
    end, _ = walk(world, make_plan("2", "4", "5"))
    assert slots(world) == [0, 1, 2, 4]
    assert end.state == "stopped"
    assert end.restored is not None


def test_an_invalid_candidate_leaves_the_other_values_alone(world: World, walk: Any) -> None:
    world.script = {1: ["invalid"]}
    end, _ = walk(world, make_plan("2", "4"))
    assert slots(world) == [0, 1, 2, 3]
    assert end.state == "complete"


def test_a_candidate_that_was_not_valid_is_not_measured_again(world: World, walk: Any) -> None:
    world.script = {1: ["invalid"]}
    end, lines = walk(world, make_plan("x", tune=True))
    assert slots(world) == [0, 1, 3]
    assert end.state == "complete"
    assert any("left out" in line for line in lines)


@pytest.mark.parametrize("outcome", ["invalid", "failed"])
def test_without_a_valid_baseline_no_candidate_is_tried(world: World, walk: Any, outcome: str) -> None:
    world.script = {0: [outcome]}
    end, _ = walk(world, make_plan("x"))
    assert world.booted == [(0, "trial"), (2, "restore")]
    assert end.state == "stopped"
    assert "the boot of the baseline is" in end.reason
    assert end.restored is not None


@pytest.mark.parametrize("outcome", ["down:spark1", "invalid-down:spark1"])
def test_a_boot_that_took_a_node_down_is_never_tried_again(world: World, walk: Any, outcome: str) -> None:
    world.script = {1: [outcome, "valid"]}
    end, _ = walk(world, make_plan("4", "5"))
    assert slots(world) == [0, 1, 3]
    assert end.state == "stopped"
    assert end.reason == "boot 1 (4) took spark1 down; it is never tried again"
    assert end.restored is not None
    again, _ = walk(world, make_plan("4", "5"))
    assert (slots(world), again.state, again.reason) == ([0, 1, 3], "stopped", end.reason)


def test_a_node_that_came_back_while_nobody_looked_ends_the_trial(world: World, walk: Any) -> None:
    """The controller was killed in the middle of the boot that took the node down."""
    plan = make_plan("x")
    world.script = {1: ["killed", "valid"]}
    with pytest.raises(Killed):
        walk(world, plan)
    world.starts["spark2"] = "k2:7"
    end, _ = walk(world, plan)
    assert slots(world) == [0, 1, 2]
    assert end.reason == "boot 1 (x) took spark2 down; it is never tried again"
    assert end.restored is not None


def test_a_host_that_was_restarted_between_two_finished_boots_is_no_reason(world: World, walk: Any) -> None:
    plan = make_plan("4", "5")
    world.script = {1: ["killed-after"]}
    with pytest.raises(Killed):
        walk(world, plan)
    world.starts["spark2"] = "k2:7"
    end, _ = walk(world, plan)
    assert (slots(world), end.state) == ([0, 1, 2, 3], "complete")


@pytest.mark.parametrize(("away", "restored"), [(5, True), (10**6, False)])
def test_a_node_that_stays_away_is_waited_for_before_the_baseline_is_restored(
    world: World, walk: Any, away: int, restored: bool
) -> None:
    world.script = {1: ["silent:spark1"]}
    plan = make_plan("x")

    def boot(request: BootRequest, real: Any = world.boot) -> ChildEnd:
        end = real(request)
        if request.slot == 1:
            world.away["spark1"] = away
        return end

    world.boot = boot  # type: ignore[method-assign]
    end, _ = walk(world, plan)
    assert "took spark1 down" in end.reason
    assert (end.restored is not None) is restored
    assert (slots(world) == [0, 1, 2]) is restored
    assert world.clock.now() - START < timedelta(seconds=3 * BOOT_S + 330), "the wait has a bound"


def test_a_changed_plan_ends_the_trial_without_a_second_attempt(world: World, walk: Any) -> None:
    """The tree resolves something else by now, also for the baseline: the nodes' own copy of it is the way back."""
    world.script = {1: ["changed"], 2: ["changed"]}
    world.serving = None
    end, _ = walk(world, make_plan("x"))
    assert world.booted == [(0, "trial"), (1, "trial")], "what was refused was refused before the baseline was stopped"
    assert end.state == "stopped"
    assert "TS-PLAN-CHANGED" in end.reason
    assert end.restored == "b0"


def test_the_second_attempt_to_restore_needs_nothing_of_the_tree(world: World, walk: Any) -> None:
    world.script = {2: ["changed"]}
    end, _ = walk(world, make_plan("x"))
    assert world.booted[-2:] == [(2, "restore"), (2, "rollback")]
    assert end.restored == world.records[-1]["id"]


def test_a_baseline_that_does_not_come_back_is_said(world: World, walk: Any) -> None:
    world.script = {2: ["failed", "failed"]}
    end, lines = walk(world, make_plan("x"))
    assert end.restored is None
    assert lines[-1] == f"the baseline {BASE} does not serve again"


@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("outcome", ["lost", "held"])
def test_a_walk_whose_fleet_another_command_has_boots_and_restores_nothing(
    world: World, walk: Any, tmp_path: Path, slot: int, outcome: str
) -> None:
    """In the boot of either arm and in the one that restores the baseline."""
    world.script[slot] = [outcome]
    with pytest.raises(TrisparkError) as caught:
        walk(world, make_plan("wo_a"))
    assert caught.value.id == f"TS-LOCK-{outcome.upper()}"
    assert "of ben" in caught.value.observed
    assert f"resume={WALK}" in caught.value.remedy
    assert slots(world) == list(range(slot + 1))
    stopped = Journal(tmp_path / WALK).read().stopped
    assert (stopped is not None) is (outcome == "lost")
    end, _ = walk(world, make_plan("wo_a"))
    assert end.state == ("stopped" if outcome == "lost" else "complete")
    assert "of ben" in end.reason or outcome == "held"
    assert world.serving == BASE


def test_an_interrupted_child_ends_the_walk_at_once(world: World, walk: Any) -> None:
    world.script = {1: ["interrupted"]}
    with pytest.raises(WalkInterrupted):
        walk(world, make_plan("x"))
    assert slots(world) == [0, 1]


def test_no_boot_begins_that_cannot_end_with_the_restored_baseline(world: World, walk: Any) -> None:
    plan = make_plan("4", "5")
    deadline = START + timedelta(seconds=3.5 * BOOT_S)
    end, _ = walk(world, plan, deadline)
    assert end.state == "paused"
    assert world.booted == [(0, "trial"), (1, "trial"), (3, "restore")]
    assert world.clock.now() <= deadline
    assert end.restored is not None
    world.clock.time = START + timedelta(days=1)
    end, _ = walk(world, plan, START + timedelta(days=1, hours=1))
    assert (end.state, slots(world)) == ("complete", [0, 1, 3, 2, 3])


def test_nothing_begins_and_nothing_is_stopped_when_no_time_is_left(world: World, walk: Any) -> None:
    end, _ = walk(world, make_plan("x"), START)
    assert (end.state, world.booted, end.restored, end.begun) == ("paused", [], None, False)
    report = paused(WALK, end.reason, restored=end.restored, begun=end.begun)
    assert ("nothing was started" in report.lines[0], report.failure_line) == (True, "")


def test_a_pause_that_does_not_bring_the_baseline_back_is_a_failure(world: World, walk: Any) -> None:
    """Two boots were made, then there is no time for more, and the baseline does not start again."""
    world.script = {3: ["failed", "failed"]}
    end, _ = walk(world, make_plan("4", "5"), START + timedelta(seconds=3.5 * BOOT_S))
    assert (end.state, end.restored, end.begun) == ("paused", None, True)
    assert (world.booted[-1], world.serving) == ((3, "rollback"), None)
    report = paused(WALK, end.reason, restored=end.restored, begun=end.begun)
    assert "nothing was started" not in report.lines[0]
    assert report.failure_line.startswith("TS-TRIAL-RESTORE: ")
    assert all(f"; {field}: " in report.failure_line for field in ("where", "expected", "observed", "do"))
    # Resumed when nothing can be begun any more, it is brought back.
    again, _ = walk(world, make_plan("4", "5"), START)
    assert (again.restored is not None, again.begun, world.serving) == (True, True, BASE)


@pytest.mark.parametrize("outcome", ["none", "invalid"])
def test_a_failed_look_at_the_nodes_takes_no_node_down(world: World, walk: Any, tmp_path: Path, outcome: str) -> None:
    """Nothing is known of them: no candidate is called guilty, the baseline is brought back, the walk can go on."""
    world.script = {1: [outcome, "valid"]}
    boot = world.boot

    def blinded(request: BootRequest) -> ChildEnd:
        world.blind = 1 if request.slot == 1 and len(slots(world)) == 1 else 0
        return boot(request)

    world.boot = blinded  # type: ignore[method-assign]
    with pytest.raises(TrisparkError) as caught:
        walk(world, make_plan("4", "5"))
    assert caught.value.id == "TS-WALK-STATUS"
    assert (world.booted[-1], world.serving) == ((3, "restore"), BASE)
    events = [entry.event for entry in Journal(tmp_path / WALK).read().entries]
    assert not {"node_down", "stopped", "ended"} & set(events)
    end, _ = walk(world, make_plan("4", "5"))
    assert (end.state, end.restored is not None) == ("complete", True)


@pytest.mark.parametrize(("failing", "restored"), [(3, True), (10**6, False)])
def test_a_look_that_fails_while_a_node_is_awaited_is_repeated(
    world: World, walk: Any, failing: int, restored: bool
) -> None:
    world.script = {1: ["down:spark1"]}
    look = world.statuses

    def statuses() -> dict[str, Any]:
        # The second look finds the node down, those after it are of the way back.
        world.blind = 1 if 2 <= world.asked < 2 + failing else 0
        return look()

    world.statuses = statuses  # type: ignore[method-assign]
    if restored:
        end, _ = walk(world, make_plan("x"))
        assert end.restored is not None
    else:
        with pytest.raises(TrisparkError):
            walk(world, make_plan("x"))
    assert world.clock.now() - START < timedelta(seconds=3 * BOOT_S + 330), "the wait has a bound"


OUTCOMES = st.sampled_from(
    [
        *["valid"] * 3,
        "invalid",
        "failed",
        "none",
        "killed",
        "killed-after",
        "killed-after-invalid",
        "down:spark0",
        "changed",
    ]
)


@given(script=st.lists(st.lists(OUTCOMES, max_size=3), min_size=5, max_size=5), labels=st.integers(1, 3))
def test_whatever_happens_no_boot_is_recorded_twice_and_the_baseline_comes_back(
    tmp_path_factory: pytest.TempPathFactory, script: list[list[str]], labels: int
) -> None:
    directory = tmp_path_factory.mktemp("walk")
    plan = make_plan(*map(str, range(labels)))
    restore = len(plan.slots)
    world = World({slot: list(outcomes) for slot, outcomes in enumerate(script) if slot < restore})
    for _ in range(20):
        try:
            end, _ = walk_in(directory, world, plan)
            break
        except Killed:
            continue
    else:
        raise AssertionError("the walk never ended")
    recorded = [record["requested"]["slot"] for record in world.records if record["requested"]["purpose"] == "trial"]
    assert len(set(recorded)) == len(recorded), "no finished boot is repeated"
    assert recorded == sorted(recorded)
    begun = [slot for slot, purpose in world.booted if purpose == "trial"]
    assert all(begun.count(slot) <= 2 for slot in set(begun))
    assert end.restored is not None or not begun
    assert world.serving == BASE


@given(
    script=st.lists(st.lists(OUTCOMES, max_size=3), min_size=5, max_size=5),
    labels=st.integers(1, 2),
    tune=st.booleans(),
    nights=st.lists(st.integers(0, 6), min_size=6, max_size=6),
)
def test_whether_a_walk_goes_on_is_known_before_it_is_resumed(
    tmp_path_factory: pytest.TempPathFactory, script: list[list[str]], labels: int, tune: bool, nights: list[int]
) -> None:
    """What prepares the nodes and drains production is done for a boot of the trial, and left out for the way back."""
    directory = tmp_path_factory.mktemp("walk")
    plan = make_plan(*map(str, range(labels)), tune=tune)
    world = World({slot: list(outcomes) for slot, outcomes in enumerate(script) if slot < len(plan.slots)})
    for boots in nights:
        deadline = world.clock.now() + timedelta(seconds=(boots + 0.5) * BOOT_S)
        journal = Journal(directory / plan.walk)
        times = BootTimes(BOOT_S, BOOT_S)
        expected = goes_on(plan, journal.read(), world.records, times, world.clock.now(), deadline)
        before = len(world.booted)
        with contextlib.suppress(Killed):
            walk_in(directory, world, plan, deadline)
        assert any(purpose == "trial" for _, purpose in world.booted[before:]) == expected


@pytest.mark.parametrize(
    ("before", "now", "went"),
    [
        ({}, {"a": "1"}, ()),
        ({"a": "1"}, {"a": "1"}, ()),
        ({"a": "1"}, {"a": "2"}, ("a",)),
        ({"a": None}, {"a": "2"}, ()),
        ({"a": "1"}, {"a": None}, ()),
        ({"a": "1"}, {}, ()),
        ({"a": "1", "b": "1"}, {"a": "2", "b": "3"}, ("a", "b")),
    ],
)
def test_a_host_is_called_restarted_only_when_both_starts_are_known(before: Any, now: Any, went: Iterable[str]) -> None:
    assert changed_hosts(before, now) == tuple(went)


def test_a_torn_journal_line_was_never_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("began", "t1")
    with journal.path.open("ab") as file:
        file.write(b'{"event": "slot_st')
    assert [entry.event for entry in journal.read().entries] == ["began"]
    journal.write("slot_started", "t2", slot=0)
    assert [json.loads(line)["event"] for line in journal.path.read_text().splitlines()] == ["began", "slot_started"]


@pytest.mark.parametrize("line", [b"[]", b"{}", b'{"event": 1, "time": "t"}', b"\xff", b'{"event": "began"}'])
def test_a_line_of_another_shape_is_damage_with_its_number(tmp_path: Path, line: bytes) -> None:
    journal = Journal(tmp_path)
    journal.write("began", "t1")
    with journal.path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(TrisparkError) as caught:
        journal.read()
    assert caught.value.id == "TS-WALK-DAMAGED"
    assert "line 2" in caught.value.where
