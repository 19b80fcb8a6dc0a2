"""Verbs `baseline-show` and `baseline-set`: the site's own baseline, with the record that justifies it.

`baseline.json` holds {"schema_version", "settings", "record", "record_hash", "time"}; without it the shipped baseline
holds. It is written only after its record, which must be in this node's chain with the same hash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trispark_node import records
from trispark_node.canonical import canonical_json
from trispark_node.errors import AgentError, request_error
from trispark_node.fields import NAME, Fields
from trispark_node.mutation import Plan
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_regular

SCHEMA_VERSION = 1
SHIPPED = "shipped"
"""What `replaces` says when no baseline was promoted before."""
_SETTING = re.compile(r"[A-Z][A-Z0-9_]+")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Baseline:
    """Settings that differ from the shipped baseline, and the trial record that decided so."""

    settings: Mapping[str, Any]
    record: str
    record_hash: str
    time: str

    @classmethod
    def parse(cls, fields: Fields) -> Baseline:
        fields.integer("schema_version", low=SCHEMA_VERSION, high=SCHEMA_VERSION)
        settings = fields.mapping("settings")
        for name, value in settings.items():
            if not _SETTING.fullmatch(name) or not isinstance(value, (str, int, float, bool)):
                raise request_error(
                    "a setting has the wrong form",
                    where=f"{fields.where}.settings",
                    expected="names in upper case with a text, number or truth value",
                    observed=f"{name}: {value!r}"[:120],
                )
        found = cls(
            settings,
            fields.text("record", pattern=NAME),
            fields.text("record_hash", pattern=_HASH),
            fields.text("time"),
        )
        fields.done()
        return found

    def json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "settings": dict(self.settings),
            "record": self.record,
            "record_hash": self.record_hash,
            "time": self.time,
        }


@dataclass(frozen=True)
class SetRequest:
    """`baseline` None goes back to the shipped one. `replaces`: what must be there now, None for anything."""

    baseline: Baseline | None
    replaces: str | None

    @classmethod
    def parse(cls, fields: Fields) -> SetRequest:
        replaces = fields.optional_text("replaces", pattern=NAME)
        inner = fields.inner("baseline") if fields.has("baseline") else None
        fields.anything("baseline")
        return cls(None if inner is None else Baseline.parse(inner), replaces)


def read(node: Node) -> Baseline | None:
    """None for the shipped one. Raises TS-AGENT-DAMAGED when the file cannot be read."""
    path = node.layout.baseline
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return None
    try:
        return Baseline.parse(Fields(parse_json(content), str(path)))
    except (ValueError, TypeError, AttributeError, AgentError) as error:
        raise AgentError(
            "TS-AGENT-DAMAGED",
            "the promoted baseline cannot be read",
            where=str(path),
            expected="what baseline-set wrote",
            observed=content[:80].decode("utf-8", "replace") or "an empty file",
            remedy="go back to the shipped baseline (promote.yml -e revert=true), then promote again",
        ) from error


def name_of(baseline: Baseline | None) -> str:
    """The record that decided so, or `shipped`."""
    return SHIPPED if baseline is None else baseline.record


def show(node: Node) -> dict[str, Any]:
    found = read(node)
    return {"baseline": None if found is None else found.json()}


def plan_set(node: Node, request: SetRequest) -> Plan:
    wanted = request.baseline
    try:
        present = read(node)
    except AgentError:
        if wanted is not None:
            raise
        present = None  # going back to the shipped one is the way out of a damaged file
        damaged = True
    else:
        damaged = False
    result = {"baseline": None if wanted is None else wanted.json()}
    if present == wanted and not damaged:
        return Plan(None, result)
    if request.replaces is not None and request.replaces != name_of(present):
        raise AgentError(
            "TS-AGENT-BASELINE",
            "the promoted baseline is another one by now",
            where=str(node.layout.baseline),
            expected=request.replaces,
            observed=name_of(present),
            remedy="read the status of all nodes, then decide again",
        )
    if wanted is not None:
        _require_record(node, wanted)
    detail = {"from": "damaged" if damaged else name_of(present), "to": name_of(wanted)}

    def apply() -> dict[str, Any]:
        if wanted is None:
            node.disk.remove_file(node.layout.baseline)
            node.disk.sync_directory(node.layout.root)
        else:
            node.disk.replace(node.layout.baseline, canonical_json(wanted.json()) + b"\n")
        return {}

    return Plan(apply, result, detail, (f"baseline {detail['from']}\n", f"baseline {detail['to']}\n"))


def _require_record(node: Node, wanted: Baseline) -> None:
    found = next((stored for stored in records.chain(node) if stored.id == wanted.record), None)
    if found is None or found.hash != wanted.record_hash:
        raise AgentError(
            "TS-AGENT-BASELINE",
            "the record of the promotion is not on this node",
            where=str(node.layout.records),
            expected=f"{wanted.record} {wanted.record_hash[:12]}",
            observed="no such record" if found is None else found.hash[:12],
            remedy="bring the node's records up to date (the next boot does), then promote again",
        )
