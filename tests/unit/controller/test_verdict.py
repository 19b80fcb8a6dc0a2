"""A verdict over the boots of two arms: what is judged before speed, what decides, and what nothing may change."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trispark.boot_validity import NEEDED, Check
from trispark.catalog_model import Movement
from trispark.decision_rules import DecisionRules, Futility, Guard, Look, Primary
from trispark.errors import TrisparkError
from trispark.verdict import BootMetrics, Verdict, decide

RATE, WAVE, TTFT, WAIT = "c1-prose.decode_tps", "c4.agg_tps", "c1-prose.ttft_s", "c1-prose.engram_wait_us_per_lookup"
PASSED = tuple(Check(rule, "passed", "") for rule in NEEDED)
NOISE = (0.0, 0.4, -0.5, 0.2, 0.3, -0.4)
"""Per cent by which six boots of an arm differ."""


def rules(
    *, primaries: tuple[str, ...] = (RATE,), guards: tuple[str, ...] = (), boots: int = 6, **more: Any
) -> DecisionRules:
    looks = {6: ((4, 0.007), (6, 0.018)), 4: ((4, 0.022),), 2: ()}[boots]
    return DecisionRules(
        boots=boots,
        order=("ABBA",) * (boots // 2),
        looks=tuple(Look(boots=size, level=level) for size, level in looks),
        futility=Futility(boots=4, estimate_at_most=0.0) if boots == 6 else None,
        primaries=tuple(Primary(metric=name, better="higher", margin=0.01, minimum_effect=0.01) for name in primaries),
        guards=tuple(
            Guard(metric=name, better="lower" if name == TTFT else "higher", margin=0.05 if name == TTFT else 0.01)
            for name in guards
        ),
        **more,
    )


def boots(arm: str, *values: float, metric: str = RATE, **more: Any) -> list[BootMetrics]:
    return [BootMetrics(f"{arm}{i}", True, {metric: value}, "p", "c", PASSED, **more) for i, value in enumerate(values)]


def noisy(arm: str, level: float, count: int = 6, noise: tuple[float, ...] = NOISE) -> list[BootMetrics]:
    return boots(arm, *(level * (1 + noise[i] / 100) for i in range(count)))


def both(level: float, count: int = 6) -> tuple[list[BootMetrics], list[BootMetrics]]:
    """Arms whose noise differs, the candidate at `level` of the baseline's 100."""
    return noisy("a", 100.0, count), noisy("b", level, count, NOISE[::-1])


def with_metric(arm: list[BootMetrics], metric: str, *values: float) -> list[BootMetrics]:
    return [replace(boot, metrics={**boot.metrics, metric: value}) for boot, value in zip(arm, values, strict=True)]


# -- before speed


@pytest.mark.parametrize(
    ("baseline", "candidate", "code", "reason"),
    [
        (boots("a", 10), boots("b", 20), "ONE-BOOT", "two boots decide nothing"),
        (boots("a", 10, 11), boots("b", 20), "ONE-BOOT", "one boot of the candidate decides nothing"),
        (boots("a", 10), boots("b", 20, 21), "ONE-BOOT", "one boot of the baseline decides nothing"),
        (boots("a", 10, 11), boots("b", 20, 21), "TOO-FEW", "fewer than the first look of the plan, 4 boots an arm"),
        (boots("a", 10, 11, 12), boots("b", 20, 21, 22, 23), "TOO-FEW", "3 and 4 boots are fewer"),
        ([], boots("b", 20), "NO-BOOT", "the baseline has no valid boot"),
        (
            boots("a", 10, 10),
            [replace(boot, valid=False) for boot in boots("b", 20, 20)],
            "NO-BOOT",
            "the candidate has no valid boot",
        ),
    ],
)
def test_too_few_boots_decide_nothing(
    baseline: list[BootMetrics], candidate: list[BootMetrics], code: str, reason: str
) -> None:
    verdict = decide(baseline, candidate, rules())
    assert (verdict.verdict, verdict.code) == ("INCONCLUSIVE", code)
    assert reason in verdict.reason
    assert verdict.detail is None


