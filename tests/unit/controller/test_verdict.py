"""This version never decides, says why, and gives ratios that nobody may add."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.verdict import BootMetrics, decide


def boots(*values: float, valid: bool = True) -> list[BootMetrics]:
    return [BootMetrics(f"b{i}", valid, {"c4.agg_tps": value}) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("baseline", "candidate", "reason"),
    [
        (boots(10), boots(20), "two boots decide nothing"),
        (boots(10, 11), boots(20), "one boot of the candidate decides nothing"),
        (boots(10), boots(20, 21), "one boot of the baseline decides nothing"),
        (boots(10, 11, 12), boots(20, 21, 22), "no decision method"),
        ([], boots(20), "the baseline has no valid boot"),
        (boots(10, 10), boots(20, 20, valid=False), "the candidate has no valid boot"),
    ],
)
def test_reason(baseline: list[BootMetrics], candidate: list[BootMetrics], reason: str) -> None:
    verdict = decide(baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE"
    assert reason in verdict.reason


def test_differences_are_ratios_of_medians() -> None:
    verdict = decide(boots(10, 20, 90), boots(30, 50))
    assert verdict.as_dict()["differences"] == {"c4.agg_tps": {"baseline": 20, "candidate": 40.0, "ratio": 2.0}}
    assert decide(boots(0), boots(5)).differences["c4.agg_tps"].ratio is None


def test_metric_missing_in_one_boot_is_left_out() -> None:
    assert decide(boots(1), [BootMetrics("b", True, {"c1-prose.decode_tps": 2.0})]).differences == {}


@given(st.lists(st.floats(0.1, 1e4), max_size=12), st.lists(st.floats(0.1, 1e4), max_size=12))
def test_no_data_makes_it_decide(baseline: list[float], candidate: list[float]) -> None:
    assert decide(boots(*baseline), boots(*candidate)).verdict == "INCONCLUSIVE"
