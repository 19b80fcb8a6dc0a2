"""Packed shards and checkpoints of random rows, and a plain reader of them that shares no code with the row store."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engram_store import Rows

ROOT = Path(__file__).resolve().parents[2]
Bytes = npt.NDArray[np.uint8]
MAGIC = 0x31344E4531565344


def table_of(total: int, seed: int = 0) -> Bytes:
    """[total, 264] random bytes."""
    return np.random.default_rng(seed).integers(0, 256, (total, 264), dtype=np.uint8)


def write_packed(path: Path, table: Bytes, layer: int, first: int, end: int) -> Rows:
    """The shard of rows [first, end)."""
    header = struct.pack("<6Q", MAGIC, layer, first, end, len(table), 264).ljust(4096, b"\0")
    path.write_bytes(header + table[first:end].tobytes())
    return Rows(layer, first, end, len(table))


@dataclass(frozen=True)
class Tables:
    """A file with both tables of a layer, and where they begin."""

    path: Path
    weight_at: int
    scale_at: int


def write_checkpoint(path: Path, table: Bytes, gap: int = 0) -> Tables:
    """Weights and scales far apart, neither at the begin of a page."""
    weight_at = 1032
    weights, scales = table[:, :256].tobytes(), table[:, 256:].tobytes()
    path.write_bytes(b"\xaa" * weight_at + weights + b"\xbb" * gap + scales)
    return Tables(path, weight_at, weight_at + len(weights) + gap)


def plain_rows(path: Path, first: int, ids: list[int]) -> list[bytes]:
    """Rows of a packed shard, one buffered read each."""
    with path.open("rb") as file:
        rows = []
        for row in ids:
            file.seek(4096 + 264 * (row - first))
            rows.append(file.read(264))
        return rows


def run_python(code: str, *arguments: object, wrapper: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, with the adapters and this module on its path."""
    places = [str(ROOT / "adapters"), str(ROOT / "tests" / "support")]
    prelude = f"import sys; sys.path[:0] = {places!r}\n"
    argv = [*wrapper, sys.executable, "-W", "error", "-c", prelude + code, *(str(argument) for argument in arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
