"""Keeps the nodes' record chains the same: which head a new record follows, and what each node still lacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trispark.errors import TrisparkError
from trispark.records import RecordCache, record_hash

Head = Mapping[str, Any]
Heads = Mapping[str, Head | None]
"""Of each node whose chain is known its head, None for an empty chain; a node that did not answer is not there."""


def heads_of(statuses: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Head | None]:
    """From the answers of `status`, None for a node that gave none. Nothing is known of a damaged chain either."""
    return {
        node: status["record_head"]
        for node, status in statuses.items()
        if status and status["record_chain"] in ("ok", "empty")
    }


def set_aside_older_chain(nodes: Collection[str], heads: Heads, cache: RecordCache) -> Path | None:
    """Rename the controller's copy when the chain of every one of `nodes` is empty, as after a site was made anew; None
    otherwise.

    The nodes hold the truth: a copy of a chain that none of them has belongs to nodes that are gone. It is kept under
    `records-until-<number>-<id>`, beside the new one.
    """
    if set(nodes) - set(heads) or any(heads.values()) or not cache.list(limit=1):
        return None
    last = cache.list(limit=1)[0]
    target = cache.directory.with_name(f"records-until-{last['seq']}-{last['id']}")
    cache.directory.rename(target)
    return target


def leading_head(heads: Heads, cache: RecordCache) -> dict[str, Any] | None:
    """The head that a new record follows, None when all chains are empty.

    It is the newest of the nodes' heads, or the controller's when that continues it: the controller keeps a record
    first, so one that was killed while appending has it and the nodes get it later. A node that was down may be behind.
    Where no node holds a record, or none answers, it is the controller's.
    Raises TS-RECORD-FORK naming the chain that is not the same.
    """
    known = {node: head for node, head in heads.items() if head}
    if not known:
        return cache.head()
    newest = max(known.values(), key=lambda head: int(head["seq"]))
    copies = {int(record["seq"]): record_hash(record) for record in cache.list()}
    for node, head in sorted(known.items()):
        seq = int(head["seq"])
        expected = str(newest["hash"]) if seq == int(newest["seq"]) else copies.get(seq, "unknown")
        if head["hash"] != expected:
            raise _fork(node, f"record {seq} {expected[:12]}", f"record {seq} {head['hash'][:12]}")
    copy = cache.head()
    if copy is None or copy["seq"] <= int(newest["seq"]):
        held = copies.get(int(newest["seq"]), str(newest["hash"]))
        if held != newest["hash"]:
            raise _fork(str(cache.directory), f"record {newest['seq']} {newest['hash'][:12]}", held[:12])
        return dict(newest)
    if copies.get(int(newest["seq"]), _followed(cache, int(newest["seq"]))) != newest["hash"]:
        raise _fork(str(cache.directory), f"record {newest['seq']} {newest['hash'][:12]}", "another one, or none")
    return copy


def _followed(cache: RecordCache, seq: int) -> str | None:
    """The hash of record `seq` as the copy of the next one names it: a controller may hold its own newest one alone."""
    found = [record["previous"] for record in cache.list() if int(record["seq"]) == seq + 1]
    return str(found[0]["hash"]) if found and found[0] else None


def _fork(where: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-RECORD-FORK",
        "a record chain is not the one of the others",
        where=where,
        expected=expected,
        observed=observed,
        remedy="compare the records of the nodes and of the controller; one of them was changed",
    )


def appends(
    nodes: Collection[str], heads: Heads, cache: RecordCache, record: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """{node: [{"record", "previous"}, ...]}: the new record, after what a node that was down has missed.

    One whose chain is not known gets the new record alone, and its agent says what is wrong.

    Raises TS-RECORD-LOST when the controller's copy does not hold a missed record.
    """
    result: dict[str, list[dict[str, Any]]] = {}
    for node in nodes:
        missed: list[dict[str, Any]] = []
        if node in heads:
            seq = _seq(heads[node])
            missed = [old for old in cache.list() if seq < int(old["seq"]) < int(record["seq"])]
            _require_all(node, seq, int(record["seq"]) - 1, missed, cache)
        result[node] = [{"record": entry, "previous": entry["previous"]} for entry in [*missed, record]]
    return result


def behind(nodes: Collection[str], heads: Heads, cache: RecordCache) -> dict[str, list[dict[str, Any]]]:
    """{node: [{"record", "previous"}, ...]}: what each node lacks of the controller's copies, as far as is known.

    Raises TS-RECORD-LOST when the controller's copy does not hold a missed record.
    """
    records = cache.list()
    newest = int(records[-1]["seq"]) if records else 0
    result: dict[str, list[dict[str, Any]]] = {node: [] for node in nodes}
    for node, head in heads.items():
        seq = _seq(head)
        missed = [record for record in records if int(record["seq"]) > seq]
        _require_all(node, seq, max(seq, newest), missed, cache)
        result[node] = [{"record": entry, "previous": entry["previous"]} for entry in missed]
    return result


def _seq(head: Head | None) -> int:
    return int(head["seq"]) if head else 0


def missing(head: Head | None, cache: RecordCache) -> int | None:
    """The number after which the controller's copies lack records that a node has; None when they lack none."""
    if head is None:
        return None
    copies = [int(record["seq"]) for record in cache.list()]
    whole = 0
    for seq in copies:
        if seq != whole + 1:
            break
        whole = seq
    return whole if whole < int(head["seq"]) else None


