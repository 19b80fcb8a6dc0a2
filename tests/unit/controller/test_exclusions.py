"""Forbidden, deferred and no-claim values, judged on whole configurations."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.allowlist import Value
from trispark.catalog import Catalog, ExclusionClass, Kind, Sweep
from trispark.errors import TrisparkError
from trispark.resolve import resolve, resolve_arms
from trispark.site import Site

FORBIDDEN = {
    "EP_SIZE": 2,
    "DSV41_TP_PAD": 0,
    "PYTORCH_CUDA_ALLOC_CONF": "backend:native,expandable_segments:True",
    "SGLANG_FLASHINFER_MOE_FUSED_FINALIZE": 1,
    "SGLANG_RAGGED_VERIFY_MODE": "compact",
    "OFFLOAD_MODE": "ram",
    "DSV41_RESIDENT_SCALES": 1,
    "MEM_FRACTION_STATIC": 0.8,
    "MAX_TOTAL_TOKENS": 8000000,
    "MAX_RUNNING_REQUESTS": 16,
    "DSV41_CACHE_GIB": 4.0,
    "NCCL_IB_MERGE_NICS": 1,
    "NCCL_IB_USE_INLINE": 1,
    "NCCL_NET": "Socket",
    "NCCL_PROTO": "LL128",
    "DSV41_SHARED_PAD_K": 1,
    "DSPARK_SPS_TABLE": "/state/dspark_sps.json",
    "SGLANG_SIMULATE_ACC_LEN": 1.0,
    "ENABLE_FORWARD_PASS_METRICS": 1,
    "DSV41_VERIFY_CAP": "conf:0.1",
}
DEFERRED: dict[str, Value] = {
    "DSV41_FAST_LOAD": 1,
    "SPARK_PREFILL_TP_SPLIT": 1,
    "SGLANG_ROCE_ALLREDUCE": 1,
    "ENABLE_DEEPSEEK_V4_FP4_INDEXER": 1,
    "DSV41_INDEXER_CHUNKED": 1,
    "CHUNKED_PREFILL_SIZE": 4096,
    "DSPARK_BLOCK_SIZE": 7,
    "DSV41_WO_A_W8_DRAFT": 1,
}
NO_CLAIM: dict[str, Value] = {
    "SLEEP_ON_IDLE": 0,
    "ENABLE_CACHE_REPORT": 1,
    "DSV41_FOLDED_FENCE": 1,
    "DSV41_AUTOTUNE_KEEP": 1,
    "DSV41_ENGRAM_PREFETCH_CHECK": 1,
    "SGLANG_DSV41_REASONING_EFFORT": 0,
}


def refused(catalog: Catalog, settings: dict[str, Value], sets: dict[str, Value], **more: object) -> list[str]:
    judged = catalog.judge_exclusions({**catalog.baseline, **settings, **sets}, sets, **more)  # type: ignore[arg-type]
    return [each.id for each in judged if each.refused]


def test_the_baseline_passes_its_own_exclusions(catalog: Catalog) -> None:
    assert catalog.judge_exclusions(catalog.baseline, {}) == ()


def test_each_class_is_used_with_reason_and_source(catalog: Catalog) -> None:
    assert {exclusion.kind for exclusion in catalog.exclusions.values()} == set(ExclusionClass)
    assert all(exclusion.reason and exclusion.source for exclusion in catalog.exclusions.values())


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_is_refused_wherever_it_comes_from(catalog: Catalog, name: str) -> None:
    change = {name: FORBIDDEN[name]}
    for settings, sets in ((change, {}), ({}, change)):
        judged = catalog.judge_exclusions({**catalog.baseline, **settings, **sets}, sets, promoted=(name,))
        forbidden = [each for each in judged if each.kind is ExclusionClass.FORBIDDEN]
        assert forbidden
        assert all(each.refused for each in forbidden)
        error = forbidden[0].error("the plan")
        assert error.id == "TS-PLAN-EXCLUDED"
        assert forbidden[0].id in str(error)
        assert error.expected
    with pytest.raises(TrisparkError) as caught:
        catalog.refuse_excluded({**catalog.baseline, **change}, "here")
    assert (caught.value.id, caught.value.where) == ("TS-PLAN-EXCLUDED", "here")


@pytest.mark.parametrize("name", DEFERRED)
def test_deferred_is_a_trial_of_its_own_and_nothing_else(catalog: Catalog, name: str) -> None:
    own = {name: DEFERRED[name]}
    assert refused(catalog, own, {}), "by an override"
    assert refused(catalog, {}, own) == [], "as the one change"
    assert refused(catalog, {}, {**own, "EP_SIZE": 1}), "beside another change"
    assert refused(catalog, own, {"EP_SIZE": 1}), "in both arms of another trial"
    assert refused(catalog, own, {"EP_SIZE": 1}, promoted=(name,)) == [], "kept by its own trial before"
    with pytest.raises(TrisparkError) as caught:
        catalog.refuse_deferred({**catalog.baseline, **own}, {}, "the baseline")
    assert caught.value.id == "TS-PLAN-DEFERRED"


def test_a_threshold_may_change_with_its_transport(catalog: Catalog) -> None:
    assert refused(catalog, {}, {"SGLANG_ROCE_ALLREDUCE": 1, "SGLANG_ROCE_MAX_SIZE": 262144}) == []
    assert refused(catalog, {}, catalog.sets_of("roce_allreduce")) == []


@pytest.mark.parametrize(
    ("name", "exclusion"),
    [
        ("DSV41_FAST_LOAD", "fast-load"),
        ("SPARK_PREFILL_TP_SPLIT", "prefill-split"),
        ("SGLANG_ROCE_ALLREDUCE", "roce-allreduce"),
    ],
)
def test_the_canary_is_compared_with_them_off(catalog: Catalog, name: str, exclusion: str) -> None:
    sets = catalog.on("sglang").sets_of("canary_image")
    assert refused(catalog, {}, sets, feature="canary_image") == []
    assert refused(catalog, {name: 1}, sets, feature="canary_image", promoted=(name,)) == [exclusion]


@pytest.mark.parametrize("name", NO_CLAIM)
def test_without_claim_is_free_and_a_note(catalog: Catalog, name: str) -> None:
    own = {name: NO_CLAIM[name]}
    for settings, sets in ((own, {}), ({}, own)):
        (judged,) = catalog.judge_exclusions({**catalog.baseline, **settings, **sets}, sets)
        assert (judged.kind, judged.refused) == (ExclusionClass.NO_CLAIM, False)
        assert f"{name}=" in judged.note()
        assert "no decode gain" in judged.note()


def test_a_confidence_cap_is_judged_beside_the_other_keys(catalog: Catalog) -> None:
    cap: dict[str, Value] = {"DSV41_VERIFY_CAP": "conf:0.2"}
    assert refused(catalog, {}, cap) == ["confidence-cap-needs-block-5", "confidence-cap-needs-block-verify"]
    assert refused(catalog, {"DSPARK_BLOCK_SIZE": 5}, cap) == ["confidence-cap-needs-block-verify"]
    assert refused(catalog, {}, catalog.sets_of("k5_cap_block_verify")) == []
    assert catalog.judge_exclusions(cap, {}) == (), "alone it says nothing of the others"


def test_every_feature_that_can_be_tried_passes(catalog: Catalog) -> None:
    for name, feature in catalog.features.items():
        if feature.only_in or not feature.tried:
            continue
        for choice in catalog.choices(name):
            settings = {**catalog.baseline, **choice.sets}
            judged = catalog.judge_exclusions(settings, choice.sets, feature=name)
            assert [each.id for each in judged if each.refused] == [], choice.label


def test_resolving_refuses_what_is_deferred(site: Site, catalog: Catalog, project: Path) -> None:
    for feature, overrides in ((None, {"DSPARK_BLOCK_SIZE": "7"}), ("wo_a", {"CHUNKED_PREFILL_SIZE": "2048"})):
        with pytest.raises(TrisparkError) as caught:
            resolve(site, catalog, feature, overrides, project)
        assert caught.value.id == "TS-PLAN-DEFERRED"
    fields = {"kind": Kind.SWEEP, "sets": {}, "sweep": Sweep(name="DSPARK_BLOCK_SIZE", values=(3, 6, 7))}
    swept = dataclasses.replace(
        catalog, features={**catalog.features, "long": catalog.features["wo_a"].model_copy(update=fields)}
    )
    arms = resolve_arms(site, swept, "long", None, project, value="7")
    assert arms.difference.settings == {"DSPARK_BLOCK_SIZE": (3, 7)}
    kept = resolve_arms(site, catalog, "wo_a", None, project, promoted={"DSPARK_BLOCK_SIZE": 7})
    assert kept.baseline.settings["DSPARK_BLOCK_SIZE"] == 7


@given(data=st.data())
def test_judging_never_fails(catalog: Catalog, data: st.DataObject) -> None:
    names = sorted({*catalog.baseline, *FORBIDDEN})
    values = st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
    settings = data.draw(st.dictionaries(st.sampled_from(names), values, max_size=8))
    sets = data.draw(st.dictionaries(st.sampled_from(names), values, max_size=3))
    for judged in catalog.judge_exclusions({**settings, **sets}, sets):
        assert judged.id in catalog.exclusions
        assert judged.note()
        assert str(judged.error("here")).startswith("TS-PLAN-")