def test_a_trial_that_was_planned_too_short_or_without_rules_says_so() -> None:
    arms = both(120, 2)
    assert "a trial of 2 boots an arm has no look, plan 4 or 6" in decide(*arms, rules(boots=2)).reason
    assert decide(*both(120)).code == "NO-RULES"


def test_differences_are_ratios_of_medians() -> None:
    verdict = decide(boots("a", 10, 20, 90), boots("b", 30, 50))
    assert verdict.as_dict()["differences"] == {RATE: {"baseline": 20, "candidate": 40.0, "ratio": 2.0}}
    waits = boots("a", 0.0, metric=WAIT), boots("b", 5.0, metric=WAIT)
    assert decide(*waits).differences[WAIT].ratio is None


def test_metric_missing_in_one_boot_is_left_out_and_named_where_it_is_watched() -> None:
    first, second = both(110)
    second[3] = replace(second[3], metrics={WAVE: 2.0})
    verdict = decide(first, second, rules())
    assert verdict.differences == {}
    assert (verdict.code, verdict.reason) == ("NOT-MEASURED", f"not measured in every boot: {RATE}")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0])
@pytest.mark.parametrize("arm", [0, 1])
def test_a_value_that_is_no_measurement_is_refused_by_name(value: float, arm: int) -> None:
    arms = both(110)
    arms[arm][2] = replace(arms[arm][2], metrics={RATE: value})
    with pytest.raises(TrisparkError) as caught:
        decide(*arms, rules())
    assert caught.value.id == "TS-VERDICT-VALUE"
    assert caught.value.where == f"{RATE} of {'ab'[arm]}2"


@pytest.mark.parametrize(
    ("change", "error"), [({"protocol": "q"}, "TS-VERDICT-PROTOCOL"), ({"corpus": None}, "TS-VERDICT-CORPUS")]
)
def test_arms_that_did_other_work_are_refused(change: dict[str, Any], error: str) -> None:
    first, second = both(110)
    with pytest.raises(TrisparkError) as caught:
        decide(first, [replace(boot, **change) for boot in second], rules())
    assert caught.value.id == error
    assert caught.value.where == "a0, b0"
    assert all(caught.value.as_dict().values())


def test_prompts_that_became_other_tokens_are_refused_by_tag() -> None:
    """Another chat template is other work, although the texts that were sent are the same."""
    first, second = (
        [replace(boot, prompt_tokens={"c1-code": 9, **more}) for boot in arm]
        for arm, more in zip(both(110), ({"c4": 80}, {"c4": 84, "mixed-c3": 7}), strict=True)
    )
    with pytest.raises(TrisparkError) as caught:
        decide(first, second, rules())
    assert (caught.value.id, caught.value.observed) == ("TS-VERDICT-PROMPT", "84, 80")
    assert caught.value.where.startswith("c4 of ")
    decide(first, [replace(boot, prompt_tokens={"c1-code": 9}) for boot in second], rules())


def test_a_boot_that_is_there_twice_is_refused() -> None:
    first, _ = both(110)
    with pytest.raises(TrisparkError) as caught:
        decide(first, first, rules())
    assert caught.value.id == "TS-VERDICT-BOOT"


def test_a_boot_below_the_kv_pin_takes_no_part() -> None:
    first, second = both(110)
    short = Check("kv_pin", "failed", "658176 tokens, pinned are 750000")
    second = [replace(boot, checks=(short, *boot.checks[:2])) for boot in second]
    verdict = decide(first, second, rules())
    assert verdict.code == "NO-BOOT"
    assert verdict.reason.endswith("no valid boot: b0 has kv_pin failed (658176 tokens, pinned are 750000)")


