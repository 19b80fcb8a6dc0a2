"""The confirmation of what was promoted: from the records of its trials to its own verdict."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from trial_records import ENDED, LabRecords, walk_id

from trispark.boot_plan import Moment, Project, plan_arm
from trispark.catalog import assemble
from trispark.confirm import Part, parts_of
from trispark.decision_rules import DecisionRules
from trispark.errors import TrisparkError
from trispark.plan import Ground, plan_on
from trispark.promote import plan_promotion, promotable
from trispark.promoted import Promoted
from trispark.record_replay import replay
from trispark.records import record_hash, validate_record
from trispark.report.render import report_text
from trispark.report.sources import find
from trispark.reporting import RecordedTrial, trials
from trispark.resolve import check_one_change, resolve, resolve_arms
from trispark.walk_end import conclude
from trispark.walk_journal import Journal
from trispark.walk_plan import WalkPlan, keep_walk, plan_walk, require_feature, walks_directory

REPOSITORY = Path(__file__).resolve().parents[3]
NODES = ("spark0", "spark1", "spark2")
TWINS, BLOCK = "DSV41_WO_A_W8", "DSPARK_BLOCK_SIZE"


@dataclass
class Lab:
    """A site whose trials are made by the project's own builders, and what it promoted of them."""

    made: LabRecords
    promoted: Promoted | None = None

    @property
    def ground(self) -> Ground:
        if self.promoted is None:
            return self.made.ground
        by = {"record": self.promoted.record, "record_hash": self.promoted.record_hash}
        settings = self.promoted.typed(self.made.ground.catalog)
        return replace(self.made.ground, root=self.made.root, promoted=settings, promoted_by=by)

    def statuses(self) -> dict[str, Any]:
        held = None if self.promoted is None else self.promoted.as_dict()
        return {node: {"epoch": 1, "current": None, "engine": None, "baseline": held} for node in NODES}

    def trial(self, number: int, feature: str, value: str | None = None, gain: float = 0.04) -> dict[str, Any]:
        self.made.ground = self.ground
        (record,) = self.made.trial(self.made.plan(number, feature, value), gain)
        return record

    def promote(self, record: dict[str, Any]) -> None:
        ground = self.ground
        self.promoted = plan_promotion(
            root=ground.root, site=ground.site, catalog=ground.catalog, records=self.made.cache.list(), record=record,
            statuses=self.statuses(), time="2026-01-03T00:00:00Z",
        ).baseline  # fmt: skip

    def kept(self, number: int, feature: str, value: str | None = None) -> dict[str, Any]:
        record = self.trial(number, feature, value)
        assert record["outcome"]["verdict"] == "KEEP", record["outcome"]["reason"]
        self.promote(record)
        return record


Bundled = tuple[Lab, dict[str, Any], dict[str, Any]]


