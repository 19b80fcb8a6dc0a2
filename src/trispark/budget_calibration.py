"""What the memory model says about boots whose memory is known, row by row; docs/memory.md shows the same table."""

from __future__ import annotations

from dataclasses import dataclass

from trispark.budget_outlook import outlook
from trispark.budget_terms import MIB, BudgetSettings, available_mib, read_settings, swa_tokens, terms
from trispark.memory_model import KnownAmount, KnownBoot, KnownStep, MemoryModel


@dataclass(frozen=True)
class CalibrationRow:
    """One known row. `observed` and `predicted` are fractions, MiB for an amount; `deviation` is a fraction."""

    id: str
    kind: str
    what: str
    state: str
    observed: float
    predicted: float
    deviation: float
    reproduced: bool
    note: str
    source: str


def calibration(model: MemoryModel) -> tuple[CalibrationRow, ...]:
    """All rows of the model's calibration: boots, steps, amounts. Raises TS-BUDGET-SETTING for a row's bad setting."""
    known = model.calibration
    return (
        *(_boot(model, boot) for boot in known.boots),
        *(_step(model, step) for step in known.steps),
        *(_amount(model, amount) for amount in known.amounts),
    )


def fraction_of_pool(model: MemoryModel, settings: BudgetSettings, tokens: int) -> float:
    """The minimum fraction of a boot that had a pool of `tokens` before its pin, by the engine's own arithmetic."""
    kv = model.kv
    window = swa_tokens(model, settings) * kv.swa_token_bytes.value
    held = (tokens * kv.token_bytes.value + window) / MIB + kv.engine_reserve_mib.value
    return settings.fraction - held / available_mib(model, settings)


def _boot(model: MemoryModel, boot: KnownBoot) -> CalibrationRow:
    settings = read_settings(model, boot.settings)
    predicted = outlook(model, settings, model.state(boot.state)).minimum_fraction
    seen = boot.observed
    at_least = seen.pool_at_least is not None
    if seen.minimum_fraction is not None:
        observed = seen.minimum_fraction
    else:
        observed = fraction_of_pool(model, settings, seen.pool_tokens or seen.pool_at_least or 0)
    # A pool of at least so many tokens bounds the minimum from above: only a higher prediction contradicts it.
    deviation = max(0.0, predicted - observed) if at_least else predicted - observed
    return CalibrationRow(
        boot.id,
        "boot",
        boot.what,
        boot.state,
        observed,
        predicted,
        deviation,
        boot.reproduced,
        boot.note or "",
        boot.source,
    )


def _step(model: MemoryModel, step: KnownStep) -> CalibrationRow:
    before, after = (
        outlook(model, read_settings(model, settings), model.cautious).minimum_fraction
        for settings in (step.before, step.after)
    )
    predicted = after - before
    return CalibrationRow(
        step.id,
        "step",
        step.what,
        "",
        step.observed,
        predicted,
        predicted - step.observed,
        step.reproduced,
        step.note or "",
        step.source,
    )


def _amount(model: MemoryModel, amount: KnownAmount) -> CalibrationRow:
    settings = read_settings(model, amount.settings)
    state = model.state(model.usual_state)
    if amount.free_rank is not None:
        predicted = outlook(model, settings, state).free_mib.get(amount.free_rank, 0.0)
    else:
        predicted = sum(term.mib for term in terms(model, settings, state) if term.id in amount.terms)
    available = model.host.total_mib.value - model.host.reserve_mib.value
    return CalibrationRow(
        amount.id,
        "amount",
        amount.what,
        "",
        amount.observed_mib,
        predicted,
        (predicted - amount.observed_mib) / available,
        amount.reproduced,
        amount.note or "",
        amount.source,
    )
