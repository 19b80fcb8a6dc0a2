"""A campaign: its file, its window over midnight and over changes of the clocks, and the walk over its list."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trispark.campaign import (
    Campaign,
    CampaignEntry,
    CampaignFile,
    EntryEnd,
    closing,
    load_campaign,
    published,
    refuse_variables,
    stop_reason,
)
from trispark.campaign_run import LOCK_FILE, outline_campaign, report
from trispark.campaign_walk import CampaignWalker, StageEnd, interrupted
from trispark.errors import TrisparkError
from trispark.site import Site
from trispark.site_time import SiteWindow, Window, read_time
from trispark.walk import WalkInterrupted
from trispark.walk_journal import Journal
from trispark.walk_plan import Slot, TrialOfWalk, WalkPlan, keep_walk, walks_directory
from trispark.walk_time import BootTimes

BERLIN = ZoneInfo("Europe/Berlin")
BOOT = timedelta(minutes=20)
BASE = "g" + "0" * 16


def campaign(zone: ZoneInfo = BERLIN, opened: Window | None = None, **changes: Any) -> Campaign:
    entries = [{"stage": "c", "feature": "wo_a"}, {"stage": "b", "feature": "block_size", "value": 5}]
    file = CampaignFile.model_validate(
        {"schema_version": 1, "summary": "x", "entries": entries, **changes}, strict=False
    )
    deadline = None if file.deadline is None else read_time(file.deadline, zone.key, "night.yml")
    return Campaign("night", Path("night.yml"), "d" * 64, file, zone, opened or file.window, deadline)


def at(text: str, zone: ZoneInfo = BERLIN) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=zone).astimezone(UTC)


@pytest.mark.parametrize(
    ("window", "now", "closes"),
    [
        (Window(begin="22:00", back_by="07:00"), "2026-01-02T23:00", "2026-01-03T07:00"),
        (Window(begin="22:00", back_by="07:00"), "2026-01-03T06:59", "2026-01-03T07:00"),
        (Window(begin="22:00", back_by="07:00"), "2026-01-02T22:00", "2026-01-03T07:00"),
        (Window(begin="22:00", back_by="07:00"), "2026-01-03T07:00", None),
        (Window(begin="22:00", back_by="07:00"), "2026-01-03T12:00", None),
        (Window(begin="01:00", back_by="05:00"), "2026-01-03T02:00", "2026-01-03T05:00"),
        (Window(begin="01:00", back_by="05:00"), "2026-01-03T00:30", None),
        (Window(back_by="07:00"), "2026-01-03T06:00", "2026-01-03T07:00"),
        (Window(back_by="07:00"), "2026-01-03T08:00", "2026-01-04T07:00"),
        # Clocks go forward at 2 on 29 March and back at 3 on 25 October.
        (Window(begin="22:00", back_by="07:00"), "2026-03-29T01:00", "2026-03-29T07:00"),
        (Window(begin="22:00", back_by="07:00"), "2026-10-25T01:00", "2026-10-25T07:00"),
    ],
)  # fmt: skip
def test_the_window_in_local_time(window: Window, now: str, closes: str | None) -> None:
    moment = at(now)
    assert closing(campaign(opened=window), moment) == (moment if closes is None else at(closes))


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 8), ("2026-10-25", 10), ("2026-07-01", 9)])
def test_a_night_in_which_the_clocks_change_has_its_real_length(day: str, hours: int) -> None:
    before = at(day) - timedelta(hours=2) if hours == 9 else at(f"{day}T00:00") - timedelta(hours=2)
    end = closing(campaign(opened=Window(begin="22:00", back_by="07:00")), before)
    assert end is not None
    assert end - before == timedelta(hours=hours)


def test_the_deadline_is_local_unless_it_says_otherwise_and_the_earlier_limit_holds() -> None:
    now = at("2026-01-02T23:00")
    assert closing(campaign(deadline="2026-01-03T03:00"), now) == at("2026-01-03T03:00")
    assert closing(campaign(deadline="2026-01-03T03:00+00:00"), now) == datetime(2026, 1, 3, 3, tzinfo=UTC)
    both = campaign(opened=Window(begin="22:00", back_by="07:00"), deadline="2026-01-03T09:00")
    assert closing(both, now) == at("2026-01-03T07:00")
    assert closing(campaign(), now) is None


@given(
    begin=st.tuples(st.integers(0, 23), st.integers(0, 59)),
    back=st.tuples(st.integers(0, 23), st.integers(0, 59)),
    minutes=st.integers(0, 60 * 24 * 400),
    zone=st.sampled_from(["Europe/Berlin", "UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]),
)
def test_an_open_window_ends_within_a_day_at_the_local_time_of_the_list(begin, back, minutes, zone) -> None:
    if begin == back:
        return
    texts = ["{:02}:{:02}".format(*each) for each in (begin, back)]
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    end = closing(campaign(ZoneInfo(zone), Window(begin=texts[0], back_by=texts[1])), now)
    assert end is not None
    assert now <= end <= now + timedelta(hours=25)
    if end != now:
        local = end.astimezone(ZoneInfo(zone))
        skipped = datetime.combine(local.date(), datetime.strptime(texts[1], "%H:%M").time(), ZoneInfo(zone))
        assert f"{local:%H:%M}" == texts[1] or skipped.astimezone(UTC) == end


@pytest.mark.parametrize(
    "changes",
    [
        {"entries": []},
        {"entries": [{"stage": "h", "feature": "x"}]},
        {"entries": [{"stage": "c", "feature": "x"}] * 2},
        {"entries": [{"stage": "c"}]},
        {"window": {"begin": "7:00", "back_by": "22:00"}},
        {"window": {"begin": "22:00"}},
        {"window": {"begin": "22:00", "back_by": "22:00"}},
        {"window": {"back_by": "24:00"}},
        {"drain_s": -1},
        {"stop_on": ["weather"]},
        {"more": 1},
    ],
)
def test_a_list_of_another_shape_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        campaign(**changes)


ENTRIES = "entries:\n  - {stage: c, feature: wo_a}\n  - {stage: b, feature: block_size, value: 5}\n"
LIST = f"schema_version: 1\nsummary: x\n{ENTRIES}"


def test_the_sites_own_list_comes_before_the_shared_one(tmp_path: Path, site: Site) -> None:
    for place in ("inventory/lab/campaigns", "experiments/campaigns"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "night.yml").write_text(LIST)
    found = load_campaign(tmp_path, site, "night")
    assert found.path.parent == tmp_path / "inventory/lab/campaigns"
    assert [entry.label for entry in found.entries] == ["c wo_a", "b block_size=5"]
    assert found.file.stop_on == ("node_down",)
    found.path.unlink()
    assert load_campaign(tmp_path, site, "night").path.parent == tmp_path / "experiments/campaigns"


@pytest.mark.parametrize(
    ("name", "text", "error_id"),
    [
        ("", LIST, "TS-CAMPAIGN-UNKNOWN"),
        ("nigth", LIST, "TS-CAMPAIGN-UNKNOWN"),
        ("../night", LIST, "TS-CAMPAIGN-UNKNOWN"),
        ("night", "schema_version: 2\n", "TS-CAMPAIGN-SCHEMA"),
        ("night", f"{LIST}stop_on: [weather]\n", "TS-CAMPAIGN-SCHEMA"),
    ],
)
def test_what_is_no_list_is_refused_by_name(tmp_path: Path, site: Site, name: str, text: str, error_id: str) -> None:
    (tmp_path / "experiments/campaigns").mkdir(parents=True)
    (tmp_path / "experiments/campaigns/night.yml").write_text(text)
    with pytest.raises(TrisparkError) as caught:
        load_campaign(tmp_path, site, name)
    assert caught.value.id == error_id
    if error_id == "TS-CAMPAIGN-UNKNOWN":
        assert "night" in caught.value.expected


@pytest.mark.parametrize(
    ("text", "window", "zone", "error_id"),
    [
        ("", None, None, None),
        ('deadline: "2026-01-03T06:00+01:00"\n', None, None, None),
        ('deadline: "2026-01-03T06:00"\n', None, None, "TS-TIME-ZONE"),
        ("deadline: tomorrow\n", None, None, "TS-TIME-FORMAT"),
        ('window: {begin: "22:00", back_by: "07:00"}\n', None, None, "TS-TIME-ZONE"),
        ('window: {begin: "22:00", back_by: "07:00", time_zone: Europe/Berln}\n', None, None, "TS-TIME-ZONE"),
        ('window: {begin: "22:00", back_by: "07:00", time_zone: Asia/Kolkata}\n', None, "Asia/Kolkata", None),
        ('window: {begin: "22:00", back_by: "07:00", time_zone: Asia/Kolkata}\n', "site", "Asia/Kolkata", None),
        ('window: {begin: "22:00", back_by: "07:00"}\n', "site", "Europe/Berlin", None),
        ('deadline: "2026-01-03T06:00"\n', "site", "Europe/Berlin", None),
    ],
)
def test_times_of_a_list_are_local_to_a_zone_that_something_names(
    tmp_path: Path, site: Site, text: str, window: str | None, zone: str | None, error_id: str | None
) -> None:
    (tmp_path / "experiments/campaigns").mkdir(parents=True)
    (tmp_path / "experiments/campaigns/night.yml").write_text(f"{LIST}{text}")
    own = SiteWindow(begin="20:00", back_by="06:00", time_zone="Europe/Berlin") if window else None
    here = site.model_copy(update={"unattended_window": own})
    if error_id is not None:
        with pytest.raises(TrisparkError) as caught:
            load_campaign(tmp_path, here, "night")
        assert caught.value.id == error_id
        assert all(caught.value.as_dict().values())
        return
    found = load_campaign(tmp_path, here, "night")
    assert found.zone == (UTC if zone is None else ZoneInfo(zone))
    if "deadline" in text:
        assert found.deadline == datetime(2026, 1, 3, 5, tzinfo=UTC)
    if own is not None and "window" not in text:
        assert found.window == own


def end(**changes: Any) -> EntryEnd:
    return EntryEnd(**{"label": "c wo_a", "trial": "t", "state": "ended", "reason": "", **changes})


@pytest.mark.parametrize(
    ("stop_on", "ends", "words"),
    [
        ([], [end()], None),
        ([], [end(restored=False)], "does not serve again"),
        ([], [end(state="paused", restored=False)], "does not serve again"),
        ([], [end(state="failed", reason="TS-X-Y: x", restored=False)], "production may be down: TS-X-Y: x"),
        ([], [end(state="failed", reason="TS-X-Y: x")], None),
        ([], [end(state="paused")], None),
        ([], [end(down=True, invalid=True, verdicts=("REJECT",))], None),
        (["node_down"], [end(down=True, reason="took spark1 down")], "took spark1 down"),
        (["invalid_boot"], [end(invalid=True)], "invalid_boot"),
        (["keep"], [end(verdicts=("INCONCLUSIVE", "KEEP"))], "keep"),
        (["reject"], [end(verdicts=("REJECT",))], "reject"),
        (["keep", "reject"], [end(verdicts=("INCONCLUSIVE",))], None),
    ],
)
def test_what_stops_a_campaign(stop_on: list[str], ends: list[EntryEnd], words: str | None) -> None:
    stop = stop_reason(campaign(stop_on=stop_on), ends, 0)
    assert stop is None if words is None else stop is not None and words in stop.reason
    if stop is not None and not all(each.restored for each in ends):
        assert "rollback.yml" in stop.remedy


@pytest.mark.parametrize(("failed_starts", "stops"), [(0, False), (1, False), (2, True)])
def test_boots_that_did_not_start_stop_a_campaign(failed_starts: int, stops: bool) -> None:
    stop = stop_reason(campaign(), [end()], failed_starts)
    assert (stop is not None) is stops


@pytest.mark.parametrize("given", [["resume"], ["campaign", "plan", "deadline"], ["drain_deadline_s", "site_name"]])
def test_variables_of_a_trial_are_refused_by_a_campaign(given: list[str]) -> None:
    with pytest.raises(TrisparkError) as caught:
        refuse_variables(given)
    assert caught.value.id == "TS-CAMPAIGN-VARIABLE"
    assert "started again" in caught.value.remedy
    refuse_variables(["campaign", "site_name", "ansible_user"])


def test_two_campaigns_of_one_checkout_are_kept_apart(tmp_path: Path) -> None:
    """Before the list is even read: both would begin the same trial."""
    directory = tmp_path / ".trispark" / "lab"
    directory.mkdir(parents=True)
    with (directory / LOCK_FILE).open("a+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("4711\n")
        other.flush()
        with pytest.raises(TrisparkError) as caught:
            outline_campaign(tmp_path, "lab", "night")
    assert (caught.value.id, caught.value.observed) == ("TS-CAMPAIGN-BUSY", "the lock is held by process 4711")
    with pytest.raises(TrisparkError) as caught:
        outline_campaign(tmp_path, "lab", "night")
    assert caught.value.id != "TS-CAMPAIGN-BUSY"


def test_after_an_interruption_the_same_campaign_is_run_again() -> None:
    """A trial of it would not be resumed by hand: the campaign would begin it a second time."""
    error = interrupted("night", "t20260102T030405Z-a1b2")
    assert "-e campaign=night" in error.remedy
    assert "resume" not in str(error)
    assert error.id == "TS-CAMPAIGN-INTERRUPTED"


class HandClock:
    def __init__(self, now: datetime) -> None:
        self.time = now

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


class Killed(Exception):
    pass


@dataclass
class World:
    """Stages whose trials end, pause or are killed. `script`: {feature: outcomes in turn}."""

    root: Path
    clock: HandClock
    script: dict[str, list[str]] = field(default_factory=dict)
    played: list[tuple[str, str]] = field(default_factory=list)
    deadlines: list[datetime | None] = field(default_factory=list)
    drains: list[float] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def stage(self, entry: CampaignEntry, trial: str, deadline: datetime | None, drain_s: float) -> StageEnd:
        self.played.append((entry.label, trial))
        self.deadlines.append(deadline)
        self.drains.append(drain_s)
        outcomes = self.script.get(entry.feature) or []
        outcome = outcomes.pop(0) if outcomes else "INCONCLUSIVE"
        directory = walks_directory(self.root, "lab") / trial
        journal = Journal(directory)
        keep_walk(directory, self.plan(entry, trial))
        if outcome == "refused":
            return StageEnd(False, ("TS-PREFLIGHT-NODE: x",), {}, 1)
        begun = journal.read().last_start() is not None
        journal.write("began", "t")
        if outcome == "unreadable":
            journal.path.write_text("{}\n")
            return StageEnd(False, ("TS-WALK-DAMAGED: x",), {}, 1)
        if deadline is not None and self.clock.now() + 2 * BOOT > deadline:
            restored = None if outcome == "not-restored" or not begun else "b1"
            pause = {"walk": trial, "reason": "no time", "restored": restored, "begun": begun}
            lines = ("TS-TRIAL-RESTORE: x",) if begun and not restored else ()
            return StageEnd(False, lines, {"paused": pause}, 1)
        journal.write("slot_started", "t", slot=1)
        self.clock.time += 3 * BOOT
        if outcome == "killed":
            raise Killed
        if outcome == "interrupted":
            return StageEnd(True, (), {}, 1)
        if outcome == "broken-start":
            journal.write("slot_unrecorded", "t", slot=1, reason="x")
        if outcome in ("broken", "broken-start"):
            return StageEnd(False, ("TS-RECORD-FORK: x",), {}, 1)
        if outcome == "down":
            journal.write("node_down", "t", slot=1, label=entry.label, nodes=["spark1"])
        if outcome == "failed":
            journal.write("slot_ended", "t", slot=1, record="b", state="failed")
        verdicts = [outcome] if outcome in ("KEEP", "REJECT", "INCONCLUSIVE") else ["INCONCLUSIVE"]
        reason = "took spark1 down" if outcome == "down" else ""
        journal.write(
            "ended", "t", records=[trial], verdicts=verdicts, restored=outcome != "not-restored", reason=reason
        )
        return StageEnd(False, (), {"trials": []}, 1)

    def plan(self, entry: CampaignEntry, trial: str) -> WalkPlan:
        if entry.feature in self.refused:
            raise TrisparkError("TS-FEATURE-UNAVAILABLE", self.refused[entry.feature], "x", "x", "x", "x")
        candidate = "g" + entry.label.encode().hex()[:16].ljust(16, "f")
        slots = (
            Slot(0, "baseline", True, False, (0,), None, "baseline", BASE, "measures"),
            Slot(1, "candidate", True, False, (0,), None, entry.label, candidate, "measures"),
        )
        one = TrialOfWalk(trial, "p", None, entry.label, (), BASE, candidate)
        return WalkPlan(trial, "lab", entry.stage, entry.feature, None, BASE, None, slots, (one,), {})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, HandClock(at("2026-01-02T22:00")))


def walker(world: World, which: Campaign, say: Callable[[str], None] = print) -> CampaignWalker:
    return CampaignWalker(
        root=world.root,
        site="lab",
        campaign=which,
        journal=Journal(world.root / "campaign"),
        stages=world,
        clock=world.clock,
        say=say,
        times=BootTimes(BOOT.total_seconds(), BOOT.total_seconds()),
        plan=world.plan,
    )


def run(world: World, which: Campaign) -> Any:
    lines: list[str] = []
    return walker(world, which, lines.append).walk(), lines


def labels(world: World) -> list[str]:
    return [label for label, _ in world.played]


def test_a_campaign_walks_its_list_and_a_second_call_finds_it_done(world: World) -> None:
    first, _ = run(world, campaign())
    assert (first.state, labels(world)) == ("complete", ["c wo_a", "b block_size=5"])
    assert world.drains == [600, 600]
    assert [each.verdicts for each in first.ends] == [("INCONCLUSIVE",)] * 2
    again, lines = run(world, campaign())
    assert (again.state, len(world.played)) == ("complete", 2)
    assert all("done before" in line for line in lines)
    shown = published(campaign(), again.ends, again.state, again.reason)["campaign"]
    assert (shown["left"], [entry["verdicts"] for entry in shown["entries"]]) == ([], [["INCONCLUSIVE"]] * 2)


@pytest.mark.parametrize(("feature", "index"), [("wo_a", 0), ("block_size", 1)])
def test_a_killed_campaign_goes_on_with_the_trial_that_was_under_way(world: World, feature: str, index: int) -> None:
    world.script = {feature: ["killed"]}
    with pytest.raises(Killed):
        run(world, campaign())
    end, _ = run(world, campaign())
    assert end.state == "complete"
    assert len(world.played) == 3
    assert world.played[index] == world.played[index + 1], "the same trial by the same id"
    assert len({trial for _, trial in world.played}) == 2


def test_it_pauses_before_a_boot_that_cannot_end_and_goes_on_the_next_night(world: World) -> None:
    which = campaign(opened=Window(begin="22:00", back_by="23:30"))
    end, lines = run(world, which)
    assert (end.state, labels(world)) == ("paused", ["c wo_a"])
    assert "23:30" in lines[-1]
    assert world.clock.now() <= at("2026-01-02T23:30")
    shown = published(which, end.ends, end.state, end.reason)["campaign"]
    assert shown["left"] == ["b block_size=5"]
    world.clock.time = at("2026-01-03T12:00")
    assert (run(world, which)[0].state, len(world.played)) == ("paused", 1)
    world.clock.time = at("2026-01-03T22:10")
    assert (run(world, which)[0].state, labels(world)) == ("complete", ["c wo_a", "b block_size=5"])


def test_what_was_under_way_is_brought_back_outside_the_window(world: World) -> None:
    """Its controller was killed at night; in the morning the trial's own playbook restores the baseline."""
    world.script = {"wo_a": ["killed"]}
    which = campaign(opened=Window(begin="22:00", back_by="07:00"))
    with pytest.raises(Killed):
        run(world, which)
    world.clock.time = at("2026-01-03T09:00")
    end, _ = run(world, which)
    assert end.state == "paused"
    assert labels(world) == ["c wo_a", "c wo_a"]
    assert world.deadlines[-1] == world.clock.now(), "no boot of the trial can begin"


