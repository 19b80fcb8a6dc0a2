"""The mathematics against scipy's own, and the many-trials form against one trial at a time."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from trispark.boot_statistics import hodges_lehmann, holm, paired, welch

RANDOM = np.random.default_rng(11)
SIZES = [(2, 2), (4, 4), (6, 6), (4, 6), (3, 5)]


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_welch_is_scipys(n: int, m: int) -> None:
    first, second = RANDOM.normal(0, 1, (20, n)), RANDOM.normal(0.3, 3, (20, m))
    found = welch(first, second)
    for row in range(20):
        expected = stats.ttest_ind(second[row], first[row], equal_var=False)
        interval = expected.confidence_interval(0.95)
        assert found.freedom[row] == pytest.approx(expected.df)
        assert [each[row] for each in found.interval(0.95)] == pytest.approx([interval.low, interval.high])
        greater = stats.ttest_ind(second[row] - 0.2, first[row], equal_var=False, alternative="greater")
        assert found.p_above(0.2)[row] == pytest.approx(greater.pvalue)
        assert found.p_below(0.2)[row] == pytest.approx(1 - greater.pvalue)


def test_paired_is_scipys() -> None:
    first, second = RANDOM.normal(0, 1, (20, 6)), RANDOM.normal(0.3, 1, (20, 6))
    found = paired(first, second)
    for row in range(20):
        interval = stats.ttest_rel(second[row], first[row]).confidence_interval(0.95)
        assert [each[row] for each in found.interval(0.95)] == pytest.approx([interval.low, interval.high])


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_the_rank_interval_ends_where_scipys_exact_test_turns(n: int, m: int) -> None:
    """A shift inside the interval is not rejected by Mann-Whitney at this level, one just outside is."""
    first, second = RANDOM.normal(0, 1, n), RANDOM.normal(0.3, 1, m)
    found = hodges_lehmann(first, second, 0.95)
    differences = np.subtract.outer(second, first).ravel()
    assert found.estimate == pytest.approx(np.median(differences))

    def p(shift: float) -> float:
        return float(stats.mannwhitneyu(second - shift, first, alternative="two-sided", method="exact").pvalue)

    if found.covers is None:
        assert n * m < 10
        assert np.isinf([found.low, found.high]).all()
        return
    step = 1e-9
    for end, outward in ((float(found.low), -1), (float(found.high), 1)):
        assert p(end - outward * step) > 1 - 0.95
        assert p(end + outward * step) <= 1 - found.covers + 1e-12
    assert found.covers >= 0.95


def test_holm_by_hand_and_by_scipys_ordering() -> None:
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    assert holm(np.array([0.5, 0.5])) == pytest.approx([1.0, 1.0])
    assert holm(np.array([0.02])) == pytest.approx([0.02])
    many = RANDOM.random((50, 4))
    assert holm(many) == pytest.approx(np.stack([holm(row) for row in many]))


def test_many_trials_are_each_of_them_alone() -> None:
    first, second = RANDOM.normal(0, 1, (30, 3, 6)), RANDOM.normal(0, 1, (30, 3, 6))
    together = welch(first, second)
    for row in range(30):
        alone = welch(first[row], second[row])
        assert np.array_equal(alone.estimate, together.estimate[row])
        assert np.array_equal(alone.p_above(0.0), together.p_above(0.0)[row])


def test_equal_boots_give_no_p_and_no_width() -> None:
    found = welch(np.full(4, 2.0), np.full(4, 3.0))
    assert found.exact
    assert (found.estimate, found.p_above(0.0), found.p_below(0.0)) == (1.0, 1.0, 1.0)
    assert found.interval(0.95) == (1.0, 1.0)
