"""An OCI image layout in a plain tar, which somebody else wrote: where its blobs and small files lie in it.

Nothing is unpacked; the tar is read by place, so blobs of any size take no memory. Its names lead nowhere: a blob is
found by its digest, a small file by its name at the top.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from trispark_node.regular_file import open_regular
from trispark_node.tar_members import members, open_tar

MOST_MEMBERS = 10_000
"""An image has some dozens of blobs."""
PIECE = 2**20
_BLOB = re.compile(r"(?:\./)?blobs/sha256/(?P<hex>[0-9a-f]{64})")
_FILE = re.compile(r"(?:\./)?(?P<name>oci-layout|index\.json|manifest\.json)")


class OciTar:
    """The blobs of a layout by digest (`sha256:...`), and what lies at its top."""

    def __init__(self, path: Path) -> None:
        """Raises OSError; tarfile.TarError for what is no whole tar without compression, or has a part twice."""
        self._descriptor = open_regular(path)
        self._places: dict[str, tuple[int, int]] = {}
        try:
            with os.fdopen(os.dup(self._descriptor), "rb") as file, open_tar(file) as tar:
                for number, member in enumerate(members(tar)):
                    if number >= MOST_MEMBERS:
                        raise tarfile.ReadError(f"more than {MOST_MEMBERS} members")
                    self._note(member)
        except BaseException:
            self.close()
            raise

    def _note(self, member: tarfile.TarInfo) -> None:
        blob, file = _BLOB.fullmatch(member.name), _FILE.fullmatch(member.name)
        key = f"sha256:{blob['hex']}" if blob else file["name"] if file else ""
        if not key:
            return
        # A link would be another file, and a sparse one has its bytes elsewhere than a plain reader looks for them.
        if not member.isreg() or member.issparse():
            raise tarfile.ReadError(f"{member.name} is no plain file")
        if key in self._places:
            raise tarfile.ReadError(f"{member.name} is there twice")
        self._places[key] = (member.offset_data, member.size)

    def close(self) -> None:
        """Who still reads gets an error, and not the file that has this number next."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def size(self, key: str) -> int | None:
        """Bytes of a blob or file; None where it is not there."""
        return self._places[key][1] if key in self._places else None

    def pieces(self, key: str) -> Iterator[bytes]:
        """Its content. Raises KeyError, OSError; it may end early when the file was cut off."""
        start, size = self._places[key]
        end = start + size
        while start < end and (piece := os.pread(self._descriptor, min(PIECE, end - start), start)):
            yield piece
            start += len(piece)

    def hash_of(self, digest: str, seen: Callable[[int], None] | None = None) -> str:
        """`sha256:...` of what the blob holds; `seen` is told the bytes of each piece. As `pieces`."""
        found = hashlib.sha256()
        for piece in self.pieces(digest):
            found.update(piece)
            if seen is not None:
                seen(len(piece))
        return f"sha256:{found.hexdigest()}"

    def open(self, digest: str) -> io.RawIOBase:
        """The blob as a file of its own, good for as long as this is open. Raises KeyError."""
        return _Part(self._read, *self._places[digest])

    def _read(self, size: int, place: int) -> bytes:
        return os.pread(self._descriptor, size, place)


class _Part(io.RawIOBase):
    """`size` bytes from `start` of a file that is read by place."""

    def __init__(self, read: Callable[[int, int], bytes], start: int, size: int) -> None:
        super().__init__()
        self._from, self._start, self._size, self._at = read, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"a place before the beginning: {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), max(0, self._size - self._at))
        piece = self._from(wanted, self._start + self._at) if wanted else b""
        if wanted and not piece:
            raise OSError("the archive was cut off while it was read")
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
