"""Packed rows written, hashed and compared at the speed of the disk: the binding of libengram_pack.so.

Native threads do the work. The calling thread looks after them every 50 ms, so that a signal's handler runs in time;
whatever it raises, they are stopped and all is given back. Their buffers are bounded, and no page of a file stays in
the page cache: files are read and written past it, or dropped from it where a file system refuses that.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trispark_node.errors import AgentError
from trispark_node.native_library import ErrorFields, LimitFields, RowFields, StateFields, loaded
from trispark_node.regular_file import open_regular
from trispark_node.shard_format import ROW_BYTES

CHUNK_BYTES = 64 * 2**20
"""Of the packed file: chunk i is its bytes [i * CHUNK_BYTES, (i + 1) * CHUNK_BYTES), the header included; the last one
may be shorter."""
MEMORY_BYTES = 160 * 2**20
"""For all buffers together."""
HASH_BYTES = 32
_POLL_MS = 50
_SIZE_BITS = 46
_PROGRESS_S = 0.5
_OK, _ARGUMENT, _IO, _SHORT, _DIFFERENT = range(5)
_ROLES = ("", "checkpoint", "shard")

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all), called about twice a second and at the end, from the calling thread."""


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
    page cache and dropped from it on the way. `direct_write` is False where nothing is written."""

    chunk_hashes: tuple[str, ...]
    direct_read: bool
    direct_write: bool
    seconds: float
    bytes: int


@dataclass(frozen=True)
class _End:
    """How a job ended: the state of its files and, of a failure that is no exception, the numbers."""

    state: StateFields
    error: ErrorFields
    seconds: float


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

    The caller syncs and renames it; after a failure its content is undefined. `threads` (1..256) compute at one time.
    `limit_bytes_s` bounds what is written; 0 is no bound. Raises OSError without a file name (ENOSPC among them),
    ShortRead, TS-ENGRAM-LIBRARY.
    """
    size = len(header) + (end_row - first_row) * ROW_BYTES
    hashes = _hashes(size)
    with _Checkpoint(source) as checkpoint:
        rows = _rows(source, checkpoint, target, first_row, end_row, len(header))
        limits = _limits(threads, limit_bytes_s)
        call = loaded().ep_pack
        ended = _run(lambda job, error: call(rows, header, limits, hashes, job, error), progress)
    return _outcome(hashes, ended, size)


def hash_file(
    descriptor: int, size: int, *, threads: int, limit_bytes_s: int = 0, progress: Progress | None = None
) -> Outcome:
    """Chunk hashes of the first `size` bytes. `limit_bytes_s` bounds what is read. Raises as `pack` does."""
    hashes = _hashes(size)
    limits = _limits(threads, limit_bytes_s)
    _in_range(("descriptor", descriptor, 31), ("size", size, _SIZE_BITS))
    call = loaded().ep_hash
    ended = _run(lambda job, error: call(descriptor, size, limits, hashes, job, error), progress)
    return _outcome(hashes, ended, size)


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
    the first difference. `limit_bytes_s` bounds what is read of both files. Raises as `pack` does."""
    with _Checkpoint(source) as checkpoint:
        rows = _rows(source, checkpoint, descriptor, first_row, end_row, header_bytes)
        limits = _limits(threads, limit_bytes_s)
        call = loaded().ep_compare
        ended = _run(lambda job, error: call(rows, limits, job, error), progress)
    if ended.error.code == _DIFFERENT:
        return ended.error.offset, ended.error.observed
    return None


def blake3(data: bytes) -> str:
    """64 hex digits. Raises TS-ENGRAM-LIBRARY."""
    digest = ctypes.create_string_buffer(HASH_BYTES)
    loaded().ep_blake3(data, len(data), digest)
    return digest.raw.hex()


def available() -> str:
    """Empty, or one line that says why the library cannot be used here."""
    try:
        loaded()
    except AgentError as error:
        return str(error)
    return ""


class _Checkpoint:
    def __init__(self, source: Source) -> None:
        self._source = source

    def __enter__(self) -> int:
        self._descriptor = open_regular(self._source.path)
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _run(begin: Callable[..., int], progress: Progress | None) -> _End:
    """Begin a job and follow it to its end. Raises for all but success and a difference."""
    library = loaded()
    job, error, state = ctypes.c_void_p(), ErrorFields(), StateFields()
    began = time.monotonic()
    code = _IO
    try:
        code = begin(ctypes.byref(job), ctypes.byref(error))
        due = began + _PROGRESS_S
        while code == _OK and not library.ep_wait(job, _POLL_MS, ctypes.byref(state)):
            if progress is not None and time.monotonic() >= due:
                progress(state.done, state.total)
                due += _PROGRESS_S
    finally:  # also when a signal's handler or `progress` raised
        if job:
            code = library.ep_end(job, ctypes.byref(state), ctypes.byref(error))
    _require(code, error)
    if progress is not None:
        progress(state.done, state.total)
    return _End(state, error, time.monotonic() - began)


def _require(code: int, error: ErrorFields) -> None:
    if code in (_OK, _DIFFERENT):
        return
    if code == _SHORT:
        raise ShortRead(_ROLES[error.role], error.offset, error.expected, error.observed)
    if code == _IO:
        action = "writing" if error.writing else "reading"
        doing = f"{action} the {_ROLES[error.role]} at {error.offset}" if error.role else "starting threads"
        raise OSError(error.sys_errno, f"{os.strerror(error.sys_errno)}, {doing}")
    raise ValueError(f"the packing library refuses a number: {error.observed}")


def _outcome(hashes: ctypes.Array[ctypes.c_char], ended: _End, size: int) -> Outcome:
    digests = hashes.raw
    chunks = range(0, -(-size // CHUNK_BYTES) * HASH_BYTES, HASH_BYTES)
    return Outcome(
        tuple(digests[at : at + HASH_BYTES].hex() for at in chunks),
        bool(ended.state.direct_read),
        bool(ended.state.direct_write),
        ended.seconds,
        size,
    )


def _hashes(size: int) -> ctypes.Array[ctypes.c_char]:
    _in_range(("size", size, _SIZE_BITS))
    return ctypes.create_string_buffer(-(-size // CHUNK_BYTES) * HASH_BYTES + 1)


def _rows(source: Source, checkpoint: int, shard: int, first_row: int, end_row: int, header_bytes: int) -> RowFields:
    _in_range(
        ("weight_offset", source.weight_offset, 56),
        ("scale_offset", source.scale_offset, 56),
        ("first_row", first_row, 47),
        ("end_row - first_row", end_row - first_row, _SIZE_BITS - 8),
        ("header", header_bytes, 20),
        ("descriptor", shard, 31),
    )
    return RowFields(checkpoint, shard, source.weight_offset, source.scale_offset, first_row, end_row, header_bytes)


def _limits(threads: int, limit_bytes_s: int) -> LimitFields:
    _in_range(("threads", threads - 1, 8), ("limit_bytes_s", limit_bytes_s, 56))
    return LimitFields(MEMORY_BYTES, limit_bytes_s, threads)


def _in_range(*values: tuple[str, int, int]) -> None:
    """ctypes would cut what does not fit."""
    for name, value, bits in values:
        if not 0 <= value < 2**bits:
            raise ValueError(f"{name} is out of range: {value}")
