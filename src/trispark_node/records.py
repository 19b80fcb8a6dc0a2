"""Records of boots and trials: append-only files, each naming the hash of the one before it.

`records/<seq>-<id>.json` holds the record itself as canonical JSON; its hash is the SHA-256 of that JSON. Of its keys
the agent reads `id`, `seq` (1, 2, ...) and `previous`, which is {"seq", "hash"} of its predecessor, null in the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node.canonical import canonical_json, sha256_hex
from trispark_node.errors import AgentError, request_error
from trispark_node.fields import NAME, Fields
from trispark_node.mutation import Plan
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_regular

_FILE = re.compile(r"([0-9]{6,})-(.+)\.json")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Link:
    """A place in the chain."""

    seq: int
    hash: str

    def json(self) -> dict[str, Any]:
        return {"seq": self.seq, "hash": self.hash}


@dataclass(frozen=True)
class Stored:
    """One record file as it lies on the disk; `previous` is its own statement about its predecessor."""

    seq: int
    id: str
    hash: str
    previous: Link | None
    record: Mapping[str, Any]

    @property
    def link(self) -> Link:
        return Link(self.seq, self.hash)

    def head(self) -> dict[str, Any]:
        return {"seq": self.seq, "id": self.id, "hash": self.hash}


def _shown(link: Link | None) -> str:
    return f"{link.seq} {link.hash[:12]}" if link else "none"


def _link(value: Any, where: str) -> Link | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise request_error(
            "previous has the wrong form", where=where, expected='{"seq", "hash"} or null', observed=repr(value)[:80]
        )
    fields = Fields(value, where)
    link = Link(fields.integer("seq", low=1), fields.text("hash", pattern=_HASH))
    fields.done()
    return link


@dataclass(frozen=True)
class AppendRequest:
    id: str
    record: Mapping[str, Any]
    content: bytes
    previous: Link | None

    @classmethod
    def parse(cls, fields: Fields) -> AppendRequest:
        record = fields.mapping("record")
        previous = _link(fields.anything("previous"), "request.previous")
        if "previous" not in record or _link(record["previous"], "request.record.previous") != previous:
            raise request_error(
                "the record does not name the predecessor that the request names",
                where="request.record.previous",
                expected=json.dumps(previous.json() if previous else None),
                observed=json.dumps(record.get("previous", "nothing")),
            )
        try:
            content = canonical_json(record)
        except ValueError as error:
            raise request_error(
                "the record is no JSON", where="request.record", expected="finite numbers", observed=str(error)
            ) from None
        inner = Fields(record, "request.record")
        seq = previous.seq + 1 if previous else 1
        inner.integer("seq", low=seq, high=seq)
        return cls(inner.text("id", pattern=NAME), record, content, previous)


@dataclass(frozen=True)
class ListRequest:
    limit: int

    @classmethod
    def parse(cls, fields: Fields) -> ListRequest:
        return cls(fields.integer("limit", 20, low=1, high=100_000))


@dataclass(frozen=True)
class ShowRequest:
    id: str

    @classmethod
    def parse(cls, fields: Fields) -> ShowRequest:
        return cls(fields.text("id", pattern=NAME))


def _files(node: Node) -> list[tuple[int, str, Path]]:
    """(seq, id, path) of every record, oldest first. Temporary files of an interrupted append do not count."""
    try:
        paths = list(node.layout.records.iterdir())
    except FileNotFoundError:
        return []
    matches = ((_FILE.fullmatch(path.name), path) for path in paths)
    return sorted((int(match[1]), match[2], path) for match, path in matches if match is not None)


def _chain_error(where: Path, expected: str, observed: str) -> AgentError:
    return AgentError(
        "TS-RECORD-CHAIN",
        "the chain of records is broken",
        where=str(where),
        expected=expected,
        observed=observed,
        remedy="compare with the records of the other nodes; restore this file from one of them",
    )


def _load(seq: int, record_id: str, path: Path) -> Stored:
    try:
        content = read_regular(path)
        record = parse_json(content)
        canonical = canonical_json(record)
        previous = _link(record["previous"], "previous")
        named = f"{record['seq']}, {record['id']}"
    except (OSError, ValueError, KeyError, TypeError, AgentError) as error:
        raise _chain_error(path, "a record", f"{type(error).__name__}: {error}") from error
    if content != canonical + b"\n":
        raise _chain_error(path, "canonical JSON as it was appended", "other bytes")
    if named != f"{seq}, {record_id}":
        raise _chain_error(path, f"record {seq}, {record_id}", f"record {named}")
    return Stored(seq, record_id, sha256_hex(canonical), previous, record)


def head(node: Node) -> Stored | None:
    """The newest record. Raises TS-RECORD-CHAIN when it is damaged."""
    files = _files(node)
    return _load(*files[-1]) if files else None


def chain(node: Node) -> list[Stored]:
    """All records, oldest first; raises TS-RECORD-CHAIN at the first one that is damaged, lost or does not follow."""
    found: list[Stored] = []
    for seq, record_id, path in _files(node):
        stored = _load(seq, record_id, path)
        before = found[-1].link if found else None
        if seq != len(found) + 1:
            raise _chain_error(path, f"record number {len(found) + 1}", f"number {seq}")
        if stored.previous != before:
            raise _chain_error(path, f"previous {_shown(before)}", f"previous {_shown(stored.previous)}")
        found.append(stored)
    return found


def _head_of_whole_chain(node: Node) -> Stored | None:
    """Raises TS-RECORD-DAMAGED: what follows a damaged record proves nothing."""
    try:
        found = chain(node)
    except AgentError as error:
        raise AgentError(
            "TS-RECORD-DAMAGED",
            "no record is appended to a damaged chain",
            where=error.where,
            expected=error.expected,
            observed=error.observed,
            remedy=error.remedy,
        ) from error
    return found[-1] if found else None


def plan_append(node: Node, request: AppendRequest) -> Plan:
    last = _head_of_whole_chain(node)
    if last is not None and last.id == request.id and last.hash == sha256_hex(request.content):
        return Plan(None, {"head": last.head()})  # the answer to the first attempt was lost
    if (last.link if last else None) != request.previous:
        raise AgentError(
            "TS-RECORD-FORK",
            "the record does not follow this node's newest one",
            where=str(node.layout.records),
            expected=f"previous {_shown(last.link if last else None)}",
            observed=f"previous {_shown(request.previous)}",
            remedy="compare the heads of all nodes (trispark-node record-head); append what a node lacks in order",
        )
    if any(record_id == request.id for _, record_id, _ in _files(node)):
        raise request_error(
            "a record of this id exists", where="request.record.id", expected="a new id", observed=request.id
        )
    seq = last.seq + 1 if last else 1
    path = node.layout.records / f"{seq:06d}-{request.id}.json"

    def apply() -> dict[str, Any]:
        node.disk.make_directory(node.layout.records)
        node.disk.replace(path, request.content + b"\n")
        return {}

    new_head = {"seq": seq, "id": request.id, "hash": sha256_hex(request.content)}
    return Plan(apply, {"head": new_head}, new_head, (f"records {seq - 1}\n", f"records {seq}\n"))


def record_list(node: Node, request: ListRequest) -> dict[str, Any]:
    """The newest `limit` records, oldest first, after checking the whole chain."""
    found = chain(node)
    return {"records": [stored.head() for stored in found[-request.limit :]], "total": len(found)}


def record_show(node: Node, request: ShowRequest) -> dict[str, Any]:
    for seq, record_id, path in _files(node):
        if record_id == request.id:
            stored = _load(seq, record_id, path)
            return {**stored.head(), "record": stored.record}
    raise AgentError(
        "TS-RECORD-MISSING",
        "there is no such record on this node",
        where=str(node.layout.records),
        expected=f"record {request.id}",
        observed=f"{len(_files(node))} other records",
        remedy="list them (trispark-node record-list)",
    )


def record_head(node: Node) -> dict[str, Any]:
    last = head(node)
    return {"head": last.head() if last else None}
