"""The verdict of a trial. This version has no decision method, so the only verdict is INCONCLUSIVE, with the reason.

Differences are ratios of medians over boots, for reading only: they are no gains, and must not be added.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

INCONCLUSIVE: Final = "INCONCLUSIVE"
MIN_BOOTS_PER_ARM: Final = 2


@dataclass(frozen=True)
class BootMetrics:
    """One boot as a verdict sees it: metrics by name (see BenchSummary.metrics), and whether the boot was valid."""

    boot_id: str
    valid: bool
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Ratio:
    """One metric: median over the boots of each arm, and candidate over baseline (None when the baseline is zero)."""

    baseline: float
    candidate: float
    ratio: float | None


@dataclass(frozen=True)
class Verdict:
    """What a trial concludes, why, and how the arms differ metric by metric."""

    verdict: str
    reason: str
    differences: dict[str, Ratio]

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def decide(baseline_boots: Sequence[BootMetrics], candidate_boots: Sequence[BootMetrics]) -> Verdict:
    """The verdict over the valid boots of both arms."""
    baseline = [boot for boot in baseline_boots if boot.valid]
    candidate = [boot for boot in candidate_boots if boot.valid]
    return Verdict(INCONCLUSIVE, _reason(len(baseline), len(candidate)), _differences(baseline, candidate))


def _reason(baseline: int, candidate: int) -> str:
    if baseline == 0 or candidate == 0:
        arm = "baseline" if baseline == 0 else "candidate"
        return f"the {arm} has no valid boot"
    if baseline == 1 and candidate == 1:
        return "two boots decide nothing: one boot an arm cannot tell the change from the variation between boots"
    if min(baseline, candidate) < MIN_BOOTS_PER_ARM:
        arm = "baseline" if baseline < candidate else "candidate"
        return f"one boot of the {arm} decides nothing: it cannot tell the change from the variation between boots"
    return "this version has no decision method; the boots are recorded and can be judged later"


def _differences(baseline: Sequence[BootMetrics], candidate: Sequence[BootMetrics]) -> dict[str, Ratio]:
    """Metrics that every boot of both arms has."""
    if not baseline or not candidate:
        return {}
    names = set.intersection(*(set(boot.metrics) for boot in [*baseline, *candidate]))
    result = {}
    for name in sorted(names):
        before = statistics.median(boot.metrics[name] for boot in baseline)
        after = statistics.median(boot.metrics[name] for boot in candidate)
        result[name] = Ratio(before, after, after / before if before else None)
    return result
