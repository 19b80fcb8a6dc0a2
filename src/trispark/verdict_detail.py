"""What a verdict says of each metric: the decision of `trispark.decision` over one trial, in ratios and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from trispark.boot_statistics import Array, Comparison, hodges_lehmann, paired, welch
from trispark.decision import STOPS, Code, LookResult, decide_trials
from trispark.decision_rules import DecisionRules, Guard, Primary, Watched, harm_of_share
from trispark.verdict import INCONCLUSIVE, KEEP, REJECT, Verdict

Values = Sequence[Mapping[str, float]]
CODES: Final = {
    Code.ZERO_VARIANCE: (INCONCLUSIVE, "ZERO-VARIANCE"),
    Code.HARM: (REJECT, "HARM"),
    Code.KEEP: (KEEP, "GAIN"),
    Code.GUARD_OPEN: (INCONCLUSIVE, "GUARD-OPEN"),
    Code.NO_GAIN: (REJECT, "NO-GAIN"),
    Code.FUTILE: (INCONCLUSIVE, "FUTILE"),
    Code.OPEN: (INCONCLUSIVE, "OPEN"),
}
OUTLIER_Z: Final = 3.5


@dataclass(frozen=True)
class Range:
    """Candidate over baseline with an interval, None where there is none; `covers`: its probability."""

    ratio: float
    low: float | None
    high: float | None
    covers: float | None


@dataclass(frozen=True)
class MetricDetail:
    """One metric at the look that decided. `p`: one-sided, of no gain, for a primary adjusted over all of them.

    `least`: the share by which a primary must be better for KEEP, None for a guard. `outliers`: values far from the
    others of their arm, shown and never left out.
    """

    metric: str
    role: str
    better: str
    state: str
    baseline: list[float]
    candidate: list[float]
    welch: Range
    paired: Range
    hodges_lehmann: Range
    p: float | None
    margin: float
    least: float | None
    outliers: list[float]


@dataclass(frozen=True)
class MechanismDetail:
    """A metric that was declared to move; `moved` is None where it was not measured in every boot."""

    metric: str
    goes: str
    moved: bool | None
    baseline: float | None
    candidate: float | None
    p: float | None


@dataclass(frozen=True)
class Detail:
    """The look that decided: counted boots an arm, its level, whether it `ends` the trial, every watched metric, the
    mechanism."""

    boots: int
    ends: bool
    level: float
    metrics: list[MetricDetail]
    mechanism: list[MechanismDetail]


def judged(baseline: Values, candidate: Values, rules: DecisionRules) -> Verdict:
    """The verdict over the counted boots of both arms; both reach the first look, and have every watched metric."""
    arms = [oriented(values, rules) for values in (baseline, candidate)]
    decisions = decide_trials(arms[0][None], arms[1][None], rules)
    code, look = Code(int(decisions.code[0])), decisions.looks[int(decisions.at[0])]
    count = look.look.boots
    metrics = [
        _metric(index, each, [values[:count] for values in (baseline, candidate)], arms, look, rules)
        for index, each in enumerate(rules.watched)
    ]
    level = rules.mechanism_level
    mechanism = [
        _mechanism(each.metric, each.goes, baseline[:count], candidate[:count], level) for each in rules.mechanism
    ]
    verdict, name = CODES[code]
    detail = Detail(count, code in STOPS, look.look.level, metrics, mechanism)
    found = Verdict(verdict, _reason(code, detail, rules, min(len(baseline), len(candidate))), {}, name, (), detail)
    return _with_mechanism(found, mechanism)


def oriented(values: Values, rules: DecisionRules) -> Array:
    """(metrics, boots): logarithms, turned so that more is better, metrics as the rules watch them."""
    signs = np.array([_sign(each) for each in rules.watched])
    table = [[boot[each.metric] for boot in values] for each in rules.watched]
    return np.asarray(np.log(np.array(table, dtype=np.float64)) * signs[:, None], dtype=np.float64)


def _sign(watched: Watched) -> float:
    return 1.0 if watched.better == "higher" else -1.0


def _metric(
    index: int,
    watched: Watched,
    values: Sequence[Values],
    arms: Sequence[Array],
    look: LookResult,
    rules: DecisionRules,
) -> MetricDetail:
    count, sign = look.look.boots, _sign(watched)
    first, second = (arm[index, :count] for arm in arms)
    shift = hodges_lehmann(first, second, rules.interval)
    primary = isinstance(watched, Primary)
    shares = [[boot[watched.metric] for boot in boots] for boots in values]
    return MetricDetail(
        metric=watched.metric,
        role="primary" if primary else "guard",
        better=watched.better,
        state=_state(index, watched, look, rules),
        baseline=shares[0],
        candidate=shares[1],
        welch=_range(welch(first, second), rules.interval, sign),
        paired=_range(paired(first, second), rules.interval, sign),
        hodges_lehmann=_ratios(float(shift.estimate), float(shift.low), float(shift.high), shift.covers, sign),
        p=_finite(look.adjusted[0, index] if primary else look.comparison.p_above(0.0)[0, index]),
        margin=watched.margin,
        least=max(watched.minimum_effect, watched.floor or 0.0) if isinstance(watched, Primary) else None,
        outliers=_outliers(shares[0]) + _outliers(shares[1]),
    )


def _state(index: int, watched: Watched, look: LookResult, rules: DecisionRules) -> str:
    found = look.comparison
    if found.exact[0, index]:
        return "no variance"
    if look.harmed[0, index]:
        return "harm"
    if index < len(rules.primaries) and look.winners[0, index]:
        return "better"
    if look.suspected[0, index]:
        return "harm suspected"
    margin = harm_of_share(watched.margin, watched.better)
    shown = found.p_above(margin)[0, index] <= rules.harm_level
    if isinstance(watched, Guard) and watched.claimed and shown:
        return "not worse"
    return "open"


def _range(found: Comparison, level: float, sign: float) -> Range:
    low, high = found.interval(level)
    return _ratios(float(found.estimate), float(low), float(high), level, sign)


def _ratios(estimate: float, low: float, high: float, covers: float | None, sign: float) -> Range:
    ratio = float(np.exp(sign * estimate))
    if covers is None or not np.isfinite([low, high]).all():
        return Range(ratio, None, None, None)
    ends = sorted(float(np.exp(sign * each)) for each in (low, high))
    return Range(ratio, ends[0], ends[1], covers)


def _outliers(values: Sequence[float]) -> list[float]:
    """Values whose modified z, by the median of distances from the median, is above 3.5."""
    centre = float(np.median(values))
    distances = np.abs(np.array(values) - centre)
    spread = float(np.median(distances))
    if spread == 0:
        return []
    return [value for value, distance in zip(values, distances, strict=True) if 0.6745 * distance / spread > OUTLIER_Z]


def _mechanism(metric: str, goes: str, baseline: Values, candidate: Values, level: float) -> MechanismDetail:
    """In plain values, for a wait may be zero; arms without any variance are compared as they are."""
    if not all(metric in boot for boot in (*baseline, *candidate)):
        return MechanismDetail(metric, goes, None, None, None, None)
    arms = [np.array([boot[metric] for boot in boots], dtype=np.float64) for boots in (baseline, candidate)]
    sign = 1.0 if goes == "higher" else -1.0
    found = welch(sign * arms[0], sign * arms[1])
    still = all(float(np.ptp(arm)) == 0.0 for arm in arms)
    p = None if still else float(found.p_above(0.0))
    moved = bool(found.estimate > 0) if p is None else p <= level
    means = [float(arm.mean()) for arm in arms]
    return MechanismDetail(metric, goes, moved, means[0], means[1], p)


def _with_mechanism(found: Verdict, mechanism: Sequence[MechanismDetail]) -> Verdict:
    """A gain whose mechanism did not move, or was not measured, is not believed; else it is said beside the reason."""
    if not mechanism:
        return found
    still = [each for each in mechanism if not each.moved]
    words = ", ".join(
        f"{each.metric} did not go {each.goes}" if each.moved is False else f"{each.metric} was not measured"
        for each in still
    )
    if found.verdict == KEEP and still:
        reason = f"a gain without its mechanism is not believed: {words} ({found.reason})"
        return replace(found, verdict=INCONCLUSIVE, code="NO-MECHANISM", reason=reason)
    said = f"NO-MECHANISM: {words}" if still else "the mechanism moved as declared"
    return replace(found, reason=f"{found.reason}; {said}")


def _reason(code: Code, detail: Detail, rules: DecisionRules, boots: int) -> str:
    at = f"at {detail.boots}+{detail.boots} boots"

    def named(*states: str) -> str:
        return ", ".join(_shown(each) for each in detail.metrics if each.state in states)

    primaries = ", ".join(_shown(each) for each in detail.metrics if each.role == "primary")
    suspected = named("harm suspected")
    match code:
        case Code.KEEP:
            return f"better {at}: {named('better')}; nothing is worse by more than its margin"
        case Code.HARM:
            return f"worse by more than the margin {at}: {named('harm')}"
        case Code.GUARD_OPEN:
            return f"better {at}: {named('better')}; but seems worse by more than the margin: {suspected}"
        case Code.NO_GAIN:
            return f"no primary is better by its least effect {at}: {primaries}"
        case Code.FUTILE:
            return f"no primary is better at all {at}, more boots would not change that: {primaries}"
        case Code.ZERO_VARIANCE:
            return f"boots agree to the last digit {at}: {named('no variance')}; nothing is known of how they vary"
        case _:
            more = next((look.boots for look in rules.looks if look.boots > detail.boots), None)
            left = "" if more is None else f", the next look is at {more}+{more}, {boots} boots an arm are there"
            return f"neither a gain nor its absence is shown {at}{left}: {primaries}"


def _shown(each: MetricDetail) -> str:
    interval = each.welch
    text = f"{each.metric} {_percent(interval.ratio)}"
    if interval.low is not None and interval.high is not None:
        text += f" [{_percent(interval.low)}, {_percent(interval.high)}]"
    return text


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
