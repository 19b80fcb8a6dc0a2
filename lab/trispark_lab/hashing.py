"""Row ids of the hashed n-gram memory: 24 columns = n-gram sizes 2, 3, 4 times eight heads (facts: Engram lookup)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SEED_FACTOR = 10007

Ints = npt.NDArray[np.int64]


def primes_above(start: int, count: int) -> list[int]:
    """The first `count` primes greater than `start`, ascending."""
    found: list[int] = []
    candidate = max(start + 1, 2)
    while len(found) < count:
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            found.append(candidate)
        candidate += 1
    return found


@dataclass(frozen=True)
class LayerHash:
    """Hash of one layer. primes and offsets: [sizes * heads], n-gram major; multipliers: [max n-gram], odd."""

    layer: int
    heads: int
    primes: Ints
    offsets: Ints
    multipliers: Ints

    @property
    def rows(self) -> int:
        """Table rows: the sum of the moduli."""
        return int(self.primes.sum())

    def row_ids(self, windows: Ints) -> Ints:
        """[T, max n-gram] compressed ids, newest first -> [T, columns] row ids; column = size index * heads + head."""
        products = windows * self.multipliers
        mixed = np.bitwise_xor.accumulate(products, axis=1)[:, 1:]
        spread = np.repeat(mixed, self.heads, axis=1)
        return np.asarray(spread % self.primes + self.offsets)


def build_hashes(
    layers: Sequence[int], *, max_ngram: int, heads: int, vocab_size: int, compressed_vocab_size: int
) -> dict[int, LayerHash]:
    """Hashes of all layers; primes are drawn in layer, n-gram, head order above vocab_size - 1, none twice."""
    columns = (max_ngram - 1) * heads
    drawn = primes_above(vocab_size - 1, columns * len(layers))
    half = max(1, int(np.iinfo(np.int64).max) // compressed_vocab_size // 2)
    hashes: dict[int, LayerHash] = {}
    for index, layer in enumerate(layers):
        primes = np.array(drawn[index * columns : (index + 1) * columns], dtype=np.int64)
        generator = np.random.default_rng(SEED_FACTOR * layer)
        multipliers = 2 * generator.integers(0, half, size=max_ngram, dtype=np.int64) + 1
        offsets = np.concatenate(([0], np.cumsum(primes)[:-1])).astype(np.int64)
        hashes[layer] = LayerHash(layer, heads, primes, offsets, multipliers)
    return hashes


def owned_range(rows: int, rank: int, world: int) -> tuple[int, int]:
    """[first, end) of the rows that a rank serves."""
    return rows * rank // world, rows * (rank + 1) // world
