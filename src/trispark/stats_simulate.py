"""What the rules do over many trials whose truth is known: `trispark.decision` as production calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from trispark.boot_statistics import Array
from trispark.boot_validity import NEEDED, Check
from trispark.decision import Code, Codes, decide_trials
from trispark.decision_rules import LOOKS, DecisionRules, Futility, Look, Primary, gain_of_share
from trispark.errors import TrisparkError
from trispark.noise_model import NoiseModel
from trispark.verdict import BootMetrics, decide
from trispark.verdict_detail import CODES

TRIALS: Final = 20_000
SEED: Final = 20_260_924
METRICS: Final = ("c1-prose.decode_tps", "c1-code.decode_tps", "c4.agg_tps")
POWER_GAIN: Final = 0.02
TABLE_SDS: Final = (0.003, 0.006, 0.010, 0.020, 0.035)
TABLE_GAINS: Final = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.08)
TABLE_HARMS: Final = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
CHECKED: Final = 20
"""Trials of each scenario whose verdict production is asked for, one by one; another answer is an error."""


@dataclass(frozen=True)
class Outcome:
    """Shares of all trials. `false_keep`-like figures are `keep` of a scenario without a gain; `boots`: counted ones of
    both arms, on average; `reject` is HARM or NO-GAIN; `covers`: of the 95 % Welch interval, by boots an arm."""

    keep: float
    reject: float
    harm: float
    futile: float
    inconclusive: float
    boots: float
    covers: dict[str, float]
    covers_at_end: float


def standard_rules(primaries: int, boots: int = 6) -> DecisionRules:
    """The rules of a trial with one to three primaries and nothing else, with the levels that every plan has."""
    looks = tuple(Look(boots=size, level=level) for size, level in LOOKS[boots])
    return DecisionRules(
        boots=boots,
        order=("ABBA",) * (boots // 2),
        looks=looks,
        futility=Futility(boots=looks[0].boots, estimate_at_most=0.0) if len(looks) > 1 else None,
        primaries=tuple(
            Primary(metric=metric, better="higher", margin=0.01, minimum_effect=0.01) for metric in METRICS[:primaries]
        ),
    )


def simulate(
    model: NoiseModel, rules: DecisionRules, gains: Sequence[float], trials: int, seed: Sequence[int]
) -> Outcome:
    """One scenario. `gains`: the true share by which the candidate is better, by metric; below zero it is worse."""
    random = np.random.default_rng(list(seed))
    truth = np.array([gain_of_share(gain, "higher") for gain in gains])
    model = replace(model, order=block_pattern(rules.boots))
    baseline, candidate = model.draw(random, trials, truth.tolist())
    decisions = decide_trials(baseline, candidate, rules)
    code = decisions.code
    _require_production(baseline, candidate, rules, code)
    covers = {
        f"{look.look.boots}+{look.look.boots}": _covers(look.comparison.interval(rules.interval), truth)
        for look in decisions.looks
    }
    ended = [look.comparison.interval(rules.interval) for look in decisions.looks]
    rows = np.arange(trials)
    low, high = (np.stack([each[side] for each in ended])[decisions.at, rows] for side in (0, 1))
    keep, harm, no_gain, futile = (
        float((code == each).mean()) for each in (Code.KEEP, Code.HARM, Code.NO_GAIN, Code.FUTILE)
    )
    return Outcome(
        keep=keep,
        reject=harm + no_gain,
        harm=harm,
        futile=futile,
        inconclusive=1 - keep - harm - no_gain,
        boots=float(decisions.boots().mean()),
        covers=covers,
        covers_at_end=_covers((low, high), truth),
    )


def headline(model: NoiseModel, trials: int = TRIALS, seed: int = SEED) -> dict[str, Any]:
    """The figures by which the rules are judged; the last five keys are the goals' own names.

    `false_keep` and `false_keep_family` are the worst over the boot sds of the table, with arms that vary equally and
    with a candidate that varies twice as much; the other figures are of the model's own boot sd.
    """
    one, three = standard_rules(1), standard_rules(3)
    nulls = {
        f"{count} primaries, boot sd {100 * sd:g} %, candidate's {scale:g} times": simulate(
            replace(model, boot_sd=sd, candidate_scale=scale), rules, [0.0] * count, trials, (seed, count, number)
        )
        for count, rules in ((1, one), (3, three))
        for number, (sd, scale) in enumerate((sd, scale) for sd in TABLE_SDS for scale in (1.0, 2.0))
    }
    cases: dict[str, tuple[DecisionRules, list[float]]] = {
        "one primary, no gain": (one, [0.0]),
        "one primary, half of the least effect": (one, [0.005]),
        "one primary, 2 % gain": (one, [POWER_GAIN]),
        "three primaries, no gain": (three, [0.0] * 3),
        "three primaries, all 2 % gain": (three, [POWER_GAIN] * 3),
        "three primaries, one 2 % gain": (three, [POWER_GAIN, 0.0, 0.0]),
        "three primaries, all 5 % slower": (three, [-0.05] * 3),
        "three primaries, no gain, a plan of 4+4": (standard_rules(3, boots=4), [0.0] * 3),
    }
    found = {
        name: simulate(model, rules, gains, trials, (seed, 10, number))
        for number, (name, (rules, gains)) in enumerate(cases.items())
    }
    return {
        "trials": trials,
        "seed": seed,
        "model": asdict(model),
        "rules": {"one": one.as_dict(), "three": three.as_dict()},
        "checked_with_production": min(CHECKED, trials) * (len(nulls) + len(found)),
        "false_keep_by_noise": {name: outcome.keep for name, outcome in nulls.items()},
        "scenarios": {name: asdict(outcome) for name, outcome in found.items()},
        "false_keep": max(outcome.keep for name, outcome in nulls.items() if name.startswith("1 ")),
        "false_keep_family": max(outcome.keep for name, outcome in nulls.items() if name.startswith("3 ")),
        "coverage": found["one primary, no gain"].covers["4+4"],
        "power": found["one primary, 2 % gain"].keep,
        "boots_mean": found["one primary, no gain"].boots,
    }


def power_table(model: NoiseModel, primaries: int, trials: int = TRIALS, seed: int = SEED) -> list[dict[str, Any]]:
    """Rows by true effect and boot sd: shares of KEEP and HARM, and boots on average; all primaries move together."""
    rules = standard_rules(primaries)
    effects = [*TABLE_GAINS, *(-harm for harm in TABLE_HARMS)]
    rows = []
    for number, (effect, sd) in enumerate((effect, sd) for effect in effects for sd in TABLE_SDS):
        found = simulate(
            replace(model, boot_sd=sd), rules, [effect] * primaries, trials, (seed, 100 + primaries, number)
        )
        rows.append({"effect": effect, "boot_sd": sd, "keep": found.keep, "harm": found.harm, "boots": found.boots})
    return rows


def block_pattern(boots: int) -> tuple[str, ...]:
    """Blocks in turn; a plan's own order follows its seed, which independent boots do not notice."""
    return tuple("BAAB" if block % 2 else "ABBA" for block in range(boots // 2))


def as_boots(arm: str, values: Array) -> list[BootMetrics]:
    """One trial's arm (metrics, boots) as production gets it: rates, not logarithms."""
    rates = np.exp(values) * 30.0
    checks = tuple(Check(rule, "passed", "simulated") for rule in NEEDED)
    return [
        BootMetrics(f"{arm}{number}", True, dict(zip(METRICS, column.tolist(), strict=False)), "p", "c", checks)
        for number, column in enumerate(rates.T)
    ]


def _require_production(baseline: Array, candidate: Array, rules: DecisionRules, codes: Codes) -> None:
    """The first trials are decided by `trispark.verdict.decide` as well."""
    for trial in range(min(CHECKED, baseline.shape[0])):
        verdict = decide(as_boots("a", baseline[trial]), as_boots("b", candidate[trial]), rules)
        expected = CODES[Code(int(codes[trial]))]
        if (verdict.verdict, verdict.code) != expected:
            raise TrisparkError(
                "TS-STATS-PRODUCTION",
                "the simulation and the verdict of production do not agree",
                where=f"simulated trial {trial}",
                expected=" ".join(expected),
                observed=f"{verdict.verdict} {verdict.code}",
                remedy="this is a fault of the project; keep the seed",
            )


def _covers(interval: tuple[Array, Array], truth: Array) -> float:
    """Of the first metric: the share of intervals that hold the true effect."""
    low, high = (each[..., 0] for each in interval)
    return float(((low <= truth[0]) & (truth[0] <= high)).mean())