def test_an_interrupted_child_ends_the_campaign(world: World) -> None:
    world.script = {"wo_a": ["interrupted"]}
    with pytest.raises(WalkInterrupted):
        run(world, campaign())
    assert run(world, campaign())[0].state == "complete"


@pytest.mark.parametrize(("outcome", "words"), [("down", "took spark1 down"), ("not-restored", "does not serve again")])
def test_it_stops_and_stays_stopped(world: World, outcome: str, words: str) -> None:
    world.script = {"wo_a": [outcome]}
    for _ in range(2):
        end, _ = run(world, campaign())
        assert (end.state, labels(world)) == ("stopped", ["c wo_a"])
        assert words in end.reason
        failure = report(campaign(), end).failure_line
        assert failure.startswith("TS-CAMPAIGN-STOPPED: the campaign stopped before its end; ")
        assert words in failure


def test_two_failed_starts_of_two_trials_stop_it(world: World) -> None:
    world.script = {"wo_a": ["failed"], "block_size": ["failed"]}
    three = [
        {"stage": "c", "feature": "wo_a"},
        {"stage": "b", "feature": "block_size"},
        {"stage": "f", "feature": "ep1"},
    ]
    end, _ = run(world, campaign(entries=three, stop_on=[]))
    assert (end.state, labels(world)) == ("stopped", ["c wo_a", "b block_size"])
    assert "2 boots did not start" in end.reason