@pytest.mark.parametrize("rule", NEEDED)
def test_what_was_not_checked_is_named_and_never_passes(rule: str) -> None:
    first, second = both(110)
    assert decide(first, second, rules()).verdict == "KEEP"
    second[5] = replace(
        second[5], checks=(*(c for c in PASSED if c.rule != rule), Check(rule, "not checked", "no probe"))
    )
    verdict = decide(first, second, rules())
    assert (verdict.verdict, verdict.code, verdict.unchecked) == ("INCONCLUSIVE", "NOT-CHECKED", (rule,))
    silent = decide(first, [replace(boot, checks=()) for boot in second], rules())
    assert silent.code == "NOT-CHECKED", "a boot of which nothing was said did not pass"


def test_a_candidate_that_fails_its_gates_is_unsafe_unless_the_baseline_fails_too() -> None:
    first, second = both(110)
    second[1] = replace(second[1], valid=False, metrics={}, failed_gates=("evidence.wo_a.calls", "canary.text"))
    verdict = decide(first, second, rules())
    assert (verdict.verdict, verdict.code) == ("REJECT", "UNSAFE")
    assert "b1 of the candidate failed its gates (evidence.wo_a.calls, canary.text)" in verdict.reason
    first[0] = replace(first[0], valid=False, metrics={}, failed_gates=("canary.text",))
    assert decide(first, second, rules()).verdict != "REJECT", "it may be the site's fault"
    assert decide([], second, rules()).code == "NO-BOOT"


# -- by speed


@pytest.mark.parametrize(
    ("level", "count", "expected"),
    [
        (103.0, 4, ("KEEP", "GAIN", 4)),
        (103.0, 6, ("KEEP", "GAIN", 4)),
        (101.08, 6, ("KEEP", "GAIN", 6)),
        (100.95, 6, ("INCONCLUSIVE", "OPEN", 6)),
        (101.0, 4, ("INCONCLUSIVE", "OPEN", 4)),
        (100.05, 6, ("REJECT", "NO-GAIN", 4)),
        (98.2, 4, ("REJECT", "HARM", 4)),
        (80.0, 6, ("REJECT", "HARM", 4)),
    ],
)
def test_what_decides(level: float, count: int, expected: tuple[str, str, int]) -> None:
    verdict = decide(*both(level, count), rules())
    assert verdict.detail is not None
    assert (verdict.verdict, verdict.code, verdict.detail.boots) == expected, verdict.reason


WIDE = (0.0, 4.0, -5.0, 2.0, 3.0, -4.0)


def test_what_is_surely_worse_within_its_margin_is_no_harm() -> None:
    still = tuple(each / 10 for each in NOISE)
    arms = noisy("a", 100.0, 4, still), noisy("b", 99.5, 4, still[::-1])
    assert decide(*arms, rules()).code == "NO-GAIN"
    guarded = [with_metric(arm, WAVE, *(boot.metrics[RATE] for boot in arm)) for arm in arms]
    faster = [[replace(boot, metrics={**boot.metrics, RATE: boot.metrics[RATE] * scale}) for boot in arm]
              for arm, scale in zip(guarded, (1.0, 1.05), strict=True)]  # fmt: skip
    assert decide(*faster, rules(guards=(WAVE,))).code == "GAIN"


def test_one_primary_without_a_gain_does_not_reject_while_another_is_open() -> None:
    still = tuple(each / 10 for each in NOISE)
    arms = noisy("a", 100.0, 4, still), noisy("b", 100.0, 4, still[::-1])
    wide = [with_metric(arm, WAVE, *(10 * (1 + each / 100) for each in noise[:4]))
            for arm, noise in zip(arms, (WIDE, WIDE[::-1]), strict=True)]  # fmt: skip
    assert decide(*wide, rules(primaries=(RATE,), boots=4)).code == "NO-GAIN"
    assert decide(*wide, rules(primaries=(RATE, WAVE), boots=4)).code == "OPEN"


@pytest.mark.parametrize(("planned", "made", "code"), [(6, 4, "FUTILE"), (6, 6, "FUTILE"), (4, 4, "OPEN")])
def test_only_a_look_before_the_last_is_futile(planned: int, made: int, code: str) -> None:
    arms = noisy("a", 100.0, made, WIDE), noisy("b", 99.0, made, WIDE[::-1])
    assert decide(*arms, rules(boots=planned)).code == code


