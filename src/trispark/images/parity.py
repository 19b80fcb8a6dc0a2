"""Compares what ranks hold, file by file: with a majority the odd ranks are named, without one all of them.

A file is known by its path and a text: its sha256, or what stands in its place. Nothing else is known here of images.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

MOST_NAMED: Final = 5
"""Files of one rank that a line names; how many more there are is said."""
SHORT: Final = 12
"""Hexadecimal digits of a hash that a line shows."""

Files = Mapping[str, str]


@dataclass(frozen=True)
class Odd:
    """One file that a rank has otherwise: `own` is None where it lacks it; `others` has what the other ranks have, each
    with the names of their nodes."""

    path: str
    own: str | None
    others: Mapping[str | None, tuple[str, ...]]

    def words(self) -> str:
        """`a.py is 12ab…, spark0, spark2 have 34cd…`; `missing` and `not there` in place of a hash."""
        own = "missing" if self.own is None else f"is {_shown(self.own)}"
        others = "; ".join(
            f"{', '.join(nodes)} {'has' if len(nodes) == 1 else 'have'} {'none' if value is None else _shown(value)}"
            for value, nodes in self.others.items()
        )
        return f"{self.path} {own}, {others}"


@dataclass(frozen=True)
class Compared:
    """`odd`: by rank, what it has otherwise, in the order of the paths; a rank that is missing here agrees.
    `majority`: whether the ranks that agree are more than half."""

    odd: Mapping[int, tuple[Odd, ...]]
    majority: bool

    @property
    def equal(self) -> bool:
        return not self.odd

    def words(self, rank: int, node: str) -> str:
        """What is odd on a rank, bounded; empty when nothing is."""
        found = self.odd.get(rank, ())
        if not found:
            return ""
        named = "; ".join(each.words() for each in found[:MOST_NAMED])
        more = len(found) - MOST_NAMED
        who = f"the odd node {node}" if self.majority else f"no majority, {node}"
        return f"{who}: {named}" + (f"; and {more} more" if more > 0 else "")


def compare(
    files: Mapping[int, Files], nodes: Mapping[int, str], counts: Callable[[str], bool] = lambda _path: True
) -> Compared:
    """Of the ranks' files. A path for which `counts` says no may be missing on a rank, but is the same where it is."""
    odd: dict[int, list[Odd]] = {}
    majority = True
    for path in sorted({path for each in files.values() for path in each}):
        held: dict[int, str | None] = {rank: each.get(path) for rank, each in files.items()}
        if not counts(path):
            held = {rank: value for rank, value in held.items() if value is not None}
        common, found = most(held)
        majority = majority and (found or len(set(held.values())) < 2)
        for rank, value in held.items():
            if len(set(held.values())) > 1 and (not found or value != common):
                odd.setdefault(rank, []).append(Odd(path, value, _others(held, rank, nodes)))
    return Compared({rank: tuple(each) for rank, each in sorted(odd.items())}, majority)


def most(values: Mapping[int, str | None]) -> tuple[str | None, bool]:
    """(what more than half of the ranks have, whether there is such a thing)."""
    for value, count in Counter(values.values()).items():
        if count * 2 > len(values):
            return value, True
    return None, False


def _others(held: Mapping[int, str | None], rank: int, nodes: Mapping[int, str]) -> dict[str | None, tuple[str, ...]]:
    found: dict[str | None, list[str]] = {}
    for other, value in held.items():
        if other != rank and value != held[rank]:
            found.setdefault(value, []).append(nodes[other])
    return {value: tuple(names) for value, names in found.items()}


def _shown(value: str) -> str:
    return value[:SHORT] if re.fullmatch("[0-9a-f]{64}", value) else value


