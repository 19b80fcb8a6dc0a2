"""The confirmation: all that was promoted, as one bundle, against the shipped baseline.

It is planned, walked, judged and recorded as every other trial. What stands for its stage and its feature is no file of
experiments/ but made here, from what the site holds and from the records of the trials that decided so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from trispark.allowlist import Value
from trispark.catalog import Catalog, ExclusionClass, Feature, Kind, Stage
from trispark.decision_rules import RATE_MARGIN, TIME_MARGIN, better
from trispark.errors import TrisparkError
from trispark.records import record_hash
from trispark.stage_playbook import CONFIRM

Record = Mapping[str, Any]
TITLE: Final = "Confirmation of what was promoted"
GO_BACK: Final = "./trispark play promote -e revert=true goes back to the shipped baseline"


@dataclass(frozen=True)
class Part:
    """One promotion of the bundle: the record of its trial with its hash, what was tried, and the keys that still stand
    as it set them."""

    record: str
    record_hash: str
    feature: str
    value: str | None
    keys: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON form (record_model.Confirmed)."""
        return {**asdict(self), "keys": list(self.keys)}


def bundle_of(promoted: Mapping[str, Value], catalog: Catalog) -> dict[str, Value]:
    """The promoted settings that differ from the shipped baseline. Raises TS-CONFIRM-NOTHING without one."""
    found = {name: value for name, value in sorted(promoted.items()) if value != catalog.baseline.get(name)}
    if not found:
        raise TrisparkError(
            "TS-CONFIRM-NOTHING",
            "there is no bundle to confirm: nothing was promoted that differs from the shipped baseline",
            where="the site's promoted baseline",
            expected="at least one promoted trial",
            observed="the shipped baseline" if not promoted else "promoted settings that are the shipped ones",
            remedy="promote what ended with KEEP first: ./trispark play promote -e record=ID",
        )
    return found


def parts_of(
    promoted: Mapping[str, Value], last: str, last_hash: str, catalog: Catalog, records: Sequence[Record]
) -> tuple[Part, ...]:
    """Which trial each key of the bundle came from, the oldest promotion first.

    A promoted baseline names its last trial alone (`last`, with its record's hash). Those before it are found by going
    back through `records` (oldest first): only what was promoted gave the next trial its baseline. Raises
    TS-CONFIRM-NOTHING, TS-CONFIRM-ORIGIN.
    """
    missing = set(bundle_of(promoted, catalog))
    held: dict[str, Any] = {**catalog.baseline, **promoted}
    trials = [record for record in records if _may_be_promoted(record)]
    place = next((index for index, record in enumerate(trials) if record["id"] == last), None)
    if place is None or record_hash(trials[place]) != last_hash:
        raise _no_origin(last, f"the record {last} with the hash {last_hash[:12]}", "no such record on the controller")
    found: list[Part] = []
    while place is not None:
        record = trials[place]
        changed = record["resolved"]["changed"]
        keys = tuple(sorted(missing & set(changed)))
        if keys and not _fits(record, held):
            raise _no_origin(", ".join(keys), f"of {record['id']} what the site holds", "another value in the record")
        # This is what the site held before that promotion.
        held.update({name: pair["baseline"] for name, pair in changed.items()})
        if keys:
            requested = record["requested"]
            feature, value = str(requested["feature"]), requested.get("value")
            if feature not in catalog.features:
                raise _no_origin(str(record["id"]), "a feature of the catalog", f"{feature}, which is not in it")
            found.append(Part(str(record["id"]), record_hash(record), feature, value, keys))
            missing -= set(keys)
        if not missing:
            return tuple(reversed(found))
        place = _promoted_before(trials[:place], str(record["resolved"]["baseline"]), held)
    names = ", ".join(sorted(missing))
    raise _no_origin(names, "of every promoted key the trial that ended with KEEP", f"no record of {names}")


