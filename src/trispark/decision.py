"""Decides trials by their rules, many at once: production hands in one, the simulation thousands.

Arrays are (trials, metrics, boots): logarithms of boot values, turned so that more is better; metrics are those that
the rules watch, primaries first; boots are counted ones in the order in which they ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trispark.boot_statistics import Array, Comparison, Flags, holm, welch
from trispark.decision_rules import DecisionRules, Look, harm_of_share

Codes = NDArray[np.int8]


class Code(IntEnum):
    """What a look says, the first that holds; OPEN goes on to the next look, and after the last stays undecided."""

    TOO_FEW = 0
    """No look was reached."""
    HARM = 1
    """A watched metric is worse by more than its margin, with certainty."""
    ZERO_VARIANCE = 2
    """Boots agree to the last digit in a primary: nothing is known of how they would differ."""
    KEEP = 3
    """A primary is better with certainty and by its least effect, and nothing is worse by more than its margin."""
    GUARD_OPEN = 4
    """As KEEP, but another metric's estimate is worse by more than its margin, without certainty."""
    NO_GAIN = 5
    """No primary is better by its least effect, with certainty."""
    FUTILE = 6
    """The look before the last, with no primary better at all."""
    OPEN = 7


STOPS = (Code.HARM, Code.KEEP, Code.NO_GAIN, Code.FUTILE)
"""A look that says so ends the trial."""


@dataclass(frozen=True)
class LookResult:
    """One look at all trials; `adjusted`: p of no gain by primary, after Holm."""

    look: Look
    code: Codes
    comparison: Comparison
    adjusted: Array
    harmed: Flags
    suspected: Flags
    winners: Flags


@dataclass(frozen=True)
class Decisions:
    """By trial: the code, and the index in `looks` of the look that gave it (-1: none was reached)."""

    code: Codes
    at: NDArray[np.int64]
    looks: tuple[LookResult, ...]

    def boots(self) -> NDArray[np.int64]:
        """Counted boots of both arms together that each trial took, 0 where no look was reached."""
        sizes = np.array([0, *(2 * each.look.boots for each in self.looks)])
        return np.asarray(sizes[self.at + 1], dtype=np.int64)


def decide_trials(baseline: Array, candidate: Array, rules: DecisionRules) -> Decisions:
    """Look after look, as far as both arms have the boots; a trial that a look has ended is not looked at again."""
    trials = baseline.shape[0]
    code = np.full(trials, Code.TOO_FEW, dtype=np.int8)
    at = np.full(trials, -1, dtype=np.int64)
    going = np.ones(trials, dtype=np.bool_)
    done: list[LookResult] = []
    for index, look in enumerate(rules.looks):
        if min(baseline.shape[-1], candidate.shape[-1]) < look.boots:
            break
        result = _look(baseline[..., : look.boots], candidate[..., : look.boots], rules, look)
        code = np.where(going, result.code, code)
        at = np.where(going, index, at)
        going &= ~np.isin(code, STOPS)
        done.append(result)
    return Decisions(code.astype(np.int8), at, tuple(done))


def _look(baseline: Array, candidate: Array, rules: DecisionRules, look: Look) -> LookResult:
    primaries = len(rules.primaries)
    first = slice(0, primaries)
    found = welch(baseline, candidate)
    margins = np.array([harm_of_share(each.margin, each.better) for each in rules.watched])
    least = np.array([each.least for each in rules.primaries])

    adjusted = holm(found.p_above(0.0)[..., first])
    harmed = found.p_below(margins) <= rules.harm_level
    suspected = found.estimate < margins
    winners = (adjusted <= look.level) & (found.estimate[..., first] >= least)
    won = winners.any(axis=-1)
    no_gain = _part(found, first).p_below(least) <= rules.no_gain_level

    last = rules.futility is None or look.boots != rules.futility.boots
    at_most = 0.0 if rules.futility is None else rules.futility.estimate_at_most
    futile = (found.estimate[..., first] <= at_most).all(axis=-1) & (not last)
    code = np.select(
        [
            harmed.any(axis=-1),
            found.exact[..., first].any(axis=-1),
            won & ~suspected.any(axis=-1),
            won,
            no_gain.all(axis=-1),
            futile,
        ],
        [Code.HARM, Code.ZERO_VARIANCE, Code.KEEP, Code.GUARD_OPEN, Code.NO_GAIN, Code.FUTILE],
        default=Code.OPEN,
    )
    return LookResult(look, code.astype(np.int8), found, adjusted, harmed, suspected, winners)


def _part(found: Comparison, metrics: Any) -> Comparison:
    return Comparison(found.estimate[..., metrics], found.error[..., metrics], found.freedom[..., metrics])
