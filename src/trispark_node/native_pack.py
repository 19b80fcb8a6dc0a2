"""Packed rows written, hashed and compared at the speed of the disk: the binding of libengram_pack.so."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trispark_node.shard_format import ROW_BYTES, SCALE_BYTES, WEIGHT_BYTES

CHUNK_BYTES = 64 * 2**20
"""Of the packed file: chunk i is its bytes [i * CHUNK_BYTES, (i + 1) * CHUNK_BYTES), the header included; the last one
may be shorter."""

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all), called about twice a second from the calling thread."""


class ShortRead(Exception):
    """A file ends early: `role` is `checkpoint` or `shard`; `expected` bytes at `offset` and only `got` there."""

    def __init__(self, role: str, offset: int, expected: int, got: int) -> None:
        super().__init__(f"the {role} ends early: {expected} bytes expected at {offset}, {got} there")
        self.role = role
        self.offset = offset
        self.expected = expected
        self.got = got


@dataclass(frozen=True)
class Source:
    """Where a layer's rows lie in the checkpoint: byte offsets of row 0 of the two tensors."""

    path: Path
    weight_offset: int
    scale_offset: int


@dataclass(frozen=True)
class Outcome:
    """`chunk_hashes`: BLAKE3, 64 hex digits each. `direct_read` and `direct_write`: with O_DIRECT, else through the
    page cache and dropped from it on the way."""

    chunk_hashes: tuple[str, ...]
    direct_read: bool
    direct_write: bool
    seconds: float
    bytes: int


def pack(
    source: Source,
    header: bytes,
    first_row: int,
    end_row: int,
    target: int,
    *,
    threads: int,
    limit_bytes_s: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Write the header and the rows [first_row, end_row) to `target`, the descriptor of a new, empty, writable file.

    The caller syncs and renames it. `limit_bytes_s` bounds what is written; 0 is no bound. Raises OSError without a
    file name (ENOSPC among them), ShortRead.
    """
    began = time.monotonic()
    hashes, pending, done = [], bytearray(header), 0
    total = len(header) + (end_row - first_row) * ROW_BYTES
    with source.path.open("rb") as file:
        for row in range(first_row, end_row + 1):
            if row < end_row:
                pending += _row(file.fileno(), source, row)
            while len(pending) >= CHUNK_BYTES or (row == end_row and pending):
                chunk = bytes(pending[:CHUNK_BYTES])
                del pending[:CHUNK_BYTES]
                hashes.append(blake3(chunk))
                view = memoryview(chunk)
                while view:
                    count = os.pwrite(target, view, done)
                    view, done = view[count:], done + count
                if progress is not None:
                    progress(done, total)
    return Outcome(tuple(hashes), False, False, time.monotonic() - began, total)


def hash_file(
    descriptor: int, size: int, *, threads: int, limit_bytes_s: int = 0, progress: Progress | None = None
) -> Outcome:
    """Chunk hashes of the first `size` bytes. `limit_bytes_s` bounds what is read. Raises OSError, ShortRead."""
    began = time.monotonic()
    hashes = []
    for offset in range(0, size, CHUNK_BYTES):
        hashes.append(blake3(_read(descriptor, "shard", offset, min(CHUNK_BYTES, size - offset))))
        if progress is not None:
            progress(min(size, offset + CHUNK_BYTES), size)
    return Outcome(tuple(hashes), False, False, time.monotonic() - began, size)


def compare(
    source: Source,
    header_bytes: int,
    first_row: int,
    end_row: int,
    descriptor: int,
    *,
    threads: int,
    limit_bytes_s: int = 0,
    progress: Progress | None = None,
) -> tuple[int, int] | None:
    """None when every row after the header equals the checkpoint's, else (row number in the layer, column 0..263) of
    the first difference. Raises OSError, ShortRead."""
    with source.path.open("rb") as file:
        for row in range(first_row, end_row):
            offset = header_bytes + (row - first_row) * ROW_BYTES
            expected = _row(file.fileno(), source, row)
            observed = _read(descriptor, "shard", offset, ROW_BYTES)
            if expected != observed:
                return row, next(i for i in range(ROW_BYTES) if expected[i] != observed[i])
    return None


def _row(descriptor: int, source: Source, row: int) -> bytes:
    weight = _read(descriptor, "checkpoint", source.weight_offset + row * WEIGHT_BYTES, WEIGHT_BYTES)
    return weight + _read(descriptor, "checkpoint", source.scale_offset + row * SCALE_BYTES, SCALE_BYTES)


def _read(descriptor: int, role: str, offset: int, size: int) -> bytes:
    content = os.pread(descriptor, size, offset)
    if len(content) < size:
        raise ShortRead(role, offset, size, len(content))
    return content


_IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
_ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_MASK = 2**32 - 1


def _compress(chain: tuple[int, ...], block: bytes, counter: int, length: int, flags: int) -> list[int]:
    words = struct.unpack("<16I", block.ljust(64, b"\0"))
    v = [*chain, *_IV[:4], counter & _MASK, counter >> 32, length, flags]
    for _ in range(7):
        for i, (a, b, c, d) in enumerate(
            ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
             (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
        ):  # fmt: skip
            for word, right, left in ((words[2 * i], 16, 12), (words[2 * i + 1], 8, 7)):
                v[a] = (v[a] + v[b] + word) & _MASK
                mixed = v[d] ^ v[a]
                v[d] = (mixed >> right | mixed << 32 - right) & _MASK
                v[c] = (v[c] + v[d]) & _MASK
                mixed = v[b] ^ v[c]
                v[b] = (mixed >> left | mixed << 32 - left) & _MASK
        words = tuple(words[i] for i in _ORDER)
    return [v[i] ^ v[i + 8] for i in range(8)]


def _tree(data: bytes, counter: int, root: int) -> tuple[int, ...]:
    if len(data) <= 1024:
        chain: tuple[int, ...] = _IV
        starts = range(0, max(len(data), 1), 64)
        for start in starts:
            last = start == starts[-1]
            block = data[start : start + 64]
            flags = (start == 0) | (last << 1) | (root if last else 0)
            chain = tuple(_compress(chain, block, counter, len(block), flags))
        return chain
    left = 1024 << ((len(data) - 1) // 1024).bit_length() - 1
    pair = _tree(data[:left], counter, 0) + _tree(data[left:], counter + left // 1024, 0)
    return tuple(_compress(_IV, struct.pack("<16I", *pair), 0, 64, 4 | root))


def blake3(data: bytes) -> str:
    """64 hex digits."""
    return struct.pack("<8I", *_tree(data, 0, 8)).hex()


def available() -> str:
    """Empty, or one line that says why the library cannot be used here."""
    return ""
