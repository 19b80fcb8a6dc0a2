"""Rows of one Engram layer owned by one rank, read exactly from the packed file or from the checkpoint.

Packed: weight and scale of a row are adjacent, one aligned read of two pages (8192 bytes) a row. Unpacked: two reads a
row, far apart. The attach checks follow the field: a packed file that can not be opened with O_DIRECT is passed over in
silence (packed=False); one that opens but does not fit ends the process. A cache in front of the reads is optional.

This reader is Python alone. Where the row store library is mounted, `row_library` reads the same rows with it.
"""

import errno
import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .errors import EngramFailure
from .readers import ReaderPool
from .row_cache import RowCache
from .safetensors import TensorInfo

MAGIC = 0x31344E4531565344
HEADER_BYTES = 4096
PAGE = 4096
WINDOW = 8192
WEIGHT_BYTES = 256
SCALE_BYTES = 8
ROW_BYTES = WEIGHT_BYTES + SCALE_BYTES
SERIAL_BELOW = 8
IDS_PER_READER = 8

Bytes = npt.NDArray[np.uint8]


def packed_name(layer: int, rank: int, world: int) -> str:
    """File name of a packed shard."""
    return f"engram-l{layer}-r{rank}of{world}.bin"


@dataclass(frozen=True)
class Shard:
    """Which rows of which layer: [first, end) of `total`."""

    layer: int
    rank: int
    world: int
    first: int
    end: int
    total: int


@dataclass(frozen=True)
class Counts:
    """Lookups of owned rows, cache hits, reads issued."""

    lookups: int = 0
    hits: int = 0
    reads: int = 0

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(self.lookups - other.lookups, self.hits - other.hits, self.reads - other.reads)


class LayerRows(Protocol):
    """Exact rows of one shard, however they are read. EngramFailure from `fetch` must end the process."""

    @property
    def shard(self) -> Shard: ...

    @property
    def packed(self) -> bool:
        """Whether the packed file is read, one read a row."""

    @property
    def slots(self) -> int:
        """Rows that the cache holds at most; 0 without a cache."""

    @property
    def counts(self) -> Counts:
        """Counters since the start, consistent with each other."""

    def use_cache(self, on: bool) -> None:
        """Read past the cache, or through it again; what it holds stays in it. Between two steps alone.

        An exception is a refusal: the layer reads as before.
        """

    def fetch(self, ids: npt.NDArray[np.int64]) -> Bytes:
        """[M, 264] bytes (256 weight, then 8 scale codes) of the global row ids [M], all owned.

        With a cache, each missing row is read once a call; a second request for it in the same call is a hit.
        """

    def close(self) -> None:
        """Close the file; no fetch may follow."""


class _AlignedFile:
    """Positional reads through a page-aligned window; a short read is fatal."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._local = threading.local()

    def read(self, offset: int, length: int) -> memoryview:
        """`length` bytes at `offset`, valid until the thread's next read; length + offset in page <= 8192."""
        window: memoryview | None = getattr(self._local, "window", None)
        if window is None:
            window = memoryview(mmap.mmap(-1, WINDOW))
            self._local.window = window
        start = offset & ~(PAGE - 1)
        inside = offset - start
        try:
            got = os.preadv(self._descriptor, [window], start)
        except OSError as error:
            raise EngramFailure(f"read of {self._path} at {offset} failed", error.errno or 0) from error
        if got < inside + length:
            raise EngramFailure(f"short read of {self._path} at {offset}: {got - inside} of {length} bytes")
        return window[inside : inside + length]

    def close(self) -> None:
        os.close(self._descriptor)