def test_a_candidate_that_took_a_node_down_in_any_trial_is_left_out(world: World) -> None:
    world.script = {"wo_a": ["down"]}
    run(world, campaign())
    world.played.clear()
    walker_root = world.root / "campaign"
    walker_root.rename(world.root / "earlier")
    end, lines = run(world, campaign(stop_on=[]))
    assert labels(world) == ["b block_size=5"]
    assert "took a node down in trial" in lines[0]
    assert [each.state for each in end.ends] == ["refused", "ended"]


def test_a_trial_that_was_refused_before_its_boots_fails_the_campaign_and_is_tried_again(world: World) -> None:
    world.script = {"wo_a": ["refused"]}
    which = campaign()
    end, lines = run(world, which)
    assert (end.state, [each.state for each in end.ends]) == ("failed", ["failed", "ended"])
    assert "TS-PREFLIGHT-NODE" in lines[0]
    said = report(which, end)
    assert said.published["campaign"]["left"] == ["c wo_a"]
    assert said.failure_line.startswith("TS-CAMPAIGN-FAILED: ")
    assert "c wo_a: TS-PREFLIGHT-NODE: x" in said.failure_line
    assert all(f"; {field}: " in said.failure_line for field in ("where", "expected", "observed", "do"))
    again, _ = run(world, campaign())
    assert (again.state, [each.state for each in again.ends]) == ("complete", ["ended", "ended"])
    assert labels(world) == ["c wo_a", "b block_size=5", "c wo_a"]
    assert report(which, again).failure_line == ""


