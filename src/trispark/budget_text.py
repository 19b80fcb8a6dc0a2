"""The budget as lines for a reader: one a term, totals, memory states, the verdict and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from trispark.allowlist import Value, format_value
from trispark.budget_outlook import HEAD, Outlook, Verdict
from trispark.budget_terms import Phase

if TYPE_CHECKING:
    from trispark.budget import Budget

TITLE: Final = 52
"""Columns of a term's title."""

_DROP_CACHES: Final = "drop the page cache on every node before the boot"
_DO_NOT_RAISE: Final = "do not raise MEM_FRACTION_STATIC to make room"


def budget_lines(budget: Budget) -> tuple[str, ...]:
    """The whole budget, the verdict last."""
    return (*_table(budget), *_states(budget), *_verdict(budget))


def assignments(settings: Mapping[str, Value]) -> str:
    """`NAME=value, NAME=value`."""
    return ", ".join(f"{name}={format_value(value)}" for name, value in settings.items())


def _row(title: str, mib: float) -> str:
    return f"  {title:<{TITLE}}{mib:>11,.1f}"


def _table(budget: Budget) -> list[str]:
    worst = budget.cautious
    pin = "no pin" if budget.pin_tokens is None else f"pin {budget.pin_tokens:,}"
    totals = {
        Phase.HOST: [("= available before weights", worst.available_mib)],
        Phase.WEIGHTS: [("= held before the pool of tokens", worst.weights_mib)],
        Phase.POOL: [(f"pool of {worst.pool_tokens:,} tokens ({pin})", worst.pool_mib)],
        Phase.SERVING: [(f"= left while serving, {who}", mib) for who, mib in _free(worst)],
        Phase.PEAK: [],
    }
    state = f"memory state {worst.state} ({worst.title})"
    lines = [f"memory budget {budget.model}: MiB a rank at fraction {budget.fraction:g}, in the {state}"]
    for phase, after in totals.items():
        lines += [_row(term.title, term.mib) for term in budget.terms if term.phase is phase]
        lines += [_row(title, mib) for title, mib in after]
    return lines


def _free(outlook: Outlook) -> list[tuple[str, float]]:
    others = [mib for rank, mib in outlook.free_mib.items() if rank != HEAD]
    return [("head", outlook.free_mib[HEAD]), *(("other ranks", mib) for mib in others[:1])]


def _states(budget: Budget) -> list[str]:
    lines = []
    for each in budget.outlooks:
        pool = f"pool of {each.pool_tokens:,} tokens" if each.boots else "no pool, does not boot"
        fractions = f"minimum fraction {each.minimum_fraction:.4f}, with sliding window {each.required_fraction:.4f}"
        lines.append(f"  state {each.state}: {fractions}, {pool}")
    return lines


def _verdict(budget: Budget) -> list[str]:
    if budget.verdict is Verdict.FITS:
        spare = (budget.fraction - budget.required_fraction) * budget.cautious.available_mib
        lines = [f"FITS: boots in every known memory state, {spare:,.1f} MiB for tokens in the fullest"]
        return [*lines, *_notes(budget)]
    first, *more = budget.reasons
    refused = " (refused)" if budget.verdict is Verdict.UNSAFE else ""
    lines = [f"{budget.verdict.upper()}{refused}: {first.text}", *(f"  also: {reason.text}" for reason in more)]
    lines += _shortfall(budget)
    if budget.better is not None:
        gets = f"{budget.better.verdict}, minimum fraction {budget.better.minimum_fraction:.4f}"
        lines.append(f"  better: {budget.better.bundle} ({gets}); {budget.better.why}")
    if budget.way_back:
        lines.append(f"  way back: {assignments(budget.way_back)}, then restart")
    return [*lines, *_notes(budget)]


def _notes(budget: Budget) -> list[str]:
    return [f"  note: {note}" for note in budget.notes]


def _shortfall(budget: Budget) -> list[str]:
    if budget.pool_shortfall_mib <= 0:
        return []
    lines = []
    if budget.shortfall_mib > 0:
        short = f"short by {budget.shortfall_fraction:.4f} = {budget.shortfall_mib:,.1f} MiB for the weights alone"
        says = f'the engine then ends with "minimum viable = {budget.minimum_fraction:.4f}" before it serves'
        lines.append(f"  {short}; {says}")
    missing = budget.required_fraction - budget.fraction
    short = f"short by {missing:.4f} = {budget.pool_shortfall_mib:,.1f} MiB"
    lines.append(f"  {short} with the sliding window and the engine's own reserve")
    if budget.verdict is Verdict.EDGE:
        lines.append(f"  do: {_DROP_CACHES}; {_DO_NOT_RAISE}")
    return lines
