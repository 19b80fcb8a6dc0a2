"""The verdict of a trial: KEEP, REJECT or INCONCLUSIVE over the boots of both arms, by the rules of the trial's plan.

What is done here is judged before speed (boots that are not valid, arms that did not do the same work, values that are
no measurements) and said after it; whether a gain is one is decided by `trispark.decision`, which simulations call too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from trispark.boot_validity import NEEDED, Check, failed, unchecked
from trispark.errors import TrisparkError

if TYPE_CHECKING:
    from trispark.decision_rules import DecisionRules
    from trispark.verdict_detail import Detail

KEEP: Final = "KEEP"
REJECT: Final = "REJECT"
INCONCLUSIVE: Final = "INCONCLUSIVE"
_SAME_WORK: Final = "measure both arms with the same prompts, limits and load client"


@dataclass(frozen=True)
class BootMetrics:
    """One boot as a verdict sees it.

    `metrics`: by name (see BenchSummary.measured), each the median over the boot's repetitions; `protocol` and
    `corpus`: hashes of how and of what was measured, None where nobody said; `failed_gates`: ids; `prompt_tokens`: by
    tag, what the server counted in all its prompts, of tags whose every request says so.
    """

    boot_id: str
    valid: bool
    metrics: Mapping[str, float]
    protocol: str | None = None
    corpus: str | None = None
    checks: tuple[Check, ...] = ()
    failed_gates: tuple[str, ...] = ()
    prompt_tokens: Mapping[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether it may take part: valid, and no rule failed."""
        return self.valid and not failed(self.checks)


@dataclass(frozen=True)
class Ratio:
    """One metric: median over the boots of each arm, and candidate over baseline (None when the baseline is zero)."""

    baseline: float
    candidate: float
    ratio: float | None


@dataclass(frozen=True)
class Verdict:
    """What a trial concludes, why, and how the arms differ metric by metric.

    `code` names the reason: HARM, NO-GAIN or UNSAFE of a REJECT, why nothing was decided of an INCONCLUSIVE. `ratios`
    are for reading only: they are no gains. `detail` has intervals, once a look of the plan was reached.
    """

    verdict: str
    reason: str
    differences: dict[str, Ratio]
    code: str = ""
    unchecked: tuple[str, ...] = ()
    detail: Detail | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {**asdict(self), "unchecked": list(self.unchecked)}


def decide(
    baseline_boots: Sequence[BootMetrics],
    candidate_boots: Sequence[BootMetrics],
    rules: DecisionRules | None = None,
) -> Verdict:
    """The verdict over the boots of both arms, each in the order in which they ran.

    Boots that are not valid take no part. Raises TS-VERDICT-PROTOCOL, -CORPUS and -PROMPT when boots did not do the
    same work, TS-VERDICT-VALUE for a value that is no measurement, TS-VERDICT-BOOT for a boot that is there twice.
    """
    everything = [*baseline_boots, *candidate_boots]
    _require_measurements(everything)
    _require_each_once(everything)
    baseline = [boot for boot in baseline_boots if boot.counts]
    candidate = [boot for boot in candidate_boots if boot.counts]
    _require_same_work([*baseline, *candidate])
    differences = _differences(baseline, candidate)
    found = _before_speed(baseline_boots, candidate_boots, baseline, candidate, rules)
    if found is None and rules is not None:
        found = _by_speed(baseline, candidate, rules)
    if found is None:
        found = _undecided("NO-RULES", "the trial was planned without rules of decision; its boots are recorded")
    not_checked = unchecked([boot.checks for boot in (*baseline, *candidate)])
    missing = [rule for rule in NEEDED if not all(_passed(boot, rule) for boot in (*baseline, *candidate))]
    if found.verdict == KEEP and missing:
        reason = f"not checked: {', '.join(missing)}; without it a gain is not believed ({found.reason})"
        found = replace(found, verdict=INCONCLUSIVE, code="NOT-CHECKED", reason=reason)
    if found.verdict == KEEP and rules is not None and rules.control:
        reason = (
            f"a control of the measurement has nothing to keep; that it looks like a gain is chance ({found.reason})"
        )
        found = replace(found, verdict=INCONCLUSIVE, code="CONTROL", reason=reason)
    return replace(found, differences=differences, unchecked=not_checked)


def _passed(boot: BootMetrics, rule: str) -> bool:
    return any(check.rule == rule and check.status == "passed" for check in boot.checks)


def _undecided(code: str, reason: str) -> Verdict:
    return Verdict(INCONCLUSIVE, reason, {}, code)


def _before_speed(
    baseline_boots: Sequence[BootMetrics],
    candidate_boots: Sequence[BootMetrics],
    baseline: Sequence[BootMetrics],
    candidate: Sequence[BootMetrics],
    rules: DecisionRules | None,
) -> Verdict | None:
    """What is decided without a look at speed; None to go on."""
    unsafe = [boot for boot in candidate_boots if boot.failed_gates]
    if unsafe and baseline and len(baseline) == len(baseline_boots):
        gates = ", ".join(unsafe[0].failed_gates[:5])
        reason = f"{unsafe[0].boot_id} of the candidate failed its gates ({gates}), no boot of the baseline did"
        return Verdict(REJECT, reason, {}, "UNSAFE")
    for arm, boots, given in (("baseline", baseline, baseline_boots), ("candidate", candidate, candidate_boots)):
        if not boots:
            return _undecided("NO-BOOT", f"the {arm} has no valid boot{_why_not(given)}")
    sizes = len(baseline), len(candidate)
    if sizes == (1, 1):
        reason = "two boots decide nothing: one boot an arm cannot tell the change from the variation between boots"
        return _undecided("ONE-BOOT", reason)
    if min(sizes) == 1:
        arm = "baseline" if sizes[0] == 1 else "candidate"
        reason = f"one boot of the {arm} decides nothing: it cannot tell the change from the variation between boots"
        return _undecided("ONE-BOOT", reason)
    if rules is not None:
        missing = sorted({each.metric for each in rules.watched if not _measured(each.metric, baseline, candidate)})
        if missing and rules.looks:
            return _undecided("NOT-MEASURED", f"not measured in every boot: {', '.join(missing)}")
    return None


