"""Lets an installed agent run from compiled copies of its modules instead of compiling them at each call.

Python compiles what it imports from a zipapp anew every time, which is most of the agent's start. The first call
unpacks the agent once below its own `run/`, under the hash of its sources, and later calls import from there. A copy is
used only when it is exactly what was written: its manifest, written last, names every file, and what can run is hashed
again at each call. Whatever is wrong with a copy, it is made anew, or the agent's one file is used as it is.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from typing import Any
from zipimport import zipimporter

INPUT_NAME = "trispark-node.input"
PREFIX = "agent-"
MANIFEST = "manifest.json"
LEFTOVER_S = 3600
"""Age at which an unfinished copy, `.agent-*`, belongs to a process that died."""
UNUSED_S = 2 * 86400
"""Time since its last use after which a copy goes: an agent that imports from it late runs a day at most."""


def prefer_compiled(archive: Path) -> Path | None:
    """Put the compiled copy of `archive` first on the module path and return it; None when the archive is to be used.

    Only for an agent at `<root>/bin/`, and only a whole copy that nobody but this user can have written.
    """
    archive = archive.resolve()
    # With another optimisation or another cache directory Python would not load the files that are verified here.
    if archive.parent.name != "bin" or sys.flags.optimize or sys.pycache_prefix is not None:
        return None
    try:
        copy = _copy_of(archive, archive.parent.parent / "run")
    except Exception:  # a full disk, another user, a copy being made: none of it may keep the agent from running
        return None
    sys.dont_write_bytecode = True  # a further file would be a difference
    sys.path.insert(0, str(copy))
    return copy


def _copy_of(archive: Path, run: Path) -> Path:
    fingerprint = zipimporter(str(archive)).get_data(INPUT_NAME).decode("ascii")
    copy = run / f"{PREFIX}{fingerprint[:16]}-{sys.implementation.cache_tag}"
    run.mkdir(mode=0o700, exist_ok=True)
    if not _private(run):
        raise PermissionError(f"{run} is not this user's alone")
    if not whole(copy, fingerprint):
        _make(archive, copy, fingerprint)
    with suppress(OSError):  # another call tidies up at the same time
        os.utime(copy)  # its last use
        sweep(run, copy, time.time())
    return copy


def _private(directory: Path) -> bool:
    status = directory.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _files(directory: str, below: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """(relative path, status) of everything that is no directory; links are not followed."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path, f"{below}{entry.name}/")
            else:
                yield below + entry.name, entry.stat(follow_symlinks=False)


def _sha256(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        digest = sha256()
        while piece := os.read(descriptor, 1 << 20):
            digest.update(piece)
        return digest.hexdigest()
    finally:
        os.close(descriptor)


def whole(copy: Path, fingerprint: str) -> bool:
    """Whether `copy` is exactly what was made from the archive with this fingerprint, by this kind of Python.

    Every file by name, size and time; what Python would load also by its content. That is the compiled modules: they
    are of the unchecked kind, so that a source beside one is read for tracebacks only.
    """
    try:
        if not _private(copy):
            return False
        manifest = json.loads((copy / MANIFEST).read_bytes())
        listed: dict[str, Any] = manifest["files"]
        found = dict(_files(str(copy)))
        del found[MANIFEST]
        if manifest["input"] != fingerprint or manifest["magic"] != MAGIC_NUMBER.hex() or found.keys() != listed.keys():
            return False
        for name, status in found.items():
            if (status.st_size, status.st_mtime_ns) != (listed[name]["size"], listed[name]["mtime_ns"]):
                return False
            source_only = name.endswith(".py") and cache_from_source(name) not in listed
            if (source_only or name.endswith(".pyc")) and _sha256(f"{copy}/{name}") != listed[name]["sha256"]:
                return False
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False
    return True


def _make(archive: Path, copy: Path, fingerprint: str) -> None:
    """Put a new copy in the place of what is there. One process makes it, others use the archive meanwhile.

    Only the manifest is synced: files that a power cut takes the content of do not have the hashes in it.
    """
    import compileall  # these four are not needed when the copy is whole
    import fcntl
    import tempfile
    import zipfile
    from py_compile import PycInvalidationMode

    lock = os.open(copy.parent / ".agent.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if whole(copy, fingerprint):  # made by another call in the meantime
            return
        scratch = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=copy.parent))
        try:
            with zipfile.ZipFile(archive) as members:
                if members.read(INPUT_NAME).decode("ascii") != fingerprint:
                    raise ValueError("the agent was replaced meanwhile")
                members.extractall(scratch)
            compileall.compile_dir(scratch, quiet=2, workers=1, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
            _write_manifest(scratch, fingerprint)
            if os.path.lexists(copy):
                # Aside, not away: an agent that runs from it finds the same modules in the new one.
                damaged = scratch.with_name(f"{scratch.name}-damaged")
                copy.rename(damaged)
                _remove(damaged)
            scratch.rename(copy)
            _sync(copy.parent)
        finally:
            _remove(scratch)
    finally:
        os.close(lock)


def _write_manifest(scratch: Path, fingerprint: str) -> None:
    files = {
        name: {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": _sha256(f"{scratch}/{name}")}
        for name, status in _files(str(scratch))
    }
    manifest = {"input": fingerprint, "magic": MAGIC_NUMBER.hex(), "files": files}
    with (scratch / MANIFEST).open("x", encoding="ascii") as file:
        json.dump(manifest, file, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    _sync(scratch)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    import shutil

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sweep(run: Path, keep: Path, now: float) -> None:
    """Remove unfinished copies and copies of other agents once they are old enough that nobody uses them."""
    for entry in list(os.scandir(run)):
        age = now - entry.stat(follow_symlinks=False).st_mtime
        leftover = entry.name.startswith(f".{PREFIX}") and age > LEFTOVER_S
        unused = entry.name.startswith(PREFIX) and entry.name != keep.name and age > UNUSED_S
        if leftover or unused:
            _remove(Path(entry.path))
