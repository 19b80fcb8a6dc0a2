"""Rows through the row store library, where its adapter is mounted; through Python where it is not or does not fit.

Which of the two reads is said once a layer. What is logged and counted of the rows is the same.
"""

import importlib.util
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .errors import EngramFailure
from .readers import ReaderPool
from .row_cache import budget_for, make_cache
from .row_store import ROW_BYTES, Bytes, Counts, LayerRows, RowStore, Shard, check_tables, packed_name, to_stderr
from .safetensors import TensorInfo

if TYPE_CHECKING:
    import engram_store

LIBRARY_READERS = 1024
"""More than that the library does not start."""


@dataclass(frozen=True)
class CacheBudget:
    """A host's budget of `gib` GiB for the caches of `layers` layers, sets of `ways` rows."""

    gib: float = 0.0
    layers: int = 1
    ways: int = 4


def why_not() -> str | None:
    """None when the library can read, else why it can not."""
    if importlib.util.find_spec("engram_store") is None:
        return "its adapter is not mounted"
    from engram_store import available

    return available()


def open_rows(
    shard: Shard,
    packed_dir: Path,
    weight: TensorInfo,
    scale: TensorInfo,
    pool: ReaderPool,
    cache: CacheBudget,
    log: Callable[[str], None],
) -> LayerRows:
    """The rows of a shard, by the library or by Python, which `log` is told. EngramFailure must end the process."""
    refusal = why_not()
    rows: LayerRows
    if refusal is None:
        rows = library = LibraryRows(shard, packed_dir, weight, scale, pool.threads, cache)
        how = library.how
    else:
        owned = shard.end - shard.first
        held = make_cache(cache.gib, cache.layers, cache.ways, owned, ROW_BYTES)
        rows, how = RowStore(shard, packed_dir, weight, scale, pool, cache=held), f"Python, no library: {refusal}"
    log(f"Row store of layer {shard.layer}: {how}")
    return rows


class LibraryRows:
    """`LayerRows` by the library. EngramFailure from the constructor or from `fetch` must end the process.

    `readers` reads are in flight at most. The attach checks are those of `RowStore`, and the library's own: a file
    with ranges that were never written, or with more than zeros after the header's fields, does not fit either.
    """

    def __init__(
        self,
        shard: Shard,
        packed_dir: Path,
        weight: TensorInfo,
        scale: TensorInfo,
        readers: int,
        cache: CacheBudget,
        warn: Callable[[str], None] = to_stderr,
    ) -> None:
        from engram_store import Options, Rows

        check_tables(shard, weight, scale)
        self.shard = shard
        rows = Rows(shard.layer, shard.first, shard.end, shard.total)
        readers = min(readers, LIBRARY_READERS)
        path = packed_dir / packed_name(shard.layer, shard.rank, shard.world)

        def options(cache_bytes: int) -> Options:
            return Options(depth=readers, threads=readers, ways=cache.ways, cache_bytes=cache_bytes)

        def reopened(cache_bytes: int) -> "engram_store.RowStore":
            if not self.packed:
                return _open_checkpoint(weight, scale, rows, options(cache_bytes), warn)
            found = _open_packed(path, rows, options(cache_bytes))
            if found is None:
                raise EngramFailure(f"{path} can not be opened again")
            return found

        budget = budget_for(cache.gib, cache.layers)
        # Before the first open: a file that is replaced meanwhile is refused later, not taken for what is read.
        seen = {each: _identity(each) for each in (path, weight.path)}
        packed = _open_packed(path, rows, options(budget))
        self.packed = packed is not None
        self._store = packed if packed is not None else _open_checkpoint(weight, scale, rows, options(budget), warn)
        self._path = path if self.packed else weight.path
        self._opened = seen[self._path]
        self._open = reopened
        self._bare: engram_store.RowStore | None = None
        self._past = Counts()
        self._lock = threading.Lock()
        self.slots = self._store.slots
        self._warn = warn
        self._said = self.how

    @property
    def how(self) -> str:
        """Which backend reads, and why it is not the other one."""
        why = f", {self._store.why}" if self._store.why else ""
        return f"library, {self._store.backend.name.lower()}{why}"

    @property
    def counts(self) -> Counts:
        with self._lock:  # a store is counted until it is closed, then in `_past`
            bare = _counts(self._bare) if self._bare is not None else Counts()
            found = (_counts(self._store), bare, self._past)
        if self._said != self.how:  # the kernel gave no further ring
            self._said = self.how
            self._warn(f"Row store of layer {self.shard.layer}: {self._said}")
        return _sum(*found)

    def use_cache(self, on: bool) -> None:
        """Past the cache a second store of the same file reads, open as long as it does.

        RuntimeError when the path is another file by now, or when that store reads another way than the first one: the
        cache would not be all that is switched. EngramFailure when the file can not be opened again.
        """
        if on is (self._bare is None):
            return
        if on:
            self._close_bare()
            return
        bare = self._open(0)
        try:
            # After the open: what the path is now is what was opened, or it was replaced and is refused.
            if self._opened is None or _identity(self._path) != self._opened:
                raise RuntimeError(f"{self._path} was replaced after it was opened: past the cache reads another file")
            if bare.backend is not self._store.backend:
                raise RuntimeError(f"past the cache reads {bare.backend.name}, not {self._store.backend.name}")
        except BaseException:
            bare.close()
            raise
        with self._lock:
            self._bare = bare

    def fetch(self, ids: npt.NDArray[np.int64]) -> Bytes:
        from engram_store import StoreError

        try:
            bare = self._bare
            return (self._store if bare is None else bare).fetch(ids)
        except StoreError as error:
            raise EngramFailure(str(error), error.errno) from error

    def close(self) -> None:
        self._close_bare()
        self._store.close()

    def _close_bare(self) -> None:
        with self._lock:
            bare, self._bare = self._bare, None
            if bare is not None:
                self._past = _sum(self._past, _counts(bare))
                bare.close()


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file that the path names now; None without one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _counts(store: "engram_store.RowStore") -> Counts:
    now = store.counters
    return Counts(now.lookups, now.hits, now.reads)


def _sum(*counts: Counts) -> Counts:
    return Counts(*(sum(getattr(each, name) for each in counts) for name in ("lookups", "hits", "reads")))


def _open_packed(
    path: Path, rows: "engram_store.Rows", options: "engram_store.Options"
) -> "engram_store.RowStore | None":
    from engram_store import Code, RowStore, StoreError

    try:
        return RowStore.open_packed(path, rows, options, allow_longer=True)
    except StoreError as error:
        if error.code in (Code.OPEN, Code.KIND, Code.NO_DIRECT):
            return None  # the field's silent fallback; only packed=False in the log shows it
        raise EngramFailure(str(error), error.errno) from error


def _open_checkpoint(
    weight: TensorInfo,
    scale: TensorInfo,
    rows: "engram_store.Rows",
    options: "engram_store.Options",
    warn: Callable[[str], None],
) -> "engram_store.RowStore":
    from engram_store import RowStore, StoreError

    try:
        store = RowStore.open_checkpoint(weight.path, weight.begin, scale.begin, rows, options, allow_buffered=True)
    except StoreError as error:
        raise EngramFailure(str(error), error.errno) from error
    if not store.direct:
        warn(f"Engram: O_DIRECT unavailable for {weight.path}, using buffered reads")
    return store
