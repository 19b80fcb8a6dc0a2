"""The mathematics of comparing two arms by their boots: Welch, paired t, Hodges-Lehmann. No rule is in here.

Arrays hold boots along the last axis; every other axis is compared elementwise, so that one trial and twenty thousand
simulated ones run through the same lines. Values are logarithms that were turned so that more is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
RESOLUTION: Final = 1e-9
"""Standard errors below it are none: a relative difference that no clock of a boot could show."""


@dataclass(frozen=True)
class Comparison:
    """Candidate minus baseline with the standard error and its degrees of freedom; shape: all axes but the boots'."""

    estimate: Array
    error: Array
    freedom: Array

    @property
    def exact(self) -> Flags:
        """Where the boots do not differ at all, so that nothing can be said of how they would."""
        return self.error < RESOLUTION

    def p_above(self, effect: float | Array) -> Array:
        """One-sided p of the hypothesis that the true difference is at most `effect`; 1 where nothing can be said."""
        t = (self.estimate - effect) / np.where(self.exact, np.inf, self.error)
        return np.where(self.exact, 1.0, stdtr(self.freedom, -t))

    def p_below(self, effect: float | Array) -> Array:
        """One-sided p of the hypothesis that the true difference is at least `effect`."""
        t = (self.estimate - effect) / np.where(self.exact, np.inf, self.error)
        return np.where(self.exact, 1.0, stdtr(self.freedom, t))

    def interval(self, level: float) -> tuple[Array, Array]:
        """Two-sided t interval that covers with this probability."""
        half = stdtrit(self.freedom, 0.5 + level / 2) * self.error
        return self.estimate - half, self.estimate + half


def welch(baseline: Array, candidate: Array) -> Comparison:
    """Two arms with a variance each; needs two boots in both. Numbers of boots may differ."""
    # Sorted, so that not even the rounding of a sum depends on the order of the boots.
    baseline, candidate = np.sort(baseline, axis=-1), np.sort(candidate, axis=-1)
    first, second = (_variance_of_mean(arm) for arm in (baseline, candidate))
    total = first + second
    safe = np.where(total > 0, total, 1.0)
    n, m = baseline.shape[-1], candidate.shape[-1]
    denominator = (first / safe) ** 2 / (n - 1) + (second / safe) ** 2 / (m - 1)
    freedom = np.where(total > 0, 1.0 / np.where(denominator > 0, denominator, 1.0), float(n + m - 2))
    return Comparison(candidate.mean(axis=-1) - baseline.mean(axis=-1), np.sqrt(total), freedom)


def paired(baseline: Array, candidate: Array) -> Comparison:
    """The k-th boot of an arm against the k-th of the other: within blocks ABBA and BAAB these lie side by side."""
    differences = candidate - baseline
    error = np.sqrt(_variance_of_mean(differences))
    return Comparison(differences.mean(axis=-1), error, np.full(error.shape, float(differences.shape[-1] - 1)))


@dataclass(frozen=True)
class Shift:
    """Hodges-Lehmann: the median of all differences between the arms, and an interval by ranks.

    `covers`: the exact probability of the interval, the least one that is not below what was asked for; None where so
    few boots have none, and `low` and `high` are then infinite.
    """

    estimate: Array
    low: Array
    high: Array
    covers: float | None


def hodges_lehmann(baseline: Array, candidate: Array, level: float) -> Shift:
    """Over the last axis; ties count as they fall."""
    n, m = baseline.shape[-1], candidate.shape[-1]
    differences = candidate[..., :, None] - baseline[..., None, :]
    ordered = np.sort(differences.reshape(*differences.shape[:-2], n * m), axis=-1)
    estimate = np.median(ordered, axis=-1)
    below = np.cumsum(_rank_sum_chances(n, m))
    tails = np.flatnonzero(below <= (1 - level) / 2)
    if tails.size == 0:
        return Shift(estimate, np.full_like(estimate, -np.inf), np.full_like(estimate, np.inf), None)
    cut = int(tails[-1]) + 1
    return Shift(estimate, ordered[..., cut - 1], ordered[..., n * m - cut], float(1 - 2 * below[cut - 1]))


def holm(p: Array) -> Array:
    """p adjusted for the last axis: comparing it with a level keeps that level over all of them together."""
    count = p.shape[-1]
    order = np.argsort(p, axis=-1, kind="stable")
    raised = np.take_along_axis(p, order, axis=-1) * np.arange(count, 0, -1)
    stepped = np.minimum(np.maximum.accumulate(raised, axis=-1), 1.0)
    adjusted = np.empty_like(stepped)
    np.put_along_axis(adjusted, order, stepped, axis=-1)
    return adjusted


def _variance_of_mean(values: Array) -> Array:
    count = values.shape[-1]
    return np.asarray(values.var(axis=-1, ddof=1) / count, dtype=np.float64)


@lru_cache(maxsize=64)
def _rank_sum_chances(n: int, m: int) -> Array:
    """P(U = u) for u of 0 to n*m, when n and m values of one distribution without ties are compared."""
    counts = np.zeros((m + 1, n * m + 1))
    counts[:, 0] = 1.0
    for _ in range(n):
        fresh = np.zeros_like(counts)
        fresh[0, 0] = 1.0
        for others in range(1, m + 1):
            # The largest value is of the first arm, above `others`, or of the second.
            fresh[others] = fresh[others - 1]
            fresh[others, others:] += counts[others, : counts.shape[1] - others]
        counts = fresh
    chances: Array = counts[m] / counts[m].sum()
    return chances
