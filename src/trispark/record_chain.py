"""Keeps the nodes' record chains the same: which head a new record follows, and what each node still lacks.

A chain is known as far as the controller's copies reach back from its head: each names the hash of the one before it. A
head below that is behind and not proven, which is no fault: that node gets what it lacks when the controller has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark.errors import TrisparkError
from trispark.records import RecordCache, record_hash

Head = Mapping[str, Any]
Heads = Mapping[str, Head | None]
"""Of each node whose chain is known its head, None for an empty chain; a node that did not answer is not there."""
Entries = list[dict[str, Any]]
"""What a node appends, in order: [{"record", "previous"}, ...]."""


@dataclass(frozen=True)
class Chain:
    """The chain that a new record follows. `head`: None while all chains are empty. `forks`: where another record has
    the same number, by node; `copy_fork`: the same of the controller's own copies."""

    head: dict[str, Any] | None
    forks: Mapping[str, TrisparkError]
    copy_fork: TrisparkError | None = None

    def require_one(self) -> None:
        """Raises TS-RECORD-FORK naming the first chain that is not the same."""
        for fork in (*self.forks.values(), *filter(None, [self.copy_fork])):
            raise fork


@dataclass(frozen=True)
class Plan:
    """`appends`: what each node can take now; `waiting`: why one cannot take all that it lacks."""

    appends: Mapping[str, Entries]
    waiting: Mapping[str, TrisparkError]


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
    return set_aside(cache)


def set_aside(cache: RecordCache, why: str = "until") -> Path:
    """Rename the controller's copy, which then is an empty one; its new name."""
    try:
        last = cache.list(limit=1)[0]
        name = f"records-{why}-{last['seq']}-{last['id']}"
    except (TrisparkError, IndexError):
        name = "records-unreadable"
    target = cache.directory.with_name(name)
    count = 1
    while target.exists():
        count += 1
        target = cache.directory.with_name(f"{name}-{count}")
    cache.directory.rename(target)
    return target


def leading_head(heads: Heads, cache: RecordCache) -> dict[str, Any] | None:
    """The head that a new record follows, None when all chains are empty. Raises TS-RECORD-FORK naming the chain that
    is not the same."""
    chain = judge(heads, cache)
    chain.require_one()
    return chain.head


def judge(heads: Heads, cache: RecordCache) -> Chain:
    """Which chain leads, and who has another one.

    It ends with the newest of the nodes' heads, or with the controller's when nothing says that it does not continue
    that: the controller keeps a record first, so one that was killed while appending has it and the nodes get it later.
    Where no node holds a record, or none answers, it is the controller's. Of different newest heads the one that the
    controller's copies name leads, else that of most nodes: something has to be followed where a record must be kept.
    """
    known = {node: head for node, head in sorted(heads.items()) if head}
    copy = cache.head()
    if not known:
        return Chain(copy, {})
    records = {int(record["seq"]): record for record in cache.list()}
    hashes = {seq: record_hash(record) for seq, record in records.items()}
    newest = max(int(head["seq"]) for head in known.values())
    newest_heads = {str(head["hash"]): dict(head) for head in known.values() if int(head["seq"]) == newest}
    votes = Counter(str(head["hash"]) for head in known.values() if int(head["seq"]) == newest)
    of_copy = {hashes.get(newest), _reached_from(copy, records, hashes).get(newest)} - {None}
    chosen = max(votes, key=lambda found: (found in of_copy, votes[found]))
    copy_fork = None
    if of_copy - {chosen}:
        other = next(found for found in of_copy if found not in (None, chosen))
        copy_fork = _fork(str(cache.directory), _named(newest, chosen), _named(newest, str(other)))
    leads = copy is not None and copy_fork is None and int(copy["seq"]) > newest
    lead = copy if copy is not None and leads else newest_heads[chosen]
    # Copies that the nodes contradict prove nothing.
    expected = {**hashes, **_reached_from(lead, records, hashes)} if copy_fork is None else {}
    expected[newest] = chosen
    forks = {
        node: _fork(node, _named(seq, expected[seq]), _named(seq, str(head["hash"])))
        for node, head in known.items()
        if (seq := int(head["seq"])) in expected and head["hash"] != expected[seq]
    }
    return Chain(lead, forks, copy_fork)


def _reached_from(
    head: Head | None, records: Mapping[int, Mapping[str, Any]], hashes: Mapping[int, str]
) -> dict[int, str]:
    """{number: hash} of a chain, from its head back as far as the copies go and the one before the last of them."""
    found: dict[int, str] = {}
    link: Mapping[str, Any] | None = head
    while link is not None:
        seq = int(link["seq"])
        found[seq] = str(link["hash"])
        if hashes.get(seq) != link["hash"]:
            break
        link = records[seq]["previous"]
    return found