def against(planned: Files, files: Mapping[int, Files], nodes: Mapping[int, str]) -> dict[int, str]:
    """By rank, in words, how its files differ from the planned ones, bounded; nothing where they are just these."""
    found: dict[int, str] = {}
    for rank, each in files.items():
        if each == planned:
            continue
        words = [f"{path} missing" for path in sorted(set(planned) - set(each))]
        words += [f"{path} not planned, it is {_shown(each[path])}" for path in sorted(set(each) - set(planned))]
        words += [
            f"{path} is {_shown(each[path])}, planned {_shown(planned[path])}"
            for path in sorted(set(planned) & set(each))
            if planned[path] != each[path]
        ]
        more = len(words) - MOST_NAMED
        found[rank] = f"{nodes[rank]}: {'; '.join(words[:MOST_NAMED])}" + (f"; and {more} more" if more > 0 else "")
    return found


Identity = Mapping[str, Any]
"""What the agent says of a running container (trispark_node.parity.inside)."""
TREES: Final = ("source", "adapters")
NO_FILES: Final = hashlib.sha256(b"").hexdigest()
"""The hash of a tree in which nothing is."""


@dataclass(frozen=True)
class TreeCheck:
    """`problems`: by rank, in words; empty when all ranks have one tree. `hashes`: of the whole tree, by rank."""

    problems: Mapping[int, str]
    hashes: Mapping[int, str | None]


def trees(name: str, identities: Mapping[int, Identity], nodes: Mapping[int, str]) -> TreeCheck:
    """One tree (`source` or `adapters`) of all ranks. Files are named where the ranks listed them."""
    found = {rank: (identities.get(rank) or {}).get(name) or {} for rank in nodes}
    hashes = {rank: _hash(each) for rank, each in found.items()}
    problems = {
        rank: str(each.get("problem") or "it was not read") for rank, each in found.items() if hashes[rank] is None
    }
    if name == "source":
        # Nothing is equal to nothing on every rank; what runs has sources.
        problems |= {rank: "no file is there" for rank in nodes if hashes[rank] == NO_FILES}
    listed = {rank: each["listed"] for rank, each in found.items() if isinstance(each.get("listed"), Mapping)}
    if len(listed) == len(nodes):
        compared = compare(listed, nodes)
        odd = {rank: compared.words(rank, node) for rank, node in nodes.items() if rank in compared.odd}
    else:
        compared = compare({rank: {"its tree": value} for rank, value in hashes.items() if value is not None}, nodes)
        odd = {rank: compared.words(rank, node) for rank, node in nodes.items() if rank in compared.odd}
    return TreeCheck({**odd, **problems}, hashes)


def _hash(tree: Mapping[str, Any]) -> str | None:
    value = tree.get("hash")
    return str(value) if value else None


def differ(identities: Mapping[str, Identity | None]) -> bool:
    """Whether two nodes that answered have other trees, so that it is worth asking for every file of them."""
    known = [each for each in identities.values() if each]
    return any(len({_hash(each.get(name) or {}) for each in known}) > 1 for name in TREES)


def libraries(
    identities: Mapping[int, Identity],
    nodes: Mapping[int, str],
    same_set: Sequence[str],
    needed: Sequence[str] = (),
) -> tuple[Compared, dict[int, str]]:
    """(what the ranks have otherwise, problems by rank) of the native code that their processes have loaded.

    The head serves an API that the others do not have, so ranks need not load the same files; one that several have
    must be the same. What a pattern of `same_set` names is loaded from the same places on all ranks as well.
    Of each pattern of `needed` every rank has loaded something: ranks that all lack it are equal, and wrong.
    """
    listed = {rank: dict((each.get("libraries") or {}).get("listed") or {}) for rank, each in identities.items()}
    problems: dict[int, str] = {}
    for rank in nodes:
        unread = sorted(path for path, value in listed.get(rank, {}).items() if not re.fullmatch("[0-9a-f]{64}", value))
        if not listed.get(rank):
            problems[rank] = "no loaded library was seen"
        elif unread:
            problems[rank] = "; ".join(f"{path} {listed[rank][path]}" for path in unread[:MOST_NAMED])
        elif lacking := [pattern for pattern in needed if not any(fnmatchcase(path, pattern) for path in listed[rank])]:
            problems[rank] = f"nothing is loaded that matches {', '.join(lacking)}"
    return compare(listed, nodes, lambda path: matches(path, same_set)), problems


def matches(path: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
