"""Whether an earlier verdict still says something, and whether a trial is worth its time. Pure functions of data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trispark.catalog import Catalog, Kind
from trispark.errors import TrisparkError


def balance_keys(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """{key: features that set it and shift the balance of costs}. A bundle does so through its members."""
    keys: dict[str, list[str]] = {}
    for name, feature in catalog.features.items():
        if not feature.shifts_cost_balance or feature.kind is Kind.BUNDLE:
            continue
        for key in [*feature.sets, *([feature.sweep.name] if feature.sweep is not None else [])]:
            keys.setdefault(key, []).append(name)
    return {key: tuple(names) for key, names in sorted(keys.items())}


def stale_reason(
    trial_record_settings: Mapping[str, Any], current_baseline_settings: Mapping[str, Any], catalog: Catalog
) -> str | None:
    """Why a sweep's verdict has to be looked at again; None while it holds.

    `trial_record_settings` are the settings of the trial's baseline arm, `current_baseline_settings` those that the
    site promoted since (of a key that one of them lacks, the shipped value counts). A verdict on block size or slots
    weighs what a step costs against what it commits; whatever changed that cost, the output projection, expert
    parallelism, the transport, a cap, may turn it. Another engine image does so too, which is no setting: compare it
    apart.
    """
    changed = []
    for key, features in balance_keys(catalog).items():
        shipped = catalog.baseline.get(key)
        before, now = trial_record_settings.get(key, shipped), current_baseline_settings.get(key, shipped)
        if before != now:
            changed.append(f"{key} was {_shown(catalog, key, before)}, is {_shown(catalog, key, now)} ({features[0]})")
    return f"the cost of a step changed since: {'; '.join(changed)}" if changed else None


def unmet_need(feature: str, measured: Mapping[str, float] | None, catalog: Catalog) -> TrisparkError | None:
    """TS-FEATURE-NEED when the newest valid boot of the baseline did not measure what a feature needs; else None.

    `measured` are the metrics of that boot, None where there is no such boot.
    """
    need = catalog.require_feature(feature).needs
    if need is None:
        return None
    value = None if measured is None else measured.get(need.metric)
    if value is not None and value > need.above:
        return None
    return TrisparkError(
        "TS-FEATURE-NEED",
        f"{feature} is not worth a trial yet: {need.reason}",
        where="the newest valid boot of the baseline",
        expected=f"{need.metric} above {need.above:g}",
        observed="no such measurement" if value is None else f"{value:g}",
        remedy="run stage_a.yml for a fresh baseline"
        if value is None
        else "leave it out while nothing is left to gain",
    )


def _shown(catalog: Catalog, key: str, value: object) -> str:
    variable = catalog.allowlist.get(key)
    return str(value) if variable is None else variable.shown(value)