def new_lab(root: Path) -> Lab:
    for name in ("templates", "experiments", "adapters", "inventory"):
        (root / name).symlink_to(REPOSITORY / name)
    return Lab(LabRecords(root))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return new_lab(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundled:
    lab = new_lab(tmp_path_factory.mktemp("bundle"))
    return lab, lab.kept(2, "wo_a"), lab.kept(3, "block_size", "2")


@pytest.fixture
def bundled(made: Bundled, lab: Lab) -> Bundled:
    """A site that promoted the twins, then block size 2."""
    shutil.copytree(made[0].made.cache.directory, lab.made.cache.directory)
    lab.promoted = made[0].promoted
    return lab, *copy.deepcopy(made[1:])


def refused(call: Callable[[], object]) -> TrisparkError:
    with pytest.raises(TrisparkError) as caught:
        call()
    assert all(caught.value.as_dict().values()), "every field of an error line"
    assert "\n" not in str(caught.value)
    return caught.value


def confirm_walk(lab: Lab, number: int = 9, boots: int = 6) -> WalkPlan:
    return plan_walk(lab.ground, walk_id(number), "confirm", None, boots=boots)


# -- the plan


def test_the_bundle_is_tried_against_the_shipped_baseline(bundled: Bundled) -> None:
    lab, twins, block = bundled
    plan = plan_on(lab.ground, "confirm", None, boots=6)
    assert plan["refusals"] == []
    assert plan["difference"] == {TWINS: [0, 1], BLOCK: [3, 2]}
    assert plan["confirms"] == [
        {"record": twins["id"], "record_hash": record_hash(twins), "feature": "wo_a", "value": None, "keys": [TWINS]},
        {
            "record": block["id"],
            "record_hash": record_hash(block),
            "feature": "block_size",
            "value": "2",
            "keys": [BLOCK],
        },
    ]
    site, catalog = lab.ground.site, lab.ground.catalog
    shipped = resolve(site, catalog, None, None, lab.ground.root)
    serving = resolve(site, catalog, None, None, lab.ground.root, promoted=lab.ground.promoted)
    assert (plan["baseline"]["generation"], plan["candidate"]["generation"]) == (shipped.id, serving.id)
    assert plan["promoted"]["record"] == block["id"]
    assert json.loads(json.dumps(plan)) == plan
    assert plan_on(lab.ground, "stage_confirm", "confirm", boots=6)["id"] == plan["id"]


def test_all_primaries_of_the_parts_decide(bundled: Bundled) -> None:
    lab, _, _ = bundled
    rules = DecisionRules.of(plan_on(lab.ground, "confirm", None, boots=6)["decision"])
    entries = [lab.ground.catalog.features[name] for name in ("wo_a", "block_size")]
    primaries = {metric for entry in entries for metric in entry.primaries}
    assert {each.metric for each in rules.primaries} == primaries
    guards = {metric for entry in entries for metric in entry.guards} - primaries
    assert {each.metric for each in rules.guards} == guards
    assert rules.test == "Welch t, one-sided, Holm over the primaries"
    assert [(look.boots, look.level) for look in rules.looks] == [(4, 0.007), (6, 0.018)]
    assert (rules.control, rules.mechanism) == (False, ())


def test_the_strictest_margin_of_the_parts_holds(bundled: Bundled) -> None:
    lab, _, _ = bundled
    shared = "c4.agg_tps"
    features = dict(lab.ground.catalog.features)
    for name, margin in (("wo_a", 0.03), ("block_size", 0.02)):
        entry = features[name]
        guards = (*entry.guards, *(() if shared in (*entry.primaries, *entry.guards) else (shared,)))
        features[name] = entry.model_copy(update={"guards": guards, "margins": {**entry.margins, shared: margin}})
    odd = replace(lab.ground, catalog=replace(lab.ground.catalog, features=features))
    rules = DecisionRules.of(plan_on(odd, "confirm", None, boots=6)["decision"])
    assert [each.margin for each in rules.watched if each.metric == shared] == [0.02]


def test_without_a_promotion_there_is_nothing_to_confirm(lab: Lab) -> None:
    same = replace(lab.ground, promoted={BLOCK: 3}, promoted_by={"record": "t", "record_hash": ""})
    for ground in (lab.ground, same):
        assert refused(lambda ground=ground: plan_on(ground, "confirm", None)).id == "TS-CONFIRM-NOTHING"
        assert refused(lambda ground=ground: plan_walk(ground, walk_id(9), "confirm", None)).id == "TS-CONFIRM-NOTHING"


def test_only_the_bundle_is_tried_and_only_there(bundled: Bundled) -> None:
    lab, _, _ = bundled
    plan = plan_on(lab.ground, "confirm", "engram_prefetch")
    assert "TS-FEATURE-STAGE" in [refusal["id"] for refusal in plan["refusals"]]
    assert refused(lambda: plan_on(lab.ground, "c", "confirm")).id == "TS-FEATURE-UNKNOWN"


def test_the_arms_must_differ_in_the_promoted_keys_alone(
    bundled: Bundled,
) -> None:
    lab, _, _ = bundled
    ground = lab.ground.for_stage("confirm")
    arms = resolve_arms(ground.site, ground.catalog, "confirm", None, ground.root)
    assert set(check_one_change(arms.baseline, arms.candidate, ground.catalog, arms.choice).settings) == {TWINS, BLOCK}
    more = resolve(ground.site, ground.catalog, None, {"DSV41_IO_THREADS": "48"}, ground.root, promoted=ground.promoted)
    error = refused(lambda: check_one_change(arms.baseline, more, ground.catalog, arms.choice))
    assert (error.id, "DSV41_IO_THREADS differs too" in error.what) == ("TS-PLAN-ONECHANGE", True)


def test_its_name_is_reserved(lab: Lab) -> None:
    from trispark.catalog import (
        AllowlistFile,
        BaselineFile,
        EnginesFile,
        EvidenceFile,
        ExclusionsFile,
        FeaturesFile,
        StagesFile,
    )  # fmt: skip
    from trispark.plainyaml import check_model, read_yaml
    from trispark.quality.model import QualityFile

    models = {
        "env_allowlist": AllowlistFile, "baseline": BaselineFile, "features": FeaturesFile, "stages": StagesFile,
        "evidence": EvidenceFile, "exclusions": ExclusionsFile, "engines": EnginesFile, "quality": QualityFile,
    }  # fmt: skip
    place = lab.made.root / "experiments"
    files = {name: read_yaml(place / f"{name}.yml") for name in models}
    files["features"]["features"]["confirm"] = files["features"]["features"]["wo_a"]
    read = [check_model(model, files[name], name, "TS-CATALOG-SCHEMA") for name, model in models.items()]
    error = refused(lambda: assemble(*read))  # type: ignore[arg-type]
    assert (error.id, error.observed) == ("TS-CATALOG-REFERENCE", "confirm")


# -- where the keys came from


def parts(lab: Lab, records: list[dict[str, Any]] | None = None) -> tuple[Part, ...]:
    assert lab.promoted is not None
    found = lab.made.cache.list() if records is None else records
    return parts_of(
        lab.promoted.typed(lab.ground.catalog), lab.promoted.record, lab.promoted.record_hash, lab.ground.catalog, found
    )


def test_a_key_that_was_promoted_twice_is_the_last_trials(lab: Lab) -> None:
    lab.kept(2, "block_size", "2")
    last = lab.kept(3, "block_size", "4")
    assert [(part.record, part.value) for part in parts(lab)] == [(last["id"], "4")]
    assert plan_on(lab.ground, "confirm", None)["difference"] == {BLOCK: [3, 4]}


def test_a_keep_that_was_not_promoted_is_no_part(lab: Lab) -> None:
    twins = lab.kept(2, "wo_a")
    lab.trial(3, "block_size", "4")
    block = lab.kept(4, "block_size", "2")
    assert [part.record for part in parts(lab)] == [twins["id"], block["id"]]


def kept(
    name: str, generations: tuple[str, str], feature: str = "wo_a", /, **changed: tuple[Any, Any]
) -> dict[str, Any]:
    """A trial that ended with KEEP; `generations`: baseline and candidate, `changed`: values in both."""
    pairs = {key: {"baseline": old, "candidate": new} for key, (old, new) in changed.items()}
    return {
        "kind": "trial", "id": name, "outcome": {"verdict": "KEEP"}, "requested": {"feature": feature, "value": None},
        "resolved": {"baseline": generations[0], "candidate": generations[1], "changed": pairs},
    }  # fmt: skip


def test_a_trial_is_found_though_a_later_one_moved_one_of_its_keys(lab: Lab) -> None:
    records = [kept("t1", ("g0", "g1"), **{TWINS: (0, 1), BLOCK: (3, 5)}), kept("t2", ("g1", "g2"), **{BLOCK: (5, 4)})]
    found = parts_of({TWINS: 1, BLOCK: 4}, "t2", record_hash(records[1]), lab.ground.catalog, records)
    assert [(part.record, part.keys) for part in found] == [("t1", (TWINS,)), ("t2", (BLOCK,))]


T2 = kept("t2", ("g1", "g2"), "block_size", **{BLOCK: (3, 4)})


def twins(name: str, baseline: str, candidate: str, feature: str = "wo_a") -> dict[str, Any]:
    return kept(name, (baseline, candidate), feature, **{TWINS: (0, 1)})


@pytest.mark.parametrize(
    ("before", "found"),
    [
        # One of another feature made the same change, and was not promoted.
        ([twins("t1", "g0", "g1"), twins("t3", "g0", "g3", "io_threads")], "t1"),
        ([twins("t3", "g0", "g3", "io_threads"), twins("t1", "g0", "g1")], "t1"),
        # The same one was repeated: on another tree, or as it was.
        ([twins("t1", "g0", "g1"), twins("t3", "h0", "h1")], "t1"),
        ([twins("t3", "g0", "g1"), twins("t1", "g0", "g1")], "t1"),
        # The image changed after the promotion: no candidate is the next baseline, and one feature alone can be meant.
        ([twins("t3", "f0", "f1"), twins("t1", "g0", "h1")], "t1"),
        # Two features can be meant, and it is not guessed which.
        ([twins("t1", "g0", "h1"), twins("t3", "g0", "g3", "io_threads")], None),
    ],
)
def test_a_part_is_what_gave_the_next_trial_its_baseline(
    lab: Lab, before: list[dict[str, Any]], found: str | None
) -> None:
    def made() -> list[str]:
        given = ({TWINS: 1, BLOCK: 4}, "t2", record_hash(T2), lab.ground.catalog, [*before, T2])
        return [part.record for part in parts_of(*given)]

    if found is None:
        error = refused(made)
        assert (error.id, error.observed) == ("TS-CONFIRM-ORIGIN", "t1 (wo_a) and t3 (io_threads)")
    else:
        assert made() == [found, "t2"]


def test_the_last_trial_must_have_set_what_the_site_holds(lab: Lab) -> None:
    given = ({BLOCK: 5}, "t2", record_hash(T2), lab.ground.catalog, [T2])
    assert refused(lambda: parts_of(*given)).id == "TS-CONFIRM-ORIGIN"


@pytest.mark.parametrize("damage", ["first gone", "last gone", "last changed", "feature gone"])
def test_a_key_without_its_trial_is_refused(bundled: Bundled, damage: str) -> None:
    lab, twins, block = bundled
    gone = {"first gone": twins["id"], "last gone": block["id"]}.get(damage)
    records = [copy.deepcopy(record) for record in lab.made.cache.list() if record["id"] != gone]
    for record in records:
        if damage == "last changed" and record["id"] == block["id"]:
            record["timings"]["ended_at"] = "2027-01-01T00:00:00Z"
        if damage == "feature gone" and record["id"] == twins["id"]:
            record["requested"]["feature"] = "of_an_older_catalog"
    assert refused(lambda: parts(lab, records)).id == "TS-CONFIRM-ORIGIN"


# -- walk, boots, record


def test_it_is_walked_against_the_shipped_baseline_and_brings_the_sites_own_back(
    bundled: Bundled,
) -> None:
    lab, twins, block = bundled
    walk = confirm_walk(lab)
    (trial,) = walk.trials
    assert (walk.stage, walk.feature, walk.label) == ("confirm", "confirm", "confirm")
    assert walk.site_baseline == trial.candidate != trial.baseline
    assert walk.promoted == block["id"]
    counted = [slot.arm for slot in walk.slots if slot.counted]
    assert (counted.count("baseline"), counted.count("candidate")) == (6, 6)
    assert f"promoted by {twins['id']} (wo_a): {TWINS}" in walk.lines()
    again = WalkPlan.of(json.loads(json.dumps(walk.as_dict())))
    assert (again.confirms, again.slots) == (walk.confirms, walk.slots)
    require_feature(walk, "confirm", "", "")
    error = refused(lambda: require_feature(walk, "c", "wo_a", ""))
    assert "playbooks/confirm.yml -e resume=" in error.remedy


def test_each_boot_is_of_the_planned_generation(bundled: Bundled) -> None:
    lab, _, _ = bundled
    walk = confirm_walk(lab)
    project = Project(lab.ground.root, lab.ground.site, lab.ground.catalog)
    moment = Moment(datetime(2026, 1, 5, tzinfo=UTC), "ffff")

    def boot(arm: Any, purpose: str, planned: str, lab: Lab = lab) -> dict[str, Any]:
        return plan_arm(
            project, stage="confirm", feature="confirm", arm=arm, purpose=purpose, trial=walk.walk, measure=False,
            statuses=lab.statuses(), misplaced={}, seen_site={}, moment=moment, planned=planned,
        )  # fmt: skip

    for slot in walk.slots:
        planned = boot(slot.arm, "trial", slot.generation)
        assert planned["generation"] == slot.generation
        assert planned["baseline"] == walk.trials[0].baseline
    assert boot("baseline", "restore", walk.site_baseline)["generation"] == walk.site_baseline
    reverted = Lab(lab.made)
    assert refused(lambda: boot("candidate", "trial", "", reverted)).id == "TS-CONFIRM-NOTHING"
    assert boot("baseline", "restore", "", reverted)["generation"] == walk.trials[0].baseline


@pytest.mark.parametrize(
    ("gain", "verdict", "said"),
    [
        (0.05, "KEEP", "confirmed: the site keeps the baseline"),
        (-0.05, "REJECT", "./trispark play promote --site lab -e revert=true"),
        (0.0, None, "nothing was changed: the bundle stays promoted"),
    ],
)
def test_its_verdict_is_of_its_own_boots_and_says_what_to_do(
    bundled: Bundled, gain: float, verdict: str | None, said: str
) -> None:
    lab, twins, block = bundled
    before = lab.promoted
    walk = confirm_walk(lab)
    (record,) = lab.made.trial(walk, gain)
    validate_record(record)
    assert record["outcome"]["verdict"] == verdict or (verdict is None and record["outcome"]["verdict"] != "KEEP")
    assert [part["record"] for part in record["resolved"]["confirms"]] == [twins["id"], block["id"]]
    assert set(record["resolved"]["changed"]) == {TWINS, BLOCK}
    older = {boot["boot_id"] for other in (twins, block) for boot in other["boots"]}
    assert not older & {boot["boot_id"] for boot in record["boots"]}
    assert record["outcome"]["restored"] == walk.site_baseline
    boots = [lab.made.cache.show(boot["boot_id"]) for boot in record["boots"]]
    report = trials(walk.walk, [RecordedTrial(record, "r.json", boots, [])], "", restored=True)
    assert any(said in line for line in report.lines), report.lines
    if verdict == "REJECT":
        assert any(f"-e record={twins['id']} then -e record={block['id']}" in line for line in report.lines)
    assert report.published["trial"]["confirms"] == record["resolved"]["confirms"]
    assert lab.promoted == before
    lab.made.cache.verify()


def test_a_confirmation_is_never_promoted(bundled: Bundled) -> None:
    lab, _, block = bundled
    (record,) = lab.made.trial(confirm_walk(lab), 0.05)
    assert record["outcome"]["verdict"] == "KEEP"
    assert refused(lambda: lab.promote(record)).id == "TS-PROMOTE-CONFIRM"
    known = refused(lambda: promotable(lab.made.cache, "t1"))
    assert block["id"] in known.expected
    assert record["id"] not in known.expected
    assert [part.record for part in parts(lab)][-1] == block["id"], "it is no part of the next one"


def test_the_end_of_its_walk_is_recorded(bundled: Bundled) -> None:
    lab, _, _ = bundled
    walk = confirm_walk(lab, boots=1)
    directory = walks_directory(lab.made.root, "lab") / walk.walk
    keep_walk(directory, walk)
    Journal(directory).write("began", "2026-01-02T03:04:05Z")
    for slot in walk.slots:
        lab.made.boot(walk, slot.slot, slot.generation, slot.arm)
    restored = lab.made.boot(walk, len(walk.slots), walk.site_baseline, None, purpose="restore")
    head = {"record_head": lab.made.cache.head(), "record_chain": "ok"}
    end = conclude(
        lab.made.root, "lab", walk.walk, stopped="", restored=restored["id"], statuses=dict.fromkeys(NODES, head),
        now=ENDED,
    )  # fmt: skip
    assert end.added == 1
    assert end.report.published["trial"]["feature"] == "confirm"
    assert "./trispark play confirm --site lab" in " ".join(end.report.lines) or "boots=6" in end.report.lines[0]


# -- what reads records


def test_the_report_shows_the_promotions(bundled: Bundled) -> None:
    lab, twins, block = bundled
    (record,) = lab.made.trial(confirm_walk(lab), -0.05)
    text = report_text(REPOSITORY, find(lab.made.root, "lab", lab.made.cache, record["id"]), "md")
    for part in (twins["id"], block["id"], "./trispark play confirm --site lab", "not confirmed; it stays until"):
        assert part in text
    assert "-e feature=confirm" not in text


def test_it_can_be_repeated_while_the_bundle_stands(bundled: Bundled, monkeypatch: pytest.MonkeyPatch) -> None:
    lab, _, _ = bundled
    walk = confirm_walk(lab)
    (record,) = lab.made.trial(walk, 0.05)
    monkeypatch.setattr(Ground, "load", classmethod(lambda cls, root, name: lab.ground))
    monkeypatch.setattr("trispark.record_replay._bench_inputs", lambda ground, record: [])
    found = replay(lab.made.root, "lab", record, lab.made.cache.list())
    assert found["command"] == ["play", "confirm", "--site", "lab"]
    assert found["plan"]["baseline"]["generation"] == walk.trials[0].baseline
    lab.promoted = None
    assert refused(lambda: replay(lab.made.root, "lab", record, lab.made.cache.list())).id == "TS-RECORD-REPLAY"