def test_refusals_before_a_boot_are_no_failed_starts(world: World) -> None:
    world.script = {"wo_a": ["refused"], "block_size": ["refused"]}
    end, _ = run(world, campaign())
    assert (end.state, labels(world)) == ("failed", ["c wo_a", "b block_size=5"])


@pytest.mark.parametrize("outcome", ["broken", "unreadable"])
def test_a_trial_that_breaks_in_the_middle_of_its_boots_stops_the_campaign(world: World, outcome: str) -> None:
    """Production may be down: nothing else is begun, and the next call brings it back before anything else."""
    world.script = {"wo_a": [outcome]}
    which = campaign()
    end, _ = run(world, which)
    assert (end.state, labels(world)) == ("stopped", ["c wo_a"])
    said = report(which, end)
    assert said.published["campaign"]["left"] == ["c wo_a", "b block_size=5"]
    assert "production may be down" in said.failure_line
    assert "do: playbooks/rollback.yml" in said.failure_line
    assert all(f"; {field}: " in said.failure_line for field in ("where", "expected", "observed", "do"))
    if outcome == "broken":
        again, _ = run(world, campaign())
        assert (again.state, labels(world)) == ("complete", ["c wo_a", "c wo_a", "b block_size=5"])


def test_failed_starts_of_earlier_calls_count(world: World) -> None:
    world.script = {"wo_a": ["refused", "INCONCLUSIVE"], "block_size": ["broken-start", "failed"]}
    three = [
        {"stage": "c", "feature": "wo_a"},
        {"stage": "b", "feature": "block_size"},
        {"stage": "f", "feature": "ep1"},
    ]
    which = campaign(entries=three, stop_on=[])
    assert run(world, which)[0].state == "stopped"  # in the middle of the second one, whose first start failed
    end, _ = run(world, which)
    assert end.state == "stopped"
    assert "2 boots did not start" in end.reason
    assert labels(world) == ["c wo_a", "b block_size", "c wo_a", "b block_size"]
    # Nothing new begins any more, whatever its place in the list.
    end, _ = run(world, which)
    assert (end.state, len(world.played)) == ("stopped", 4)


