"""Which boots a stage walks, what of them becomes a trial's record, and how a verdict becomes the site's baseline."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from trispark.benchstats import summarize
from trispark.boot_plan import Moment, Project, plan_arm
from trispark.catalog import Catalog, Feature, Kind
from trispark.errors import TrisparkError
from trispark.gate_result import GateResult
from trispark.plan import Ground
from trispark.project import ProjectState
from trispark.promote import plan_promotion, plan_revert, promotable
from trispark.promoted import Promoted, cached, on_nodes, settings_of, write_cache
from trispark.record_chain import behind, missing
from trispark.records import RecordCache, build_boot_record, build_trial_record, record_hash
from trispark.resolve import compare, resolve, resolve_arms, restore
from trispark.site import Site
from trispark.trial_outcome import record_trial, trials_to_record
from trispark.verdict import Verdict
from trispark.walk_end import conclude
from trispark.walk_journal import Journal
from trispark.walk_plan import (
    WalkPlan,
    keep_walk,
    kept_walk,
    plan_walk,
    require_feature,
    require_same_walk,
    walks_directory,
    was_begun,
)
from trispark.walk_time import BootTimes, boot_times, fits

WALK = "t20260102T030405Z-a1b2"
NODES = ("spark0", "spark1", "spark2")
GATE = GateResult("engram.packed", 0, True, "True", "True", "")


def sweep(**changes: Any) -> Feature:
    entry = {
        "kind": Kind.SWEEP,
        "title": "threads",
        "summary": "reader threads",
        "stages": ("b",),
        "available": True,
        "sweep": {"name": "DSV41_IO_THREADS", "values": (24, 48, 96)},
        "evidence": {"must": (), "must_not": (), "off_must_not": ()},
        "primaries": ("c4.agg_tps",),
        "mechanism": "less waiting",
        "rollback": "Set it back.",
        **changes,
    }
    return Feature.model_validate(entry)


@pytest.fixture
def with_sweep(catalog: Catalog) -> Catalog:
    return replace(catalog, features={**catalog.features, "threads": sweep()})


@pytest.fixture
def ground(project: Path, site: Site, with_sweep: Catalog) -> Ground:
    return Ground(project, site, with_sweep, {}, None, site.require_engine_image())


def test_a_trial_is_a_baseline_and_a_candidate_after_a_boot_that_tunes(ground: Ground) -> None:
    walk = plan_walk(ground, WALK, "c", "wo_a")
    assert [(slot.slot, slot.arm, slot.counted, slot.label) for slot in walk.slots] == [
        (0, "candidate", False, "wo_a"),
        (1, "baseline", True, "baseline"),
        (2, "candidate", True, "wo_a"),
    ]
    (trial,) = walk.trials
    assert (trial.record, trial.value, walk.label) == (WALK, None, "wo_a")
    assert walk.site_baseline == trial.baseline == walk.slots[1].generation
    assert walk.slots[0].generation == walk.slots[2].generation == trial.candidate
    assert walk.changed(trial) == {"DSV41_WO_A_W8": [0, 1]}
    assert set(walk.resolved) == {trial.baseline, trial.candidate}
    assert WalkPlan.of(json.loads(json.dumps(walk.as_dict()))) == replace(
        walk, resolved=json.loads(json.dumps(walk.resolved))
    )


def test_a_sweep_walks_its_values_against_one_baseline_and_one_value_alone_is_a_trial(ground: Ground) -> None:
    walk = plan_walk(ground, WALK, "b", "threads")
    assert [(slot.slot, slot.arm, slot.trials, slot.value) for slot in walk.slots] == [
        (0, "baseline", (0, 1), None),
        (1, "candidate", (0,), "24"),
        (2, "candidate", (1,), "48"),
    ]
    assert [trial.record for trial in walk.trials] == [f"{WALK}.24", f"{WALK}.48"]
    assert len(set(walk.plans)) == 2
    one = plan_walk(ground, WALK, "b", "threads", "48")
    assert [(slot.arm, slot.value) for slot in one.slots] == [("baseline", None), ("candidate", "48")]
    assert [trial.record for trial in one.trials] == [WALK]


def test_a_sweep_of_whole_trials_has_blocks_of_its_own_for_each_value(ground: Ground) -> None:
    walk = plan_walk(ground, WALK, "b", "threads", boots=4)
    assert len(walk.slots) == 16
    assert all(len(slot.trials) == 1 for slot in walk.slots), "a baseline's boot stands in one trial alone"
    assert [sum(slot.trials == (trial,) for slot in walk.slots) for trial in (0, 1)] == [8, 8]


def test_tuning_boots_come_before_the_counted_ones_and_only_once_for_the_shared_baseline(ground: Ground) -> None:
    keep = {"DSV41_AUTOTUNE_KEEP": 1}
    tuned = replace(ground, promoted=keep, promoted_by={"record": "t1", "record_hash": "0" * 64})
    walk = plan_walk(tuned, WALK, "b", "threads")
    assert [(slot.arm, slot.counted, slot.trials) for slot in walk.slots] == [
        ("baseline", False, (0, 1)),
        ("baseline", True, (0, 1)),
        ("candidate", False, (0,)),
        ("candidate", True, (0,)),
        ("candidate", False, (1,)),
        ("candidate", True, (1,)),
    ]


def test_a_candidate_that_compares_results_goes_first_and_is_another_generation(
    ground: Ground, project: Path, tmp_path: Path
) -> None:
    root = tmp_path / "project"
    shutil.copytree(project, root)
    (root / "adapters/trispark_hooks/lab_engram_prefetch.py").write_text("# prefetch\n")
    walk = plan_walk(replace(ground, root=root), WALK, "c", "engram_prefetch")
    (trial,) = walk.trials
    assert [(slot.arm, slot.counted, slot.check) for slot in walk.slots] == [
        ("candidate", False, True),
        ("baseline", True, False),
        ("candidate", True, False),
    ]
    assert walk.slots[0].generation not in (trial.baseline, trial.candidate)


def test_a_required_feature_is_in_both_arms_and_not_in_what_is_restored(ground: Ground) -> None:
    walk = plan_walk(ground, WALK, "d", "wo_a_mid")
    (trial,) = walk.trials
    assert trial.base == ("wo_a",)
    assert walk.site_baseline != trial.baseline
    assert walk.changed(trial) == {"DSV41_WO_A_W8_MID": [0, 1]}


@pytest.mark.parametrize(
    ("stage", "feature", "value", "error_id"),
    [
        ("a", "", None, "TS-STAGE-TRIAL"),
        ("c", "", None, "TS-FEATURE-MISSING"),
        ("c", "no_such", None, "TS-FEATURE-UNKNOWN"),
        ("c", "wo_a_mid", None, "TS-FEATURE-STAGE"),
        ("x", "wo_a", None, "TS-STAGE-UNKNOWN"),
        ("c", "wo_a", "1", "TS-FEATURE-VALUE"),
        ("b", "threads", "96", "TS-FEATURE-VALUE"),
        ("b", "threads", "many", "TS-FEATURE-VALUE"),
    ],
)
def test_what_a_stage_does_not_have_is_refused(
    ground: Ground, stage: str, feature: str, value: Any, error_id: str
) -> None:
    with pytest.raises(TrisparkError) as caught:
        plan_walk(ground, WALK, stage, feature, value)
    assert caught.value.id == error_id


def test_a_feature_that_cannot_be_run_on_the_engine_is_refused(ground: Ground) -> None:
    entry = sweep(unavailable_on={"lab": "the lab reads with one thread"})
    odd = replace(ground, catalog=replace(ground.catalog, features={**ground.catalog.features, "threads": entry}))
    with pytest.raises(TrisparkError) as caught:
        plan_walk(odd, WALK, "b", "threads")
    assert (caught.value.id, caught.value.observed) == ("TS-FEATURE-UNAVAILABLE", "the lab reads with one thread")


def test_a_changed_plan_is_refused_by_what_changed(ground: Ground) -> None:
    walk = plan_walk(ground, WALK, "c", "wo_a")
    require_same_walk(walk, plan_walk(ground, WALK, "c", "wo_a", agreed=walk.plans[0]))
    for agreed in ("p0123456789abcdef", f"{walk.plans[0]},{walk.plans[0]}"):
        with pytest.raises(TrisparkError) as caught:
            plan_walk(ground, WALK, "c", "wo_a", agreed=agreed)
        assert caught.value.id == "TS-PLAN-CHANGED"
        assert walk.plans[0] in caught.value.observed
    other = replace(ground, promoted={"DSPARK_BLOCK_SIZE": 5}, promoted_by={"record": "t9", "record_hash": "0" * 64})
    with pytest.raises(TrisparkError) as caught:
        require_same_walk(walk, plan_walk(other, WALK, "c", "wo_a"))
    assert caught.value.id == "TS-PLAN-CHANGED"
    assert walk.site_baseline in caught.value.expected


def test_a_walk_is_kept_and_found_by_its_id_alone(ground: Ground, tmp_path: Path) -> None:
    walk = plan_walk(ground, WALK, "c", "wo_a")
    assert not was_begun(tmp_path, "lab", WALK)
    keep_walk(walks_directory(tmp_path, "lab") / WALK, walk)
    assert was_begun(tmp_path, "lab", WALK)
    assert kept_walk(tmp_path, "lab", WALK).slots == walk.slots
    require_feature(walk, "c", "", "")
    require_feature(walk, "stage_c", "wo_a", "")
    require_feature(walk, "c", "wo_a", "", walk.plans[0])
    others = (("d", "", "", ""), ("c", "engram_prefetch", "", ""), ("c", "wo_a", "1", ""), ("c", "", "", "p0"))
    for stage, feature, value, agreed in others:
        with pytest.raises(TrisparkError) as caught:
            require_feature(walk, stage, feature, value, agreed)
        assert caught.value.id == "TS-WALK-OTHER"
    for name in ("t20260102T030405Z-ffff", "../x", ""):
        with pytest.raises(TrisparkError) as caught:
            kept_walk(tmp_path, "lab", name)
        assert (caught.value.id, WALK in caught.value.expected) == ("TS-WALK-UNKNOWN", True)
    path = walks_directory(tmp_path, "lab") / WALK / "plan.json"
    for damage in ("{", "[]", "{}", '{"schema_version": 2}', path.read_text().replace('"slots"', '"slotz"')):
        path.write_text(damage)
        with pytest.raises(TrisparkError) as caught:
            kept_walk(tmp_path, "lab", WALK)
        assert caught.value.id == "TS-WALK-DAMAGED"


@pytest.mark.parametrize("name", ["../x", "t1", "x y"])
def test_what_is_no_id_of_a_trial_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        was_begun(tmp_path, "lab", name)
    assert caught.value.id == "TS-WALK-ID"
    assert all(caught.value.as_dict().values()), "every field of an error line"


def test_an_arm_that_is_not_the_planned_one_is_refused_before_anything_is_touched(
    project: Path, site: Site, catalog: Catalog
) -> None:
    whole = Project(project, site, catalog)
    statuses = {node: {"epoch": 1, "current": None, "engine": None} for node in NODES}
    moment = Moment(datetime(2026, 1, 2, tzinfo=UTC), "ffff")

    def plan(planned: str, **changes: Any) -> dict[str, Any]:
        asked = {"stage": "c", "feature": "wo_a", "arm": "candidate", "purpose": "trial", "statuses": statuses}
        given = {"trial": WALK, "measure": False, "misplaced": {}, "seen_site": {}, "moment": moment, "slot": 1}
        return plan_arm(whole, **{**asked, **given, **changes}, planned=planned)

    free = plan("")
    assert plan(free["generation"])["requested"]["slot"] == 1
    with pytest.raises(TrisparkError) as caught:
        plan("g0123456789abcdef")
    assert (caught.value.id, caught.value.observed) == ("TS-PLAN-CHANGED", free["generation"])
    promoted = {"schema_version": 1, "settings": {"DSPARK_BLOCK_SIZE": 5}, "record": "t1", "record_hash": "0" * 64}
    promoted["time"] = "2026-01-02T03:04:05Z"
    held = {node: {**status, "baseline": promoted} for node, status in statuses.items()}
    with pytest.raises(TrisparkError) as caught:
        plan(free["generation"], statuses=held)
    assert caught.value.id == "TS-PLAN-CHANGED"
    odd = {**held, "spark2": statuses["spark2"]}
    with pytest.raises(TrisparkError) as caught:
        plan("", statuses=odd)
    assert caught.value.id == "TS-BASELINE-DIFFERS"
    assert "spark2 shipped" in caught.value.observed


# -- records of a walk


class Site3:
    """Records of boots that a walk would leave, chained, in the controller's cache."""

    def __init__(self, root: Path, catalog: Catalog) -> None:
        self.root = root
        self.catalog = catalog
        self.cache = RecordCache(root / ".trispark" / "lab" / "records")
        self.project = ProjectState("0.1.0", "a" * 40, False)

    def boot(
        self,
        walk: WalkPlan,
        slot: int | None,
        generation: str,
        state: str = "valid",
        purpose: str = "trial",
        bench: dict[str, Any] | None = None,
    ) -> str:
        head = self.cache.head()
        number = 1 if head is None else head["seq"] + 1
        record_id = f"b20260102T0304{number:02}Z-0000"
        bad = replace(GATE, ok=False) if state != "valid" else GATE
        record = build_boot_record(
            record_id=record_id,
            site="lab",
            resolution=restore(walk.resolved[generation]),
            allowlist=self.catalog.allowlist,
            project=self.project,
            requested={"trial": walk.walk, "slot": slot, "purpose": purpose, "arm": "candidate"},
            boot_id=record_id,
            epoch=number,
            observations={},
            timings={"started_at": "t", "ended_at": "t", "phases": {"total": 30.0 + number}},
            gates=[bad],
            bench=bench,
            summary=None if bench is None else summarize(bench),
            outcome={"state": state, "reason": "all gates passed" if state == "valid" else "a gate", "good": False},
            previous=head,
        )
        self.cache.add(record)
        return record_id


