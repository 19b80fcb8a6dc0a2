"""What a record keeps of the hashes of what runs: one hash a tree, and files only where ranks differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trispark.images.parity import compare

MOST_LISTED: Final = 200
"""Files of one tree and rank that a record lists; a whole engine differs in more, and its hash says so."""
MOST_TACTICS: Final = 200
Observations = Mapping[str, Mapping[str, Any] | None]


def of_nodes(observations: Observations, listed: Observations) -> dict[str, Mapping[str, Any]]:
    """{node: its hashes} from the observations that were asked for them, with every file where the node listed it."""
    found: dict[str, Mapping[str, Any]] = {}
    for node, seen in observations.items():
        again = ((listed.get(node) or {}).get("running") or {}).get("identity")
        identity = again or (seen or {}).get("identity")
        if identity:
            found[node] = identity
    return found


def compact(identities: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """{node: record_model.RankIdentity as JSON}."""
    nodes = dict(enumerate(sorted(identities)))
    names = ("source", "adapters", "libraries")
    kept: dict[str, dict[str, Any]] = {
        node: {
            **{name: _tree(identity.get(name)) for name in names},
            "autotune": _tactics(identity.get("autotune")),
            "seconds": float(identity.get("seconds") or 0.0),
            "differing": {},
        }
        for node, identity in identities.items()
    }
    for name in names:
        listed = {rank: (identities[node].get(name) or {}).get("listed") for rank, node in nodes.items()}
        if not all(isinstance(each, Mapping) for each in listed.values()):
            continue
        # Ranks need not load the same libraries (trispark.images.parity.libraries).
        counts = (lambda _path: False) if name == "libraries" else (lambda _path: True)
        odd = compare({rank: dict(each or {}) for rank, each in listed.items()}, nodes, counts)
        paths = sorted({each.path for every in odd.odd.values() for each in every})[:MOST_LISTED]
        for rank, node in nodes.items():
            if paths:
                own = listed[rank] or {}
                kept[node]["differing"][name] = {path: own.get(path) for path in paths}
    return kept


def _tree(tree: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not tree:
        return None
    return {
        "hash": tree.get("hash"),
        "files": int(tree.get("files") or 0),
        "bytes": int(tree.get("bytes") or 0),
        "problem": str(tree.get("problem") or ""),
    }


def _tactics(tree: Mapping[str, Any] | None) -> dict[str, str]:
    """{file: sha256}."""
    listed = dict((tree or {}).get("listed") or {})
    return {path: str(listed[path]) for path in sorted(listed)[:MOST_TACTICS]}
