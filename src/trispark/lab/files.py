"""Files and directories that are complete or absent: temporary name, fsync, rename; and hashes over trees."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

PARTIAL = ".partial"
"""Suffix of what an interrupted run leaves; removed and made again by the next one, under the lock of the cache."""


def write_atomic(path: Path, text: str, mode: int = 0o600) -> bool:
    """Write `text` unless the file holds it already; True when written."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL)
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.chmod(mode)
    partial.replace(path)
    return True


def make_directory(path: Path, fill: Callable[[Path], None]) -> bool:
    """Make `path` by filling a partial directory and renaming it; True when made, False when it was complete.

    What is made is readable by everyone: a container's user need not be ours.
    """
    if path.is_dir():
        return False
    partial = path.with_name(path.name + PARTIAL)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    fill(partial)
    _readable(partial)
    partial.replace(path)
    return True


def _readable(tree: Path) -> None:
    """Let everyone read what containers mount or images copy, whatever the umask was; the way to it stays private."""
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            wanted = mode | (0o555 if path.is_dir() else 0o444)
            if wanted != mode:
                path.chmod(wanted)


def prune(directory: Path, prefix: str, keep: Iterable[str]) -> list[str]:
    """Remove the entries of `directory` that start with `prefix` and are not in `keep`; names of what was removed."""
    removed = []
    kept = set(keep)
    for entry in sorted(directory.glob(f"{prefix}*")):
        if entry.name not in kept:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            removed.append(entry.name)
    return removed


def hash_files(root: Path, files: Iterable[Path], *extra: str) -> str:
    """SHA-256 (hex) over the relative names and contents of `files`, in sorted order, and over `extra` texts."""
    total = hashlib.sha256()
    for text in extra:
        total.update(f"{len(text)}:{text}".encode())
    for path in sorted(files):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(root).as_posix()}\0{digest}\n".encode())
    return total.hexdigest()


def source_files(directory: Path) -> list[Path]:
    """All files below `directory` that belong to a source tree: no caches, nothing compiled, nothing hidden."""
    return [
        path
        for path in sorted(directory.rglob("*"))
        if path.is_file()
        and path.suffix != ".pyc"
        and not any(part == "__pycache__" or part.startswith(".") for part in path.relative_to(directory).parts)
    ]
