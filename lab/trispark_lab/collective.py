"""Sums over all ranks, in rank order, so that every rank holds the same bits."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .links import Mesh

FLOAT32, BF16, BARRIER, BYTES = 1, 2, 3, 4
FIRST_BROADCAST = 16

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]


def to_bf16(values: Floats) -> Halves:
    """Upper halves of float32 values. Exact for e4m3 times a power of two: at most 3 mantissa bits are in use."""
    return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(halves: Halves) -> Floats:
    """float32 of bf16 bits."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


class Collective:
    """Collectives of one rank over a mesh; None is a world of one."""

    def __init__(self, mesh: Mesh | None) -> None:
        self._mesh = mesh
        self.rank = mesh.rank if mesh is not None else 0
        self.world = mesh.world if mesh is not None else 1

    def all_reduce(self, what: str, values: Floats) -> Floats:
        """Sum of float32 arrays of equal shape."""
        if self._mesh is None:
            return values
        own = np.ascontiguousarray(values, dtype=np.float32)
        others = self._mesh.exchange(what, FLOAT32, own.reshape(-1).data)
        parts = {rank: np.frombuffer(data, dtype=np.float32).reshape(own.shape) for rank, data in others.items()}
        return self._sum(parts, own)

    def all_reduce_bf16(self, what: str, halves: Halves) -> Floats:
        """float32 sum of arrays which travel as bf16."""
        own = from_bf16(halves)
        if self._mesh is None:
            return own
        others = self._mesh.exchange(what, BF16, np.ascontiguousarray(halves).reshape(-1).data)
        parts = {
            rank: from_bf16(np.frombuffer(data, dtype=np.uint16)).reshape(halves.shape) for rank, data in others.items()
        }
        return self._sum(parts, own)

    def barrier(self, what: str) -> None:
        """Returns when every rank came here."""
        if self._mesh is not None:
            self._mesh.exchange(what, BARRIER, memoryview(b""))

    def gather(self, what: str, payload: bytes) -> dict[int, bytes]:
        """{rank: its payload} of all ranks, this one among them; payloads are of one size."""
        if self._mesh is None:
            return {self.rank: payload}
        others = self._mesh.exchange(what, BYTES, memoryview(payload))
        return {self.rank: payload, **{rank: bytes(data) for rank, data in others.items()}}

    def broadcast(self, what: str, operation: int, payload: bytes) -> None:
        """Rank 0: tell every other rank what comes next; `operation` is the caller's number."""
        if self._mesh is not None:
            self._mesh.send_all(what, FIRST_BROADCAST + operation, payload)

    def next_broadcast(self, what: str, deadline_s: float, give_up: Callable[[], bool]) -> tuple[int, bytes] | None:
        """Other ranks: (operation, payload) of rank 0; None when `give_up` came first."""
        if self._mesh is None:
            raise RuntimeError("a world of one has no broadcast")
        received = self._mesh.receive_from(what, 0, deadline_s, give_up)
        return None if received is None else (received[0] - FIRST_BROADCAST, received[1])

    def close(self) -> None:
        """Close the connections."""
        if self._mesh is not None:
            self._mesh.close()

    def _sum(self, parts: dict[int, Floats], own: Floats) -> Floats:
        parts[self.rank] = own
        total = parts[0]
        for rank in range(1, self.world):
            total = total + parts[rank]
        return total
