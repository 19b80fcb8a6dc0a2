"""A store of rows: opened once, asked by many threads, closed."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import cast

import numpy as np
import numpy.typing as npt

from .errors import Code, StoreError
from .library import U64, CounterFields, ErrorFields, InfoFields, OptionFields, loaded

ROW_BYTES = 264
Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int64]


class Backend(IntEnum):
    """How rows are read. AUTO is io_uring where it works, else threads."""

    AUTO = 0
    IO_URING = 1
    THREADS = 2


@dataclass(frozen=True)
class Rows:
    """Which rows: [first, end) of the `total` of a layer's table."""

    layer: int
    first: int
    end: int
    total: int


@dataclass(frozen=True)
class Options:
    """`depth` 1..4096: reads of one call in flight with io_uring. `threads` 1..1024: readers of a call without it, the
    caller among them; all stores of a process share them, as many as the largest asks for. `cache_bytes`: budget of
    this store's cache, 272 bytes a row and 1 byte a set of `ways` (1..16) rows; 0 for none."""

    backend: Backend = Backend.AUTO
    depth: int = 64
    threads: int = 32
    ways: int = 4
    cache_bytes: int = 0


@dataclass(frozen=True)
class Counters:
    """Of the calls that ended well: `calls`, row ids asked for, those that the cache had, reads and their bytes.

    `latency[0]` counts calls that read and took less than 1 us, `latency[k]` those from 2**(k-1) to below 2**k us.
    """

    calls: int
    lookups: int
    hits: int
    reads: int
    bytes: int
    latency: tuple[int, ...]


class RowStore:
    """Rows by global id. Any thread may call; a child process opens a store of its own. Close it, or use `with`."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._library = loaded()
        self._local = threading.local()
        info = self._info()
        self.direct = bool(info.direct)
        """False when a checkpoint is read through the page cache."""
        self.sets = int(info.sets)
        self.slots = int(info.slots)
        """Rows that the cache holds at most."""

    @classmethod
    def open_packed(
        cls,
        path: str | os.PathLike[str],
        rows: Rows,
        options: Options | None = None,
        *,
        allow_longer: bool = False,
    ) -> RowStore:
        """A packed shard, with direct reads only. With `allow_longer`, bytes after its last row are passed over.

        Raises StoreError: OPEN, KIND, NO_DIRECT, HEADER, SIZE, HOLES, BACKEND, MEMORY, ARGUMENT, LIBRARY.
        """
        call = loaded().es_open_packed
        return cls(_opened(path, rows, options, lambda *rest: call(rest[0], rest[1], int(allow_longer), *rest[2:])))

    @classmethod
    def open_checkpoint(
        cls,
        path: str | os.PathLike[str],
        weight_at: int,
        scale_at: int,
        rows: Rows,
        options: Options | None = None,
        *,
        allow_buffered: bool = False,
    ) -> RowStore:
        """The two-read path: weights [total, 256] at byte `weight_at` of the file, scales [total, 8] at `scale_at`.

        With `allow_buffered`, a file system without O_DIRECT is read through the page cache (`direct` is False).
        Raises StoreError as `open_packed` does.
        """
        call = loaded().es_open_checkpoint
        _in_range(("weight_at", weight_at), ("scale_at", scale_at))
        return cls(
            _opened(
                path,
                rows,
                options,
                lambda *rest: call(rest[0], weight_at, scale_at, rest[1], int(allow_buffered), *rest[2:]),
            )
        )

    def fetch(self, ids: Ids | Sequence[int], out: Bytes | None = None) -> Bytes:
        """[M, 264] bytes (256 weight, then 8 scale codes) of the global row ids [M], in `out` when that is given.

        Without a cache each id is a read, also one that occurs twice; with one, each missing row is read once a call.
        Raises StoreError: ID before anything was read; READ, SHORT, MEMORY, FORKED, CLOSED. `out` is then undefined.
        """
        wanted = np.asarray(ids)
        count = len(wanted) if wanted.ndim == 1 else -1
        if count < 0 or (count and wanted.dtype.kind not in "iu"):
            raise _argument("row ids have the wrong form", "integers [M]", f"{wanted.dtype} {wanted.shape}")
        if out is None:
            out = np.empty((count, ROW_BYTES), dtype=np.uint8)
        elif out.shape != (count, ROW_BYTES) or out.dtype != np.uint8 or not out.flags.carray:
            raise _argument("out has the wrong form", f"uint8 [{count}, 264]", f"{out.dtype} {out.shape}")
        scratch = self._scratch
        scratch.take(wanted)
        into = ctypes.byref(ctypes.c_char.from_buffer(cast(bytearray, out))) if count else None
        _require(self._library.es_fetch(self._handle, scratch.ids_at, count, into, scratch.error), scratch.error)
        return out

    @property
    def handle(self) -> int:
        """What the library calls this store; for a `Job`, which must not outlive it."""
        return self._handle

    @property
    def backend(self) -> Backend:
        """IO_URING or THREADS: what reads now. Raises StoreError: FORKED, CLOSED."""
        return Backend(self._info().backend)

    @property
    def why(self) -> str:
        """Why AUTO took threads, at once or when it got no further ring; empty otherwise. Raises as `backend`."""
        text: bytes = self._info().why
        return text.decode(errors="replace")

    @property
    def counters(self) -> Counters:
        """Since the store was opened, consistent with each other. Raises StoreError: FORKED, CLOSED."""
        fields = CounterFields()
        _require(self._library.es_count(self._handle, ctypes.byref(fields), self._error), self._error)
        return Counters(
            fields.calls, fields.lookups, fields.hits, fields.reads, fields.bytes, tuple(int(n) for n in fields.latency)
        )

    def close(self) -> None:
        """Wait for calls in progress and give all back; a child process gives back its descriptors. Once is enough."""
        self._library.es_close(self._handle, None)

    def __enter__(self) -> RowStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _info(self) -> InfoFields:
        info = InfoFields()
        _require(self._library.es_describe(self._handle, ctypes.byref(info), self._error), self._error)
        return info

    @property
    def _scratch(self) -> _Scratch:
        """This thread's own: several may call and fail at once."""
        scratch: _Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = _Scratch()
        return scratch

    @property
    def _error(self) -> ErrorFields:
        return self._scratch.error


