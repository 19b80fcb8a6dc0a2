"""The memory budget: verdicts of known configurations, calibration within 0.0005, what it prints, bad input."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.allowlist import Value
from trispark.budget import (
    Budget,
    Verdict,
    judge_budget,
    load_memory_models,
    require_memory_model,
)
from trispark.budget_calibration import CalibrationRow, calibration
from trispark.budget_terms import nccl_mib, read_settings, swa_tokens
from trispark.catalog import Catalog, Kind
from trispark.catalog_model import FeatureEvidence, MemoryCost
from trispark.errors import TrisparkError
from trispark.memory_model import SETTINGS, MemoryModel
from trispark.plan import unsafe

REPOSITORY = Path(__file__).resolve().parents[3]
MODEL = load_memory_models(REPOSITORY)["gb10"]
ROWS = calibration(MODEL)
W8 = {"DSV41_WO_A_W8": 1}
BUNDLE = {**W8, "DSV41_WO_A_W8_MID": 1, "DSV41_WO_A_W8_DROP": 1}
HEAD = {"DSV41_DRAFT_HEAD_FP8": 1}

NOT_REPRODUCED = {
    "B1": 0.0008,
    "b0": 0.0010,
    "scales": 0.0010,
    "scales-off": 0.0008,
    "log-0911": 0.0672,
    "B1-E1": -0.0009,
    "nccl-default": -0.0008,
    "free-rank2": 0.0026,
    "free-rank1": -0.0333,
}
"""Deviation, a fraction with four decimals, of every row that the model does not explain."""


def judge(settings: Mapping[str, Value] | None = None) -> Budget:
    return judge_budget(MODEL, settings or {})


def mib(budget: Budget, term: str) -> float:
    return next((each.mib for each in budget.terms if each.id == term), 0.0)


# -- calibration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_known_row_is_reproduced_or_said_not_to_be(row: CalibrationRow) -> None:
    assert (abs(row.deviation) <= MODEL.calibration.tolerance) == row.reproduced, row
    if not row.reproduced:
        assert round(row.deviation, 4) == NOT_REPRODUCED[row.id]


def test_the_rows_that_are_not_reproduced_are_these() -> None:
    assert MODEL.calibration.tolerance == 0.0005
    assert {row.id for row in ROWS if not row.reproduced} == set(NOT_REPRODUCED)
    assert len([row for row in ROWS if row.reproduced]) >= 20


@pytest.mark.parametrize(
    ("settings", "minimum", "source"),
    [
        ({}, 0.944, "field 1.8.5: about 0.944"),
        (W8, 0.9503, "field 5.3, I19"),
        ({**W8, "DSV41_WO_A_W8_MID": 1}, 0.9503, "field 3.1: MID takes nothing"),
        (BUNDLE, 0.9443 - 640 / 114145.3, "field 3.1: net -640 MiB"),
        (HEAD, 0.9443 + 210.8 / 114145.3, "field 3.3: 210.6 + 0.2 MiB"),
        ({"DSV41_RESIDENT_SCALES": 1}, 0.9443 + 0.0169, "fork 2.4: 0.940 to 0.9569"),
    ],
)
def test_minimum_fractions(settings: dict[str, Value], minimum: float, source: str) -> None:
    assert judge(settings).minimum_fraction == pytest.approx(minimum, abs=0.0005), source


@pytest.mark.parametrize(
    ("slots", "block", "chunk", "tokens", "source"),
    [
        (4, 5, 1024, 13312, "head log: swa_tokens=13312"),
        (4, 3, 1024, 12288, "the same formula"),
        (8, 5, 768, 23552, "the same formula"),
    ],
)
def test_the_sliding_window_is_the_engines(slots: int, block: int, chunk: int, tokens: int, source: str) -> None:
    settings = read_settings(
        MODEL, {"MAX_RUNNING_REQUESTS": slots, "DSPARK_BLOCK_SIZE": block, "CHUNKED_PREFILL_SIZE": chunk}
    )
    assert swa_tokens(MODEL, settings) == tokens, source


def test_nccl_buffers() -> None:
    """512 buffers of 9.19 MiB by NCCL's defaults (field 5.3, I26); the reference is counted above the 139 MB seen."""
    assert nccl_mib(MODEL, 32, 4194304, -2) == pytest.approx(512 * 9.19, abs=2)
    assert nccl_mib(MODEL, 8, 1048576, 262144) == pytest.approx(224)


