"""What is around a rank's shards: other files of their kind, the checkpoint's file system, the engine that runs."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trispark_node.clock import Clock
from trispark_node.containers import ROLE_ENGINE, own
from trispark_node.errors import AgentError
from trispark_node.node import Node
from trispark_node.shard_format import FILE_NAME, MANIFEST_SUFFIX, PARTIAL_SUFFIX
from trispark_node.share_mounts import Mounted, parse_mounts

NETWORK_FSTYPES = frozenset(
    ("9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs", "wekafs")
)
KINDS = {"": "shard", MANIFEST_SUFFIX: "manifest", PARTIAL_SUFFIX: "partial"}


def others(directory: Path, names: Iterable[str], clock: Clock) -> list[dict[str, Any]]:
    """Files of shards that are none of this rank's, such as those of another TP size, and what packing left; by name.

    They are reported, never removed. `age_days` since their last change.
    """
    own_names = set(names)
    known = {*own_names, *(name + MANIFEST_SUFFIX for name in own_names)}
    now = datetime.fromisoformat(clock.now().replace("Z", "+00:00")).timestamp()
    found = []
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for entry in entries:
        match = FILE_NAME.fullmatch(entry.name)
        if match is None or entry.name in known:
            continue
        facts = entry.stat(follow_symlinks=False)
        kind = KINDS[match["suffix"] or ""] if stat.S_ISREG(facts.st_mode) else "no file"
        modified = datetime.fromtimestamp(facts.st_mtime, timezone.utc)
        found.append(
            {
                "file": entry.name,
                "kind": kind,
                "bytes": facts.st_size,
                "modified": modified.isoformat(timespec="seconds").replace("+00:00", "Z"),
                "age_days": round(max(now - facts.st_mtime, 0.0) / 86400, 1),
            }
        )
    return found


def network(procfs: Path, path: Path, reads_bytes: int) -> dict[str, Any] | None:
    """The network file system on which `path` lies, and how many bytes are read over it; None for a local one.

    By the kernel's table alone, so that a dead server cannot hold it up.
    """
    try:
        text = (procfs / "self" / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    mount = _mount_of(parse_mounts(text), path)
    if mount is None:
        return None
    fuse = mount.fstype == "fuse" or mount.fstype.startswith("fuse.")
    if mount.fstype not in NETWORK_FSTYPES and not fuse:
        return None
    return {"fstype": mount.fstype, "source": mount.source, "mounted_at": mount.target, "reads_bytes": reads_bytes}


def _mount_of(mounts: Iterable[Mounted], path: Path) -> Mounted | None:
    """The innermost one above `path`; of several on one place the last."""
    found = None
    for mount in mounts:
        above = mount.target == "/" or path == Path(mount.target) or Path(mount.target) in path.parents
        if above and (found is None or len(mount.target) >= len(found.target)):
            found = mount
    return found


def refuse_other_mount(node: Node, target: str, directory: Path) -> None:
    """Where an engine of ours runs, what it has mounted at `target` must be `directory`. Raises TS-ENGRAM-MOUNT."""
    for container in own(node.docker, ROLE_ENGINE):
        if not container.alive:
            continue
        sources = [mount.source for mount in container.mounts if mount.target == target]
        if sources != [str(directory)]:
            raise AgentError(
                "TS-ENGRAM-MOUNT",
                "the running engine reads its shards from another directory than the site declares",
                where=f"container {container.name}, mount {target}",
                expected=str(directory),
                observed=", ".join(sources) or "no such mount",
                remedy="correct site_engram_dir (or node_engram_dir), or boot again so that the engine mounts it",
            )


def serving(node: Node, directory: Path) -> list[str]:
    """Names of engines of ours that run and have mounted `directory`; they keep the files that they have opened.

    None is named where the Docker Engine does not answer: what lies on the disk is known all the same.
    """
    try:
        containers = own(node.docker, ROLE_ENGINE)
    except AgentError:
        return []
    return [
        container.name
        for container in containers
        if container.alive and any(mount.source == str(directory) for mount in container.mounts)
    ]