def test_a_trial_that_was_paused_without_its_baseline_stops_the_campaign(world: World) -> None:
    world.script = {"wo_a": ["killed", "not-restored"]}
    which = campaign(opened=Window(begin="22:00", back_by="07:00"))
    with pytest.raises(Killed):
        run(world, which)
    world.clock.time = at("2026-01-03T09:00")
    end, _ = run(world, which)
    assert (end.state, [each.state for each in end.ends]) == ("stopped", ["paused"])
    said = report(which, end)
    assert "the baseline does not serve again" in said.failure_line
    assert said.published["campaign"]["left"] == ["c wo_a", "b block_size=5"]


def test_an_outline_begins_nothing_and_writes_nothing(world: World) -> None:
    world.script = {"wo_a": ["killed"]}
    which = campaign(opened=Window(begin="22:00", back_by="07:00"))
    fresh = walker(world, which).outline()
    assert [line.partition(":")[0] for line in fresh] == ["entry 1/2 c wo_a", "entry 2/2 b block_size=5"]
    assert all("would be begun: 2 boots" in line for line in fresh)
    assert (world.played, [*world.root.iterdir()]) == ([], [])
    with pytest.raises(Killed):
        run(world, which)
    world.clock.time = at("2026-01-03T12:00")
    before = {path: path.read_bytes() for path in world.root.rglob("*") if path.is_file()}
    later = walker(world, which).outline()
    assert "would go on (t" in later[0]
    assert "would wait" in later[1]
    assert {path: path.read_bytes() for path in world.root.rglob("*") if path.is_file()} == before
    world.refused = {"block_size": "cannot be run yet"}
    with pytest.raises(TrisparkError) as caught:
        walker(world, which).outline()
    assert caught.value.id == "TS-CAMPAIGN-ENTRY"