def _open_packed(path: Path, shard: Shard) -> _AlignedFile | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None  # the field's silent fallback; only packed=False in the log shows it
    page = memoryview(mmap.mmap(-1, HEADER_BYTES))
    try:
        got = os.preadv(descriptor, [page], 0)
    except OSError as error:
        raise EngramFailure(f"{path} has no header", error.errno or 0) from error
    if got < HEADER_BYTES:
        raise EngramFailure(f"{path} has no header")
    observed = struct.unpack_from("<6Q", page)
    expected = (MAGIC, shard.layer, shard.first, shard.end, shard.total, ROW_BYTES)
    names = ("magic", "layer", "first row", "end row", "total rows", "row bytes")
    for name, have, want in zip(names, observed, expected, strict=True):
        if have != want:
            raise EngramFailure(f"{path}: {name} is {have}, expected {want}; run the pack step again")
    size = os.fstat(descriptor).st_size
    needed = HEADER_BYTES + ROW_BYTES * (shard.end - shard.first)
    if size < needed:
        raise EngramFailure(f"{path} is truncated: {size} of {needed} bytes")
    return _AlignedFile(descriptor, path)


def _open_checkpoint(path: Path, warn: Callable[[str], None]) -> _AlignedFile:
    try:
        return _AlignedFile(os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC), path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise EngramFailure(f"can not open {path}", error.errno or 0) from error
    warn(f"Engram: O_DIRECT unavailable for {path}, using buffered reads")
    return _AlignedFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)


def to_stderr(text: str) -> None:
    """A line of the field's shape, outside of the log."""
    print(text, file=sys.stderr, flush=True)


