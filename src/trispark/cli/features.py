"""``./trispark features``: every entry of the catalog, and what it can be run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def list_features(repo: Path, site: str, stage: str | None) -> list[dict[str, Any]]:
    """One object an entry, in the catalog's order. Raises TS-STAGE-UNKNOWN, TS-CATALOG-*, TS-YAML-*, TS-SITE-*,
    TS-BASELINE-READ."""
    from trispark.allowlist import format_value
    from trispark.catalog import load_catalog
    from trispark.plan import Ground
    from trispark.site_features import refused_at

    catalog = load_catalog(repo)
    ground = Ground.load(repo, site)
    names = catalog.features_of(stage) if stage else tuple(catalog.features)
    entries = []
    for name in names:
        entry = catalog.features[name]
        sweep = entry.sweep
        entries.append(
            {
                "feature": name,
                "kind": entry.kind.value,
                "title": entry.title,
                "summary": entry.summary,
                "stages": list(entry.stages),
                "engines": {engine: entry.refusal_on(engine) for engine in catalog.engines},
                # Without the place of this checkout, as in a plan.
                "refusals": [
                    {key: text.replace(f"{repo}/", "") for key, text in error.as_dict().items()}
                    for error in refused_at(ground, name)
                ],
                "sets": dict(entry.sets),
                "sets_on": {engine: dict(sets) for engine, sets in entry.sets_on.items()},
                "sweep": None
                if sweep is None
                else {
                    "name": sweep.name,
                    "values": list(sweep.values),
                    "tried": [format_value(value) for value in catalog.sweep_values(name)],
                },
                "members": list(entry.members),
                "only_in": list(entry.only_in),
                "requires": list(entry.requires),
                "excludes": list(entry.excludes),
                "primaries": list(entry.primaries),
            }
        )
    return entries


def feature_lines(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Name, kind and stages, what it sets, and where it cannot be run and why."""
    width = max((len(entry["feature"]) for entry in entries), default=0)
    for entry in entries:
        yield f"{entry['feature']:<{width}}  {entry['kind']:<8}  {','.join(entry['stages'])}  {entry['title']}"
        yield from (f"{'':<{width}}  {line}" for line in _details(entry))
    if not entries:
        yield "no feature"


def _details(entry: Mapping[str, Any]) -> Iterator[str]:
    sets = [f"{name}={value}" for name, value in entry["sets"].items()]
    if entry["sweep"]:
        sets.append(f"{entry['sweep']['name']} one of {', '.join(entry['sweep']['tried'])}")
    if sets:
        yield f"sets {', '.join(sets)}"
    for engine, more in entry["sets_on"].items():
        yield f"sets on {engine} {', '.join(f'{name}={value}' for name, value in more.items())}"
    for name, text in (("members", "made of"), ("requires", "with"), ("only_in", "only in")):
        if entry[name]:
            yield f"{text} {', '.join(entry[name])}"
    reasons: dict[str, list[str]] = {}
    for engine, reason in entry["engines"].items():
        if reason is not None:
            reasons.setdefault(reason, []).append(engine)
    for reason, engines in reasons.items():
        where = "anywhere" if len(engines) == len(entry["engines"]) else f"on {', '.join(engines)}"
        yield f"not {where}: {reason}"
    for refusal in entry["refusals"]:
        yield f"not at this site: {refusal['what']}; do: {refusal['remedy']}"
