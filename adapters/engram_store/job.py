"""A lookup whose place and shape are fixed beforehand, for a CUDA host function: es_job and es_serve of the library.

Nothing of Python runs in it, so that a captured graph never waits for the interpreter.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from .errors import Code, StoreError
from .library import U64, ErrorFields, loaded
from .store import ROW_BYTES, RowStore


class JobFields(ctypes.Structure):
    """es_job."""

    _fields_ = (
        ("handle", U64),
        ("ids", ctypes.c_void_p),
        ("tokens", U64),
        ("columns", U64),
        ("stride", U64),
        ("first", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("weights", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("owned", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("calls", U64),
        ("retries", U64),
        ("busy_ns", U64),
        ("failed", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("error", ErrorFields),
    )


@dataclass(frozen=True)
class Places:
    """Addresses of memory that outlives the job: ids int64, weights [n, 256] and scales [n, 8] bytes; n = tokens *
    columns. `ids` has tokens * stride elements from there on, of which the first `columns` of each token are looked up.
    """

    ids: int
    weights: int
    scales: int


class Scratch:
    """Memory that a lookup of up to `capacity` ids works in; lookups that never overlap may share it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.owned = np.empty(capacity, dtype=np.int64)
        self.places = np.empty(capacity, dtype=np.uint64)
        self.rows = np.empty((capacity, ROW_BYTES), dtype=np.uint8)


class Job:
    """One lookup of `tokens` * `columns` ids. Its memory must stay where it is as long as a graph holds its address.

    Ids outside of [first, end) give zero bytes. A lookup that failed twice gives NaN in all rows and sets `failure`.
    """

    def __init__(
        self,
        store: RowStore,
        owned: tuple[int, int],
        places: Places,
        tokens: int,
        columns: int,
        stride: int,
        scratch: Scratch | None = None,
    ) -> None:
        self._store = store  # the library knows it by number alone
        self._scratch = scratch or Scratch(tokens * columns)
        if self._scratch.capacity < tokens * columns:
            raise ValueError(f"scratch for {self._scratch.capacity} ids, {tokens * columns} are to be looked up")
        self._fields = JobFields(
            handle=store.handle,
            ids=places.ids,
            tokens=tokens,
            columns=columns,
            stride=stride,
            first=owned[0],
            end=owned[1],
            weights=places.weights,
            scales=places.scales,
            owned=self._scratch.owned.ctypes.data,
            places=self._scratch.places.ctypes.data,
            rows=self._scratch.rows.ctypes.data,
        )

    @property
    def address(self) -> int:
        """What a host function gets as its argument."""
        return ctypes.addressof(self._fields)

    def run(self) -> None:
        """Look up now, in this thread. Raises StoreError when the lookup failed, also an earlier one of a graph."""
        loaded().es_serve(self.address)
        self.check()

    @property
    def failure(self) -> StoreError | None:
        """The first lookup that failed since the start."""
        if not self._fields.failed:
            return None
        error = self._fields.error
        text: str = error.text.decode(errors="replace")
        return StoreError(Code(error.code), text, error.sys_errno, error.offset, error.expected, error.observed)

    def check(self) -> None:
        """Raises StoreError when a lookup failed."""
        failure = self.failure
        if failure is not None:
            raise failure

    def forget(self) -> None:
        """Look up again as if nothing had failed; no lookup of this job may be under way."""
        self._fields.failed = 0

    @property
    def calls(self) -> int:
        """Lookups since the start, those of graph replays among them."""
        return int(self._fields.calls)

    @property
    def retries(self) -> int:
        """Lookups that were made twice."""
        return int(self._fields.retries)

    @property
    def busy_s(self) -> float:
        """Seconds spent in lookups."""
        return int(self._fields.busy_ns) / 1e9


def serve_address() -> int:
    """Address of the host function, of type void (*)(void *); its argument is `Job.address`."""
    address = ctypes.cast(loaded().es_serve, ctypes.c_void_p).value
    assert address is not None
    return address