def test_the_host_reserve_and_the_totals_add_up() -> None:
    budget = judge(BUNDLE)
    worst = budget.cautious
    total = MODEL.host.total_mib.value
    assert total == pytest.approx(121.7 * 1024, abs=15)  # 124610 MiB are shown as 121.7 GiB
    assert mib(budget, "host") + worst.available_mib == pytest.approx(total)
    held = sum(term.mib for term in budget.terms if term.phase in ("weights", "pool", "serving"))
    assert worst.available_mib - held - worst.pool_mib == pytest.approx(worst.free_mib[0])


# -- verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "verdict", "reasons", "bundle"),
    [
        ({}, "fits", [], None),
        (BUNDLE, "fits", [], None),
        ({**BUNDLE, **HEAD, "DSPARK_BLOCK_SIZE": 5, "EP_SIZE": 1}, "fits", [], None),
        ({"EP_SIZE": 1}, "fits", [], None),
        (HEAD, "fits", [], None),
        ({"CHUNKED_PREFILL_SIZE": 768}, "fits", [], None),
        ({"MAX_TOTAL_TOKENS": 0}, "fits", [], None),
        ({"MAX_TOTAL_TOKENS": 262000}, "fits", [], None),
        ({"MAX_RUNNING_REQUESTS": 6}, "fits", [], None),
        (W8, "edge", ["may_not_boot"], "wo_a_w8_mid_drop"),
        ({**W8, "DSV41_WO_A_W8_MID": 1}, "edge", ["may_not_boot"], "wo_a_w8_mid_drop"),
        ({**W8, "MEM_FRACTION_STATIC": 0.955}, "edge", ["fraction_untested"], None),
        ({"MEM_FRACTION_STATIC": 0.944}, "edge", ["may_not_boot"], "wo_a_w8_mid_drop"),
        ({"DSV41_CACHE_GIB": 0.25}, "edge", ["pool_below_context"], "wo_a_w8_mid_drop"),
        ({"DSV41_CACHE_GIB": 0.5}, "edge", ["may_not_boot", "pool_below_context"], "wo_a_w8_mid_drop"),
        ({**BUNDLE, "DSV41_CACHE_GIB": 0.5}, "fits", [], None),
        ({"MAX_RUNNING_REQUESTS": 8}, "edge", ["serving_below_guard"], None),
        ({"NCCL_BUFFSIZE": 4194304}, "edge", ["may_not_boot", "pool_below_context"], "wo_a_w8_mid_drop"),
        ({"MEM_FRACTION_STATIC": 0.98}, "unsafe", ["fraction_high", "serving_below_guard"], None),
        ({"MEM_FRACTION_STATIC": 0.9439}, "unsafe", ["fraction_low", "may_not_boot"], None),
        ({"MEM_FRACTION_STATIC": 0.55}, "unsafe", ["fraction_low", "no_kv"], None),
        ({"DSV41_RESIDENT_SCALES": 1}, "unsafe", ["no_kv", "serving_below_guard"], None),
        ({"EP_SIZE": 2}, "unsafe", ["shape"], None),
        ({"TP_SIZE": 4}, "unsafe", ["shape"], None),
    ],
)
def test_verdicts(settings: dict[str, Value], verdict: str, reasons: list[str], bundle: str | None) -> None:
    budget = judge(settings)
    assert budget.verdict == verdict
    assert [reason.id for reason in budget.reasons] == reasons
    assert budget.better_bundle == bundle


