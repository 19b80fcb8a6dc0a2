"""Verdicts grow stale with the cost of a step; a trial waits for what it needs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.catalog import Catalog
from trispark.staleness import balance_keys, stale_reason, unmet_need


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ({}, None),
        ({"DSV41_WO_A_W8": 1}, "DSV41_WO_A_W8 was 0, is 1 (wo_a)"),
        ({"EP_SIZE": 1}, "EP_SIZE was 3, is 1 (ep1)"),
        ({"NCCL_BUFFSIZE": 4194304}, "NCCL_BUFFSIZE"),
        ({"DSV41_VERIFY_CAP": "conf:0.1"}, "DSV41_VERIFY_CAP was '0', is 'conf:0.1'"),
        ({"SGLANG_ROCE_ALLREDUCE": 1, "EP_SIZE": 1}, "; SGLANG_ROCE_ALLREDUCE"),
        ({"DSPARK_BLOCK_SIZE": 5}, None),
        ({"DSV41_ENGRAM_PREFETCH": 1}, None),
        ({"DSV41_FOLDED_FENCE": 1}, None),
        ({"MAX_RUNNING_REQUESTS": 8}, None),
    ],
)
def test_a_changed_cost_of_a_step_makes_a_sweep_stale(catalog: Catalog, now: dict[str, Any], named: str | None) -> None:
    reason = stale_reason(catalog.baseline, {**catalog.baseline, **now}, catalog)
    assert (reason is None) is (named is None)
    assert named is None or named in str(reason)
    assert (stale_reason({**catalog.baseline, **now}, catalog.baseline, catalog) is None) is (named is None)


def test_a_key_that_one_side_lacks_has_the_shipped_value(catalog: Catalog) -> None:
    assert stale_reason({}, catalog.baseline, catalog) is None
    assert stale_reason(catalog.baseline, {}, catalog) is None
    assert stale_reason({}, {"EP_SIZE": 1}, catalog) is not None


def test_what_the_review_asks_to_retest_after(catalog: Catalog) -> None:
    keys = balance_keys(catalog)
    assert {"DSV41_WO_A_W8", "DSV41_WO_A_W8_MID", "EP_SIZE", "NCCL_BUFFSIZE", "SGLANG_ROCE_ALLREDUCE"} <= set(keys)
    assert "DSPARK_BLOCK_SIZE" not in keys, "the swept key itself"
    assert "MAX_RUNNING_REQUESTS" not in keys


@given(data=st.data())
def test_any_settings_are_compared(catalog: Catalog, data: st.DataObject) -> None:
    names = st.sampled_from([*balance_keys(catalog), "X"])
    settings = st.dictionaries(names, st.none() | st.integers() | st.floats() | st.text(), max_size=6)
    first, second = data.draw(settings), data.draw(settings)
    assert stale_reason(first, first, catalog) is None or any(value != value for value in first.values())
    reason = stale_reason(first, second, catalog)
    assert reason is None or reason.startswith("the cost of a step changed since: ")


METRIC = "c1-prose.engram_wait_us_per_lookup"


@pytest.mark.parametrize(
    ("measured", "unmet"),
    [(None, True), ({}, True), ({METRIC: 0.0}, True), ({METRIC: 5.0}, True), ({METRIC: 11.0}, False)],
)
def test_a_cache_needs_a_wait_that_is_left(catalog: Catalog, measured: dict[str, float] | None, unmet: bool) -> None:
    error = unmet_need("engram_cache", measured, catalog)
    assert (error is not None) is unmet
    assert error is None or (error.id, METRIC in error.expected) == ("TS-FEATURE-NEED", True)
    assert unmet_need("wo_a", measured, catalog) is None
