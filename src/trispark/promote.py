"""How a KEEP becomes the site's own baseline, and the way back. What a promoted baseline is: promoted.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark.allowlist import Value, format_value
from trispark.catalog import Catalog, Kind
from trispark.errors import TrisparkError
from trispark.promoted import SHIPPED, Answers, Promoted, held_by, name_of, on_nodes, settings_of
from trispark.records import RecordCache, record_hash
from trispark.resolve import resolve, resolve_arms
from trispark.site import Site
from trispark.staleness import stale_reason


@dataclass(frozen=True)
class Promotion:
    """What is to be written on each node; None for the shipped baseline.

    `replaces`: {node: what it must hold now}, for the agent to compare, None where that does not matter; `changed` is
    empty when all nodes hold it already; `stale`: {earlier trial of a sweep: why its verdict has to be
    looked at again}.
    """

    baseline: Promoted | None
    replaces: dict[str, str | None]
    changed: dict[str, tuple[Value | None, Value]]
    stale: dict[str, str]

    def lines(self) -> list[str]:
        """For a person."""
        if self.baseline is None:
            return [f"back to the {SHIPPED} baseline"]
        if not self.changed:
            return [f"{self.baseline.record} is the baseline already"]
        parts = [
            f"{name} {'' if old is None else format_value(old)} -> {format_value(new)}"
            for name, (old, new) in sorted(self.changed.items())
        ]
        found = [f"{self.baseline.record} becomes the baseline: {', '.join(parts)}; site.yml boots it"]
        if self.stale:
            found += [f"to be repeated, {record}: {reason}" for record, reason in self.stale.items()]
        return found

    def requests(self) -> dict[str, dict[str, Any]]:
        """{node: request of the agent's verb `baseline-set`}."""
        wanted = None if self.baseline is None else self.baseline.as_dict()
        return {
            node: {"baseline": wanted, **({} if before is None else {"replaces": before})}
            for node, before in self.replaces.items()
        }

    def published(self) -> dict[str, Any]:
        """What the playbook hands to its caller."""
        return {
            "promoted": {
                "record": None if self.baseline is None else self.baseline.record,
                "settings": {} if self.baseline is None else dict(self.baseline.settings),
                "changed": {name: list(pair) for name, pair in self.changed.items()},
                "stale": dict(self.stale),
            }
        }


def promotable(cache: RecordCache, record: str) -> Mapping[str, Any]:
    """The record with exactly this id. Raises TS-PROMOTE-RECORD with the trials that ended with KEEP."""
    records = cache.list()
    for found in records:
        if record and found["id"] == record:
            return found
    kept = [
        str(each["id"])
        for each in records
        if each["kind"] == "trial" and each["outcome"]["verdict"] == "KEEP" and not each["resolved"].get("confirms")
    ]
    raise _refused(
        "TS-PROMOTE-RECORD",
        "nothing is promoted without the record of its trial",
        str(cache.directory),
        f"one of {', '.join(kept[-5:])}" if kept else "a trial that ended with KEEP; there is none",
        record or "no record given",
        "promote.yml -e record=ID",
    )


def plan_revert(statuses: Answers, record: str = "") -> Promotion:
    """Back to the shipped baseline, whatever the nodes hold. Raises TS-PROMOTE-RECORD when a record is given, too."""
    if record:
        raise _refused("TS-PROMOTE-RECORD", "revert takes no record", "promote.yml", "revert or record", "both")
    return Promotion(None, dict.fromkeys(sorted(statuses)), {}, {})


def plan_promotion(
    *,
    root: Path,
    site: Site,
    catalog: Catalog,
    records: Sequence[Mapping[str, Any]],
    record: Mapping[str, Any],
    statuses: Answers,
    time: str,
) -> Promotion:
    """What makes the KEEP of a trial record the site's baseline; the chain of `records` was verified before.

    Nodes that hold it already are left as they are, so that an interrupted promotion is completed.
    Raises TS-PROMOTE-RECORD (no trial), TS-PROMOTE-SITE, TS-PROMOTE-CONFIRM, TS-PROMOTE-VERDICT, TS-PROMOTE-BASELINE
    (the trial's baseline is not the site's any more), TS-PROMOTE-CHANGED (the tree resolves another candidate),
    TS-BASELINE-*.
    """
    where = f"record {record['id']}"
    if record["kind"] != "trial":
        raise _refused("TS-PROMOTE-RECORD", "only a trial's record can be promoted", where, "a trial", record["kind"])
    if record["site"] != site.name:
        raise _refused("TS-PROMOTE-SITE", "the record is another site's", where, site.name, str(record["site"]))
    outcome = record["outcome"]
    if record["resolved"].get("confirms"):
        raise _refused(
            "TS-PROMOTE-CONFIRM",
            "a confirmation promotes nothing: its candidate is what was promoted already",
            where,
            "the trial of one feature",
            f"the confirmation of {', '.join(part['record'] for part in record['resolved']['confirms'])}",
            "leave it out; what it confirms serves already",
        )
    if outcome["verdict"] != "KEEP":
        observed = f"{outcome['verdict']}: {outcome['reason']}"
        raise _refused("TS-PROMOTE-VERDICT", "the trial did not end with KEEP", where, "KEEP", observed)
    held = {node: held_by(node, status) for node, status in sorted(statuses.items()) if status}
    replaces: dict[str, str | None] = {node: name_of(value) for node, value in held.items()}
    others = {node: statuses[node] for node, value in held.items() if name_of(value) != record["id"]}
    if not others:
        return Promotion(next(iter(held.values()), None), replaces, {}, {})
    before = on_nodes(others)
    settings = settings_of(before, catalog)
    current = resolve(site, catalog, None, None, root, promoted=settings)
    planned, requested = record["resolved"], record["requested"]
    if current.id != planned["baseline"]:
        raise _refused(
            "TS-PROMOTE-BASELINE",
            "the site's baseline is not the one that the trial was compared with",
            where,
            str(planned["baseline"]),
            f"{current.id} ({name_of(before)})",
            "promote first what the trial's baseline holds, or repeat the trial against the baseline of now",
        )
    feature, value = str(requested["feature"]), requested.get("value")
    arms = resolve_arms(site, catalog, feature, None, root, value=value, promoted=settings)
    if arms.candidate.id != planned["candidate"]:
        raise _refused(
            "TS-PROMOTE-CHANGED",
            "the project resolves another candidate than the trial ran",
            where,
            str(planned["candidate"]),
            arms.candidate.id,
            "promote from the tree that made the record, or repeat the trial",
        )
    sets = dict(arms.choice.sets)
    return Promotion(
        baseline=Promoted({**settings, **sets}, str(record["id"]), record_hash(record), time),
        replaces=replaces,
        changed={name: (current.settings.get(name), new) for name, new in sorted(sets.items())},
        stale=_stale(arms.candidate.settings, records, catalog),
    )


def _stale(now: Mapping[str, Value], records: Sequence[Mapping[str, Any]], catalog: Catalog) -> dict[str, str]:
    """{trial of a sweep: why its verdict has to be looked at again} once the baseline has the settings `now`."""
    boots = {record["id"]: record for record in records if record["kind"] == "boot"}
    sweeps = {name for name, entry in catalog.features.items() if entry.kind is Kind.SWEEP}
    found: dict[str, str] = {}
    for record in records:
        if record["kind"] != "trial" or record["requested"]["feature"] not in sweeps:
            continue
        compared = [boots.get(boot["boot_id"]) for boot in record["boots"] if boot["arm"] == "baseline"]
        for boot in compared[:1]:
            reason = None if boot is None else stale_reason(boot["resolved"]["settings"], now, catalog)
            if reason is not None:
                found[str(record["id"])] = reason
    return found


def _refused(error_id: str, what: str, where: str, expected: str, observed: str, remedy: str = "") -> TrisparkError:
    return TrisparkError(error_id, what, where, expected, observed, remedy)
