"""A tar that somebody else wrote: reading it ends, and there is one kind of error to catch.

Raised are tarfile.TarError for whatever is wrong with the tar, and OSError where the file cannot be read.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Literal

Mode = Literal["r:", "r:*"]
MOST_HEADER = 2**20
"""Bytes of what a member carries before itself, such as a long name: it is read whole."""
_BEFORE_ITSELF = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class _Member(tarfile.TarInfo):
    """`_proc_member` is where tarfile lets subclasses come in."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _BEFORE_ITSELF and self.size > MOST_HEADER:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        found: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return found

    def _no_map(self, *_: object) -> tarfile.TarInfo:
        """The map of a sparse member may be as long as the file, and is kept; no builder of images writes one."""
        raise tarfile.ReadError("a sparse member")

    _proc_sparse = _proc_gnusparse_10 = _no_map


def open_tar(file: IO[bytes], mode: Mode = "r:") -> tarfile.TarFile:
    """`mode`: `r:` for one without compression. It reads the first header already."""
    with _one_error():
        return tarfile.open(fileobj=file, mode=mode, tarinfo=_Member)


def members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """In their order. A header with a negative size makes tarfile go back, and give the same members for ever."""
    after = -1
    waiting = iter(tar)
    while True:
        with _one_error():
            member = next(waiting, None)
        if member is None:
            return
        if member.size < 0 or member.offset <= after:
            raise tarfile.ReadError("a member with a size below zero")
        after = member.offset
        yield member


@contextmanager
def _one_error() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise tarfile.ReadError("headers without a member after them") from None
    except (ValueError, OverflowError, EOFError, MemoryError) as error:
        raise tarfile.ReadError(f"a header with a value that cannot be: {error}") from None
