"""Durable changes to the file system, one operating-system step at a time.

A change is either a rename of something that is already complete and synced, or one line appended and synced. The
`before` hook sees each step before it happens: the crash tests end the process there, at every single step.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from trispark_node.layout import STATE_DIRECTORY_MODE, STATE_FILE_MODE


def _nothing(step: str, path: Path) -> None:
    return None


class Disk:
    def __init__(self, before: Callable[[str, Path], None] = _nothing) -> None:
        self._before = before

    def sync_directory(self, path: Path) -> None:
        self._before("sync-directory", path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, path: Path, mode: int = STATE_DIRECTORY_MODE) -> None:
        """Make `path` and what lacks above it; a directory that is there keeps its mode."""
        if path.is_dir():
            return
        self.make_directory(path.parent, mode)
        self._before("mkdir", path)
        path.mkdir(mode, exist_ok=True)
        path.chmod(mode)
        self.sync_directory(path.parent)

    def create(self, path: Path, mode: int) -> int:
        """A descriptor, for reading and writing, of a file that must not exist yet."""
        self._before("create", path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        os.fchmod(descriptor, mode)
        return descriptor

    def write_new(self, path: Path, data: bytes, mode: int = STATE_FILE_MODE) -> None:
        """Write a file that must not exist yet and sync its content (the caller syncs the directory)."""
        descriptor = self.create(path, mode)
        try:
            self.write_all(descriptor, path, data)
            self.sync_file(descriptor, path)
        finally:
            os.close(descriptor)

    def write_all(self, descriptor: int, path: Path, data: bytes | bytearray | memoryview) -> None:
        self._before("write", path)
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def sync_file(self, descriptor: int, path: Path) -> None:
        self._before("fsync", path)
        os.fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Atomic within one file system; the change is durable after the directory is synced."""
        self._before("rename", target)
        source.rename(target)
        self.sync_directory(target.parent)

    def replace(self, path: Path, data: bytes, mode: int = STATE_FILE_MODE) -> None:
        """Old content or new content, never a mixture, whatever happens in between."""
        temporary = path.with_name(f".{path.name}.new")
        self.remove_file(temporary)
        self.write_new(temporary, data, mode)
        self.rename(temporary, path)

    def replace_link(self, path: Path, target: str) -> None:
        temporary = path.with_name(f".{path.name}.new")
        self.remove_file(temporary)
        self._before("symlink", temporary)
        temporary.symlink_to(target)
        self.rename(temporary, path)

    def link(self, source: Path, target: Path) -> None:
        """`target` becomes a second name of `source`, in place of what it was."""
        temporary = target.with_name(f".{target.name}.new")
        self.remove_file(temporary)
        self._before("link", temporary)
        temporary.hardlink_to(source)
        self.rename(temporary, target)

    def append_line(self, path: Path, line: bytes, mode: int = STATE_FILE_MODE) -> None:
        """Append one line and sync it. What an interrupted append left without its line end is cut off first: it was
        never acknowledged, and a line glued to it would be lost with it."""
        fresh = not path.exists()
        self._before("open", path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            keep = self._complete_length(descriptor)
            if keep != os.fstat(descriptor).st_size:
                self._before("truncate", path)
                os.ftruncate(descriptor, keep)
            os.lseek(descriptor, 0, os.SEEK_END)
            self.write_all(descriptor, path, line + b"\n")
            self.sync_file(descriptor, path)
        finally:
            os.close(descriptor)
        if fresh:
            self.sync_directory(path.parent)

    @staticmethod
    def _complete_length(descriptor: int) -> int:
        """Bytes up to and with the last line end."""
        position = os.fstat(descriptor).st_size
        while position:
            start = max(0, position - 4096)
            found = os.pread(descriptor, position - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            position = start
        return 0

    def remove_file(self, path: Path) -> None:
        if path.is_symlink() or path.exists():
            self._before("unlink", path)
            path.unlink()

    def remove_tree(self, path: Path) -> None:
        if path.exists():
            self._before("remove-tree", path)
            shutil.rmtree(path)
            self.sync_directory(path.parent)
