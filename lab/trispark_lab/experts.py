"""Routed block: each row goes to its best-scored experts, whose results are added to the hidden state.

Two placements of the same arithmetic. With an expert parallel size of the number of ranks, a rank holds whole experts,
and the rank with most routed rows sets the pace. With 1, every rank holds a slice of the inner columns of each expert,
and all ranks do the same work. All values are small integers, so that both give the same bits.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import e4m3
from .checkpoint import Checkpoint
from .config import ModelConfig, MoeConfig
from .hashing import owned_range

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

STEP = 128
TOP = 3
"""The inner values are whole steps of 128, from 0 to 3."""


@dataclass(frozen=True)
class Placement:
    """What one rank holds: experts [first, end), of each the inner columns [left, right)."""

    first: int
    end: int
    left: int
    right: int


def place(experts: int, inner: int, ep_size: int, rank: int, world: int) -> Placement:
    """Whole experts when `ep_size` is the number of ranks, slices of all experts when it is 1."""
    if ep_size == world:
        return Placement(*owned_range(experts, rank, world), 0, inner)
    return Placement(0, experts, *owned_range(inner, rank, world))


@dataclass(frozen=True)
class Expert:
    """w1 [columns, in], w2 [out, columns] of the columns that this rank holds."""

    number: int
    w1: Floats
    w2: Floats


@dataclass(frozen=True)
class Work:
    """Rows that came, row-columns that this rank computed, row-columns of all ranks."""

    rows: int = 0
    own: int = 0
    total: int = 0

    def __sub__(self, other: "Work") -> "Work":
        return Work(self.rows - other.rows, self.own - other.own, self.total - other.total)


class RoutedBlock:
    """One rank's part. gate [experts, in]; output [out, V] takes the result to the logits."""

    def __init__(
        self,
        layer: int,
        gate: Floats,
        experts: Sequence[Expert],
        shape: MoeConfig,
        placement: Placement,
        output: Floats,
    ) -> None:
        self.layer, self.placement = layer, placement
        self._gate, self._experts, self._output = gate, experts, output
        self._chosen, self._inner = shape.chosen, shape.inner
        self._lock = threading.Lock()
        self._work = Work()

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: ModelConfig, ep_size: int, rank: int, world: int) -> "RoutedBlock":
        """The block of the last Engram layer, with this rank's part of the experts."""
        layer, width, moe, block = config.layers[-1], config.head_dim, config.moe, config.block
        placement = place(moe.experts, moe.inner, ep_size, rank, world)
        prefix = f"layers.{layer}.ffn"
        gate = e4m3.dequantise(*checkpoint.scaled(f"{prefix}.gate", (moe.experts, width), block), block)
        experts = []
        for number in range(placement.first, placement.end):
            w1, w2 = (
                e4m3.dequantise(*checkpoint.scaled(f"{prefix}.experts.{number}.{name}", shape, block), block)
                for name, shape in (("w1", (moe.inner, width)), ("w2", (moe.output, moe.inner)))
            )
            columns = slice(placement.left, placement.right)
            experts.append(Expert(number, w1[columns].copy(), w2[:, columns].copy()))
        codes, scales = checkpoint.scaled("head", (config.vocab_size, config.o_groups * config.o_rank), block)
        output = e4m3.dequantise(codes[:, : moe.output], scales[:, : -(-moe.output // block)], block).T.copy()
        return cls(layer, gate, experts, moe, placement, output)

    def route(self, rows: Floats) -> Ints:
        """[R, in] -> [R, chosen] experts by score, the best first, the lower number first among equals."""
        return np.asarray(np.argsort(-(rows @ self._gate.T), axis=1, kind="stable")[:, : self._chosen])

    def partial(self, rows: Floats) -> Floats:
        """[R, in] -> [R, out]: this rank's share of the weighted sum; the best expert has the largest weight."""
        routed = self.route(rows)
        result = np.zeros((len(rows), len(self._output)), dtype=np.float32)
        own = 0
        for expert in self._experts:
            places, rank_of_choice = np.nonzero(routed == expert.number)
            if not places.size:
                continue
            inner = np.clip(np.floor(rows[places] @ expert.w1.T * np.float32(1 / STEP)), 0, TOP)
            weight = (self._chosen - rank_of_choice).astype(np.float32)
            result[places] += (inner @ expert.w2.T) * weight[:, None]
            own += places.size * expert.w1.shape[0]
        with self._lock:
            old = self._work
            total = routed.size * self._inner
            self._work = Work(old.rows + len(rows), old.own + own, old.total + total)
        return result

    def logits(self, rows: Floats) -> Floats:
        """[R, in] -> [R, V]: this rank's share of what the block adds to the logits."""
        return np.asarray(self.partial(rows) @ self._output)

    @property
    def work(self) -> Work:
        """Counters since the start."""
        with self._lock:
            return self._work


class WorkLines:
    """Stats source: the routed work of this rank since the line before; shares that differ show the imbalance."""

    def __init__(self, block: RoutedBlock, rank: int, ep_size: int) -> None:
        self._block = block
        place = block.placement
        self._head = (
            f"MoE layer={block.layer} rank={rank} ep_size={ep_size} experts=[{place.first},{place.end}) "
            f"inner=[{place.left},{place.right})"
        )
        self._seen = Work()

    def __call__(self, final: bool) -> list[str]:
        now = self._block.work
        delta = now - self._seen
        if delta.rows == 0 and not final:
            return []
        self._seen = now
        share = 100.0 * delta.own / delta.total if delta.total else 0.0
        return [f"{self._head} rows={delta.rows} work={delta.own} share={share:.1f}%"]
