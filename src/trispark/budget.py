"""The memory budget of a boot: does a configuration fit, may it fail to boot, or must it not be tried.

Pure after `load_memory_models`; MiB (1 MiB = 1048576 B) a rank, with one decimal where they are shown. docs/memory.md
has the model, what it was compared with, and what it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trispark.allowlist import Value
from trispark.budget_outlook import (
    Outlook,
    Reason,
    Verdict,
    least_free,
    limit_reasons,
    notes_of,
    outlook,
    outlook_reasons,
)
from trispark.budget_terms import Phase, Term, read_settings, terms
from trispark.budget_text import budget_lines
from trispark.catalog import Catalog, Kind
from trispark.memory_model import (
    SETTINGS,
    MemoryModel,
    Relief,
    load_memory_models,
    require_memory_model,
)

__all__ = [
    "Budget",
    "MemoryModel",
    "Verdict",
    "judge_budget",
    "load_memory_models",
    "require_memory_model",
]


@dataclass(frozen=True)
class Better:
    """A bundle with which the same configuration gets a better verdict."""

    bundle: str
    verdict: Verdict
    minimum_fraction: float
    why: str


@dataclass(frozen=True)
class Budget:
    """The judgement. Totals, `minimum_fraction` and `required_fraction` are those of the fullest known memory state.

    minimum_fraction    below it the engine says that the weights leave nothing for KV
    required_fraction   below it there is no room for the sliding window and at least some tokens
    shortfall_fraction  minimum_fraction less the configured fraction, 0 when there is none; shortfall_mib: in MiB
    way_back            {setting: value} that undo what makes it worse than fits
    """

    model: str
    verdict: Verdict
    fraction: float
    pin_tokens: int | None
    terms: tuple[Term, ...]
    outlooks: tuple[Outlook, ...]
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]
    way_back: Mapping[str, Value]
    better: Better | None

    @property
    def cautious(self) -> Outlook:
        """The fullest known memory state."""
        return self.outlooks[-1]

    @property
    def minimum_fraction(self) -> float:
        """See the class."""
        return self.cautious.minimum_fraction

    @property
    def required_fraction(self) -> float:
        """See the class."""
        return self.cautious.required_fraction

    @property
    def shortfall_fraction(self) -> float:
        """See the class."""
        return max(0.0, self.minimum_fraction - self.fraction)

    @property
    def shortfall_mib(self) -> float:
        """See the class."""
        return self.shortfall_fraction * self.cautious.available_mib

    @property
    def pool_shortfall_mib(self) -> float:
        """What the sliding window and the first tokens lack, 0 when nothing."""
        return max(0.0, self.required_fraction - self.fraction) * self.cautious.available_mib

    @property
    def better_bundle(self) -> str | None:
        """The bundle of the catalog to try in its place."""
        return None if self.better is None else self.better.bundle

    @property
    def lines(self) -> tuple[str, ...]:
        """The budget for a reader: one line a term, totals, memory states, the verdict and what to do."""
        return budget_lines(self)

    def as_dict(self) -> dict[str, Any]:
        """JSON form; MiB with one decimal, fractions with four."""
        better = self.better
        return {
            "model": self.model,
            "unit": "MiB a rank",
            "verdict": self.verdict.value,
            "fraction": self.fraction,
            "minimum_fraction": round(self.minimum_fraction, 4),
            "required_fraction": round(self.required_fraction, 4),
            "shortfall_fraction": round(self.shortfall_fraction, 4),
            "shortfall_mib": round(self.shortfall_mib, 1),
            "pool_shortfall_mib": round(self.pool_shortfall_mib, 1),
            "pin_tokens": self.pin_tokens,
            "terms": [
                {
                    "id": term.id,
                    "title": term.title,
                    "mib": round(term.mib, 1),
                    "phase": term.phase.value,
                    "ranks": "head" if term.head_only else "all",
                    "source": term.source,
                }
                for term in self.terms
            ],
            "states": [outlook.as_dict() for outlook in self.outlooks],
            "reasons": [{"id": r.id, "verdict": r.verdict.value, "text": r.text} for r in self.reasons],
            "notes": list(self.notes),
            "way_back": dict(self.way_back),
            "better_bundle": self.better_bundle,
            "better": None
            if better is None
            else {
                "bundle": better.bundle,
                "verdict": better.verdict.value,
                "minimum_fraction": round(better.minimum_fraction, 4),
                "why": better.why,
            },
        }


def judge_budget(
    model: MemoryModel,
    settings: Mapping[str, Value],
    catalog: Catalog | None = None,
    *,
    back_to: Mapping[str, Value] | None = None,
) -> Budget:
    """The budget of a configuration; a setting that is not given is taken from the model's reference.

    `catalog` gives what a better bundle sets (else the model's own data does), a bundle that it lacks is not named, and
    the memory of a feature whose settings the model does not look at is taken from it.
    `back_to` are the settings to go back to, the model's reference when not given. Raises TS-BUDGET-SETTING.
    """
    given = {name: settings[name] for name in SETTINGS if name in settings}
    others = () if catalog is None else _catalog_terms(catalog, settings)
    budget = _judge(model, given, others)
    if budget.verdict is Verdict.FITS:
        return budget
    way_back = _way_back(model, given, budget, others, model.reference if back_to is None else back_to)
    better = _better(model, given, budget, others, catalog)
    return replace(budget, way_back=way_back, better=better)


def _catalog_terms(catalog: Catalog, settings: Mapping[str, Value]) -> tuple[Term, ...]:
    """Features that are set, cost memory by the catalog, and set nothing that the model computes by itself."""
    return tuple(
        Term(
            f"feature_{name}",
            f"{name}, as the catalog says",
            feature.memory.mib_per_rank,
            Phase.WEIGHTS,
            feature.memory.source,
        )
        for name, feature in catalog.features.items()
        if feature.kind is Kind.CHANGE
        and feature.memory is not None
        and not set(feature.sets) & set(SETTINGS)
        and catalog.is_active(name, settings)
    )


def _judge(model: MemoryModel, given: Mapping[str, Value], others: Sequence[Term]) -> Budget:
    settings = read_settings(model, given)
    outlooks = tuple(outlook(model, settings, state, others) for state in model.states)
    reasons = (*limit_reasons(model, settings), *outlook_reasons(model, settings, outlooks))
    verdict = max((reason.verdict for reason in reasons), key=lambda verdict: verdict.rank, default=Verdict.FITS)
    return Budget(
        model=model.name,
        verdict=verdict,
        fraction=settings.fraction,
        pin_tokens=settings.pin,
        terms=(*terms(model, settings, model.cautious), *others),
        outlooks=outlooks,
        reasons=tuple(sorted(reasons, key=lambda reason: reason.verdict.rank, reverse=True)),
        notes=tuple(notes_of(model, settings, outlooks)),
        way_back={},
        better=None,
    )


def _way_back(
    model: MemoryModel,
    given: Mapping[str, Value],
    budget: Budget,
    others: Sequence[Term],
    target: Mapping[str, Value],
) -> dict[str, Value]:
    """Settings each of which makes the budget better when it alone is put back."""
    back = {}
    for name in SETTINGS:
        value = target.get(name, model.reference[name])
        if given.get(name, model.reference[name]) == value:
            continue
        if _score(_judge(model, {**given, name: value}, others)) < _score(budget):
            back[name] = value
    return back


def _score(budget: Budget) -> tuple[int, int, float, float]:
    missing = budget.required_fraction - budget.fraction
    return (budget.verdict.rank, len(budget.reasons), missing, -least_free(budget.cautious))


def _better(
    model: MemoryModel,
    given: Mapping[str, Value],
    budget: Budget,
    others: Sequence[Term],
    catalog: Catalog | None,
) -> Better | None:
    """The first bundle that makes the verdict better."""
    for relief in model.reliefs:
        sets = _sets(relief, catalog)
        if not sets:
            continue
        other = _judge(model, {**given, **sets}, others)
        if other.verdict.rank < budget.verdict.rank:
            return Better(relief.bundle, other.verdict, other.minimum_fraction, relief.why)
    return None


def _sets(relief: Relief, catalog: Catalog | None) -> dict[str, Value]:
    if catalog is None:
        return dict(relief.sets)
    if relief.bundle not in catalog.features:
        return {}
    return {name: value for name, value in catalog.sets_of(relief.bundle).items() if name in SETTINGS}