def test_a_list_with_a_slip_is_refused_before_anything_begins(world: World) -> None:
    world.refused = {"block_size": "cannot be run yet"}
    with pytest.raises(TrisparkError) as caught:
        run(world, campaign())
    assert caught.value.id == "TS-CAMPAIGN-ENTRY"
    assert "entry 2 (b block_size=5): TS-FEATURE-UNAVAILABLE" in caught.value.observed
    assert world.played == []


def test_a_list_that_was_changed_needs_another_name(world: World) -> None:
    run(world, campaign())
    changed = SimpleNamespace(**{**campaign().__dict__, "digest": "e" * 64, "entries": ()})
    with pytest.raises(TrisparkError) as caught:
        run(world, changed)  # type: ignore[arg-type]
    assert caught.value.id == "TS-CAMPAIGN-CHANGED"


@given(outcomes=st.lists(st.sampled_from(["KEEP", "killed", "down", "failed", "broken", "refused"]), max_size=6))
def test_whatever_happens_no_ended_trial_runs_again(tmp_path_factory: Callable[..., Any], outcomes: list[str]) -> None:
    world = World(tmp_path_factory.mktemp("campaign"), HandClock(at("2026-01-02T22:00")))  # type: ignore[attr-defined]
    world.script = {"wo_a": outcomes}
    ended: set[str] = set()
    for _ in range(8):
        before = len(world.played)
        try:
            end, _ = run(world, campaign(stop_on=[]))
        except Killed:
            continue
        assert not ended & {trial for _, trial in world.played[before:]}
        ended |= {each.trial for each in end.ends if each.state == "ended"}
