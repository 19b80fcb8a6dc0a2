"""Backups of the nodes' state on the controller: `.trispark/<site>/backups/<time>/<node>.tar.gz`, the newest ten.

They hold what the agent's verb `backup` hands out, secrets of taken over engines among it: for this user alone.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.host.state import private_directory
from trispark.tar_file import write_new

KEPT: Final = 10
MANIFEST: Final = "backup.json"
ANSWER: Final = ".answer.json"
_NAME: Final = re.compile(r"\d{8}T\d{6}Z(-\d+)?")
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def directory_of(root: Path, site: str) -> Path:
    return root / ".trispark" / site / "backups"


def keep(directory: Path, site: str, nodes: Sequence[str]) -> dict[str, Any]:
    """Turn what each node answered into its archive, write the manifest and remove what is older than the newest ten.

    {"nodes": {node: {"bytes", "sha256", "head"}}, "missing": [node], "removed": [name]}. A node that gave no answer is
    missing; the others are kept. Raises TS-BACKUP-ANSWER for an answer that is not what its hash says.
    """
    kept: dict[str, Any] = {}
    for node in nodes:
        path = directory / f"{node}{ANSWER}"
        if path.is_file():
            kept[node] = _archive(directory, node, path)
    if kept:
        private_directory(directory.parent)
        content = {"schema_version": 1, "site": site, "nodes": kept}
        write_new(directory / MANIFEST, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
    elif directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()
    return {"nodes": kept, "missing": [node for node in nodes if node not in kept], "removed": prune(directory.parent)}


def _archive(directory: Path, node: str, path: Path) -> dict[str, Any]:
    """The answer's content in a file of its own; the answer, which says the same, is gone then."""
    try:
        answer = json.loads(path.read_text(encoding="utf-8"))
        content = base64.b64decode(answer["content"], validate=True)
        digest, head = str(answer["sha256"]), answer["head"]
    except (OSError, ValueError, KeyError, TypeError, binascii.Error) as error:
        raise _odd(node, f"{type(error).__name__}: {error}") from None
    finally:
        path.unlink(missing_ok=True)
    if sha256(content).hexdigest() != digest:
        raise _odd(node, "content of another hash")
    write_new(directory / f"{node}.tar.gz", content)
    return {"bytes": len(content), "sha256": digest, "head": head}


def prune(backups: Path, count: int = KEPT) -> list[str]:
    """Names of the removed; what does not look like a backup of ours stays, as do the newest `count` that are whole and
    all that are newer."""
    if not backups.is_dir():
        return []
    found = sorted(path for path in backups.iterdir() if _NAME.fullmatch(path.name) and not path.is_symlink())
    whole = [path for path in found if (path / MANIFEST).is_file()]
    if len(whole) < count:
        return []
    oldest = whole[-count]
    removed = [path for path in found if path.name < oldest.name]
    for path in removed:
        shutil.rmtree(path)
    return [path.name for path in removed]


def archive_of(root: Path, site: str, backup: str, node: str) -> bytes:
    """The archive of one node, whole as it was written. `backup`: a directory, or its name below `backups/`.

    Raises TS-BACKUP-UNKNOWN and TS-BACKUP-DAMAGED.
    """
    place = Path(backup).expanduser()
    directory = place if place.is_absolute() or len(place.parts) > 1 else directory_of(root, site) / place
    if not directory.is_absolute():
        directory = root / directory
    manifest = directory / MANIFEST
    try:
        read = json.loads(manifest.read_text(encoding="utf-8"))
        listed: Mapping[str, Any] = read["nodes"]
    except FileNotFoundError:
        raise _unknown(root, site, str(manifest)) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(manifest, f"{type(error).__name__}: {error}") from None
    if _NODE.fullmatch(node) is None or node not in listed:
        raise TrisparkError(
            "TS-BACKUP-UNKNOWN",
            f"the backup has nothing of node {node}",
            where=str(directory),
            expected=f"one of {', '.join(sorted(listed)) or 'no node'}",
            observed=node,
            remedy="name another node or another backup",
        )
    path = directory / f"{node}.tar.gz"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from None
    if sha256(content).hexdigest() != listed[node].get("sha256"):
        raise _damaged(path, "another hash than the manifest has")
    return content


def lines(kept: Mapping[str, Any], directory: Path) -> list[str]:
    """For a person."""
    found = []
    for node, about in sorted(kept["nodes"].items()):
        head = about["head"]
        newest = f"records up to {head['seq']}" if head else "no records"
        found.append(f"{node}  {about['bytes']} bytes, {newest}")
    found += [f"{node}  missing" for node in kept["missing"]]
    found += [f"removed an older one: {name}" for name in kept["removed"]]
    if kept["nodes"]:
        found.append(f"{directory}; it holds secrets, for you alone")
    return found


def missing(nodes: Sequence[str]) -> TrisparkError:
    return TrisparkError(
        "TS-BACKUP-MISSING",
        "a node is not in the backup",
        where=", ".join(nodes),
        expected="its state",
        observed="no answer, or a refusal",
        remedy="bring the node back, then make another one; the other nodes are kept",
    )


def _unknown(root: Path, site: str, where: str) -> TrisparkError:
    backups = directory_of(root, site)
    known = sorted(path.name for path in backups.iterdir()) if backups.is_dir() else []
    return TrisparkError(
        "TS-BACKUP-UNKNOWN",
        "there is no such backup",
        where=where,
        expected=f"one of {', '.join(known[-KEPT:])}" if known else "a backup",
        observed="nothing",
        remedy="-e backup=NAME of one of them, or a directory" if known else "./trispark play backup makes one",
    )


def _damaged(path: Path, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-BACKUP-DAMAGED",
        "the backup is not what was written",
        where=str(path),
        expected=f"what {MANIFEST} says",
        observed=observed,
        remedy="take another backup; the records are on the other nodes, too",
    )


def _odd(node: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-BACKUP-ANSWER",
        "a node's backup did not arrive as it was sent",
        where=node,
        expected="content of the hash that goes with it",
        observed=observed,
        remedy="make another backup",
    )
