"""Native code that the engine's processes have loaded, from the kernel's tables of their memory.

What the process has mapped is what runs, whichever search path was meant to win.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node.file_tree import hash_file, hash_of
from trispark_node.inside import open_inside

MOST = 4_000
"""Libraries of one engine; a process that maps more has something else mapped."""
_DELETED = " (deleted)"
_NO_FILES = ("/memfd:", "/dev/", "/SYSV", "/anon_hugepage", "/[")
_SCRATCH = ("/tmp", "/var/tmp", "/run")
GONE = "replaced or removed since it was loaded"


@dataclass(frozen=True)
class Loaded:
    """One file of which a process has executable memory. `pid`: one that has it; `gone`: it lies there no more."""

    path: str
    pid: int
    gone: bool


def loaded(procfs: Path, pids: Collection[int]) -> list[Loaded]:
    """By path; a process that has ended meanwhile has none."""
    found: dict[str, Loaded] = {}
    for pid in pids:
        try:
            text = (procfs / str(pid) / "maps").read_bytes().decode("utf-8", "surrogateescape")
        except OSError:
            continue
        for line in text.splitlines():
            each = _of_line(line, pid)
            if each is not None and (each.path not in found or each.gone):
                found[each.path] = each
    return sorted(found.values(), key=lambda each: each.path)


def _of_line(line: str, pid: int) -> Loaded | None:
    """`address perms offset device inode   path`; only executable memory of files counts."""
    columns = line.split(maxsplit=5)
    if len(columns) < 6 or "x" not in columns[1] or columns[4] == "0":
        return None
    path = columns[5]
    if not path.startswith("/") or path.startswith(_NO_FILES):
        return None
    gone = path.endswith(_DELETED)
    return Loaded(path.removesuffix(_DELETED), pid, gone)


def hashed(procfs: Path, pids: Collection[int], made_here: Sequence[str]) -> dict[str, Any]:
    """{"hash", "files": number, "bytes", "listed" {path: sha256}, "made_here": [paths]}.

    `made_here`: directories into which the engine itself writes. What it compiled there is of this node, and no two
    compilers' outputs need be equal: such files are named and not hashed, as are those of a scratch directory.
    """
    apart = tuple(f"{place.rstrip('/')}/" for place in (*made_here, *_SCRATCH))
    listed: dict[str, str] = {}
    own: list[str] = []
    size = 0
    for each in loaded(procfs, pids)[:MOST]:
        if each.path.startswith(apart):
            own.append(each.path)
        elif each.gone:
            listed[each.path] = GONE
        else:
            listed[each.path], read = _digest(procfs / str(each.pid) / "root", each.path)
            size += read
    return {"hash": hash_of(listed), "files": len(listed), "bytes": size, "listed": listed, "made_here": own}


def _digest(root: Path, path: str) -> tuple[str, int]:
    try:
        descriptor = open_inside(root, path)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}", 0
    try:
        return hash_file(descriptor)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}", 0
    finally:
        os.close(descriptor)