@pytest.fixture
def recorded(tmp_path: Path, with_sweep: Catalog) -> Site3:
    return Site3(tmp_path, with_sweep)


def holding_head(head: Any) -> dict[str, Any]:
    return {"record_head": head, "record_chain": "empty" if head is None else "ok"}


def answers(recorded: Site3) -> dict[str, Any]:
    """Of nodes that hold what the controller holds."""
    return dict.fromkeys(NODES, holding_head(recorded.cache.head()))


def sweep_walk(ground: Ground, recorded: Site3) -> tuple[WalkPlan, Journal]:
    walk = plan_walk(ground, WALK, "b", "threads")
    directory = walks_directory(recorded.root, "lab") / WALK
    keep_walk(directory, walk)
    journal = Journal(directory)
    journal.write("began", "2026-01-02T03:04:05Z")
    return walk, journal


def test_every_value_of_a_sweep_gets_its_own_record_with_the_shared_baseline(ground: Ground, recorded: Site3) -> None:
    walk, journal = sweep_walk(ground, recorded)
    boots = [recorded.boot(walk, slot.slot, slot.generation) for slot in walk.slots]
    restored = recorded.boot(walk, 3, walk.site_baseline, purpose="restore")
    found = trials_to_record(walk, journal.read(), recorded.cache.list(), "")
    records = []
    for each in found:
        record = record_trial(
            recorded.root, recorded.catalog.allowlist, walk, each, recorded.cache, restored_boot=restored,
            began="2026-01-02T03:04:05Z", previous=recorded.cache.head(), now=datetime(2026, 1, 2, 4, tzinfo=UTC),
        )  # fmt: skip
        recorded.cache.add(record)
        records.append(record)
    assert [record["id"] for record in records] == [f"{WALK}.24", f"{WALK}.48"]
    assert [[boot["boot_id"] for boot in record["boots"]] for record in records] == [
        [boots[0], boots[1]],
        [boots[0], boots[2]],
    ]
    assert [record["requested"]["value"] for record in records] == ["24", "48"]
    assert {record["requested"]["trial"] for record in records} == {WALK}
    assert {record["outcome"]["verdict"] for record in records} == {"INCONCLUSIVE"}
    assert {record["outcome"]["restored"] for record in records} == {walk.site_baseline}
    assert records[0]["timings"]["phases"]["total"] == 3355
    assert recorded.cache.verify() is not None