class _Scratch:
    """An error, and ids in a place whose address is known: to ask NumPy for one costs more than to copy them."""

    def __init__(self) -> None:
        self.error = ErrorFields()
        self._make(256)

    def take(self, ids: Ids) -> None:
        if len(ids) > len(self._ids):
            self._make(2 * len(ids))
        self._ids[: len(ids)] = ids

    def _make(self, count: int) -> None:
        self._ids = np.empty(count, dtype=np.int64)
        self.ids_at = self._ids.ctypes.data


def _opened(path: str | os.PathLike[str], rows: Rows, options: Options | None, call: Callable[..., int]) -> int:
    chosen = options or Options()
    _in_range(
        ("layer", rows.layer),
        ("first", rows.first),
        ("end", rows.end),
        ("total", rows.total),
        ("cache_bytes", chosen.cache_bytes),
    )
    _in_range(("depth", chosen.depth), ("threads", chosen.threads), ("ways", chosen.ways), bits=32)
    fields = OptionFields(
        int(chosen.backend),
        chosen.depth,
        chosen.threads,
        chosen.ways,
        chosen.cache_bytes,
        rows.layer,
        rows.first,
        rows.end,
        rows.total,
    )
    handle, error = U64(), ErrorFields()
    name = os.fsencode(path)
    if b"\0" in name:
        raise _argument("the path holds a zero byte", "a path", repr(name))
    _require(call(name, ctypes.byref(fields), ctypes.byref(handle), ctypes.byref(error)), error)
    return int(handle.value)


def _in_range(*values: tuple[str, int], bits: int = 64) -> None:
    """ctypes would cut what does not fit."""
    for name, value in values:
        if not 0 <= value < 2**bits:
            raise _argument(f"{name} is out of range", f"0 to 2**{bits} - 1", str(value))


def _argument(what: str, expected: str, observed: str) -> StoreError:
    return StoreError(Code.ARGUMENT, f"{what}; expected: {expected}; observed: {observed}")


def _require(code: int, error: ErrorFields) -> None:
    if code == 0:
        return
    text: str = error.text.decode(errors="replace")
    raise StoreError(Code(code), text, error.sys_errno, error.offset, error.expected, error.observed)