@pytest.mark.parametrize(
    "settings",
    [
        {"DSV41_CACHE_GIB": 4},
        {"OFFLOAD_MODE": "ram"},
        {"SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE": 1},
        {
            "MEM_FRACTION_STATIC": 0.8,
            "MAX_TOTAL_TOKENS": 8000000,
            "MAX_RUNNING_REQUESTS": 16,
            "DSV41_CACHE_GIB": 4,
        },
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Value]) -> None:
    budget = judge(settings)
    assert budget.verdict is Verdict.UNSAFE
    refused = unsafe(budget, "candidate", "gb10")
    assert (refused.id, refused.observed) == ("TS-BUDGET-UNSAFE", "; ".join(each.text for each in budget.reasons))
    back = "go back to " + ", ".join(f"{name}={MODEL.reference[name]}" for name in budget.way_back)
    assert refused.remedy == (f"try {budget.better_bundle}" if budget.better_bundle else back)
    assert judge({**settings, **budget.way_back}).verdict is Verdict.FITS


def test_w8_alone_names_shortfall_way_back_and_bundle() -> None:
    budget = judge(W8)
    assert budget.shortfall_fraction == pytest.approx(0.0003, abs=0.0001)
    assert budget.shortfall_mib == pytest.approx(38.0, abs=0.1)
    assert budget.pool_shortfall_mib == pytest.approx(424.0, abs=0.1)
    assert budget.way_back == {"DSV41_WO_A_W8": 0}
    assert budget.better is not None
    assert budget.better.verdict is Verdict.FITS
    assert [outlook.boots for outlook in budget.outlooks] == [True, False, False]


def test_twins_of_the_draft_are_counted_once() -> None:
    assert mib(judge(W8), "wo_a_twins_draft") == pytest.approx(48.05, abs=0.01)
    assert mib(judge(BUNDLE), "wo_a_twins_draft") == 0
    assert judge({**W8, "DSV41_WO_A_W8_DRAFT": 1}).terms == judge(W8).terms
    assert mib(judge({**BUNDLE, "DSV41_WO_A_W8_DRAFT": 1}), "wo_a_twins_draft") == pytest.approx(48.05, abs=0.01)


@pytest.mark.parametrize("name", ["DSV41_WO_A_W8_MID", "DSV41_WO_A_W8_DROP", "DSV41_WO_A_W8_DRAFT"])
def test_without_the_master_switch_the_others_change_nothing(name: str) -> None:
    assert judge({name: 1}).as_dict() == judge().as_dict()


def test_the_load_holds_wide_copies_and_twins_together() -> None:
    with_drop, without = judge(BUNDLE).cautious, judge(W8).cautious
    draft = mib(judge(W8), "wo_a_twins_draft")
    assert with_drop.load_free_mib == pytest.approx(without.load_free_mib + draft)


# -- what a reader gets ----------------------------------------------------------------------------------------------


def test_lines_of_an_edge() -> None:
    lines = judge(W8).lines
    assert lines[0].startswith("memory budget gb10: MiB a rank at fraction 0.95, in the memory state crowded")
    text = "\n".join(lines)
    for wanted in (
        r"^  8-bit twins of wo_a, 40 layers of the target +640\.6$",
        r"^  = held before the pool of tokens +108,476\.1$",
        r"^  state crowded: minimum fraction 0\.9503, with sliding window 0\.9537, no pool, does not boot$",
        r"^EDGE: may not boot: of the known memory states it does in lean alone$",
        r"^  short by 0\.0003 = 38\.0 MiB for the weights alone; .*minimum viable = 0\.9503",
        r"^  short by 0\.0037 = 424\.0 MiB with the sliding window",
        r"^  do: drop the page cache on every node .* do not raise MEM_FRACTION_STATIC",
        r"^  better: wo_a_w8_mid_drop \(fits, minimum fraction 0\.9387\)",
        r"^  way back: DSV41_WO_A_W8=0, then restart$",
    ):
        assert re.search(wanted, text, re.MULTILINE), wanted
    terms = [line for line in lines if re.fullmatch(r"  .{52} *-?[0-9,]+\.[0-9]", line)]
    assert len(terms) == len(judge(W8).terms) + 5, (
        "one line a term, three totals of memory, the pool, two of what is left"
    )
    assert max(len(line) for line in lines) <= 180