def test_the_last_look_is_open_where_nothing_is_shown() -> None:
    first, second = (noisy(arm, 100.0, 6, WIDE) for arm in "ab")
    # The first four boots look better, all six look worse.
    second = [replace(boot, metrics={RATE: boot.metrics[RATE] * scale})
              for boot, scale in zip(second, (1.01, 1.01, 1.01, 1.01, 0.96, 0.96), strict=True)]  # fmt: skip
    verdict = decide(first, second, rules())
    assert (verdict.code, verdict.detail and verdict.detail.boots) == ("OPEN", 6)
    assert "the next look" not in verdict.reason


def test_the_detail_has_three_intervals_around_the_ratio() -> None:
    verdict = decide(*both(103), rules())
    assert verdict.detail is not None
    (metric,) = verdict.detail.metrics
    for found in (metric.welch, metric.paired, metric.hodges_lehmann):
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.ratio < found.high
        assert found.ratio == pytest.approx(1.03, abs=0.006)
    assert metric.hodges_lehmann.covers == pytest.approx(1 - 2 / 70), "4+4 boots: the least ranks above 95 %"
    assert (metric.role, metric.state, metric.least) == ("primary", "better", 0.01)
    assert len(metric.baseline) == len(metric.candidate) == 4
    assert "+2.9 % [+2.2 %, +3.6 %]" in verdict.reason


def test_a_floor_of_the_site_above_the_minimum_effect_is_what_a_gain_must_reach() -> None:
    arms = both(103)
    (primary,) = rules().primaries
    lower, higher = (
        rules().model_copy(update={"primaries": (primary.model_copy(update={"floor": floor}),)})
        for floor in (0.02, 0.04)
    )
    assert decide(*arms, lower).verdict == "KEEP"
    assert decide(*arms, higher).verdict != "KEEP"


def test_a_guard_that_is_harmed_rejects_and_one_that_seems_harmed_holds_a_gain_back() -> None:
    first, second = both(105)
    first = with_metric(first, TTFT, 0.30, 0.31, 0.30, 0.30, 0.31, 0.30)
    plan = rules(guards=(TTFT,))
    fine = with_metric(second, TTFT, 0.30, 0.31, 0.31, 0.30, 0.31, 0.30)
    assert decide(first, fine, plan).verdict == "KEEP"
    slow = with_metric(second, TTFT, 0.35, 0.36, 0.35, 0.35, 0.36, 0.35)
    harmed = decide(first, slow, plan)
    assert (harmed.verdict, harmed.code) == ("REJECT", "HARM")
    assert f"{TTFT} +16" in harmed.reason
    unsure = with_metric(second, TTFT, 0.25, 0.41, 0.30, 0.36, 0.25, 0.41)
    held = decide(first, unsure, plan)
    assert (held.verdict, held.code) == ("INCONCLUSIVE", "GUARD-OPEN")
    assert f"seems worse by more than the margin: {TTFT}" in held.reason


@pytest.mark.parametrize("claimed", [False, True])
def test_that_a_guard_is_not_worse_is_said_only_where_the_plan_has_the_power(claimed: bool) -> None:
    first, second = both(105)
    arms = [with_metric(arm, TTFT, 0.300, 0.301, 0.300, 0.300, 0.301, 0.300) for arm in (first, second)]
    plan = rules(guards=(TTFT,))
    guard = plan.guards[0].model_copy(update={"claimed": claimed})
    verdict = decide(*arms, plan.model_copy(update={"guards": (guard,)}))
    assert verdict.detail is not None
    assert verdict.detail.metrics[1].state == ("not worse" if claimed else "open")


