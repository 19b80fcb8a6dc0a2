"""The memory budget of one configuration on a site: each node by the fraction of its memory that it really gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trispark.allowlist import Value
from trispark.budget import Budget, judge_budget, load_memory_models, require_memory_model
from trispark.catalog import Catalog
from trispark.site import Site

FRACTION: Final = "MEM_FRACTION_STATIC"


@dataclass(frozen=True)
class SiteBudget:
    """One budget for each fraction that nodes have: ((names of these nodes), budget), in rank order."""

    parts: tuple[tuple[tuple[str, ...], Budget], ...]

    @property
    def worst(self) -> Budget:
        """It decides: a boot needs every rank."""
        return max((budget for _, budget in self.parts), key=lambda budget: budget.verdict.rank)

    @property
    def verdict(self) -> str:
        """fits, edge or unsafe."""
        return self.worst.verdict.value

    @property
    def better_bundle(self) -> str | None:
        """The bundle of the catalog to try in its place."""
        return self.worst.better_bundle

    @property
    def lines(self) -> tuple[str, ...]:
        """For a reader; which nodes a budget is of is said where they differ."""
        if len(self.parts) == 1:
            return self.worst.lines
        return tuple(line for names, budget in self.parts for line in (f"on {', '.join(names)}:", *budget.lines))

    def as_dict(self) -> dict[str, Any]:
        """JSON form of the worst; where nodes differ also `nodes`: {name: {fraction, verdict}}; reasons name them."""
        if len(self.parts) == 1:
            return self.worst.as_dict()
        reasons = [
            {**reason, "text": f"{', '.join(names)}: {reason['text']}"}
            for names, budget in self.parts
            if budget.verdict is self.worst.verdict
            for reason in budget.as_dict()["reasons"]
        ]
        nodes = {
            name: {"fraction": budget.fraction, "verdict": budget.verdict.value}
            for names, budget in self.parts
            for name in names
        }
        return {**self.worst.as_dict(), "reasons": reasons, "nodes": nodes}


def judge_site(
    root: Path, site: Site, settings: Mapping[str, Value], catalog: Catalog, back_to: Mapping[str, Value] | None = None
) -> SiteBudget | None:
    """None where the site names no memory model. `back_to`: the settings that a way back leads to, the model's
    reference when not given. Raises TS-BUDGET-*, TS-CATALOG-SCHEMA, TS-YAML-*."""
    if site.memory_model is None:
        return None
    model = require_memory_model(load_memory_models(root), site.memory_model, f"{site.path}: site_memory_model")
    groups: dict[float | None, list[str]] = {}
    for node in site.nodes:
        groups.setdefault(node.mem_fraction, []).append(node.name)
    parts = []
    for fraction, names in groups.items():
        # A node's own value is the site's, no setting leads back from it.
        own: dict[str, Value] = {} if fraction is None else {FRACTION: fraction}
        target = {**model.reference, **(back_to or {}), **own}
        parts.append((tuple(names), judge_budget(model, {**settings, **own}, catalog, back_to=target)))
    return SiteBudget(tuple(parts))
