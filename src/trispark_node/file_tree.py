"""The hash tree of a directory: sha256 of every file by its relative path, and one hash over all of them.

The one hash is that of the lines `<sha256>  <path>` in the order of the paths, so that a person can make it as well. A
path with a line feed or a backslash stands in its line as `sha256sum` writes it, so that one file is never two lines.

Bytecode is left out where the interpreter compares it with its source: it is made from that source, on each rank at
another time. Bytecode that is used whatever the source says, because it was compiled so or has no source beside it, is
a file like any other.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trispark_node.inside import READ

MOST_FILES = 50_000
MOST_BYTES = 4 * 2**30
"""Of a tree of sources or adapters; more is something else, which nobody wants to wait for."""
MOST_FILE_BYTES = 32 * 2**30
"""Of a library; a file that is larger, or grows while it is read, is not read to its end."""
MOST_LEVELS = 60
MOST_DIRECTORIES = 50_000
PIECE = 2**20
_CACHE = "__pycache__"
_FLAGS = slice(4, 8)
_UNCHECKED = 1
"""Flags of a .pyc's header (PEP 552): by hash, and not compared with the source."""


@dataclass(frozen=True)
class Tree:
    """`files`: sha256, or what stands in the place of a regular file, by path; `size` in bytes."""

    files: Mapping[str, str]
    size: int

    @property
    def hash(self) -> str:
        return hash_of(self.files)

    def answer(self, listed: bool) -> dict[str, Any]:
        """{"hash", "files": number, "bytes"}, and `listed` {path: sha256} where it is wanted."""
        short = {"hash": self.hash, "files": len(self.files), "bytes": self.size}
        return {**short, "listed": dict(sorted(self.files.items()))} if listed else short


def hash_of(files: Mapping[str, str]) -> str:
    """The one hash over {path: sha256}."""
    lines = (_line(path, digest) for path, digest in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _line(path: str, digest: str) -> str:
    escaped, said = (text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") for text in (path, digest))
    return f"{'' if (escaped, said) == (path, digest) else chr(92)}{said}  {escaped}\n"


def hash_directory(descriptor: int) -> Tree:
    """Of all below the directory; links are not followed but told. Raises OSError, EFBIG for a tree without bounds."""
    files: dict[str, str] = {}
    size = 0
    for path, directory, name in _walk(descriptor):
        try:
            found = _entry(directory, name, in_cache=f"{_CACHE}/" in path, most=MOST_BYTES - size)
        except OSError as error:
            raise _without_bounds() if error.errno == errno.EFBIG else error from None
        if found is None:
            continue
        files[path] = found[0]
        size += found[1]
        if len(files) > MOST_FILES:
            raise _without_bounds()
    return Tree(files, size)


def _without_bounds() -> OSError:
    return OSError(errno.EFBIG, f"more than {MOST_FILES} files or {MOST_BYTES} bytes")


def _walk(descriptor: int) -> Iterator[tuple[str, int, str]]:
    """(relative path, descriptor of its directory, name) of everything that is no directory, and of links to one."""
    walk = os.fwalk(".", dir_fd=descriptor, onerror=_raised)
    for seen, (base, directories, names, opened) in enumerate(walk):
        # Each level costs a descriptor and, before Python 3.12, frames of the stack.
        if seen > MOST_DIRECTORIES or base.count("/") > MOST_LEVELS:
            raise OSError(errno.EFBIG, f"more than {MOST_DIRECTORIES} directories or {MOST_LEVELS} levels")
        links = [name for name in directories if stat.S_ISLNK(_mode(opened, name))]
        for name in (*names, *links):
            yield os.path.normpath(f"{base}/{name}"), opened, name


def _raised(error: OSError) -> None:
    raise error


def _mode(directory: int, name: str) -> int:
    return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode


def _entry(directory: int, name: str, *, in_cache: bool, most: int) -> tuple[str, int] | None:
    """(sha256 or what it is, bytes); None for bytecode that does not count."""
    mode = _mode(directory, name)
    if stat.S_ISLNK(mode):
        return f"a link to {os.readlink(name, dir_fd=directory)}", 0
    if not stat.S_ISREG(mode):
        return "no regular file", 0
    opened = os.open(name, READ, dir_fd=directory)
    try:
        if in_cache and name.endswith(".pyc") and not _is_unchecked(opened):
            return None
        return hash_file(opened, most)
    finally:
        os.close(opened)


def _is_unchecked(descriptor: int) -> bool:
    return int.from_bytes(os.pread(descriptor, 8, 0)[_FLAGS], "little") & 3 == _UNCHECKED


def hash_file(descriptor: int, most: int = MOST_FILE_BYTES) -> tuple[str, int]:
    """(sha256, bytes) of the whole file. Raises OSError, EFBIG for more than `most` bytes."""
    found = hashlib.sha256()
    size = 0
    if os.fstat(descriptor).st_size > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes")
    while piece := os.pread(descriptor, PIECE, size):
        found.update(piece)
        size += len(piece)
        if size > most:  # it grew, or never said how long it is
            raise OSError(errno.EFBIG, f"more than {most} bytes")
    return found.hexdigest(), size