def test_lines_of_what_fits_and_of_what_is_refused() -> None:
    assert any(line.startswith("FITS: boots in every known memory state") for line in judge(BUNDLE).lines)
    refused = judge({"MEM_FRACTION_STATIC": 0.98}).lines
    assert "UNSAFE (refused): fraction 0.98 is 0.98 or more, which took a node down while loading" in refused
    assert "  way back: MEM_FRACTION_STATIC=0.95, then restart" in refused
    assert not any(line.startswith("  do:") for line in refused)


def test_the_json_form_is_plain_and_rounded() -> None:
    body = judge(W8).as_dict()
    assert json.loads(json.dumps(body, allow_nan=False)) == body
    assert body["verdict"] == "edge"
    assert body["better_bundle"] == "wo_a_w8_mid_drop"
    assert body["minimum_fraction"] == 0.9503
    assert {name: body[name] for name in ("shortfall_mib", "pool_shortfall_mib")} == {
        "shortfall_mib": 38.0,
        "pool_shortfall_mib": 424.0,
    }
    assert all(term["source"] for term in body["terms"])
    assert [state["state"] for state in body["states"]] == ["lean", "usual", "crowded"]
    assert set(body["states"][0]["free_mib"]) == {"0", "1", "2"}


def test_the_same_settings_give_the_same_bytes() -> None:
    shuffled = dict(reversed(list(MODEL.reference.items())))
    assert json.dumps(judge(shuffled).as_dict()) == json.dumps(judge(dict(MODEL.reference)).as_dict())
    assert judge(shuffled).lines == judge().lines


def test_the_way_back_leads_to_the_settings_that_are_given() -> None:
    budget = judge_budget(MODEL, {"MAX_RUNNING_REQUESTS": 8}, back_to={"MAX_RUNNING_REQUESTS": 6})
    assert budget.way_back == {"MAX_RUNNING_REQUESTS": 6}


# -- the catalog beside it -------------------------------------------------------------------------------------------


def test_reference_and_limits_are_those_of_the_catalog(catalog: Catalog) -> None:
    for name in SETTINGS:
        assert catalog.baseline[name] == MODEL.reference[name], name
    bounds = [each for each in catalog.exclusions.values() if each.name == "MEM_FRACTION_STATIC"]
    assert {each.below for each in bounds} <= {None, MODEL.fraction.refused_below.value}
    assert {each.at_least for each in bounds} <= {None, MODEL.fraction.refused_from.value}
    assert judge_budget(MODEL, catalog.baseline).as_dict() == judge().as_dict()


def test_a_bundle_sets_what_the_catalog_says(catalog: Catalog) -> None:
    for relief in MODEL.reliefs:
        if relief.bundle in catalog.features:
            assert catalog.sets_of(relief.bundle) == relief.sets


def with_feature(catalog: Catalog, name: str, **fields: Any) -> Catalog:
    known = catalog.features["wo_a_mid"]
    return replace(catalog, features={**catalog.features, name: known.model_copy(update=fields)})


def test_a_bundle_is_named_only_when_the_catalog_has_it(catalog: Catalog) -> None:
    without = replace(catalog, features={k: v for k, v in catalog.features.items() if k != "wo_a_w8_mid_drop"})
    assert judge_budget(MODEL, W8, without).better_bundle is None
    has = with_feature(catalog, "wo_a_w8_mid_drop", kind=Kind.BUNDLE, sets=dict(BUNDLE), members=("wo_a", "wo_a_mid"))
    assert judge_budget(MODEL, W8, has).better_bundle == "wo_a_w8_mid_drop"
    useless = with_feature(catalog, "wo_a_w8_mid_drop", kind=Kind.BUNDLE, sets={"DSV41_WO_A_W8": 1})
    assert judge_budget(MODEL, W8, useless).better_bundle is None


