"""What happens in each memory state, and the rules that make a verdict of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from trispark.budget_terms import MIB, BudgetSettings, Phase, Term, available_mib, terms
from trispark.memory_model import MemoryModel, MemoryState

HEAD: Final = 0


class Verdict(StrEnum):
    """fits: boots in every known memory state. edge: may not boot, or leaves too little. unsafe: refused."""

    FITS = "fits"
    EDGE = "edge"
    UNSAFE = "unsafe"

    @property
    def rank(self) -> int:
        """0 is the best."""
        return list(Verdict).index(self)


@dataclass(frozen=True)
class Outlook:
    """What happens in one memory state. `free_mib` is {rank: left while serving}, as if it booted."""

    state: str
    title: str
    available_mib: float
    weights_mib: float
    minimum_fraction: float
    required_fraction: float
    boots: bool
    pool_mib: float
    pool_tokens: int
    free_mib: Mapping[int, float]
    load_free_mib: float

    def as_dict(self) -> dict[str, Any]:
        """JSON form; MiB with one decimal, fractions with four."""
        return {
            "state": self.state,
            "available_mib": round(self.available_mib, 1),
            "weights_mib": round(self.weights_mib, 1),
            "minimum_fraction": round(self.minimum_fraction, 4),
            "required_fraction": round(self.required_fraction, 4),
            "boots": self.boots,
            "pool_mib": round(self.pool_mib, 1),
            "pool_tokens": self.pool_tokens,
            "free_mib": {str(rank): round(mib, 1) for rank, mib in self.free_mib.items()},
            "load_free_mib": round(self.load_free_mib, 1),
        }


@dataclass(frozen=True)
class Reason:
    """Why the verdict is not `fits`; `id` is stable."""

    id: str
    verdict: Verdict
    text: str


def pinned_tokens(model: MemoryModel, settings: BudgetSettings) -> int | None:
    """The pin in whole pages, as the engine uses it."""
    page = int(model.kv.page_tokens.value)
    return None if settings.pin is None else settings.pin // page * page


def outlook(model: MemoryModel, settings: BudgetSettings, state: MemoryState, others: Sequence[Term] = ()) -> Outlook:
    """The arithmetic in one memory state: the engine sizes its pool from what is left of fraction x available."""
    parts = (*terms(model, settings, state), *others)
    sums = {phase: sum(term.mib for term in parts if term.phase is phase and not term.head_only) for phase in Phase}
    available = available_mib(model, settings)
    weights, fixed = sums[Phase.WEIGHTS], sums[Phase.POOL]
    room = settings.fraction * available - weights - fixed
    page = model.kv.page_tokens.value
    token_mib = model.kv.token_bytes.value / MIB
    pin = pinned_tokens(model, settings)
    pool = max(0.0, room if pin is None else min(room, pin * token_mib))
    free = available - weights - fixed - pool - sums[Phase.SERVING]
    head_only = sum(term.mib for term in parts if term.head_only)
    # Wide copies are released when their twins exist, so the load has to hold both.
    both = -sum(term.mib for term in parts if term.id == "wo_a_released")
    build = max((term.mib for term in parts if term.phase is Phase.PEAK and term.id != "prefill"), default=0.0)
    return Outlook(
        state=state.id,
        title=state.title,
        available_mib=available,
        weights_mib=weights,
        minimum_fraction=weights / available,
        required_fraction=(weights + fixed) / available,
        boots=room > 0,
        pool_mib=pool,
        # A hair more than nothing, so that a pool which is exactly the pin does not lose a page to rounding.
        pool_tokens=int((pool / token_mib + 1e-6) // page * page),
        free_mib={rank: free - (head_only if rank == HEAD else 0.0) for rank in range(model.shape.tp_size)},
        load_free_mib=available - weights - both - build,
    )


def limit_reasons(model: MemoryModel, settings: BudgetSettings) -> list[Reason]:
    """What holds whatever the arithmetic says: bounds of the fraction, and layouts that the numbers know."""
    fraction, limits, shape = settings.fraction, model.fraction, model.shape
    reasons = []
    if settings.tp_size != shape.tp_size or settings.ep_size not in shape.ep_sizes:
        known = f"TP_SIZE {shape.tp_size} with EP_SIZE " + " or ".join(str(size) for size in shape.ep_sizes)
        reasons.append(Reason("shape", Verdict.UNSAFE, f"the numbers hold for {known} alone"))
    if fraction >= limits.refused_from.value:
        text = f"fraction {fraction:g} is {limits.refused_from.value:g} or more, which took a node down while loading"
        reasons.append(Reason("fraction_high", Verdict.UNSAFE, text))
    elif fraction > limits.highest_served.value:
        served, refused = limits.highest_served.value, limits.refused_from.value
        text = f"no boot above fraction {served:g} is known, and {refused:g} took a node down"
        reasons.append(Reason("fraction_untested", Verdict.EDGE, text))
    if fraction < limits.refused_below.value:
        text = f"below fraction {limits.refused_below.value:g} the weights leave no memory for KV"
        reasons.append(Reason("fraction_low", Verdict.UNSAFE, text))
    return reasons


def outlook_reasons(model: MemoryModel, settings: BudgetSettings, outlooks: tuple[Outlook, ...]) -> list[Reason]:
    """What the arithmetic says over the memory states, best first: not at all, not in all, or too tight."""
    best, worst = outlooks[0], outlooks[-1]
    usual = next(each for each in outlooks if each.state == model.usual_state)
    guard = model.host.guard_mib.value
    reasons = []
    if not best.boots:
        needed = f"fraction {best.required_fraction:.4f} at least"
        text = f"the pool of tokens stays empty in every known memory state, {needed} is needed"
        reasons.append(Reason("no_kv", Verdict.UNSAFE, text))
    elif not worst.boots:
        fine = ", ".join(each.state for each in outlooks if each.boots)
        text = f"may not boot: of the known memory states it does in {fine} alone"
        reasons.append(Reason("may_not_boot", Verdict.EDGE, text))
    pin = pinned_tokens(model, settings)
    if usual.boots and usual.pool_tokens < (settings.context if pin is None else min(settings.context, pin)):
        admits = f"CONTEXT_LENGTH admits a request of {settings.context:,} tokens"
        text = f"{admits}, the pool has usually {usual.pool_tokens:,}"
        reasons.append(Reason("pool_below_context", Verdict.EDGE, text))
    for label, key, most, least in (
        ("while serving", "serving", least_free(best), least_free(worst)),
        ("while loading", "loading", best.load_free_mib, worst.load_free_mib),
    ):
        if most < 0:
            text = f"{label} {-most:,.1f} MiB are missing on a rank"
            reasons.append(Reason(f"{key}_exhausted", Verdict.UNSAFE, text))
        elif least < guard:
            text = f"{label} a rank keeps {least:,.1f} MiB, less than the guard of {guard:,.1f}"
            reasons.append(Reason(f"{key}_below_guard", Verdict.EDGE, text))
    return reasons


def least_free(outlook: Outlook) -> float:
    """What the fullest rank keeps while serving."""
    return min(outlook.free_mib.values())


def notes_of(model: MemoryModel, settings: BudgetSettings, outlooks: tuple[Outlook, ...]) -> list[str]:
    """What does not change the verdict and an operator should know."""
    notes = []
    worst = outlooks[-1]
    pin = pinned_tokens(model, settings)
    if pin is not None:
        clamped = [each for each in outlooks if each.boots and each.pool_tokens < pin]
        if clamped:
            pools = ", ".join(f"{each.pool_tokens:,} ({each.state})" for each in clamped)
            notes.append(f"the pin of {settings.pin:,} tokens is an upper bound, clamped without a word to {pools}")
    per_token = model.transients.prefill_bytes.value * settings.chunk / MIB
    if per_token > 0:
        longest = int(max(0.0, least_free(worst)) / per_token)
        if longest < settings.context:
            notes.append(
                f"a prompt above about {longest:,} tokens (CHUNKED_PREFILL_SIZE {settings.chunk}) may take the last "
                "memory of the head; guard long prompts"
            )
    return notes