def test_a_value_that_was_not_begun_has_no_record_and_one_that_was_says_why_it_ended(
    ground: Ground, recorded: Site3
) -> None:
    walk, journal = sweep_walk(ground, recorded)
    recorded.boot(walk, 0, walk.slots[0].generation)
    assert trials_to_record(walk, journal.read(), recorded.cache.list(), "two boots did not start") == []
    journal.write("slot_started", "t", slot=1)
    (only,) = trials_to_record(walk, journal.read(), recorded.cache.list(), "boot 1 took spark1 down")
    assert (only.trial.value, only.ended, len(only.candidate)) == ("24", "boot 1 took spark1 down", 0)


def test_a_boot_that_prepares_and_is_not_valid_ends_the_trial_with_a_failure(
    ground: Ground, recorded: Site3, project: Path
) -> None:
    """It is no boot of the verdict, and still the reason that there is none."""
    for name in ("experiments", "templates", "adapters"):
        (recorded.root / name).symlink_to(project / name)
    walk = plan_walk(ground, WALK, "c", "wo_a")
    keep_walk(walks_directory(recorded.root, "lab") / WALK, walk)
    assert not walk.slots[0].counted
    tuning = recorded.boot(walk, 0, walk.slots[0].generation, state="invalid")
    restored = recorded.boot(walk, 3, walk.site_baseline, purpose="restore")
    statuses = answers(recorded)
    end = conclude(recorded.root, "lab", WALK, stopped="", restored=restored, statuses=statuses)
    record = recorded.cache.show(WALK)
    assert end.report.lines[-1] == f"report: ./trispark report {WALK}", "nothing hides it"
    assert end.report.published["trial"]["id"] == WALK
    assert record["boots"] == []
    assert record["outcome"]["reason"] == f"{tuning} is not valid, the boots after it were left out"
    assert end.report.failure_line == (
        f"TS-TRIAL-BOOT: a boot of the trial is not valid; where: {tuning}; expected: every gate passed; "
        "observed: a gate; do: read the kept logs of that boot"
    )


