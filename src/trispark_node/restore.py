"""Verb `restore`: gives a node the state of a backup of its own, after its disk was replaced.

Everything is judged before anything is touched: hashes, whose backup it is, and the chain of records in a directory
beside the state. Then part after part is put in place by a rename. The journal comes first and gets the intent as its
next line, so that a restore which was cut off is known as begun, and the same request completes it.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trispark_node import epoch, records
from trispark_node.backup import MANIFEST, MOST_BYTES, PARTS, SCHEMA_VERSION
from trispark_node.canonical import canonical_json, sha256_hex
from trispark_node.containers import ROLE_ENGINE, own
from trispark_node.errors import AgentError
from trispark_node.fields import NAME, Fields
from trispark_node.journal import DONE, INTENT
from trispark_node.layout import SHARED_DIRECTORY_MODE, STATE_DIRECTORY_MODE, Layout
from trispark_node.lock import held
from trispark_node.mutation import Mode
from trispark_node.node import Node
from trispark_node.plain_json import parse_json

VERB = "restore"
RESTORED = "restored"
"""In the place of the boot for which an epoch was taken."""
_STATE = ("adopted", "baseline.json", "current", "generations", "good.jsonl", "provenance", "records")
"""Parts by which a node has state. An epoch, a journal and the site's facts a node gets by its first verb."""
_PATH = re.compile(r"(?!.*(^|/)\.{1,2}(/|$))[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_SHARED = re.compile(r"generations/[^/]+/adapters(/|$)")


@dataclass(frozen=True)
class RestoreRequest:
    """`replace`: also on a node that has state, which is gone then."""

    site: str
    node: str
    content: bytes
    replace: bool

    @classmethod
    def parse(cls, fields: Fields) -> RestoreRequest:
        text = fields.text("content")
        try:
            content = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise _damaged("request.content", "base64", "something else") from None
        return cls(
            fields.text("site", pattern=NAME),
            fields.text("node", pattern=NAME),
            content,
            fields.boolean("replace", False),
        )


@dataclass(frozen=True)
class Backup:
    """A backup that was read whole: files by path, `current`'s target, the manifest."""

    files: Mapping[str, tuple[int, bytes]]
    links: Mapping[str, str]
    manifest: Mapping[str, Any]
    sha256: str


def restore(node: Node, request: RestoreRequest, mode: Mode) -> dict[str, Any]:
    """Raises TS-RESTORE-DAMAGED, -NODE, -STATE, -ENGINE, -RECORDS before anything is changed."""
    backup = unpack(request.content)
    _refuse_other(backup, request)
    if mode.check:
        return _plan(node, backup, request)
    node.disk.make_directory(node.layout.root)
    with held(node.layout.lock("state"), node.clock, mode.lock_wait_s, VERB):
        planned = _plan(node, backup, request)
        if planned["changed"]:
            _apply(node, backup)
    return planned


def unpack(content: bytes) -> Backup:
    """Raises TS-RESTORE-DAMAGED for what is not exactly what a manifest of ours says."""
    files: dict[str, tuple[int, bytes]] = {}
    links: dict[str, str] = {}
    try:
        plain = gzip.GzipFile(fileobj=io.BytesIO(content)).read(2 * MOST_BYTES)
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
            for entry in archive:
                if _PATH.fullmatch(entry.name) is None or entry.name in files or entry.name in links:
                    raise _damaged(entry.name, "a path below the root, once", "another one")
                if entry.issym():
                    links[entry.name] = entry.linkname
                    continue
                file = archive.extractfile(entry) if entry.isreg() else None
                if file is None:
                    raise _damaged(entry.name, "a regular file or a link", "something else")
                files[entry.name] = (entry.mode & 0o777, file.read())
        _, text = files.pop(MANIFEST)
        manifest = parse_json(text)
        listed = dict(manifest["files"])
        version = manifest["schema_version"]
    except (OSError, EOFError, tarfile.TarError, KeyError, ValueError, TypeError) as error:
        raise _damaged("the archive", f"a tar.gz with {MANIFEST}", f"{type(error).__name__}: {error}") from error
    if version != SCHEMA_VERSION:
        raise _damaged(MANIFEST, f"schema_version {SCHEMA_VERSION}", str(version))
    found: dict[str, Any] = {
        name: {"mode": f"{mode:o}", "sha256": sha256_hex(data)} for name, (mode, data) in files.items()
    }
    found.update({name: {"link": target} for name, target in links.items()})
    odd = sorted(name for name in {*found, *listed} if found.get(name) != listed.get(name))
    odd += sorted(name for name in found if name.split("/")[0] not in PARTS or (name in links and name != "current"))
    if odd:
        raise _damaged(odd[0], "the file as the manifest has it", "another one, or none")
    return Backup(files, links, manifest, sha256_hex(content))


def _refuse_other(backup: Backup, request: RestoreRequest) -> None:
    wanted, found = (request.site, request.node), (backup.manifest.get("site"), backup.manifest.get("node"))
    if wanted != found:
        raise AgentError(
            "TS-RESTORE-NODE",
            "the backup is of another node or site",
            where="the backup",
            expected=f"site {wanted[0]}, node {wanted[1]}",
            observed=f"site {found[0]}, node {found[1]}",
            remedy="give this node its own backup",
        )


def _plan(node: Node, backup: Backup, request: RestoreRequest) -> dict[str, Any]:
    parts = sorted({name.split("/")[0] for name in (*backup.files, *backup.links)})
    goes_on = _begun(node) == backup.sha256
    there = [name for name in _STATE if _exists(node.layout.root / name)]
    if there and not goes_on:
        if _same(node, backup, parts):
            return {"changed": False, "parts": parts, "replaced": []}
        if not request.replace:
            raise AgentError(
                "TS-RESTORE-STATE",
                "this node has state of its own",
                where=str(node.layout.root),
                expected="a node without state, after its disk was replaced",
                observed=", ".join(there),
                remedy="-e replace=true, when all of it may go",
            )
    alive = [container.name for container in own(node.docker, ROLE_ENGINE) if container.alive]
    if alive:
        raise AgentError(
            "TS-RESTORE-ENGINE",
            "an engine of ours runs on this node",
            where=", ".join(alive),
            expected="none",
            observed="one that runs",
            remedy="./trispark play stop first",
        )
    _refuse_newer_records(node, backup)
    return {"changed": True, "parts": parts, "replaced": [] if goes_on else there}


def _exists(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _begun(node: Node) -> str | None:
    """Hash of the backup with which a restore was begun and not ended."""
    pending = [entry for entry in node.journal.read().pending() if entry.verb == VERB]
    found = pending[-1].detail.get("sha256") if pending else None
    return found if isinstance(found, str) else None


def _same(node: Node, backup: Backup, parts: list[str]) -> bool:
    """Whether the node holds all of the backup already, and perhaps more; journal and epoch have gone on."""
    for name, (_, data) in backup.files.items():
        path = node.layout.root / name
        if name in ("journal.jsonl", "epoch"):
            continue
        if path.is_symlink() or not path.is_file() or path.read_bytes() != data:
            return False
    return all((node.layout.root / name).is_symlink() for name in backup.links) and bool(parts)


def _refuse_newer_records(node: Node, backup: Backup) -> None:
    """Records are never lost by a restore: a chain that is whole and goes beyond the backup's stays."""
    try:
        chain = records.chain(node)
    except AgentError:
        return  # damaged: that is what a backup is for
    kept = {f"records/{stored.seq:06d}-{stored.id}.json" for stored in chain}
    lost = sorted(kept - set(backup.files))
    if lost:
        raise AgentError(
            "TS-RESTORE-RECORDS",
            "this node has records that the backup does not have",
            where=str(node.layout.records),
            expected="only records of the backup",
            observed=f"{len(lost)} more, the first {lost[0]}",
            remedy="take a newer backup; or, when they are of no use, move that directory away on the node",
        )


def _apply(node: Node, backup: Backup) -> None:
    disk, root, staging = node.disk, node.layout.root, node.layout.restoring
    staged = _unpacked(node, backup)
    number = max(epoch.read(staged).number, epoch.read(node).number)
    seq = _intent(node, backup)
    if number:
        # Of no boot that could start: the next one has to fence anew.
        disk.replace(node.layout.epoch, canonical_json({"boot_id": RESTORED, "epoch": number}) + b"\n")
    for part in PARTS:
        if part not in ("journal.jsonl", "epoch", "current"):
            _put(node, staging / part, root / part)
    if "current" in backup.links:
        disk.replace_link(node.layout.current, backup.links["current"])
    else:
        disk.remove_file(node.layout.current)
    disk.remove_tree(node.layout.restore_replaced)
    disk.remove_tree(staging)
    node.journal.append(VERB, DONE, {"intent": seq})


def _unpacked(node: Node, backup: Backup) -> Node:
    """A node whose root is the unpacked backup. Raises TS-RECORD-CHAIN when its records are no chain."""
    disk, staging = node.disk, node.layout.restoring
    disk.remove_tree(staging)
    disk.make_directory(staging, STATE_DIRECTORY_MODE)
    for name, (mode, data) in sorted(backup.files.items()):
        path = staging / name
        shared = _SHARED.match(name) is not None
        disk.make_directory(path.parent, SHARED_DIRECTORY_MODE if shared else STATE_DIRECTORY_MODE)
        disk.write_new(path, data, mode)
    staged = replace(node, layout=Layout(staging))
    try:
        records.chain(staged)
        epoch.read(staged)
    except AgentError:
        disk.remove_tree(staging)
        raise
    return staged


def _intent(node: Node, backup: Backup) -> int:
    """The number of this restore's line in the journal of the backup, which is the node's from then on."""
    if _begun(node) == backup.sha256:
        return next(entry.seq for entry in reversed(node.journal.read().pending()) if entry.verb == VERB)
    journal = backup.files.get("journal.jsonl")
    if journal is not None:
        node.disk.replace(node.layout.journal, _whole_lines(journal[1]))
    return node.journal.append(VERB, INTENT, {"sha256": backup.sha256})


def _whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def _put(node: Node, source: Path, target: Path) -> None:
    """What the backup has in place of what is there; what it does not have goes."""
    disk = node.disk
    if _exists(target):
        aside = node.layout.restore_replaced / target.name
        disk.make_directory(aside.parent)
        if aside.is_dir():
            disk.remove_tree(aside)
        disk.rename(target, aside)
    if source.exists():
        disk.rename(source, target)


def _damaged(where: str, expected: str, observed: str) -> AgentError:
    return AgentError(
        "TS-RESTORE-DAMAGED",
        "the backup is not what was written",
        where=where,
        expected=expected,
        observed=observed[:200],
        remedy="take another backup; the records are on the other nodes, too",
    )
