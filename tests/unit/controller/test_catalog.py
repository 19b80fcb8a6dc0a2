"""The shipped catalog is consistent; a broken one is refused; stages give only their own features."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.catalog import STAGES, Catalog
from trispark.catalog_check import check_references
from trispark.errors import TrisparkError

REPOSITORY = Path(__file__).resolve().parents[3]


def refusal(catalog: Catalog, stage: str, feature: str | None) -> TrisparkError:
    with pytest.raises(TrisparkError) as caught:
        catalog.select(stage, feature)
    return caught.value


def test_shipped_catalog(catalog: Catalog) -> None:
    assert tuple(catalog.stages) == STAGES
    controls = ("none", "lab_step_delay")
    assert catalog.features_of("stage_c") == ("wo_a", "wo_a_w8_mid_drop", "engram_prefetch", *controls)
    assert catalog.features_of("stage_d") == ("wo_a_mid", "wo_a_drop", "wo_a_w8_mid_drop", *controls)
    assert catalog.sets_of("wo_a") == {"DSV41_WO_A_W8": 1}
    assert catalog.baseline["DSV41_CACHE_GIB"] == 0.0
    assert isinstance(catalog.baseline["DSV41_CACHE_GIB"], float)


@pytest.mark.parametrize("stage", ["c", "stage_c"])
def test_select_gives_the_feature(catalog: Catalog, stage: str) -> None:
    assert catalog.select(stage, "wo_a") == "wo_a"


def test_stage_without_trial_needs_none(catalog: Catalog) -> None:
    assert catalog.select("a", None) is None


@pytest.mark.parametrize(
    ("stage", "feature", "error_id", "shown"),
    [
        ("c", None, "TS-FEATURE-MISSING", "one of: wo_a"),
        ("c", "", "TS-FEATURE-MISSING", "one of: wo_a"),
        ("c", "wo_b", "TS-FEATURE-UNKNOWN", "one of: wo_a"),
        ("b", "wo_a", "TS-FEATURE-STAGE", "one of: block_size, k5_cap_block_verify;"),
        ("b", "verify_cap_conf", "TS-FEATURE-BUNDLE", "k5_cap_block_verify"),
        ("b", "block_size_7", "TS-FEATURE-UNAVAILABLE", "is ruled out"),
        ("g", "roce_allreduce", "TS-FEATURE-UNAVAILABLE", "cannot be run yet"),
        ("a", "packed_engram", "TS-FEATURE-BASELINE", "stage_a.yml"),
        ("a", "wo_a", "TS-FEATURE-STAGE", "leave -e feature out"),
        (
            "e",
            "engram_prefetch",
            "TS-FEATURE-STAGE",
            "do: ./trispark plan c -e feature=engram_prefetch shows it, ./trispark play stage_c ",
        ),
        ("c", "engram_prefech", "TS-FEATURE-UNKNOWN", "do: -e feature=engram_prefetch"),
        ("c", "zzzz", "TS-FEATURE-UNKNOWN", "do: name one of them"),
        ("b", None, "TS-FEATURE-MISSING", "one of: block_size, k5_cap_block_verify;"),
        ("h", "wo_a", "TS-STAGE-UNKNOWN", "a, b, c, d, e, f, g"),
    ],
)
def test_select_refuses_with_the_list(
    catalog: Catalog, stage: str, feature: str | None, error_id: str, shown: str
) -> None:
    error = refusal(catalog, stage, feature)
    assert error.id == error_id
    assert shown in str(error)


@given(stage=st.text(max_size=8), feature=st.none() | st.text(max_size=8))
def test_select_never_fails_otherwise(catalog: Catalog, stage: str, feature: str | None) -> None:
    with suppress(TrisparkError):
        catalog.select(stage, feature)


def test_misplaced_catalog_keys_are_refused(catalog: Catalog) -> None:
    catalog.refuse_misplaced({"feature": "-e", "repair": "-e"})
    for name in ("DSV41_WO_A_W8", "NODE_RANK", "DSV41_SHARED_PAD_K"):
        with pytest.raises(TrisparkError) as caught:
            catalog.refuse_misplaced({"feature": "-e", name: "-e"})
        assert (caught.value.id, caught.value.where) == ("TS-PLAN-PLACE", "-e")
    with pytest.raises(TrisparkError, match=r"remove it there; ./trispark play stage_b -e feature=block_size "):
        catalog.refuse_misplaced({"DSPARK_BLOCK_SIZE": "-e"})


EVERY_BOOT = {("arguments.block", True), ("arguments.ep", True), ("arguments.slots", True), ("arguments.tp", True)}
EVERY_BOOT |= {("packed.attached", True), ("packed.fallback", False)}


def shown(catalog: Catalog, changes: dict[str, int | float | str], engine: str = "lab") -> set[tuple[str, bool]]:
    """(id, must appear) of a configuration, without what every boot shows."""
    rules = catalog.evidence_rules({**catalog.baseline, **changes}, 3, engine)
    found = {(rule.id, rule.must_appear) for rule in rules}
    assert found >= EVERY_BOOT
    return found - EVERY_BOOT


def test_evidence_follows_the_settings_not_the_name(catalog: Catalog) -> None:
    off = shown(catalog, {})
    assert {name.partition(".")[0] for name, _ in off} >= {"wo_a", "prefetch", "tau", "cap", "cache", "experts"}
    assert not any(must for _, must in off)
    on = shown(catalog, {"DSV41_WO_A_W8": 1})
    assert off - on == {("wo_a.present", False)}
    assert on - off == {("wo_a.calls", True), ("wo_a.left", False), ("wo_a.twins", True)}


@pytest.mark.parametrize(
    ("changes", "added", "gone"),
    [
        ({"DSV41_VERIFY_CAP": "3"}, set(), {("cap.present", False)}),
        ({"DSV41_CACHE_GIB": 2.0}, set(), {("cache.present", False)}),
        ({"DSV41_DRAFT_TAU": 0.7}, set(), {("tau.present", False)}),
        ({"EP_SIZE": 1}, {("experts.sliced", True)}, {("experts.sliced", False)}),
        (
            {"DSV41_ENGRAM_PREFETCH": 1, "DSV41_ENGRAM_PREFETCH_CHECK": 1},
            {("prefetch.equal", True), ("prefetch.armed", True), ("prefetch.served", True)}
            | {("prefetch.disabled", False), ("prefetch.differs", False)},
            {("prefetch.present", False)},
        ),
    ],
    ids=["another cap", "another cache", "another temperature", "ep1", "prefetch with check"],
)
def test_a_third_value_is_neither_on_nor_off(
    catalog: Catalog, changes: dict[str, int | float | str], added: set[tuple[str, bool]], gone: set[tuple[str, bool]]
) -> None:
    off, on = shown(catalog, {}), shown(catalog, changes)
    assert (on - off, off - on) == (added, gone)


def test_an_engine_is_asked_only_for_what_it_prints(catalog: Catalog) -> None:
    changes = {"EP_SIZE": 1, "DSV41_CACHE_GIB": 0.5, "DSV41_CACHE_WAYS": 16}
    sglang, lab = shown(catalog, changes, "sglang"), shown(catalog, changes)
    assert ("b12x.repaired", True) in sglang - lab
    assert {("experts.sliced", True), ("cache.budget", True)} <= lab - sglang
    rules = {rule.id: rule for rule in catalog.evidence_rules({**catalog.baseline, **changes}, 3, "sglang")}
    assert rules["b12x.repaired"].ranks == (2,)
    assert "cache.slots" in rules
    assert rules["cache.slots"].pattern.endswith(r"16-way\b")


def test_bundles_are_their_members_and_say_why(catalog: Catalog) -> None:
    for name in ("wo_a_w8_mid_drop", "k5_cap_block_verify"):
        bundle = catalog.features[name]
        settings = {**catalog.baseline, **catalog.sets_of(name)}
        assert all(catalog.is_active(member, settings) for member in bundle.members), name
        assert len(bundle.stages) == 2
        assert len(bundle.summary) > 300, "why they only pay together"
        assert "together" in bundle.rollback
    assert catalog.features["wo_a_w8_mid_drop"].stages == ("c", "d")
    assert catalog.features["k5_cap_block_verify"].stages == ("b", "e")


def test_every_entry_says_what_a_reader_needs(catalog: Catalog) -> None:
    for name, feature in catalog.features.items():
        texts = [feature.title, feature.summary, feature.mechanism, feature.rollback]
        assert all(texts), name
        if feature.tried:
            assert feature.primaries, name
        for engine in ("lab", "sglang"):
            if feature.refusal_on(engine) is None:
                rules = [ref for ref in feature.evidence.must if catalog.evidence[ref.id].engines in ((), (engine,))]
                assert rules or feature.same_arms, (name, engine)


def test_what_no_adapter_for_sglang_does_is_not_available_there(catalog: Catalog) -> None:
    reason = "the adapter for SGLang is not part of this version"
    missing = {name for name, feature in catalog.features.items() if feature.unavailable_on.get("sglang") == reason}
    assert missing == {"bounded_indexer"}


def test_what_an_adapter_for_sglang_does_names_the_builds_to_which_it_binds(catalog: Catalog) -> None:
    assert catalog.builds is not None
    ours = {name: feature for name, feature in catalog.features.items() if feature.engine_adapters}
    assert {"wo_a", "engram_prefetch", "draft_head_fp8", "draft_tau", "block_verify", "k5_cap_block_verify"} <= set(
        ours
    )
    for name, feature in ours.items():
        assert "sglang==0.5.21" in feature.builds, name
        assert feature.refusal_on("sglang") is None, name
        assert {f"trispark_adapters/{each}.py" for each in feature.engine_adapters} <= set(feature.adapters), name
        for member in feature.members:
            assert set(catalog.features[member].engine_adapters) <= set(feature.engine_adapters), name


@pytest.mark.parametrize(
    ("changed", "observed"),
    [
        ({"builds": ("sglang==0.5.21",)}, "sglang==0.5.21"),
        ({"builds": ()}, "none"),
        ({"engine_adapters": ("gone",)}, "gone"),
    ],
)
def test_a_feature_cannot_name_other_builds(catalog: Catalog, changed: dict[str, Any], observed: str) -> None:
    features = {**catalog.features, "wo_a": catalog.features["wo_a"].model_copy(update=changed)}
    with pytest.raises(TrisparkError) as caught:
        check_references(replace(catalog, features=features))
    assert (caught.value.id, caught.value.observed) == ("TS-CATALOG-REFERENCE", observed)


IMAGE = "registry.example/sglang@sha256:"
FIRST = f"{IMAGE}3dbc313030a6ef2c5d7de8ecf48e9aece722694a82182cb618cc82b588816349"


@pytest.mark.parametrize(
    ("features", "engine", "image", "refused", "noted"),
    [
        (["wo_a"], "sglang", FIRST, [], []),
        (["padded_attention_skip"], "sglang", FIRST, ["padded_attention_skip"], []),
        (["k5_cap_block_verify"], "sglang", FIRST, [], ["whether verify_cap binds to dev-dsv41@37939c26 is not known"]),
        (["wo_a", "padded_attention_skip"], "lab", FIRST, [], []),
        (["wo_a"], "sglang", IMAGE + "0" * 64, [], ["of which build the image is, is not known here; wo_a_w8 bind"]),
        (["slots"], "sglang", IMAGE + "0" * 64, [], []),
    ],
)
def test_a_plan_says_whether_adapters_bind_to_the_sites_build(
    catalog: Catalog, features: list[str], engine: str, image: str, refused: list[str], noted: list[str]
) -> None:
    errors, notes = catalog.judge_build(features, engine, image)
    assert [error.id for error in errors] == ["TS-PLAN-BUILD"] * len(refused)
    for error, name in zip(errors, refused, strict=True):
        assert f"the adapter {name} does not bind" in error.what
        assert error.where == "dev-dsv41@37939c26"
    assert [note[: len(text)] for note, text in zip(notes, noted, strict=True)] == noted


@pytest.mark.parametrize(("feature", "refused"), [("block_verify", 1), ("k5_cap_block_verify", 1), ("wo_a", 0)])
def test_what_the_engine_has_itself_and_nothing_turns_on_is_refused(
    catalog: Catalog, feature: str, refused: int
) -> None:
    assert catalog.builds is not None
    release = catalog.builds.builds["sglang==0.5.22"].model_copy(update={"images": ("sha256:" + "2" * 64,)})
    builds = catalog.builds.model_copy(update={"builds": {**catalog.builds.builds, "sglang==0.5.22": release}})
    errors, notes = replace(catalog, builds=builds).judge_build([feature], "sglang", IMAGE + "2" * 64)
    assert [error.id for error in errors] == ["TS-PLAN-IMAGE", *["TS-PLAN-BUILD"] * refused]
    errors = errors[1:]  # the image of a release is not available yet, whatever it is asked for
    assert all("--speculative-use-block-verification" in error.what for error in errors)
    assert all(error.observed == "it has the mechanism itself" for error in errors)
    assert all("sglang==0.5.22" not in error.expected for error in errors)
    assert notes == []
    assert ("sglang==0.5.22" in catalog.features[feature].builds) == (not refused)


@pytest.mark.parametrize(
    "feature",
    [
        *("block_size", "wo_a", "engram_prefetch", "wo_a_mid", "wo_a_drop", "wo_a_w8_mid_drop", "draft_tau"),
        *("block_verify", "verify_cap_fixed", "k5_cap_block_verify", "ep1", "engram_cache", "slots", "chunk_size"),
        "autotune_keep",
    ],
)
def test_the_lab_can_run_it(catalog: Catalog, feature: str) -> None:
    assert catalog.require_available(feature, "lab").tried


@pytest.mark.parametrize(("held", "offered"), [({}, ["2", "4", "5"]), ({"DSPARK_BLOCK_SIZE": 5}, ["2", "3", "4"])])
def test_a_sweep_leaves_the_baselines_own_value_out(catalog: Catalog, held: dict[str, int], offered: list[str]) -> None:
    choices = catalog.choices("block_size", {**catalog.baseline, **held})
    assert [choice.label.partition("=")[2] for choice in choices] == offered


def test_companions_of_a_value_may_be_set_already(catalog: Catalog) -> None:
    choice = catalog.choose("slots", "8")
    assert choice.sets == {"MAX_RUNNING_REQUESTS": 8, "MIN_FREE_SLOTS_DELAY": 1}
    assert choice.companions == {"MIN_FREE_SLOTS_DELAY"}
    assert catalog.choose("engram_cache", "0.25").sets == {"DSV41_CACHE_GIB": 0.25, "DSV41_CACHE_WAYS": 16}
    assert catalog.check_settings("engram_prefetch") == {"DSV41_ENGRAM_PREFETCH_CHECK": 1}
    assert catalog.check_settings("wo_a") == {}