def _by_speed(baseline: Sequence[BootMetrics], candidate: Sequence[BootMetrics], rules: DecisionRules) -> Verdict:
    first = rules.looks[0].boots if rules.looks else None
    shown = f"{len(baseline)} and {len(candidate)} boots"
    if first is None:
        reason = f"{shown} decide nothing: a trial of {rules.boots} boots an arm has no look, plan 4 or 6"
        return _undecided("TOO-FEW", reason)
    if min(len(baseline), len(candidate)) < first:
        return _undecided("TOO-FEW", f"{shown} are fewer than the first look of the plan, {first} boots an arm")
    # Here, because what only reads verdicts starts without numpy.
    from trispark.verdict_detail import judged

    return judged([boot.metrics for boot in baseline], [boot.metrics for boot in candidate], rules)


def _why_not(boots: Sequence[BootMetrics]) -> str:
    """The first rule by which a valid boot may not take part."""
    for boot in boots:
        for check in failed(boot.checks):
            if boot.valid:
                return f": {boot.boot_id} has {check.rule} failed ({check.observed})"
    return ""


def _measured(metric: str, *arms: Sequence[BootMetrics]) -> bool:
    return all(metric in boot.metrics for boots in arms for boot in boots)


def _require_measurements(boots: Sequence[BootMetrics]) -> None:
    for boot in boots:
        for metric, value in sorted(boot.metrics.items()):
            # A wait may be zero; it is no rate and no time to an answer.
            least = 0.0 if metric.endswith("_us_per_lookup") else math.ulp(0.0)
            if not math.isfinite(value) or value < least:
                raise TrisparkError(
                    "TS-VERDICT-VALUE",
                    "a boot has a value that is no measurement",
                    where=f"{metric} of {boot.boot_id}",
                    expected="a finite number above zero",
                    observed=f"{value}",
                    remedy="see the raw requests of that boot; it takes no part in a verdict",
                )


def _require_each_once(boots: Sequence[BootMetrics]) -> None:
    names = [boot.boot_id for boot in boots]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TrisparkError(
            "TS-VERDICT-BOOT",
            "a boot is there twice",
            where="the boots of a verdict",
            expected="every boot once, in one arm",
            observed=", ".join(twice),
            remedy="name each boot once",
        )


def _require_same_work(boots: Sequence[BootMetrics]) -> None:
    if len(protocols := _by_value({boot.boot_id: boot.protocol for boot in boots})) > 1:
        raise TrisparkError(
            "TS-VERDICT-PROTOCOL",
            "boots that were measured in different ways cannot be compared",
            where=", ".join(names[0] for names in protocols.values()),
            expected="the same repetitions, limits, streams and load client in every boot of both arms",
            observed=", ".join(f"{value} in {len(names)}" for value, names in protocols.items()),
            remedy=_SAME_WORK,
        )
    if len(corpora := _by_value({boot.boot_id: boot.corpus for boot in boots})) > 1:
        raise TrisparkError(
            "TS-VERDICT-CORPUS",
            "boots that were measured with different prompts cannot be compared",
            where=", ".join(names[0] for names in corpora.values()),
            expected="the same hash of the prompts in every boot of both arms",
            observed=", ".join(f"{value} in {len(names)}" for value, names in corpora.items()),
            remedy=_SAME_WORK,
        )
    for tag in sorted({tag for boot in boots for tag in boot.prompt_tokens}):
        counted = {boot.prompt_tokens[tag]: boot.boot_id for boot in reversed(boots) if tag in boot.prompt_tokens}
        if len(counted) > 1:
            raise TrisparkError(
                "TS-VERDICT-PROMPT",
                "the same prompts were not the same tokens, so the engines did not do the same work",
                where=f"{tag} of {', '.join(counted.values())}",
                expected="one number of prompt tokens in every boot of both arms",
                observed=", ".join(map(str, counted)),
                remedy="find what changed the chat template or the tokenizer; then measure both arms with one of them",
            )


def _by_value(values: Mapping[str, str | None]) -> dict[str, list[str]]:
    """{hash, shortened: boots that have it}."""
    found: dict[str, list[str]] = {}
    for boot, value in values.items():
        found.setdefault((value or "none")[:16], []).append(boot)
    return found


def _differences(baseline: Sequence[BootMetrics], candidate: Sequence[BootMetrics]) -> dict[str, Ratio]:
    """Metrics that every boot of both arms has."""
    if not baseline or not candidate:
        return {}
    names: Collection[str] = set.intersection(*(set(boot.metrics) for boot in [*baseline, *candidate]))
    result = {}
    for name in sorted(names):
        before = statistics.median(boot.metrics[name] for boot in baseline)
        after = statistics.median(boot.metrics[name] for boot in candidate)
        result[name] = Ratio(before, after, after / before if before else None)
    return result