def test_memory_of_a_feature_that_the_model_does_not_know_comes_from_the_catalog(catalog: Catalog) -> None:
    cost = MemoryCost(mib_per_rank=500, note="x", source="field 0")
    evidence = FeatureEvidence(must=(), must_not=(), off_must_not=())
    more = with_feature(
        catalog, "fence", kind=Kind.CHANGE, sets={"DSV41_FOLDED_FENCE": 1}, memory=cost, evidence=evidence
    )
    settings = {**catalog.baseline, "DSV41_FOLDED_FENCE": 1}
    before, after = judge_budget(MODEL, catalog.baseline, more), judge_budget(MODEL, settings, more)
    assert mib(after, "feature_fence") == 500
    assert after.minimum_fraction - before.minimum_fraction == pytest.approx(500 / 114145.3)
    assert mib(judge_budget(MODEL, {**catalog.baseline, **W8}, more), "feature_wo_a") == 0, "its settings are known"


# -- bad input and properties ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DSV41_CACHE_GIB", "0.5"),
        ("DSV41_CACHE_GIB", -0.5),
        ("DSV41_CACHE_GIB", math.nan),
        ("DSV41_CACHE_GIB", math.inf),
        ("DSV41_WO_A_W8", True),
        ("DSV41_WO_A_W8", 2),
        ("DSV41_WO_A_W8", "on"),
        ("MAX_RUNNING_REQUESTS", 4.5),
        ("MAX_RUNNING_REQUESTS", -1),
        ("MAX_TOTAL_TOKENS", 10**400),
        ("MEM_FRACTION_STATIC", None),
        ("OFFLOAD_MODE", 1),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(TrisparkError) as caught:
        judge({name: value})
    assert caught.value.id == "TS-BUDGET-SETTING"
    assert name in str(caught.value)


ANY_VALUE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([0, 1, 0.95, 3, 4, 750000, "nvme", "ram"])
)


FLAGS = {name for name, value in MODEL.reference.items() if value == 0 and name not in ("DSV41_CACHE_GIB",)}


def readable(name: str, value: Any) -> bool:
    """Whether a setting is a number, or a text, that the budget can use; said again here, apart from the code."""
    if name == "OFFLOAD_MODE":
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 10**12:
        return False
    if name in FLAGS:
        return value in (0, 1)
    if name not in ("DSV41_CACHE_GIB", "MEM_FRACTION_STATIC") and value != int(value):
        return False
    return value >= 0 or name == "NCCL_LL128_BUFFSIZE"


@given(st.dictionaries(st.sampled_from(SETTINGS) | st.text(max_size=5), ANY_VALUE, max_size=8))
def test_any_settings_give_a_budget_or_a_refusal(settings: dict[str, Any]) -> None:
    if not all(name not in SETTINGS or readable(name, value) for name, value in settings.items()):
        with pytest.raises(TrisparkError, match="TS-BUDGET-SETTING"):
            judge(settings)
        return
    budget = judge(settings)
    json.dumps(budget.as_dict(), allow_nan=False)
    assert all("\n" not in line for line in budget.lines)
    assert (budget.verdict is Verdict.FITS) == (not budget.reasons)


