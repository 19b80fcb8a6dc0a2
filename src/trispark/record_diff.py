"""Two records side by side: what was asked for, what it was resolved to, what was observed; differences with names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from trispark.drift import Drift, boot_drift
from trispark.errors import TrisparkError

PARTS: Final = ("requested", "project", "resolved", "observed", "outcome")
Record = Mapping[str, Any]


def diff_records(first: Record, second: Record) -> dict[str, list[Drift]]:
    """{part: differences} of two records of one kind, in the order of PARTS; parts without any are left out.

    Counters, times, ports and ids of a boot are no differences. Raises TS-RECORD-KIND for a boot and a trial.
    """
    if first["kind"] != second["kind"]:
        raise TrisparkError(
            "TS-RECORD-KIND",
            "a boot and a trial cannot be compared",
            where=f"{first['id']} and {second['id']}",
            expected="two boots or two trials",
            observed=f"{first['kind']} and {second['kind']}",
            remedy="./trispark records list shows the kind of each",
        )
    found = [*_requested(first, second)]
    found += boot_drift(first, second) if first["kind"] == "boot" else _trial(first, second)
    found += _outcome(first, second)
    return {part: of_part for part in PARTS if (of_part := [each for each in found if each.part == part])}


def _requested(first: Record, second: Record) -> Iterator[Drift]:
    a, b = (_asked(record["requested"]) for record in (first, second))
    for name in sorted({*a, *b}):
        if a.get(name) != b.get(name):
            yield Drift("requested", name, a.get(name), b.get(name))


def _asked(requested: Mapping[str, Any]) -> dict[str, Any]:
    overrides = {f"override {name}": value for name, value in requested.get("overrides", {}).items()}
    return {**{name: value for name, value in requested.items() if name != "overrides"}, **overrides}


def _trial(first: Record, second: Record) -> Iterator[Drift]:
    for name in ("commit", "version", "dirty"):
        if first["project"][name] != second["project"][name]:
            yield Drift("project", f"project {name}", first["project"][name], second["project"][name])
    for arm in ("baseline", "candidate"):
        if first["resolved"][arm] != second["resolved"][arm]:
            yield Drift("resolved", f"generation of the {arm}", first["resolved"][arm], second["resolved"][arm])
    a, b = (_changes(record) for record in (first, second))
    for name in sorted({*a, *b}):
        if a.get(name) != b.get(name):
            yield Drift("resolved", f"change of {name}", a.get(name), b.get(name))


def _changes(record: Record) -> dict[str, str]:
    return {
        name: f"{pair.get('baseline')} to {pair.get('candidate')}"
        for name, pair in record["resolved"]["changed"].items()
    }


def _outcome(first: Record, second: Record) -> Iterator[Drift]:
    for name in ("state", "verdict", "reason"):
        a, b = first["outcome"].get(name), second["outcome"].get(name)
        if a != b:
            yield Drift("outcome", name, a, b)


def diff_lines(differences: Mapping[str, list[Drift]]) -> list[str]:
    """The differences for a person; a rank's own name beside the others' when all ranks differ alike."""
    lines: list[str] = []
    for part, drifts in differences.items():
        lines.append(f"{part}:")
        lines += [f"  {line}" for line in _merged(drifts)]
    return lines or ["no difference in what was asked for, resolved and observed"]


def _merged(drifts: list[Drift]) -> list[str]:
    """The same difference on several ranks in one line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for drift in drifts:
        name, _, rank = drift.name.partition(" of rank ")
        words = Drift(drift.part, name, drift.first, drift.second).words()
        groups.setdefault((name, words), []).append(rank)
    lines = []
    for (name, words), ranks in groups.items():
        named = [rank for rank in ranks if rank]
        where = f" of rank{'s' if len(named) > 1 else ''} {', '.join(named)}" if named else ""
        lines.append(f"{name}{where}{words[len(name) :]}")
    return lines
