"""Lines on the way through many bytes: one each GiB, however fast they go, and one at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Final

STEP: Final = 2**30
"""Bytes between two lines."""


class ByteProgress:
    """`what` is read or sent, `done` says which; `size`: bytes in all. Without `say` nothing is said."""

    def __init__(self, what: str, done: str, size: int, say: Callable[[str], None] | None) -> None:
        self._what, self._done, self._size = what, done, size
        self._say = say if say is not None else lambda _line: None
        self._at = 0

    def seen(self, amount: int) -> None:
        before, self._at = self._at // STEP, self._at + amount
        if self._at // STEP != before and self._at < self._size:
            self._say(f"{self._what}: {in_words(self._at)} of {in_words(self._size)} {self._done}")

    def end(self, how: str) -> None:
        self._say(f"{self._what}: {in_words(self._size)}, {how}")

    def of(self, data: IO[bytes]) -> _Counted:
        """The same bytes, counted as they are read."""
        return _Counted(data, self)

    def again(self) -> None:
        self._at = 0


class _Counted:
    def __init__(self, data: IO[bytes], progress: ByteProgress) -> None:
        self._data, self._progress = data, progress

    def read(self, size: int = -1, /) -> bytes:
        piece = self._data.read(size)
        self._progress.seen(len(piece))
        return piece

    def seek(self, offset: int, /) -> int:
        self._progress.again()
        return self._data.seek(offset)


def in_words(size: int) -> str:
    """Bytes for a person."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
