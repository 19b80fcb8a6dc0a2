"""Native code that the engine's processes have loaded, from the kernel's tables of their memory.

What the process has mapped is what runs, whichever search path was meant to win.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trispark_node.file_tree import hash_file, hash_of
from trispark_node.inside import open_inside

MOST = 4_000
"""Libraries of one engine; a process that maps more has something else mapped."""
_DELETED = " (deleted)"
_NO_FILES = ("/memfd:", "/dev/", "/SYSV", "/anon_hugepage", "/[")
_SCRATCH = ("/tmp", "/var/tmp", "/run")
UNREAD = "cannot be read: "
GONE = "replaced or removed since it was loaded"


@dataclass(frozen=True)
class Loaded:
    """One file of which processes have executable memory. `pids`: all that have it; `gone`: it lies there no more."""

    path: str
    pids: tuple[int, ...]
    gone: bool


def loaded(procfs: Path, pids: Collection[int]) -> list[Loaded]:
    """By path; a process that has ended meanwhile has none."""
    found: dict[str, Loaded] = {}
    for pid in pids:
        try:
            text = (procfs / str(pid) / "maps").read_bytes().decode("utf-8", "surrogateescape")
        except OSError:
            continue
        for line in text.split("\n"):  # the kernel escapes this one alone in names of files
            each = _of_line(line, pid)
            if each is None:
                continue
            known = found.get(each.path)
            if known is None or (each.gone and not known.gone):
                found[each.path] = each
            elif pid not in known.pids and each.gone == known.gone:
                found[each.path] = replace(known, pids=(*known.pids, pid))
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
    return Loaded(path.removesuffix(_DELETED), (pid,), gone)


def hashed(procfs: Path, pids: Collection[int], made_here: Sequence[str]) -> dict[str, Any]:
    """{"hash", "files": number, "bytes", "listed" {path: sha256}, "made_here": [paths]}.

    `made_here`: directories into which the engine itself writes. What it compiled there is of this node, and no two
    compilers' outputs need be equal: such files are named and not hashed, as are those of a scratch directory.
    """
    apart = tuple(f"{place.rstrip('/')}/" for place in (*made_here, *_SCRATCH))
    listed: dict[str, str] = {}
    own: list[str] = []
    size = 0
    for number, each in enumerate(loaded(procfs, pids)):
        if number >= MOST:
            listed[each.path] = f"not read, one of more than {MOST}"
            break
        if each.path.startswith(apart):
            own.append(each.path)
        elif each.gone:
            listed[each.path] = GONE
        else:
            digest, read = _digest_in(procfs, each)
            if digest is not None:
                listed[each.path] = digest
                size += read
    return {"hash": hash_of(listed), "files": len(listed), "bytes": size, "listed": listed, "made_here": own}


def _digest_in(procfs: Path, each: Loaded) -> tuple[str | None, int]:
    """As the first of its processes that lives sees it; None when all have ended, so that nothing has it loaded."""
    for pid in each.pids:
        digest, size = _digest(procfs / str(pid) / "root", each.path)
        if not digest.startswith(UNREAD) or _lives(procfs, pid):
            return digest, size
    return None, 0


def _lives(procfs: Path, pid: int) -> bool:
    """Whether its memory can still be looked at: that of a process that has ended cannot."""
    try:
        return bool((procfs / str(pid) / "maps").read_bytes())
    except OSError:
        return False


def _digest(root: Path, path: str) -> tuple[str, int]:
    try:
        descriptor = open_inside(root, path)
    except OSError as error:
        return f"{UNREAD}{error.strerror or error}", 0
    try:
        return hash_file(descriptor)
    except OSError as error:
        return f"{UNREAD}{error.strerror or error}", 0
    finally:
        os.close(descriptor)