@pytest.mark.parametrize(
    ("waits", "code"),
    [
        ((40.0, 41.0, 40.0, 42.0, 41.0, 40.0), "GAIN"),
        ((100.0, 101.0, 99.0, 100.0, 101.0, 99.0), "NO-MECHANISM"),
        ((140.0, 141.0, 140.0, 142.0, 141.0, 140.0), "NO-MECHANISM"),
        (None, "NO-MECHANISM"),
    ],
)
def test_a_gain_without_its_mechanism_is_not_kept(waits: tuple[float, ...] | None, code: str) -> None:
    first, second = both(105)
    first = with_metric(first, WAIT, 100.0, 101.0, 100.0, 99.0, 101.0, 100.0)
    if waits is not None:
        second = with_metric(second, WAIT, *waits)
    verdict = decide(first, second, rules(mechanism=(Movement(metric=WAIT, goes="lower"),)))
    assert (verdict.verdict, verdict.code) == ("KEEP" if code == "GAIN" else "INCONCLUSIVE", code)
    assert WAIT in verdict.reason or code == "GAIN"


def test_a_mechanism_that_moved_without_a_gain_is_said_beside_the_reject() -> None:
    first, second = both(100.05)
    moved = with_metric(first, WAIT, *[100.0] * 6), with_metric(second, WAIT, *[0.0] * 6)
    plan = rules(mechanism=(Movement(metric=WAIT, goes="lower"),))
    verdict = decide(*moved, plan)
    assert (verdict.verdict, verdict.code) == ("REJECT", "NO-GAIN")
    assert verdict.reason.endswith("the mechanism moved as declared")
    still = decide(moved[0], with_metric(second, WAIT, *[100.0] * 6), plan)
    assert (still.verdict, still.code) == ("REJECT", "NO-GAIN")
    assert "NO-MECHANISM" in still.reason


# -- degenerate inputs and invariances


@pytest.mark.parametrize(("level", "other"), [(10.0, 10.0), (10.0, 11.0), (10.0, 9.0)])
def test_boots_that_agree_to_the_last_digit_decide_nothing(level: float, other: float) -> None:
    verdict = decide(boots("a", *[level] * 6), boots("b", *[other] * 6), rules())
    assert (verdict.verdict, verdict.code) == ("INCONCLUSIVE", "ZERO-VARIANCE")


def test_a_guard_that_agrees_to_the_last_digit_holds_nothing_back_and_hides_no_harm() -> None:
    first, second = both(105)
    equal = [with_metric(arm, TTFT, *[0.3] * 6) for arm in (first, second)]
    assert decide(*equal, rules(guards=(TTFT,))).verdict == "KEEP"
    slower = with_metric(second, TTFT, *[0.33] * 6)
    assert decide(equal[0], slower, rules(guards=(TTFT,))).code == "GUARD-OPEN"
    still = boots("a", *[100.0] * 6), boots("b", *[100.0] * 6)
    waves = (10.0, 10.1, 10.0, 10.2, 10.1, 10.0)
    harmed = with_metric(still[0], WAVE, *waves), with_metric(still[1], WAVE, *(0.8 * wave for wave in waves))
    assert decide(*harmed, rules(guards=(WAVE,))).code == "HARM"


def test_one_constant_arm_is_compared_by_the_variance_of_the_other() -> None:
    assert decide(boots("a", *[100.0] * 6), noisy("b", 103.0), rules()).verdict == "KEEP"


def test_one_outlier_is_shown_and_not_left_out() -> None:
    first, second = both(103)
    second[1] = replace(second[1], metrics={RATE: 50.0})
    verdict = decide(first, second, rules())
    assert verdict.verdict != "KEEP"
    assert verdict.detail is not None
    assert verdict.detail.metrics[0].outliers == [50.0]


def test_ties_between_the_arms_are_no_gain() -> None:
    values = (100.0, 101.0, 100.0, 101.0, 100.0, 101.0)
    verdict = decide(boots("a", *values), boots("b", *values[::-1]), rules())
    assert verdict.verdict != "KEEP"


values = st.lists(st.floats(80.0, 120.0), min_size=6, max_size=6)


def close(first: Verdict, second: Verdict) -> None:
    assert (first.verdict, first.code) == (second.verdict, second.code)


def apart(first: list[float], second: list[float]) -> None:
    """Values whose decision is not a matter of rounding."""
    both_arms = np.log([first, second])
    assume(min(both_arms[0, :4].var(), both_arms[1, :4].var()) > 1e-8)


