"""A plan is the same bytes every time, shows all that can be worked out, and names all that it is refused for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trispark.allowlist import Value
from trispark.catalog import Catalog, Kind, Sweep, load_catalog
from trispark.errors import TrisparkError
from trispark.noise_floor import SiteNoise
from trispark.plan import (
    HIDDEN,
    KEPT_PLANS,
    NO_IMAGE,
    PLACEHOLDER_IMAGE,
    Ground,
    hours,
    keep_plan,
    kept_plan,
    make_plan,
    plan_changes,
    plan_id,
    plan_on,
    plans_of,
    read_boots,
    require_same_plan,
    trial_boots,
)
from trispark.site import Site

REPOSITORY = Path(__file__).resolve().parents[3]
CATALOG = load_catalog(REPOSITORY)
PLACES = [(stage, name) for stage in CATALOG.stages for name in CATALOG.features_of(stage)]


@pytest.fixture(scope="module")
def ground() -> Ground:
    """The lab of this tree, as before `lab up`."""
    loaded = Ground.load(REPOSITORY, "lab")
    site = loaded.site.model_copy(update={"engine_image": PLACEHOLDER_IMAGE, "bench_image": None})
    return replace(loaded, site=site, image=NO_IMAGE, promoted={}, promoted_by=None, noise=None)


def ids(plan: Mapping[str, Any]) -> list[str]:
    return [refusal["id"] for refusal in plan["refusals"]]


@dataclass
class FakeBudget:
    """A judgement of the memory budget."""

    verdict: str
    lines: tuple[str, ...] = ("weights 100.0", "verdict")
    better_bundle: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **self.extra}


@pytest.mark.parametrize("site", ["lab", "sparks"])
@pytest.mark.parametrize(("stage", "feature"), PLACES, ids=[f"{stage}-{name}" for stage, name in PLACES])
def test_the_same_tree_gives_the_same_bytes(site: str, stage: str, feature: str) -> None:
    texts = [json.dumps(make_plan(REPOSITORY, site, f"stage_{stage}", feature)) for _ in range(2)]
    assert texts[0] == texts[1]
    for plan in plans_of(json.loads(texts[0])):
        assert plan["id"] == plan_id(plan)
        assert plan["site"] == site
        assert (plan["stage"], plan["feature"]) == (stage, feature)
        assert plan["candidate"] is None or bool(plan["difference"]) is (feature != "none")
        assert str(REPOSITORY) not in texts[0]


@pytest.mark.parametrize("site", ["lab", "sparks"])
def test_a_stage_without_trials_has_the_plan_of_its_baseline(site: str) -> None:
    plan = make_plan(REPOSITORY, site, "a", None)
    assert plan == make_plan(REPOSITORY, site, "stage_a", "")
    assert (plan["feature"], plan["candidate"], plan["difference"]) == (None, None, {})
    assert [(boot["slot"], boot["arm"], boot["counted"]) for boot in plan["boots"]] == [(0, "baseline", True)]
    assert plan["hours"]["boots"] == 1


def test_the_plan_does_not_depend_on_where_the_checkout_is(tmp_path: Path) -> None:
    for name in ("experiments", "inventory", "templates", "adapters"):
        shutil.copytree(REPOSITORY / name, tmp_path / "other" / name)
    here, there = (make_plan(root, "sparks", "c", "wo_a") for root in (REPOSITORY, tmp_path / "other"))
    assert here == there


def test_a_plan_of_the_lab_is_possible_before_its_images(ground: Ground) -> None:
    plan = plan_on(ground, "c", "wo_a")
    assert plan["image"] == plan["bench_image"] == "not in the inventory yet"
    assert plan["refusals"] == []
    assert any("until ./trispark lab up" in note and "kept images" in note for note in plan["notes"])
    assert "not built" not in json.dumps(plan)
    assert "not-built.invalid" not in json.dumps(plan)
    assert plan["baseline"]["generation"] != plan["candidate"]["generation"]
    assert plan["difference"] == {"DSV41_WO_A_W8": [0, 1]}
    assert plan["candidate"]["settings"]["DSV41_WO_A_W8"] == 1
    assert {"wo_a.calls", "wo_a.twins"} <= set(plan["evidence"]["candidate"]["must"]["2"])
    assert "wo_a.present" in plan["evidence"]["baseline"]["must_not"]["1"]
    assert [cell["cell"] for cell in plan["cells"]] == ["c1-prose", "c1-code", "c1-chat", "c4"]
    built = ground.site.model_copy(update={"engine_image": "registry:5000/e@sha256:" + "a" * 64})
    after = plan_on(replace(ground, site=built, image=str(built.engine_image)), "c", "wo_a")
    assert after["image"] == built.engine_image
    assert after["id"] != plan["id"]


def test_what_the_feature_requires_is_in_both_arms(ground: Ground) -> None:
    plan = plan_on(ground, "d", "wo_a_mid")
    assert plan["base"] == ["wo_a"]
    assert [plan[arm]["settings"]["DSV41_WO_A_W8"] for arm in ("baseline", "candidate")] == [1, 1]
    assert plan["difference"] == {"DSV41_WO_A_W8_MID": [0, 1]}


@pytest.mark.parametrize(
    ("overrides", "refused", "kept"),
    [
        pytest.param({"MAX_RUNNING_REQUESTS": "2"}, [], ["MAX_RUNNING_REQUESTS"], id="fine"),
        pytest.param({"DSV41_WO_A_W8": "0"}, ["TS-PLAN-PLACE"], [], id="set-by-the-feature"),
        pytest.param({"RANK": "1"}, ["TS-ENV-UNLISTED"], [], id="unknown"),
        pytest.param({"SERVER_PORT": "1"}, ["TS-PLAN-PLACE"], [], id="of-the-site"),
        pytest.param({"MAX_RUNNING_REQUESTS": "-1"}, ["TS-ENV-RANGE"], [], id="out-of-range"),
        pytest.param({"MAX_RUNNING_REQUESTS": " 2"}, ["TS-ENV-TYPE"], [], id="not-plain"),
        pytest.param({"EP_SIZE": "2"}, ["TS-PLAN-EXCLUDED"], ["EP_SIZE"], id="excluded"),
        pytest.param({"DSV41_SHARED_PAD_K": "1"}, ["TS-PLAN-EXCLUDED"], [], id="excluded-name"),
        pytest.param({"TP_SIZE": "2"}, ["TS-PLAN-WORLD"], ["TP_SIZE"], id="another-world"),
        pytest.param(
            {"RANK": "1", "EP_SIZE": "2", "DSV41_WO_A_W8": "0"},
            ["TS-ENV-UNLISTED", "TS-PLAN-PLACE", "TS-PLAN-EXCLUDED"],
            ["EP_SIZE"],
            id="several",
        ),
        pytest.param({"\udc80": "\udc81"}, ["TS-ENV-UNLISTED"], [], id="no-text"),
    ],
)
def test_refusals_hide_neither_each_other_nor_the_plan(
    ground: Ground, overrides: dict[str, str], refused: list[str], kept: list[str]
) -> None:
    given_overrides = dict(overrides)
    plan = plan_on(ground, "c", "wo_a", overrides=given_overrides)
    assert given_overrides == overrides
    assert ids(plan) == refused
    assert list(plan["overrides"]) == kept
    assert plan["difference"] == {"DSV41_WO_A_W8": [0, 1]}
    assert plan["boots"]
    assert plan["evidence"]["candidate"]["must"]["0"]
    for name in kept:
        assert str(plan["candidate"]["settings"][name]) == overrides[name]
        assert str(plan["baseline"]["settings"][name]) == overrides[name]
    json.dumps(plan, ensure_ascii=False).encode("utf-8")
    assert all(refusal["what"] and refusal["where"] for refusal in plan["refusals"])


def changed(ground: Ground, feature: str, **fields: Any) -> Ground:
    """The catalog with one entry that has other fields."""
    entry = ground.catalog.features[feature].model_copy(update=fields)
    return replace(ground, catalog=replace(ground.catalog, features={**ground.catalog.features, feature: entry}))


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        pytest.param({"available": False, "unavailable_reason": "no kernel"}, ["TS-FEATURE-UNAVAILABLE"], id="nowhere"),
        pytest.param({"unavailable_on": {"lab": "no kernel"}}, ["TS-FEATURE-UNAVAILABLE"], id="not-on-this-engine"),
        pytest.param({"stages": ("e",)}, ["TS-FEATURE-STAGE"], id="another-stage"),
        pytest.param({"adapters": ("no.py",)}, ["TS-FEATURE-ADAPTER"], id="no-adapter"),
        pytest.param({"sets": {"DSV41_WO_A_W8": 0}}, ["TS-PLAN-ONECHANGE"], id="no-change"),
        pytest.param({"sets": {"DSV41_WO_A_W8": 1, "HOST": "0.0.0.0"}}, ["TS-PLAN-ONECHANGE"], id="partly-no-change"),
        pytest.param({"excludes": ("engram_prefetch",)}, [], id="excludes-what-is-off"),
        pytest.param({"sets": {"EP_SIZE": 2}}, ["TS-PLAN-EXCLUDED"], id="excluded"),
        pytest.param({"sets": {"NCCL_BUFFSIZE": 2097152}}, ["TS-ENV-INERT"], id="inert"),
    ],
)
def test_a_feature_that_cannot_be_run_is_planned_all_the_same(
    ground: Ground, fields: dict[str, Any], refused: list[str]
) -> None:
    plan = plan_on(changed(ground, "wo_a", **fields), "c", "wo_a")
    assert ids(plan) == refused
    assert plan["candidate"]["generation"] is not None
    sets = fields.get("sets", {"DSV41_WO_A_W8": 1})
    assert {name: pair[1] for name, pair in plan["difference"].items()}.items() <= sets.items()


def test_an_excluded_pair_is_refused(ground: Ground) -> None:
    both = changed(ground, "wo_a", excludes=("engram_prefetch",))
    plan = plan_on(both, "c", "wo_a", overrides={"DSV41_ENGRAM_PREFETCH": "1"})
    assert ids(plan) == ["TS-FEATURE-EXCLUDES"]


@pytest.mark.parametrize("kind", [Kind.BASELINE, Kind.REFUSED])
def test_what_sets_nothing_has_no_candidate(ground: Ground, kind: Kind) -> None:
    fields: dict[str, Any] = {"kind": kind, "sets": {}}
    if kind is Kind.REFUSED:
        fields |= {"available": False, "unavailable_reason": "does not divide by three"}
    plan = plan_on(changed(ground, "wo_a", **fields), "c", "wo_a")
    assert ids(plan) == ["TS-FEATURE-BASELINE" if kind is Kind.BASELINE else "TS-FEATURE-UNAVAILABLE"]
    assert plan["candidate"] is None
    assert len(plan["boots"]) == (1 if kind is Kind.BASELINE else 0)
    assert any("sets nothing" in note for note in plan["notes"])


def test_a_sweep_is_one_plan_a_value(ground: Ground) -> None:
    sweep = Sweep(name="DSPARK_BLOCK_SIZE", values=(2, 3, 4))
    ground = changed(ground, "wo_a", kind=Kind.SWEEP, sets={}, sweep=sweep)
    every = plan_on(ground, "c", "wo_a")
    assert [plan["value"] for plan in every["plans"]] == ["2", "4"]
    assert [plan["difference"]["DSPARK_BLOCK_SIZE"] for plan in every["plans"]] == [[3, 2], [3, 4]]
    assert len({plan["id"] for plan in every["plans"]}) == 2
    assert plan_on(ground, "c", "wo_a", "4") == every["plans"][1]
    assert plans_of(every) == every["plans"]
    with pytest.raises(TrisparkError) as caught:
        plan_on(ground, "c", "wo_a", "3")
    assert caught.value.id == "TS-FEATURE-VALUE"


@pytest.mark.parametrize(
    ("stage", "feature", "value", "refused"),
    [
        ("x", "wo_a", None, "TS-STAGE-UNKNOWN"),
        ("c", None, None, "TS-FEATURE-MISSING"),
        ("c", "nope", None, "TS-FEATURE-UNKNOWN"),
        ("c", "wo_a", "1", "TS-FEATURE-VALUE"),
    ],
)
def test_what_leaves_nothing_to_plan_raises(
    ground: Ground, stage: str, feature: str | None, value: str | None, refused: str
) -> None:
    with pytest.raises(TrisparkError) as caught:
        plan_on(ground, stage, feature, value)
    assert caught.value.id == refused


@pytest.mark.parametrize(
    ("verdicts", "worst", "refused"),
    [
        (("fits", "fits"), "fits", []),
        (("fits", "edge"), "edge", []),
        (("edge", "fits"), "edge", []),
        (("fits", "unsafe"), "unsafe", ["TS-BUDGET-UNSAFE"]),
        (("unsafe", "unsafe"), "unsafe", ["TS-BUDGET-UNSAFE", "TS-BUDGET-UNSAFE"]),
    ],
)
def test_the_budget_of_both_arms_is_judged(
    ground: Ground, verdicts: tuple[str, str], worst: str, refused: list[str]
) -> None:
    def judge(root: Path, site: Site, values: Mapping[str, Value], catalog: Catalog, back_to: object) -> FakeBudget:
        arm = int(values["DSV41_WO_A_W8"] == 1)
        return FakeBudget(verdicts[arm], better_bundle="wo_a_w8_mid_drop" if arm else None)

    plan = plan_on(ground, "c", "wo_a", budget=judge)
    assert ids(plan) == refused
    assert plan["budget"]["verdict"] == worst
    assert plan["budget"]["candidate"]["better_bundle"] == "wo_a_w8_mid_drop"
    assert [plan["budget"][arm]["verdict"] for arm in ("baseline", "candidate")] == list(verdicts)
    assert plan["candidate"]["generation"]


def test_a_budget_that_cannot_be_judged_is_a_refusal(ground: Ground) -> None:
    def judge(*_: object) -> FakeBudget:
        raise TrisparkError(
            "TS-BUDGET-MODEL", "the memory model is unknown", "site", "one that is there", "none", "name one"
        )

    plan = plan_on(ground, "c", "wo_a", budget=judge)
    assert (ids(plan), plan["budget"]) == (["TS-BUDGET-MODEL"], None)


def test_a_refused_budget_says_why(ground: Ground) -> None:
    def judge(*_: object) -> FakeBudget:
        return FakeBudget("unsafe", extra={"reasons": [{"text": "0.98 killed a node"}]})

    (first, _) = plan_on(ground, "c", "wo_a", budget=judge)["refusals"]
    assert "0.98 killed a node" in first["observed"]


def boot_list(boots: list[dict[str, Any]]) -> list[tuple[int, str, bool]]:
    return [(boot["slot"], boot["arm"], boot["counted"]) for boot in boots]


@pytest.mark.parametrize(
    ("retunes", "keep", "expected"),
    [
        (False, (0, 0), [(0, "baseline", True), (1, "candidate", True)]),
        (True, (0, 0), [(0, "candidate", False), (1, "baseline", True), (2, "candidate", True)]),
        (False, (0, 1), [(0, "candidate", False), (1, "baseline", True), (2, "candidate", True)]),
        (
            False,
            (1, 1),
            [(0, "baseline", False), (1, "candidate", False), (2, "baseline", True), (3, "candidate", True)],
        ),
    ],
)
def test_boots_that_tune_go_first_and_are_not_counted(
    ground: Ground, retunes: bool, keep: tuple[int, int], expected: list[tuple[int, str, bool]]
) -> None:
    entry = ground.catalog.features["wo_a"].model_copy(update={"retunes": retunes})
    arms = [{"DSV41_AUTOTUNE_KEEP": value} for value in keep]
    assert boot_list(trial_boots(entry, arms[0], arms[1])) == expected


def test_blocks_are_counted_boots_in_their_order() -> None:
    entry = CATALOG.features["block_size"]
    boots = trial_boots(entry, {}, {}, ("ABBA", "BAAB"))
    counted = [boot["arm"] for boot in boots if boot["counted"]]
    assert "".join("A" if arm == "baseline" else "B" for arm in counted) == "ABBABAAB"
    assert [boot["slot"] for boot in boots] == list(range(len(boots)))


def test_the_rules_of_the_verdict_are_part_of_the_plan_and_of_its_id(ground: Ground) -> None:
    plan = plan_on(ground, "c", "engram_prefetch", boots=6)
    rules = plan["decision"]
    assert rules["looks"] == [{"boots": 4, "level": 0.007}, {"boots": 6, "level": 0.018}]
    assert rules["futility"] == {"boots": 4, "estimate_at_most": 0.0}
    assert [each["metric"] for each in rules["primaries"]] == list(CATALOG.features["engram_prefetch"].primaries)
    assert {each["minimum_effect"] for each in rules["primaries"]} == {0.01}
    assert [each["margin"] for each in rules["guards"]] == [0.05, 0.05]
    assert rules["mechanism"] == [{"metric": "c1-prose.engram_wait_us_per_lookup", "goes": "lower"}]
    counted = [boot["arm"] for boot in plan["boots"] if boot["counted"]]
    assert "".join("A" if arm == "baseline" else "B" for arm in counted) == "".join(rules["order"])
    assert counted[0] == "baseline"
    assert plan["hours"]["boots"] == len(plan["boots"]) + 1
    entry = CATALOG.features["engram_prefetch"].model_copy(update={"margins": {"c1-prose.ttft_s": 0.08}})
    features = {**ground.catalog.features, "engram_prefetch": entry}
    wider = plan_on(
        replace(ground, catalog=replace(ground.catalog, features=features)), "c", "engram_prefetch", boots=6
    )
    assert plan_changes(plan, wider) == ["decision.guards"]
    assert wider["id"] != plan["id"]
    assert plan_on(ground, "c", "engram_prefetch", boots=6) == plan


def test_the_floor_of_the_site_is_part_of_the_plan(ground: Ground) -> None:
    metrics = {"c4.agg_tps": {"sd": 0.02, "floors": {"4": 0.04, "6": 0.03}, "no_harm": {"4": 0.05, "6": 0.04}}}
    noise = SiteNoise.model_validate_json(
        json.dumps({"site": "lab", "generation": "g", "boots": list("abcd"), "records": "0", "metrics": metrics})
    )
    plan, without = (plan_on(each, "c", "wo_a", boots=6) for each in (replace(ground, noise=noise), ground))
    floors = {each["metric"]: each["floor"] for each in plan["decision"]["primaries"]}
    assert floors == {"c1-prose.decode_tps": None, "c1-code.decode_tps": None, "c4.agg_tps": 0.03}
    assert plan["id"] != without["id"]
    assert [note for note in without["notes"] if "no floor yet" in note]
    assert not [note for note in plan["notes"] if "no floor yet" in note]


@pytest.mark.parametrize(
    ("site_boots", "asked", "expected"), [(1, None, 2), (1, 6, 12), (6, None, 12), (6, 2, 4), (4, None, 8)]
)
def test_boots_an_arm_are_the_sites_unless_asked_for(
    ground: Ground, site_boots: int, asked: int | None, expected: int
) -> None:
    site = ground.site.model_copy(update={"trial_boots": site_boots})
    plan = plan_on(replace(ground, site=site), "b", "block_size", "4", boots=asked)
    assert sum(boot["counted"] for boot in plan["boots"]) == expected
    short = [note for note in plan["notes"] if "(site_trial_boots)" in note and "nothing" in note]
    assert bool(short) is (expected < 8)


@pytest.mark.parametrize("text", ["3", "0", "-1", "six", "٦", "100", "6.0"])
def test_a_number_of_boots_that_no_trial_has_is_refused(text: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        read_boots(text)
    assert caught.value.id == "TS-PLAN-BOOTS"
    assert read_boots("") is None
    assert read_boots("4") == 4


def test_each_boot_names_its_generation(ground: Ground) -> None:
    plan = plan_on(changed(ground, "wo_a", retunes=True), "c", "wo_a")
    assert [(boot["arm"], boot["generation"]) for boot in plan["boots"]] == [
        (arm, plan[arm]["generation"]) for arm in ("candidate", "baseline", "candidate")
    ]


@pytest.mark.parametrize(
    ("minutes", "restores", "expected"),
    [
        (None, True, {"boots": 3, "per_boot_min": 1.25, "total": 0.06}),
        (30.0, True, {"boots": 3, "per_boot_min": 30.0, "total": 1.5}),
        (30.0, False, {"boots": 2, "per_boot_min": 30.0, "total": 1.0}),
    ],
)
def test_hours(site: Site, minutes: float | None, restores: bool, expected: dict[str, Any]) -> None:
    class WithMinutes:
        boot_minutes = minutes
        start_deadline_s = site.start_deadline_s
        stop_deadline_s = site.stop_deadline_s

    assert hours(WithMinutes(), [{}, {}], restores=restores) == expected  # type: ignore[arg-type]


def test_a_metric_that_is_not_measured_is_noted(ground: Ground) -> None:
    plan = plan_on(changed(ground, "wo_a", primaries=("c8.agg_tps",)), "c", "wo_a")
    assert "primary metric c8.agg_tps is not among what site_bench measures" in plan["notes"]


def test_values_that_may_not_be_shown_are_not(ground: Ground) -> None:
    allowlist = ground.catalog.allowlist
    secret = allowlist.require("DSV41_WO_A_W8", "here").model_copy(update={"loggable": False})
    hidden = dict(vars(allowlist))
    hidden["_by_name"] = {**hidden["_by_name"], "DSV41_WO_A_W8": secret}
    copy = object.__new__(type(allowlist))
    vars(copy).update(hidden)
    plan = plan_on(replace(ground, catalog=replace(ground.catalog, allowlist=copy)), "c", "wo_a")
    assert plan["difference"] == {"DSV41_WO_A_W8": [HIDDEN, HIDDEN]}
    assert plan["candidate"]["withheld"] == ["DSV41_WO_A_W8"]
    assert "DSV41_WO_A_W8" not in plan["candidate"]["settings"]
    other = plan_on(
        replace(ground, catalog=replace(ground.catalog, allowlist=copy)),
        "c",
        "engram_prefetch",
        overrides={"DSV41_WO_A_W8": "1"},
    )
    assert other["overrides"] == {"DSV41_WO_A_W8": HIDDEN}


PROMOTED = {
    "schema_version": 1,
    "settings": {"DSV41_WO_A_W8": 1},
    "record": "t1",
    "record_hash": "a" * 64,
    "time": "2026-01-01T00:00:00Z",
}


@pytest.fixture
def tree(project: Path, tmp_path: Path, make_site: Callable[..., Path]) -> Path:
    """A project with a site `lab` whose images are there."""
    for name in ("experiments", "templates", "adapters"):
        (tmp_path / name).symlink_to(project / name)
    (tmp_path / "inventory").mkdir()
    make_site().rename(tmp_path / "inventory" / "lab")
    return tmp_path


def promote(tree: Path, content: object) -> None:
    path = tree / ".trispark" / "lab" / "baseline.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def test_the_promoted_baseline_is_that_of_the_plan(tree: Path) -> None:
    before = make_plan(tree, "lab", "d", "wo_a_mid")
    promote(tree, PROMOTED)
    after = make_plan(tree, "lab", "d", "wo_a_mid")
    assert (before["base"], after["base"]) == (["wo_a"], [])
    assert after["promoted"]["record"] == "t1"
    assert after["promoted"]["settings"] == {"DSV41_WO_A_W8": 1}
    assert before["candidate"]["generation"] == after["candidate"]["generation"]
    assert ids(make_plan(tree, "lab", "c", "wo_a")) == ["TS-PLAN-ONECHANGE"]
    promote(tree, {**PROMOTED, "time": "2026-01-02T00:00:00Z"})
    assert make_plan(tree, "lab", "d", "wo_a_mid") == after


@pytest.mark.parametrize(
    ("content", "refused"),
    [
        ("{", "TS-BASELINE-READ"),
        ("[]", "TS-BASELINE-READ"),
        ("{}", "TS-BASELINE-READ"),
        ("[" * 100_000, "TS-BASELINE-READ"),
        ({**PROMOTED, "schema_version": 2}, "TS-BASELINE-READ"),
        ({**PROMOTED, "settings": 1}, "TS-BASELINE-READ"),
        ({**PROMOTED, "settings": {"DSV41_WO_A_W8": "1"}}, "TS-ENV-TYPE"),
        ({**PROMOTED, "settings": {"NOPE": 1}}, "TS-ENV-UNLISTED"),
    ],
)
def test_a_damaged_promoted_baseline_is_named(tree: Path, content: object, refused: str) -> None:
    promote(tree, content)
    with pytest.raises(TrisparkError) as caught:
        make_plan(tree, "lab", "c", "wo_a")
    assert caught.value.id == refused


def test_a_changed_plan_is_refused_naming_what_changed(tree: Path) -> None:
    agreed = make_plan(tree, "lab", "c", "wo_a")
    keep_plan(tree, agreed)
    require_same_plan(agreed["id"], make_plan(tree, "lab", "c", "wo_a"))
    site = tree / "inventory" / "lab" / "group_vars" / "all" / "site.yml"
    site.write_text(site.read_text(encoding="utf-8").replace("max_tokens: 64", "max_tokens: 65"), encoding="utf-8")
    now = make_plan(tree, "lab", "c", "wo_a")
    with pytest.raises(TrisparkError) as caught:
        require_same_plan(agreed["id"], now, kept_plan(tree, "lab", agreed["id"]))
    assert (caught.value.id, caught.value.expected) == ("TS-PLAN-CHANGED", agreed["id"])
    assert caught.value.observed == f"{now['id']}; changed: cells"
    with pytest.raises(TrisparkError, match="not known"):
        require_same_plan(agreed["id"], now)
    forged = {**now, "id": agreed["id"]}
    with pytest.raises(TrisparkError) as caught:
        require_same_plan(agreed["id"], forged)
    assert caught.value.id == "TS-PLAN-CHANGED"


def test_changes_are_named_as_deep_as_they_go(ground: Ground) -> None:
    first = plan_on(ground, "c", "wo_a")
    second = plan_on(ground, "c", "wo_a", overrides={"MAX_RUNNING_REQUESTS": "2"})
    names = plan_changes(first, second)
    assert "baseline.settings.MAX_RUNNING_REQUESTS" in names
    assert "overrides.MAX_RUNNING_REQUESTS" in names
    assert "candidate.generation" in names
    assert "baseline" not in names
    assert plan_changes(first, first) == []


@pytest.mark.parametrize("identity", ["", "../../x", "p123", "p" + "0" * 16])
def test_a_plan_that_was_not_kept_is_none(tree: Path, identity: str) -> None:
    keep_plan(tree, make_plan(tree, "lab", "c", "wo_a"))
    assert kept_plan(tree, "lab", identity) is None


def test_a_kept_plan_that_was_edited_is_none(tree: Path) -> None:
    plan = make_plan(tree, "lab", "c", "wo_a")
    path = keep_plan(tree, plan)
    assert kept_plan(tree, "lab", plan["id"]) == plan
    path.write_text(path.read_text(encoding="utf-8").replace("wo_a", "wo_b"), encoding="utf-8")
    assert kept_plan(tree, "lab", plan["id"]) is None


def test_only_the_newest_plans_are_kept(tree: Path) -> None:
    plan = make_plan(tree, "lab", "c", "wo_a")
    directory = keep_plan(tree, plan).parent
    for number in range(KEPT_PLANS + 5):
        keep_plan(tree, {**plan, "id": f"p{number:016x}"})
    assert len(list(directory.glob("p*.json"))) == KEPT_PLANS
    assert (directory / f"p{KEPT_PLANS + 4:016x}.json").exists()


NAMES = sorted(CATALOG.allowlist.names())
VALUES = st.one_of(
    st.sampled_from(["", "0", "1", "2", "3", "0.95", "0.98", "-1", " 1", "yes", "False", "None", "1e3", "0x1", "'1'"]),
    st.integers().map(str),
    st.floats(allow_nan=True).map(str),
    st.text(st.characters(codec=None), max_size=12),
)


@settings(max_examples=150)
@given(
    overrides=st.dictionaries(
        st.one_of(st.sampled_from(NAMES), st.text(st.characters(codec=None), max_size=8)), VALUES, max_size=4
    ),
    place=st.sampled_from(PLACES),
)
def test_whatever_is_set_gives_a_whole_plan_with_named_refusals(
    overrides: dict[str, str], place: tuple[str, str]
) -> None:
    ground = _lab()
    for plan in plans_of(plan_on(ground, *place, overrides=overrides)):
        text = json.dumps(plan, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
        assert plan["id"] == plan_id(json.loads(text))
        assert set(plan["overrides"]) <= set(overrides)
        lost = set(overrides) - set(plan["overrides"])
        assert bool(lost) <= bool(plan["refusals"])
        assert all(refusal["id"].startswith("TS-") for refusal in plan["refusals"])
        assert "not-built.invalid" not in text


_LOADED: dict[str, Ground] = {}


def _lab() -> Ground:
    """Loaded once: hypothesis calls it for each example."""
    if "lab" not in _LOADED:
        _LOADED["lab"] = Ground.load(REPOSITORY, "lab")
    return _LOADED["lab"]


def test_a_candidate_that_compares_results_boots_first(ground: Ground) -> None:
    plan = plan_on(ground, "c", "engram_prefetch")
    assert [(boot["slot"], boot["arm"], boot["counted"], boot["check"]) for boot in plan["boots"]] == [
        (0, "candidate", False, True),
        (1, "baseline", True, False),
        (2, "candidate", True, False),
    ]
    check = plan["boots"][0]["generation"]
    assert check not in (None, plan["baseline"]["generation"], plan["candidate"]["generation"])
    assert "prefetch.equal" in plan["evidence"]["check"]["must"]["1"]
    assert "prefetch.equal" not in plan["evidence"]["candidate"]["must"]["1"]
    assert plan["hours"]["boots"] == 4


def test_what_is_deferred_is_refused_and_what_is_no_claim_is_noted() -> None:
    overrides = {"DSV41_FAST_LOAD": "1", "ENABLE_CACHE_REPORT": "1"}
    plan = make_plan(REPOSITORY, "sparks", "c", "wo_a", overrides=overrides)
    assert "TS-PLAN-DEFERRED" in ids(plan)
    assert any(note.startswith("ENABLE_CACHE_REPORT=1 is no decode gain") for note in plan["notes"])
    assert "ENABLE_CACHE_REPORT" not in json.dumps(plan["refusals"])


def test_the_plan_of_wo_a_on_three_sparks_is_at_the_edge_and_names_the_better_bundle() -> None:
    plan = make_plan(REPOSITORY, "sparks", "c", "wo_a")
    assert (plan["budget"]["verdict"], plan["budget"]["better_bundle"]) == ("edge", "wo_a_w8_mid_drop")
    assert plan["budget"]["baseline"]["verdict"] == "fits"
    assert plan["baseline"]["generation"]
    assert plan["candidate"]["generation"]
