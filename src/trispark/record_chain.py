"""Keeps the nodes' record chains the same: which head a new record follows, and what each node still lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trispark.errors import TrisparkError
from trispark.records import RecordCache, head_of, record_hash

Head = Mapping[str, Any]


def leading_head(heads: Mapping[str, Head | None], cache: RecordCache) -> dict[str, Any] | None:
    """The newest head among the nodes' chains, None when all are empty.

    A node that was down may be behind; every node's head must then be a record of the same chain as the controller's
    copy holds it. Raises TS-RECORD-FORK naming the odd node.
    """
    known = [head for head in heads.values() if head]
    if not known:
        return None
    newest = max(known, key=lambda head: int(head["seq"]))
    for node, head in sorted(heads.items()):
        if head and head["hash"] != newest["hash"] and not _in_cache(cache, head):
            raise TrisparkError(
                "TS-RECORD-FORK",
                "the record chain of a node is not the one of the others",
                where=node,
                expected=f"record {newest['seq']} {newest['hash'][:12]}, or an earlier one of that chain",
                observed=f"record {head['seq']} {head['hash'][:12]}",
                remedy="compare the records of the nodes; one of them was changed",
            )
    return dict(newest)


def appends(
    heads: Mapping[str, Head | None], cache: RecordCache, record: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """{node: [{"record", "previous"}, ...]}: the new record, after what a node that was down has missed.

    Raises TS-RECORD-LOST when the controller's copy does not hold a missed record.
    """
    result: dict[str, list[dict[str, Any]]] = {}
    for node, head in heads.items():
        seq = int(head["seq"]) if head else 0
        missed = [old for old in cache.list() if seq < int(old["seq"]) < int(record["seq"])]
        if len(missed) != int(record["seq"]) - seq - 1:
            raise TrisparkError(
                "TS-RECORD-LOST",
                "a node misses records that the controller does not hold",
                where=node,
                expected=f"records {seq + 1} to {int(record['seq']) - 1} in {cache.directory}",
                observed=", ".join(str(old["seq"]) for old in missed) or "none",
                remedy="copy the records directory of another node to it",
            )
        result[node] = [{"record": entry, "previous": entry["previous"]} for entry in [*missed, record]]
    return result


def _in_cache(cache: RecordCache, head: Head) -> bool:
    return any(head_of(record)["seq"] == head["seq"] and record_hash(record) == head["hash"] for record in cache.list())