@settings(max_examples=60, deadline=None)
@given(values, values, st.sampled_from([1e-3, 60.0, 1e6]))
def test_the_unit_of_a_metric_changes_nothing(first: list[float], second: list[float], scale: float) -> None:
    apart(first, second)
    plain = decide(boots("a", *first), boots("b", *second), rules())
    scaled = decide(boots("a", *(scale * x for x in first)), boots("b", *(scale * x for x in second)), rules())
    assert plain.detail is not None
    assert scaled.detail is not None
    for one, other in zip(plain.detail.metrics, scaled.detail.metrics, strict=True):
        assert other.welch.ratio == pytest.approx(one.welch.ratio, rel=1e-9)
        assert other.welch.low == pytest.approx(one.welch.low, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(values, values)
def test_swapped_arms_have_the_mirrored_interval(first: list[float], second: list[float]) -> None:
    apart(first, second)
    plan = rules(boots=4)
    there = decide(boots("a", *first), boots("b", *second), plan)
    back = decide(boots("a", *second), boots("b", *first), plan)
    assert there.detail is not None
    assert back.detail is not None
    for name in ("welch", "paired", "hodges_lehmann"):
        one, other = (getattr(each.detail.metrics[0], name) for each in (there, back))
        assert one.ratio * other.ratio == pytest.approx(1.0)
        assert one.low * other.high == pytest.approx(1.0)
        assert one.high * other.low == pytest.approx(1.0)
    assert {there.verdict, back.verdict} != {"KEEP"}


@settings(max_examples=60, deadline=None)
@given(values, values, st.permutations([0, 1]), st.permutations([2, 3]))
def test_the_order_of_an_arms_boots_within_a_block_changes_nothing_for_welch(
    first: list[float], second: list[float], one: list[int], two: list[int]
) -> None:
    apart(first, second)
    order = [*one, *two, 4, 5]
    plain = decide(boots("a", *first), boots("b", *second), rules())
    moved = decide(boots("a", *(first[i] for i in order)), boots("b", *second), rules())
    close(plain, moved)
    assert plain.detail is not None
    assert moved.detail is not None
    assert moved.detail.metrics[0].welch.low == pytest.approx(plain.detail.metrics[0].welch.low)


@settings(max_examples=100, deadline=None)
@given(values, values)
def test_what_is_not_better_by_its_least_effect_is_never_kept(first: list[float], second: list[float]) -> None:
    verdict = decide(boots("a", *first), boots("b", *second), rules())
    if verdict.verdict == "KEEP":
        assert verdict.detail is not None
        count = verdict.detail.boots
        gain = np.log(second[:count]).mean() - np.log(first[:count]).mean()
        assert gain >= math.log(1.01) - 1e-12


@settings(max_examples=100, deadline=None)
@given(values, values, st.floats(1.0, 1.2))
def test_more_gain_never_takes_a_keep_away_nor_makes_harm(first: list[float], second: list[float], more: float) -> None:
    apart(first, second)
    plain = decide(boots("a", *first), boots("b", *second), rules())
    better = decide(boots("a", *first), boots("b", *(more * value for value in second)), rules())
    if plain.verdict == "KEEP":
        assert better.verdict == "KEEP"
    fixed = rules(boots=4)
    ranks = {"REJECT": 0, "INCONCLUSIVE": 1, "KEEP": 2}
    low, high = (
        ranks[decide(boots("a", *first), boots("b", *(scale * value for value in second)), fixed).verdict]
        for scale in (1.0, more)
    )
    assert high >= low


@given(st.lists(st.floats(0.1, 1e4), max_size=12), st.floats(0.1, 1e4), st.booleans())
def test_one_boot_of_an_arm_never_keeps(many: list[float], one: float, swapped: bool) -> None:
    arms = boots("a", *many), boots("b", one)
    assert decide(*(arms[::-1] if swapped else arms), rules()).verdict == "INCONCLUSIVE"
