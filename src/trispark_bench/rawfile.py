"""The raw rows on disk, a line a request, written when its round is over and synced when its window is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO


class RawFile:
    """Appends whole lines. After a failed write the file ends with the last whole line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._file: BinaryIO = path.open("wb", buffering=0)
        self._size = 0

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Raises OSError; the rows before stay, the others are in the caller's hands."""
        for row in rows:
            line = json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"
            try:
                self._write(line)
            except OSError:
                self._file.truncate(self._size)
                raise
            self._size += len(line)
            self.rows += 1

    def sync(self) -> None:
        """Have it on the disk. Not within a window: the engine may read from the same disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            written = self._file.write(left)
            left = left[written:]
