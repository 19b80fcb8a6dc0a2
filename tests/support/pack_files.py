"""Checkpoints of random rows at any offsets, what a packed shard of them is, and which of a file's pages are cached."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trispark import page_cache
from trispark_node.native_pack import CHUNK_BYTES, Source, blake3

ROW_BYTES = 264


def header_of(size: int) -> bytes:
    return bytes(index * 7 % 256 for index in range(size))


@dataclass(frozen=True)
class Checkpoint:
    """Both tables of one layer in one file; `table` is [rows, 264] bytes."""

    source: Source
    table: np.ndarray

    @classmethod
    def write(
        cls, path: Path, rows: int, before: int = 1001, gap: int = 0, after: int = 0, seed: int = 0
    ) -> Checkpoint:
        """`before` bytes, the weights, `gap` bytes, the scales, `after` bytes."""
        table = np.random.default_rng(seed).integers(0, 256, (rows, ROW_BYTES), dtype=np.uint8)
        weights, scales = table[:, :256].tobytes(), table[:, 256:].tobytes()
        path.write_bytes(b"\xaa" * before + weights + b"\xbb" * gap + scales + b"\xcc" * after)
        return cls(Source(path, before, before + len(weights) + gap), table)

    def packed(self, header: bytes, first: int, end: int) -> bytes:
        """A shard, made by NumPy alone."""
        return header + self.table[first:end].tobytes()


def chunk_hashes(content: bytes) -> tuple[str, ...]:
    """Each chunk hashed at once; that this is BLAKE3 is shown by the published vectors."""
    return tuple(blake3(content[at : at + CHUNK_BYTES]) for at in range(0, len(content), CHUNK_BYTES))


def cached_pages(path: Path) -> int:
    """Pages of the file that the page cache holds."""
    return page_cache.cached_bytes(path) // mmap.PAGESIZE