PLAUSIBLE = st.fixed_dictionaries(
    {
        "MEM_FRACTION_STATIC": st.sampled_from([0.944, 0.947, 0.95, 0.96, 0.97]),
        "MAX_RUNNING_REQUESTS": st.integers(1, 16),
        "CHUNKED_PREFILL_SIZE": st.sampled_from([256, 768, 1024, 4096]),
        "MAX_TOTAL_TOKENS": st.sampled_from([0, 100_000, 750_000, 3_000_000]),
        "DSPARK_BLOCK_SIZE": st.integers(1, 7),
        "DSV41_CACHE_GIB": st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        "DSV41_RESIDENT_SCALES": st.integers(0, 1),
        "DSV41_WO_A_W8": st.integers(0, 1),
        "DSV41_WO_A_W8_DROP": st.integers(0, 1),
        "DSV41_WO_A_W8_DRAFT": st.integers(0, 1),
        "DSV41_DRAFT_HEAD_FP8": st.integers(0, 1),
        "NCCL_BUFFSIZE": st.sampled_from([1048576, 4194304]),
        "NCCL_MAX_NCHANNELS": st.sampled_from([4, 8, 16, 32]),
        "CONTEXT_LENGTH": st.sampled_from([4096, 262144, 1048576]),
    }
)
COSTS = {
    "MAX_RUNNING_REQUESTS": st.integers(1, 16),
    "CHUNKED_PREFILL_SIZE": st.integers(0, 8192),
    "DSPARK_BLOCK_SIZE": st.integers(1, 7),
    "DSV41_CACHE_GIB": st.floats(0, 16),
    "DSV41_RESIDENT_SCALES": st.integers(0, 1),
    "DSV41_WO_A_W8_DRAFT": st.integers(0, 1),
    "DSV41_DRAFT_HEAD_FP8": st.integers(0, 1),
    "NCCL_BUFFSIZE": st.integers(0, 16777216),
    "NCCL_MAX_NCHANNELS": st.integers(1, 64),
}
HAIR = 1e-6


def assert_not_better(less: Budget, more: Budget) -> None:
    """`more` costs at least as much as `less`."""
    assert more.verdict.rank >= less.verdict.rank
    for cheap, dear in zip(less.outlooks, more.outlooks, strict=True):
        assert dear.minimum_fraction >= cheap.minimum_fraction - HAIR
        assert dear.required_fraction >= cheap.required_fraction - HAIR
        assert dear.pool_tokens <= cheap.pool_tokens
        assert dear.boots <= cheap.boots
        assert dear.load_free_mib <= cheap.load_free_mib + HAIR
        assert all(dear.free_mib[rank] <= cheap.free_mib[rank] + HAIR for rank in cheap.free_mib)


@given(
    PLAUSIBLE, st.sampled_from(sorted(COSTS)).flatmap(lambda name: st.tuples(st.just(name), COSTS[name], COSTS[name]))
)
def test_each_cost_makes_it_worse_or_leaves_it(settings: dict[str, Value], change: tuple[str, Value, Value]) -> None:
    name, one, other = change
    low, high = sorted((one, other))  # type: ignore[type-var] # numbers of one name
    assert_not_better(judge({**settings, name: low}), judge({**settings, name: high}))


@given(PLAUSIBLE)
def test_twins_cost_unless_they_replace_the_wide_copies(settings: dict[str, Value]) -> None:
    kept = {**settings, "DSV41_WO_A_W8_DROP": 0}
    assert_not_better(judge({**kept, "DSV41_WO_A_W8": 0}), judge({**kept, "DSV41_WO_A_W8": 1}))
    released = {**settings, "DSV41_WO_A_W8": 1, "DSV41_WO_A_W8_DROP": 1}
    assert judge(released).minimum_fraction < judge({**released, "DSV41_WO_A_W8": 0}).minimum_fraction


@given(PLAUSIBLE, st.floats(0.9, 0.979), st.floats(0.9, 0.979))
def test_a_higher_fraction_gives_tokens_and_takes_from_the_rest(
    settings: dict[str, Value], one: float, other: float
) -> None:
    low, high = (judge({**settings, "MEM_FRACTION_STATIC": each}) for each in sorted((one, other)))
    for less, more in zip(low.outlooks, high.outlooks, strict=True):
        assert more.minimum_fraction == less.minimum_fraction
        assert more.pool_tokens >= less.pool_tokens
        assert all(more.free_mib[rank] <= less.free_mib[rank] + HAIR for rank in less.free_mib)


@given(PLAUSIBLE)
def test_the_way_back_and_the_bundle_never_make_it_worse(settings: dict[str, Value]) -> None:
    budget = judge(settings)
    assert set(budget.way_back) <= set(settings)
    if budget.better is not None:
        assert judge({**settings, **BUNDLE}).verdict is budget.better.verdict
        assert budget.better.verdict.rank < budget.verdict.rank
    if budget.way_back:
        assert judge({**settings, **budget.way_back}).verdict.rank <= budget.verdict.rank