class RowStore:
    """`LayerRows` in Python. EngramFailure from the constructor or from `fetch` must end the process."""

    def __init__(
        self,
        shard: Shard,
        packed_dir: Path,
        weight: TensorInfo,
        scale: TensorInfo,
        pool: ReaderPool,
        warn: Callable[[str], None] = to_stderr,
        cache: RowCache | None = None,
    ) -> None:
        check_tables(shard, weight, scale)
        self.shard = shard
        self.cache = cache
        self._cached = True
        self._pool = pool
        self._weight_at = weight.begin
        self._scale_at = scale.begin
        self._lock = threading.Lock()
        self._counts = Counts()
        packed = _open_packed(packed_dir / packed_name(shard.layer, shard.rank, shard.world), shard)
        self.packed = packed is not None
        self._file = packed if packed is not None else _open_checkpoint(weight.path, warn)

    @property
    def slots(self) -> int:
        return self.cache.slots if self.cache is not None else 0

    @property
    def counts(self) -> Counts:
        with self._lock:
            return self._counts

    def use_cache(self, on: bool) -> None:
        self._cached = on

    def fetch(self, ids: npt.NDArray[np.int64]) -> Bytes:
        out = np.empty((len(ids), ROW_BYTES), dtype=np.uint8)
        if self.cache is None or not self._cached:
            self._read(ids, out)
            misses = len(ids)
        else:
            missing = self.cache.take(ids, out)
            distinct, inverse = np.unique(ids[missing], return_inverse=True)
            misses = len(distinct)
            if misses:
                rows = np.empty((misses, ROW_BYTES), dtype=np.uint8)
                self._read(distinct, rows)
                out[missing] = rows[inverse]
                self.cache.put(distinct, rows)
        with self._lock:
            old = self._counts
            reads = misses if self.packed else 2 * misses
            hits = len(ids) - misses
            self._counts = Counts(old.lookups + len(ids), old.hits + hits, old.reads + reads)
        return out

    def _read(self, ids: npt.NDArray[np.int64], out: Bytes) -> None:
        """Fill out [M, 264] from the file."""
        rows: list[int] = ids.tolist()
        view = out.reshape(-1).data
        read = self._read_packed if self.packed else self._read_unpacked
        # Few ids are read one after the other: waking a thread costs more than a read.
        workers = 1 if len(rows) < SERIAL_BELOW else -(-len(rows) // IDS_PER_READER)
        self._pool.run(lambda start, step: read(rows, view, start, step), workers)

    def _read_packed(self, rows: list[int], view: memoryview, start: int, step: int) -> None:
        first, read = self.shard.first, self._file.read
        for index in range(start, len(rows), step):
            at = index * ROW_BYTES
            view[at : at + ROW_BYTES] = read(HEADER_BYTES + ROW_BYTES * (rows[index] - first), ROW_BYTES)

    def _read_unpacked(self, rows: list[int], view: memoryview, start: int, step: int) -> None:
        read = self._file.read
        for index in range(start, len(rows), step):
            at, row = index * ROW_BYTES, rows[index]
            middle = at + WEIGHT_BYTES
            view[at:middle] = read(self._weight_at + WEIGHT_BYTES * row, WEIGHT_BYTES)
            view[middle : at + ROW_BYTES] = read(self._scale_at + SCALE_BYTES * row, SCALE_BYTES)

    def close(self) -> None:
        self._file.close()


class RowCacheSwitch:
    """The row caches of all layers of a rank, as one switch (trispark_lab.switches)."""

    def __init__(self, stores: Sequence[LayerRows]) -> None:
        self._stores = stores
        self.on = True

    @classmethod
    def of(cls, stores: Sequence[LayerRows]) -> dict[str, "RowCacheSwitch"]:
        """Under the name of its feature; nothing where no layer has a cache."""
        cached = [store for store in stores if store.slots]
        return {"engram_cache": cls(cached)} if cached else {}

    def turn(self, on: bool) -> None:
        """All layers, or none: where one cannot, those before it are turned back, and its refusal is raised."""
        with ExitStack() as back:
            for store in self._stores:
                store.use_cache(on)
                back.callback(store.use_cache, self.on)
            back.pop_all()
        self.on = on


def check_tables(shard: Shard, weight: TensorInfo, scale: TensorInfo) -> None:
    """EngramFailure when the tables of the checkpoint are not those of the shard's layer."""
    if weight.shape != (shard.total, WEIGHT_BYTES) or scale.shape != (shard.total, SCALE_BYTES):
        raise EngramFailure(f"layer {shard.layer}: table shapes {weight.shape}, {scale.shape} do not fit")
    if weight.path != scale.path:
        raise EngramFailure(f"layer {shard.layer}: weight and scale lie in different files")


def gib_text(gib: float) -> str:
    """GiB with at least one decimal: 0.0, 0.25, 0.001."""
    text = f"{gib:.9f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def start_line(store: LayerRows, cache_gib: float, ways: int, io_threads: int) -> str:
    """The line that says once how the rows of a layer are served."""
    shard, slots = store.shard, store.slots
    share = 100.0 * slots / max(1, shard.end - shard.first)
    return (
        f"Exact nvme Engram layer={shard.layer} rank={shard.rank} rows=[{shard.first},{shard.end}) "
        f"cache={gib_text(cache_gib)}GiB ({slots} slots, {ways}-way, {share:.1f}% of owned rows) scales=0.0GiB "
        f"io_threads={io_threads} packed={store.packed}"
    )


class CounterLines:
    """Stats source: one line a layer with the counters since the line before. With a cache, the exact number of hits
    follows the field's shape, whose percentage is too coarse to check the reads."""

    def __init__(self, stores: Sequence[LayerRows], cache_gib: float, ways: int, io_threads: int) -> None:
        self._stores = stores
        self._tail = f"cache={gib_text(cache_gib)}GiB({ways}-way) scales=0.0GiB threads={io_threads}"
        self._seen = [Counts() for _ in stores]

    def __call__(self, final: bool) -> list[str]:
        lines = []
        for index, store in enumerate(self._stores):
            now = store.counts
            delta = now - self._seen[index]
            if delta.lookups == 0 and not final:
                continue
            self._seen[index] = now
            rate = 100.0 * delta.hits / delta.lookups if delta.lookups else 0.0
            hits = f" hits={delta.hits}" if store.slots else ""
            lines.append(
                f"Engram layer={store.shard.layer} lookups={delta.lookups} hit_rate={rate:.1f}% reads={delta.reads} "
                f"{self._tail} packed={store.packed}{hits}"
            )
        return lines
