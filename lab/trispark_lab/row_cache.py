"""Set-associative cache of row bytes: set = row id modulo the number of sets, round-robin victim within a set."""

import threading

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

SLOT_BYTES = 272
"""264 bytes of a row and its 8-byte tag; a set has one more byte for its next victim."""


def budget_for(gib: float, layers: int) -> int:
    """Bytes that one of `layers` layers has of a host's budget of `gib` GiB."""
    return int(gib * 2**30) // layers


def sets_for(gib: float, layers: int, ways: int, owned: int) -> int:
    """Sets that the share of one of `layers` layers of a host's budget of `gib` GiB holds.

    No more than what gives each of the `owned` rows, which are consecutive, a slot of its own.
    """
    return min(budget_for(gib, layers) // (SLOT_BYTES * ways + 1), -(-owned // ways))


def make_cache(gib: float, layers: int, ways: int, owned: int, row_bytes: int) -> "RowCache | None":
    """The cache of one layer; None when the budget holds no set."""
    sets = sets_for(gib, layers, ways, owned)
    return RowCache(sets, ways, row_bytes) if sets else None


class RowCache:
    """`sets` sets of `ways` rows of `row_bytes` bytes. `take` and `put` may be called from any thread."""

    def __init__(self, sets: int, ways: int, row_bytes: int) -> None:
        self.sets, self.ways = sets, ways
        self._tags = np.full((sets, ways), -1, dtype=np.int64)
        self._rows = np.zeros((sets, ways, row_bytes), dtype=np.uint8)
        self._victim = np.zeros(sets, dtype=np.uint8)
        self._lock = threading.Lock()

    @property
    def slots(self) -> int:
        """Rows that fit."""
        return self.sets * self.ways

    def take(self, ids: Ints, out: Bytes) -> Ints:
        """Fill out[i] for each id that is held; indices of those that are not."""
        places = ids % self.sets
        with self._lock:
            found = self._tags[places] == ids[:, None]
            hit = found.any(axis=1)
            out[hit] = self._rows[places[hit], found[hit].argmax(axis=1)]
        return np.flatnonzero(~hit)

    def put(self, ids: Ints, rows: Bytes) -> None:
        """Hold rows [M, row_bytes] of distinct ids [M], in this order; those that are held already stay as they are."""
        with self._lock:
            places = ids % self.sets
            fresh = np.flatnonzero(~(self._tags[places] == ids[:, None]).any(axis=1))
            fresh = fresh[np.argsort(places[fresh], kind="stable")]
            ordered = places[fresh]
            starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(ordered) else fresh
            counts = np.diff(np.append(starts, len(ordered)))
            turn = np.arange(len(ordered)) - np.repeat(starts, counts)
            way = (self._victim[ordered].astype(np.int64) + turn) % self.ways
            last = turn >= np.repeat(counts, counts) - self.ways  # an earlier one is overwritten in this very call
            self._tags[ordered[last], way[last]] = ids[fresh[last]]
            self._rows[ordered[last], way[last]] = rows[fresh[last]]
            touched = ordered[starts]
            self._victim[touched] = (self._victim[touched].astype(np.int64) + counts) % self.ways