# -- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("baseline_minimum: {value: 0.9370,", "baseline_minimum: {value: 0.9570,", "order of baseline_minimum"),
        ("usual_state: usual", "usual_state: other", "usual_state other"),
        ("      NCCL_BUFFSIZE: 1048576\n", "", "NCCL_BUFFSIZE"),
        ("      NCCL_BUFFSIZE: 1048576\n", "      NCCL_BUFFSIZE: 1048576\n      NCCL_NET: IB\n", "NCCL_NET"),
        ("value: 10464.7", "value: 124610", "reserve_mib"),
        ("value: 10464.7", "value: .nan", "memory.yml"),
        ("token_bytes: {value: 1670.75", "token_bytes: {value: 0", "token_bytes"),
        ("observed: {minimum_fraction: 0.9503}", "observed: {}", "exactly one"),
        ("state: crowded", "state: full", "full"),
        ("- id: E1b\n", "- id: E1\n", "calibration id"),
        ("terms: [draft_head]", "free_rank: 0\n          terms: [draft_head]", "terms and free_rank"),
        ("note: A value of three digits from an older stack.", "note: null", "note"),
        ("    title: GB10", "    colour: red\n    title: GB10", "colour"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, old: str, new: str, named: str) -> None:
    shutil.copytree(REPOSITORY / "experiments", tmp_path / "experiments")
    path = tmp_path / "experiments" / "memory.yml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        load_memory_models(tmp_path)
    assert caught.value.id == "TS-CATALOG-SCHEMA"
    assert named in str(caught.value)


def test_a_model_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "experiments").mkdir()
    text = (REPOSITORY / "experiments" / "memory.yml").read_text(encoding="utf-8")
    body = text.split("models:\n", 1)[1]
    (tmp_path / "experiments" / "memory.yml").write_text(text + body, encoding="utf-8")
    with pytest.raises(TrisparkError, match="a model is there twice"):
        load_memory_models(tmp_path)


def test_an_unknown_model_is_refused_by_name() -> None:
    assert require_memory_model({"gb10": MODEL}, "gb10", "site") is MODEL
    with pytest.raises(TrisparkError) as caught:
        require_memory_model({"gb10": MODEL}, "gb20", "site")
    assert caught.value.id == "TS-BUDGET-MODEL"
    assert "gb20" in str(caught.value)


def test_every_number_of_the_model_has_a_source() -> None:
    def sources(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["source"]] if "source" in value else []
            return own + [each for item in value.values() for each in sources(item)]
        return [each for item in value for each in sources(item)] if isinstance(value, list | tuple) else []

    found = sources(MODEL.model_dump())
    assert len(found) > 60
    assert all(source.strip() for source in found)


# -- the page --------------------------------------------------------------------------------------------------------


def table_line(row: CalibrationRow) -> str:
    if row.kind == "amount":
        observed, predicted = f"{row.observed:,.1f} MiB", f"{row.predicted:,.1f} MiB"
    else:
        observed, predicted = f"{row.observed:.4f}", f"{row.predicted:.4f}"
    what = f"{row.what} ({row.state})" if row.state else row.what
    kept = "yes" if row.reproduced else f"**no**: {row.note}"
    return f"| {row.id} | {what} | {observed} | {predicted} | {row.deviation:+.4f} | {kept} | {row.source} |"


def test_the_page_shows_the_calibration() -> None:
    page = (REPOSITORY / "docs" / "memory.md").read_text(encoding="utf-8")
    missing = [line for line in map(table_line, ROWS) if line not in page]
    assert not missing, "docs/memory.md lacks:\n" + "\n".join(missing)
    shown = re.findall(r"^\| ([A-Za-z0-9-]+) \|.*\| [+-]0\.\d{4} \|", page, re.MULTILINE)
    assert shown == [row.id for row in ROWS]


def test_the_model_is_a_plain_value(tmp_path: Path) -> None:
    again = MemoryModel.model_validate_json(MODEL.model_dump_json())
    assert judge_budget(again, W8).as_dict() == judge(W8).as_dict()