def needed(head: Head | None, heads: Heads, cache: RecordCache) -> list[int]:
    """Numbers of the records that a node with this `head` has, the controller lacks, and the next record needs here: to
    see that all chains are one, and to give a node that is behind what it missed. None where all nodes are level."""
    numbers = [_seq(each) for each in heads.values()]
    if head is None or len(set(numbers)) == 1:
        return []
    held = {int(record["seq"]) for record in cache.list()}
    return [seq for seq in range(max(min(numbers), 1), int(head["seq"]) + 1) if seq not in held]


def refuse_forked_copy(heads: Heads, cache: RecordCache) -> None:
    """Raises TS-RECORD-FORK where the controller's copy is not the nodes' chain: a boot could not be recorded."""
    for node, seq, held, hash_ in _conflicts(heads, cache):
        raise _fork(node, f"record {seq} {held[:12]}, as this controller's copy has it", f"record {seq} {hash_[:12]}")


def set_aside_forked_copy(heads: Heads, cache: RecordCache) -> Path | None:
    """Rename a copy that is not the nodes' chain: they hold the truth, and a rollback must not wait for a person. It is
    kept under `records-forked-<number>-<id>`."""
    if not _conflicts(heads, cache):
        return None
    last = cache.list(limit=1)[0]
    target = cache.directory.with_name(f"records-forked-{last['seq']}-{last['id']}")
    cache.directory.rename(target)
    return target


def _conflicts(heads: Heads, cache: RecordCache) -> list[tuple[str, int, str, str]]:
    copies = {int(record["seq"]): record_hash(record) for record in cache.list()}
    known = [(node, int(head["seq"]), str(head["hash"])) for node, head in sorted(heads.items()) if head]
    return [(node, seq, copies[seq], hash_) for node, seq, hash_ in known if copies.get(seq, hash_) != hash_]


def _require_all(node: str, seq: int, last: int, missed: Sequence[Mapping[str, Any]], cache: RecordCache) -> None:
    if len(missed) != last - seq:
        raise TrisparkError(
            "TS-RECORD-LOST",
            "a node misses records that the controller does not hold",
            where=node,
            expected=f"records {seq + 1} to {last} in {cache.directory}",
            observed=", ".join(str(old["seq"]) for old in missed) or "none",
            remedy="copy the records directory of another node to it",
        )