def _promoted_before(trials: Sequence[Record], generation: str, held: Mapping[str, Any]) -> int | None:
    """Place of the trial whose promotion gave the site the settings `held`, with which it resolved to `generation`.

    It is the newest whose candidate that generation is. Without one, as where image or tree changed after the
    promotion, it is the newest whose whole change the site held, if no trial of something else made the same change:
    TS-CONFIRM-ORIGIN names both.
    """
    fitting = [index for index, record in enumerate(trials) if _fits(record, held)]
    linked = [index for index in fitting if trials[index]["resolved"]["candidate"] == generation]
    if linked or not fitting:
        return max(linked, default=None)
    newest = trials[fitting[-1]]
    for index in fitting:
        shared = sorted(set(trials[index]["resolved"]["changed"]) & set(newest["resolved"]["changed"]))
        if shared and _tried(trials[index]) != _tried(newest):
            both = " and ".join(f"{each['id']} ({each['requested']['feature']})" for each in (trials[index], newest))
            raise _no_origin(", ".join(shared), f"one trial whose candidate is the generation {generation}", both)
    return fitting[-1]


def _fits(record: Record, held: Mapping[str, Any]) -> bool:
    changed = record["resolved"]["changed"]
    return bool(changed) and all(held.get(name) == pair["candidate"] for name, pair in changed.items())


def _tried(record: Record) -> tuple[Any, Any]:
    return record["requested"]["feature"], record["requested"].get("value")


def _may_be_promoted(record: Record) -> bool:
    return (
        record["kind"] == "trial" and record["outcome"]["verdict"] == "KEEP" and not record["resolved"].get("confirms")
    )


def _no_origin(where: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-CONFIRM-ORIGIN",
        "it is not known which trial a promoted key came from, so nobody can say what would confirm it",
        where=where,
        expected=expected,
        observed=observed,
        remedy=f"./trispark play promote -e record=ID of the last one brings the nodes' records; or {GO_BACK}",
    )


def with_confirmation(catalog: Catalog, promoted: Mapping[str, Value], parts: Sequence[Part]) -> Catalog:
    """The catalog with the bundle as an entry, and a stage to try it in, both named `confirm`.

    What decides is the union of what decides for the parts: a metric that is primary for one is primary here, every
    other watched one a guard, each with the strictest of the margins. The mechanism of each part was shown in its own
    trial and is not asked for again, for parts may move a metric to opposite sides.
    """
    sets = bundle_of(promoted, catalog)
    entries = [catalog.features[part.feature] for part in parts]
    members = tuple(dict.fromkeys(part.feature for part in parts))
    primaries = tuple(dict.fromkeys(metric for entry in entries for metric in entry.primaries))
    guards = tuple(dict.fromkeys(metric for entry in entries for metric in entry.guards if metric not in primaries))
    content = {
        "kind": Kind.BUNDLE,
        "title": TITLE,
        "summary": f"Everything that was promoted at this site, as one: {', '.join(members)}.",
        "stages": ("a",),
        "available": True,
        "sets": sets,
        "members": members,
        "adapters": tuple(dict.fromkeys(path for entry in entries for path in entry.adapters)),
        "evidence": {},
        "primaries": primaries,
        "guards": guards,
        "margins": dict(_margins(entries)),
        "mechanism": "that of each part, shown in its own trial",
        "retunes": any(entry.retunes for entry in entries),
        "rollback": f"{GO_BACK}.",
    }
    # Its own stage is no letter of a file, and so is not among what a file may say.
    entry = Feature.model_validate(content).model_copy(update={"stages": (CONFIRM,)})
    stage = Stage(title=TITLE, asks="What was promoted, against the shipped baseline.", evidence="-", trial=True)
    return replace(
        catalog,
        features={**catalog.features, CONFIRM: entry},
        stages={**catalog.stages, CONFIRM: stage},
        exclusions={
            name: exclusion
            for name, exclusion in catalog.exclusions.items()
            # What has to be tried alone was, and was promoted from that trial.
            if exclusion.kind is not ExclusionClass.DEFERRED or exclusion.name not in sets
        },
    )


def _margins(entries: Sequence[Feature]) -> Iterator[tuple[str, float]]:
    for metric in sorted({metric for entry in entries for metric in (*entry.primaries, *entry.guards)}):
        default = TIME_MARGIN if better(metric) == "lower" else RATE_MARGIN
        watching = [entry for entry in entries if metric in (*entry.primaries, *entry.guards)]
        yield metric, min(float(entry.margins.get(metric, default)) for entry in watching)
