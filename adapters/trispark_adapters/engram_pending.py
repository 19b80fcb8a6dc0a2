"""Which lookup was started ahead for which ids: pure bookkeeping of the prefetch, without streams or tensors."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Key:
    """Ids of one layer in memory: address of the first, sizes and strides of [tokens, columns], and whether a capture
    is under way. Two lookups with equal keys, the tensor still alive, read the same ids."""

    address: int
    tokens: int
    columns: int
    stride: int
    captured: bool


@dataclass(frozen=True)
class Pending:
    """A lookup under way; `ids` keeps the memory of the key, rows come to `staged`, `ticket` is the lane's."""

    key: Key
    ids: Any
    staged: Any
    ticket: Any


class Book:
    """At most one pending lookup a layer."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}

    def put(self, layer: int, pending: Pending) -> None:
        """Replaces an older one, which nobody came for."""
        self._pending[layer] = pending

    def take(self, layer: int) -> Pending | None:
        """The one of `layer`, which is then gone."""
        return self._pending.pop(layer, None)

    def take_all(self) -> dict[int, Pending]:
        """All of them by layer, which are then gone."""
        taken, self._pending = self._pending, {}
        return taken

    def __len__(self) -> int:
        return len(self._pending)


def slice_key(address: int, tokens: int, layers: int, columns: int, index: int, captured: bool) -> Key:
    """Key of layer `index` of contiguous int64 ids [tokens, layers, columns] at `address`."""
    return Key(address + 8 * index * columns, tokens, columns, layers * columns, captured)