def test_boots_that_cannot_be_compared_end_in_a_record_that_says_so(ground: Ground, recorded: Site3) -> None:
    walk = plan_walk(ground, WALK, "b", "threads", "48")
    directory = walks_directory(recorded.root, "lab") / WALK
    keep_walk(directory, walk)
    recorded.boot(walk, 0, walk.slots[0].generation)
    recorded.project = ProjectState("0.1.0", "b" * 40, False)
    recorded.boot(walk, 1, walk.slots[1].generation)
    (boots,) = trials_to_record(walk, Journal(directory).read(), recorded.cache.list(), "")
    record = record_trial(
        recorded.root, recorded.catalog.allowlist, walk, boots, recorded.cache, restored_boot=None,
        began="2026-01-02T03:04:05Z", previous=recorded.cache.head(), now=datetime(2026, 1, 2, 4, tzinfo=UTC),
    )  # fmt: skip
    assert record["outcome"]["verdict"] == "INCONCLUSIVE"
    assert record["outcome"]["reason"].startswith("TS-TRIAL-DRIFT: project commit")
    assert record["outcome"]["differences"] == {}
    assert record["outcome"]["restored"] is None


def measurement(rate: float) -> dict[str, Any]:
    """What the load client would write: one request a workload, one wave; TTFT differs with the rate."""

    def request(tag: str) -> dict[str, Any]:
        total = 64 / rate + 0.3 + rate / 1e4
        return {"tag": tag, "completion_tokens": 65, "ttft_s": 0.3 + rate / 1e4, "total_s": total, "text_sha": "x"}

    return {
        "input": {
            "repetitions": 1, "max_tokens": 65, "warmup_tokens": 1, "concurrency": [1, 4], "rank": 1, "image": "i",
            "workloads": {},
        },
        "requests": [request(tag) for tag in ("c1-prose", "c1-code", "c4")],
        "waves": [{"tag": "c4", "tokens": 260, "wall_s": 130 / rate}],
        "server_info": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gain", "made", "verdict"), [(0.05, 8, "NOT-CHECKED"), (-0.05, 8, "HARM"), (0.008, 12, "OPEN")]
)
def test_the_record_of_a_trial_has_its_verdict_its_intervals_and_its_rules(
    ground: Ground, recorded: Site3, gain: float, made: int, verdict: str
) -> None:
    """The walk ends at the look that decides; no boot here says how large its KV pool is."""
    walk = plan_walk(ground, WALK, "b", "threads", "48", boots=6)
    assert walk.boots == 6
    assert WalkPlan.of(walk.as_dict()).trials[0].rules == walk.trials[0].rules
    with pytest.raises(TrisparkError, match="TS-PLAN-CHANGED"):
        require_same_walk(walk, plan_walk(ground, WALK, "b", "threads", "48", boots=4))
    noise = {"baseline": [0.0, 0.4, -0.5, 0.2, 0.3, -0.4], "candidate": [-0.4, 0.3, 0.2, -0.5, 0.4, 0.1]}
    for slot in walk.slots[:made]:
        level = 1 + gain if slot.arm == "candidate" else 1.0
        rate = 30 * level * (1 + noise[slot.arm].pop(0) / 100)
        recorded.boot(walk, slot.slot, slot.generation, bench=measurement(rate))
    (boots,) = trials_to_record(walk, Journal(recorded.root).read(), recorded.cache.list(), "")
    assert (boots.ended, len(boots.baseline), len(boots.candidate)) == (None, made // 2, made // 2)
    record = record_trial(
        recorded.root, recorded.catalog.allowlist, walk, boots, recorded.cache, restored_boot=None,
        began="2026-01-02T03:04:05Z", previous=recorded.cache.head(), now=datetime(2026, 1, 2, 4, tzinfo=UTC),
    )  # fmt: skip
    outcome = record["outcome"]
    assert outcome["code"] == verdict, outcome["reason"]
    assert outcome["verdict"] == ("REJECT" if verdict == "HARM" else "INCONCLUSIVE")
    assert "kv_pin" in outcome["unchecked"]
    assert outcome["rules"] == walk.trials[0].rules
    (metric,) = outcome["detail"]["metrics"]
    assert (metric["metric"], outcome["detail"]["boots"]) == ("c4.agg_tps", made // 2)
    assert metric["welch"]["low"] < 1 + gain < metric["welch"]["high"]
    recorded.cache.add(record)
    assert recorded.cache.verify() is not None


def test_a_candidate_that_fails_a_gate_beside_a_sound_baseline_is_rejected(ground: Ground, recorded: Site3) -> None:
    walk = plan_walk(ground, WALK, "b", "threads", "48", boots=4)
    recorded.boot(walk, 0, walk.slots[0].generation, bench=measurement(30))
    bad = recorded.boot(walk, 1, walk.slots[1].generation, state="invalid")
    (boots,) = trials_to_record(walk, Journal(recorded.root).read(), recorded.cache.list(), "")
    assert boots.ended is not None
    record = record_trial(
        recorded.root, recorded.catalog.allowlist, walk, boots, recorded.cache, restored_boot=None,
        began="2026-01-02T03:04:05Z", previous=recorded.cache.head(), now=datetime(2026, 1, 2, 4, tzinfo=UTC),
    )  # fmt: skip
    assert (record["outcome"]["verdict"], record["outcome"]["code"]) == ("REJECT", "UNSAFE")
    assert record["outcome"]["reason"].startswith(f"{bad} of the candidate failed its gates (engram.packed)")


def test_the_end_of_a_walk_is_recorded_once_whoever_is_killed_in_between(
    ground: Ground, recorded: Site3, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("experiments", "templates", "adapters"):
        (recorded.root / name).symlink_to(project / name)
    walk, journal = sweep_walk(ground, recorded)
    for slot in walk.slots:
        recorded.boot(walk, slot.slot, slot.generation)
    restored = recorded.boot(walk, 3, walk.site_baseline, purpose="restore")
    statuses = answers(recorded)
    add = RecordCache.add

    def killed(self: RecordCache, record: Any) -> bool:
        if str(record["id"]).endswith(".48"):
            raise KeyboardInterrupt
        return add(self, record)

    def end() -> Any:
        return conclude(recorded.root, "lab", WALK, stopped="", restored=restored, statuses=statuses)

    monkeypatch.setattr(RecordCache, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        end()
    monkeypatch.setattr(RecordCache, "add", add)
    first = end()
    assert first.added == 1
    assert {node: [each["record"]["id"] for each in entries] for node, entries in first.append.items()} == {
        key: [f"{WALK}.24", f"{WALK}.48"] for key in NODES
    }
    again = end()
    assert (again.added, again.append) == (0, first.append), "the nodes still lack them"
    caught_up = conclude(
        recorded.root, "lab", WALK, stopped="", restored=restored,
        statuses={
            "spark0": holding_head(recorded.cache.head()), "spark1": statuses["spark1"], "spark2": holding_head(None),
        },
    )  # fmt: skip
    assert {node: len(entries) for node, entries in caught_up.append.items()} == {"spark0": 0, "spark1": 2, "spark2": 6}
    published = again.report.published
    assert [trial["value"] for trial in published["trials"]] == ["24", "48"]
    assert "trial" not in published
    assert len(published["records"]) == 5
    assert again.report.failure_line == ""
    ended = [entry for entry in journal.read().entries if entry.event == "ended"]
    assert len(ended) == 1
    assert ended[0].fields["verdicts"] == ["INCONCLUSIVE", "INCONCLUSIVE"]


def test_the_verdict_follows_the_controllers_copy_when_no_node_answers(
    ground: Ground, recorded: Site3, project: Path
) -> None:
    for name in ("experiments", "templates", "adapters"):
        (recorded.root / name).symlink_to(project / name)
    walk, journal = sweep_walk(ground, recorded)
    for slot in walk.slots:
        recorded.boot(walk, slot.slot, slot.generation)
    journal.write("node_down", "t", slot=2, label="48", nodes=list(NODES))
    silent = dict.fromkeys(NODES)
    end = conclude(recorded.root, "lab", WALK, stopped="nodes are down", restored=None, statuses=silent)
    assert [record["seq"] for record in recorded.cache.list()] == [1, 2, 3, 4, 5]
    assert recorded.cache.verify() == recorded.cache.head()
    assert end.append == {node: [] for node in NODES}
    assert any("spark0, spark1, spark2: records not known" in line for line in end.report.lines)
    back = dict.fromkeys(NODES, holding_head({"seq": 3, **head_of_number(recorded, 3)}))
    again = conclude(recorded.root, "lab", WALK, stopped="nodes are down", restored=None, statuses=back)
    assert {node: len(entries) for node, entries in again.append.items()} == dict.fromkeys(NODES, 2)


def head_of_number(recorded: Site3, seq: int) -> dict[str, Any]:
    record = recorded.cache.show(str(seq))
    return {"id": record["id"], "hash": record_hash(record)}


def test_a_catalog_that_was_broken_meanwhile_hinders_no_verdict(ground: Ground, recorded: Site3, project: Path) -> None:
    shutil.copytree(project / "experiments", recorded.root / "experiments")
    (recorded.root / "experiments/features.yml").write_text("schema_version: 1\nfeatures: {\n", encoding="utf-8")
    walk = plan_walk(ground, WALK, "c", "wo_a")
    directory = walks_directory(recorded.root, "lab") / WALK
    keep_walk(directory, walk)
    for slot in walk.slots:
        recorded.boot(walk, slot.slot, slot.generation)
    restored = recorded.boot(walk, 3, walk.site_baseline, purpose="restore")
    end = conclude(recorded.root, "lab", WALK, stopped="", restored=restored, statuses=answers(recorded))
    assert Journal(directory).read().ended
    record = recorded.cache.show(WALK)
    assert (record["outcome"]["verdict"], record["outcome"]["restored"]) == ("INCONCLUSIVE", walk.site_baseline)
    assert record["resolved"]["changed"] == {}, "no value is recorded that nothing says may be shown"
    assert "exit criteria of the stage: not judged: TS-YAML-SYNTAX" in end.report.lines[-2]


def test_a_trial_that_ended_early_and_one_without_its_baseline_say_all_of_it(
    ground: Ground, recorded: Site3, project: Path
) -> None:
    for name in ("experiments", "templates", "adapters"):
        (recorded.root / name).symlink_to(project / name)
    walk, _ = sweep_walk(ground, recorded)
    recorded.boot(walk, 0, walk.slots[0].generation)
    end = conclude(
        recorded.root, "lab", WALK, stopped="2 boots did not start", restored=None, statuses=answers(recorded)
    )
    lines = end.report.failure_line.split(" | ")
    assert [line.partition(":")[0] for line in lines] == ["TS-TRIAL-RESTORE", "TS-TRIAL-ENDED"]
    for line in lines:
        assert all(f"; {field}: " in line for field in ("where", "expected", "observed", "do")), line
    assert "observed: 2 boots did not start" in lines[1]


def test_what_the_controller_lacks_is_known_by_number(ground: Ground, recorded: Site3) -> None:
    walk, _ = sweep_walk(ground, recorded)
    assert missing(None, recorded.cache) is None
    assert missing({"seq": 2, "id": "x", "hash": "0"}, recorded.cache) == 0
    for slot in walk.slots:
        recorded.boot(walk, slot.slot, slot.generation)
    head = recorded.cache.head()
    assert missing(head, recorded.cache) is None
    assert missing({**(head or {}), "seq": 5}, recorded.cache) == 3
    recorded.cache.path(recorded.cache.list()[1]).unlink()
    assert missing(head, recorded.cache) == 1
    lacking = behind(NODES, {"spark0": None}, recorded.cache)
    assert (lacking.appends["spark0"], lacking.waiting["spark0"].id) == ([], "TS-RECORD-LOST")


def test_a_boot_takes_the_longest_of_the_newest_or_what_the_site_declares(ground: Ground, recorded: Site3) -> None:
    site = ground.site
    deadlines = site.start_deadline_s + site.stop_deadline_s
    assert boot_times(site, []) == BootTimes(deadlines, deadlines)
    walk, _ = sweep_walk(ground, recorded)
    for _ in range(7):
        recorded.boot(walk, 0, walk.site_baseline)
    recorded.boot(walk, 0, walk.site_baseline, state="invalid")
    assert boot_times(site, recorded.cache.list()) == BootTimes(deadlines, 37.0)
    measured = copy.deepcopy(recorded.cache.list())
    for record in measured:
        record["bench"] = {}
    assert boot_times(site, measured) == BootTimes(37.0, 37.0)
    now = datetime(2026, 1, 2, tzinfo=UTC)
    times = BootTimes(60, 30)
    assert fits(now, None, times, measured=True)
    assert fits(now, now.replace(minute=1, second=30), times, measured=True)
    assert not fits(now, now.replace(minute=1, second=29), times, measured=True)
    assert fits(now, now.replace(minute=1), times, measured=False)


# -- promotion: this version decides nothing, so the KEEP is made by hand


def keep_record(recorded: Site3, site: Site, project: Path, feature: str = "wo_a", **changes: Any) -> dict[str, Any]:
    """A trial record with the verdict KEEP, of the configurations that the project resolves."""
    promoted = changes.pop("promoted", {})
    arms = resolve_arms(
        site, recorded.catalog, feature, None, project, value=changes.pop("value", None), promoted=promoted
    )
    verdict = changes.pop("verdict", "KEEP")
    boot = changes.pop("boot", None)
    compared = {
        "arm": "baseline",
        "boot_id": boot,
        "generation": arms.baseline.id,
        "seq": 1,
        "hash": "0" * 64,
        "valid": True,
    }
    record = build_trial_record(
        record_id=changes.pop("record_id", WALK),
        site=changes.pop("site_name", "lab"),
        project=recorded.project,
        requested={
            "stage": "c", "feature": feature, "arm": "candidate", "purpose": "trial", "trial": WALK,
            "value": None if arms.choice.value is None else str(arms.choice.value),
        },
        baseline=arms.baseline,
        candidate=arms.candidate,
        difference=compare(arms.baseline, arms.candidate),
        allowlist=recorded.catalog.allowlist,
        boots=[] if boot is None else [compared],
        verdict=Verdict(verdict, "by hand", {}),
        restored=arms.baseline.id,
        timings={"started_at": "t", "ended_at": "t", "phases": {}},
        previous=recorded.cache.head(),
    )  # fmt: skip
    recorded.cache.add(record)
    return record


def promote(recorded: Site3, site: Site, project: Path, record: Any, statuses: Any = None) -> Any:
    return plan_promotion(
        root=project,
        site=site,
        catalog=recorded.catalog,
        records=recorded.cache.list(),
        record=record,
        statuses=statuses or {key: {"baseline": None} for key in NODES},
        time="2026-01-02T03:04:05Z",
    )


def holding(baseline: Any) -> dict[str, Any]:
    return {"baseline": None if baseline is None else baseline.as_dict()}


def test_a_keep_becomes_the_baseline_with_its_record(recorded: Site3, site: Site, project: Path) -> None:
    record = keep_record(recorded, site, project)
    promotion = promote(recorded, site, project, record)
    assert promotion.baseline == Promoted({"DSV41_WO_A_W8": 1}, WALK, record_hash(record), "2026-01-02T03:04:05Z")
    assert promotion.requests() == {
        node: {"baseline": promotion.baseline.as_dict(), "replaces": "shipped"} for node in NODES
    }
    assert promotion.changed == {"DSV41_WO_A_W8": (0, 1)}
    settings = settings_of(promotion.baseline, recorded.catalog)
    promoted = resolve(site, recorded.catalog, None, None, project, promoted=settings)
    assert promoted.id == record["resolved"]["candidate"], "the baseline of now is the candidate that was kept"


def test_a_second_keep_builds_on_the_first(recorded: Site3, site: Site, project: Path) -> None:
    first = promote(recorded, site, project, keep_record(recorded, site, project)).baseline
    statuses = dict.fromkeys(NODES, holding(first))
    second = keep_record(
        recorded, site, project, "wo_a_mid", promoted=first.settings, record_id="t20260103T030405Z-0000"
    )
    found = promote(recorded, site, project, second, statuses)
    assert found.baseline.settings == {"DSV41_WO_A_W8": 1, "DSV41_WO_A_W8_MID": 1}
    assert set(found.replaces.values()) == {WALK}


def test_an_interrupted_promotion_is_completed_and_a_whole_one_changes_nothing(
    recorded: Site3, site: Site, project: Path
) -> None:
    record = keep_record(recorded, site, project)
    new = promote(recorded, site, project, record).baseline
    half = {"spark0": holding(new), "spark1": holding(None), "spark2": holding(None)}
    with pytest.raises(TrisparkError) as caught:
        on_nodes(half)
    assert caught.value.id == "TS-BASELINE-DIFFERS"
    completed = promote(recorded, site, project, record, half)
    assert completed.replaces == {"spark0": WALK, "spark1": "shipped", "spark2": "shipped"}
    assert completed.baseline.settings == new.settings
    whole = promote(recorded, site, project, record, dict.fromkeys(NODES, holding(new)))
    assert (whole.baseline, whole.changed) == (new, {})
    assert plan_revert(half).requests() == {node: {"baseline": None} for node in NODES}


@pytest.mark.parametrize(
    ("changes", "error_id"),
    [
        ({"verdict": "INCONCLUSIVE"}, "TS-PROMOTE-VERDICT"),
        ({"verdict": "REJECT"}, "TS-PROMOTE-VERDICT"),
        ({"site_name": "sparks"}, "TS-PROMOTE-SITE"),
        ({"promoted": {"DSPARK_BLOCK_SIZE": 5}}, "TS-PROMOTE-BASELINE"),
        ({"feature": "wo_a_mid"}, "TS-PROMOTE-BASELINE"),
    ],
    ids=["inconclusive", "reject", "site", "baseline", "on-top-of-another"],
)
def test_what_is_no_keep_of_this_site_and_baseline_is_refused(
    recorded: Site3, site: Site, project: Path, changes: dict[str, Any], error_id: str
) -> None:
    record = keep_record(recorded, site, project, **changes)
    with pytest.raises(TrisparkError) as caught:
        promote(recorded, site, project, record)
    assert caught.value.id == error_id


def test_a_tree_that_resolves_another_candidate_is_refused(
    recorded: Site3, site: Site, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = keep_record(recorded, site, project)
    wider = {**recorded.catalog.features["wo_a"].sets, "DSV41_ENGRAM_PREFETCH": 1}
    entry = recorded.catalog.features["wo_a"].model_copy(update={"sets": wider})
    recorded.catalog = replace(recorded.catalog, features={**recorded.catalog.features, "wo_a": entry})
    with pytest.raises(TrisparkError) as caught:
        promote(recorded, site, project, record)
    assert caught.value.id == "TS-PROMOTE-CHANGED"


def test_a_promotion_needs_the_record_itself(recorded: Site3, ground: Ground, site: Site, project: Path) -> None:
    walk, _ = sweep_walk(ground, recorded)
    boot = recorded.boot(walk, 0, walk.site_baseline)
    with pytest.raises(TrisparkError) as caught:
        promote(recorded, site, project, promotable(recorded.cache, boot))
    assert (caught.value.id, caught.value.observed) == ("TS-PROMOTE-RECORD", "boot")
    kept = keep_record(recorded, site, project)
    assert promotable(recorded.cache, WALK) == kept
    for name in ("", WALK[:-1], "no such"):
        with pytest.raises(TrisparkError) as caught:
            promotable(recorded.cache, name)
        assert (caught.value.id, caught.value.expected) == ("TS-PROMOTE-RECORD", f"one of {WALK}")
    with pytest.raises(TrisparkError) as caught:
        plan_revert({}, WALK)
    assert caught.value.id == "TS-PROMOTE-RECORD"


def test_a_promotion_that_changes_what_a_step_costs_names_the_sweeps_to_repeat(
    recorded: Site3, ground: Ground, site: Site, project: Path
) -> None:
    walk, _ = sweep_walk(ground, recorded)
    boot = recorded.boot(walk, 0, walk.site_baseline)
    earlier = keep_record(recorded, site, project, "threads", value="48", record_id="t20260101T030405Z-0000", boot=boot)
    assert recorded.catalog.features["wo_a"].shifts_cost_balance
    promotion = promote(recorded, site, project, keep_record(recorded, site, project))
    assert set(promotion.stale) == {earlier["id"]}
    assert "DSV41_WO_A_W8 was 0, is 1" in promotion.lines()[1]


def test_the_controllers_copy_follows_the_nodes(tmp_path: Path, recorded: Site3, site: Site, project: Path) -> None:
    promoted = promote(recorded, site, project, keep_record(recorded, site, project)).baseline
    assert cached(tmp_path, "lab") is None
    assert write_cache(tmp_path, "lab", promoted)
    assert not write_cache(tmp_path, "lab", promoted)
    assert cached(tmp_path, "lab") == promoted
    path = tmp_path / ".trispark/lab/baseline.json"
    for damage in ("{", "[]", "{}", '{"schema_version": 2}'):
        path.write_text(damage)
        with pytest.raises(TrisparkError) as caught:
            cached(tmp_path, "lab")
        assert caught.value.id == "TS-BASELINE-READ"
    assert write_cache(tmp_path, "lab", promoted)
    assert write_cache(tmp_path, "lab", None)
    assert cached(tmp_path, "lab") is None