def _named(seq: int, digest: str) -> str:
    return f"record {seq} {digest[:12]}"


def _fork(where: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-RECORD-FORK",
        "a record chain is not the one of the others",
        where=where,
        expected=expected,
        observed=observed,
        remedy="compare the records of the nodes and of the controller; one of them was changed",
    )


def appends(nodes: Collection[str], heads: Heads, cache: RecordCache, record: Mapping[str, Any]) -> Plan:
    """The new record, after what a node that was down has missed; nothing for one that cannot take it yet.

    One whose chain is not known gets the new record alone, and its agent says what is wrong.
    """
    older = [old for old in cache.list() if int(old["seq"]) < int(record["seq"])]
    return _plan(nodes, heads, cache, [*older, dict(record)], unknown=[dict(record)])


def behind(nodes: Collection[str], heads: Heads, cache: RecordCache) -> Plan:
    """What each node lacks of the controller's copies, as far as is known; nothing for one that cannot take it yet."""
    return _plan(nodes, heads, cache, cache.list(), unknown=[])


def _plan(nodes: Collection[str], heads: Heads, cache: RecordCache, records: Entries, unknown: Entries) -> Plan:
    found: dict[str, Entries] = {}
    waiting: dict[str, TrisparkError] = {}
    for node in sorted({*nodes, *heads}):
        missed = unknown
        if node in heads:
            missed = [record for record in records if int(record["seq"]) > _seq(heads[node])]
            problem = _unfit(node, heads[node], missed, cache)
            if problem is not None:
                waiting[node], missed = problem, []
        found[node] = [{"record": record, "previous": record["previous"]} for record in missed]
    return Plan(found, waiting)


def _unfit(node: str, head: Head | None, missed: Entries, cache: RecordCache) -> TrisparkError | None:
    """Why these records cannot follow a node's newest one; None when each follows the one before it."""
    link = None if head is None else {"seq": int(head["seq"]), "hash": str(head["hash"])}
    for record in missed:
        if int(record["seq"]) != _seq(link) + 1:
            return _lost(node, _seq(link) + 1, int(record["seq"]) - 1, cache)
        if record["previous"] != link:
            wanted = record["previous"]
            expected = _named(int(wanted["seq"]), str(wanted["hash"])) if wanted else "none"
            return _fork(node, expected, _named(_seq(link), str(link["hash"])) if link else "none")
        link = {"seq": int(record["seq"]), "hash": record_hash(record)}
    return None


def _seq(head: Head | None) -> int:
    return int(head["seq"]) if head else 0


def _lost(node: str, first: int, last: int, cache: RecordCache) -> TrisparkError:
    return TrisparkError(
        "TS-RECORD-LOST",
        "a node misses records that the controller does not hold; it gets the newer ones later",
        where=node,
        expected=f"records {first} to {last} in {cache.directory}",
        observed="not all of them",
        remedy="bring back a node that has them: the next boot gives them to the controller and this node; where none"
        " is left, move the controller's copies away and the next record follows the nodes",
    )


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


def is_level(heads: Heads, cache: RecordCache) -> bool:
    """Whether nodes and controller end with the same record, so that nothing has to be copied for the next one. Copies
    that are not there at all hinder nothing."""
    ends = {str(head["hash"]) if head else None for head in heads.values()}
    copy = cache.head()
    return len(ends) == 1 and (copy is None or copy["hash"] in ends)


def refuse_forked_copy(heads: Heads, cache: RecordCache) -> None:
    """Raises TS-RECORD-FORK where the controller's copy is not the nodes' chain: a boot could not be recorded."""
    for node, seq, held, hash_ in _conflicts(heads, cache):
        raise _fork(node, f"record {seq} {held[:12]}, as this controller's copy has it", f"record {seq} {hash_[:12]}")


def set_aside_forked_copy(heads: Heads, cache: RecordCache) -> Path | None:
    """Rename a copy that is not the nodes' chain: they hold the truth, and a rollback must not wait for a person. It is
    kept under `records-forked-<number>-<id>`."""
    if not _conflicts(heads, cache):
        return None
    return set_aside(cache, "forked")


def _conflicts(heads: Heads, cache: RecordCache) -> list[tuple[str, int, str, str]]:
    copies = {int(record["seq"]): record_hash(record) for record in cache.list()}
    known = [(node, int(head["seq"]), str(head["hash"])) for node, head in sorted(heads.items()) if head]
    return [(node, seq, copies[seq], hash_) for node, seq, hash_ in known if copies.get(seq, hash_) != hash_]
