"""Verb `backup`: this node's state as one tar.gz, handed out in the answer. It changes nothing on the node.

What is in it is small (records, generations, marks; some MB); logs, caches, images and shards are not. It holds
secrets: the environment of engines that were taken over. `MANIFEST` names every file with its hash, the site and the
node.
"""

from __future__ import annotations

import base64
import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node import VERSION, records
from trispark_node.canonical import canonical_json, sha256_hex
from trispark_node.errors import AgentError
from trispark_node.fields import NAME, Fields
from trispark_node.lock import held
from trispark_node.node import Node
from trispark_node.regular_file import read_regular

MANIFEST = "MANIFEST.json"
SCHEMA_VERSION = 1
PARTS = (
    *("adopted", "baseline.json", "current", "epoch", "generations"),
    *("good.jsonl", "journal.jsonl", "provenance", "records", "site.json"),
)
"""Names below the root that a backup holds; those that are not there are left out."""
OUTSIDE = ("engine.log",)
"""Files of a part that are no state: logs of engines that were taken over."""
MOST_BYTES = 256 * 2**20
"""Of all files together, before they are packed."""
LOCK_WAIT_S = 30.0


@dataclass(frozen=True)
class BackupRequest:
    site: str
    node: str

    @classmethod
    def parse(cls, fields: Fields) -> BackupRequest:
        return cls(fields.text("site", pattern=NAME), fields.text("node", pattern=NAME))


def backup(node: Node, request: BackupRequest) -> dict[str, Any]:
    """{"content": base64 of the tar.gz, "sha256", "bytes", "files", "head"}.

    Raises TS-BACKUP-NOTHING, TS-BACKUP-SIZE, and TS-RECORD-CHAIN: what could not be restored is no backup.
    """
    if not node.layout.root.is_dir():
        raise _nothing(node)
    with held(node.layout.lock("state"), node.clock, LOCK_WAIT_S, "backup"):
        chain = records.chain(node)
        members = dict(_members(node))
    if not members:
        raise _nothing(node)
    head = chain[-1].head() if chain else None
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "site": request.site,
        "node": request.node,
        "agent": VERSION,
        "time": node.clock.now(),
        "head": head,
        "files": {name: _entry(member) for name, member in members.items()},
    }
    content = pack({**members, MANIFEST: Member(0o600, canonical_json(manifest) + b"\n", None)})
    return {
        "content": base64.b64encode(content).decode("ascii"),
        "sha256": sha256_hex(content),
        "bytes": len(content),
        "files": len(members),
        "head": head,
    }


@dataclass(frozen=True)
class Member:
    """A regular file, or a link where `link` is its target."""

    mode: int
    data: bytes
    link: str | None


def _entry(member: Member) -> dict[str, Any]:
    if member.link is not None:
        return {"link": member.link}
    return {"mode": f"{member.mode:o}", "sha256": sha256_hex(member.data)}


def pack(members: dict[str, Member]) -> bytes:
    """The same members give the same bytes."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, member in sorted(members.items()):
            entry = tarfile.TarInfo(name)
            entry.mode = member.mode
            if member.link is not None:
                entry.type, entry.linkname = tarfile.SYMTYPE, member.link
            entry.size = len(member.data)
            archive.addfile(entry, io.BytesIO(member.data))
    return buffer.getvalue()


def _members(node: Node) -> Iterator[tuple[str, Member]]:
    total = 0
    for part in PARTS:
        for path in _files(node.layout.root / part):
            name = path.relative_to(node.layout.root).as_posix()
            if path.is_symlink():
                yield name, Member(0o777, b"", os.readlink(path))  # noqa: PTH115 - the text, unresolved
                continue
            data = read_regular(path)
            total += len(data)
            if total > MOST_BYTES:
                raise AgentError(
                    "TS-BACKUP-SIZE",
                    "this node's state is too large for a backup",
                    where=str(path),
                    expected=f"at most {MOST_BYTES} bytes in all",
                    observed=f"{total} bytes up to this file",
                    remedy="remove what does not belong there, or generations that nobody needs (prune), then again",
                )
            yield name, Member(stat.S_IMODE(path.stat().st_mode), data, None)


def _files(path: Path) -> Iterator[Path]:
    """Regular files and links; hidden ones, which an interrupted change left, are not state."""
    if path.is_symlink() or path.is_file():
        yield path
    elif path.is_dir():
        for each in sorted(path.iterdir()):
            if not each.name.startswith(".") and each.name not in OUTSIDE:
                yield from _files(each)


def _nothing(node: Node) -> AgentError:
    return AgentError(
        "TS-BACKUP-NOTHING",
        "this node has no state to back up",
        where=str(node.layout.root),
        expected=", ".join(PARTS),
        observed="none of them",
        remedy="it needs none; ./trispark play restore gives it the state of an earlier backup",
    )
