"""A fresh copy of the engine's Engram module for a test, with ranks that need no process group."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from engram_files import table_of, write_packed

LAYERS = (1, 14)
COLUMNS = 6
WORLD = 3


def fresh(monkeypatch: Any) -> ModuleType:
    """The engine's module executed once more, so that what a test replaces is gone with it."""
    import sglang.srt.layers.engram as known

    name = "trispark_engram_copy"
    spec = importlib.util.spec_from_file_location(name, known.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def as_rank(module: ModuleType, rank: int, world: int = WORLD) -> None:
    """The engine's code then believes to be this rank; its collective gives back what it gets."""
    module.get_parallel = lambda: SimpleNamespace(
        tp_rank=rank, tp_size=world, attn_dp_size=1, tp_group=SimpleNamespace(rank_in_group=rank)
    )
    module.tensor_model_parallel_all_reduce = lambda values: values


def by_columns(module: ModuleType) -> bool:
    """Whether this release divides tables by hash columns."""
    return hasattr(module, "shard_range")


def bounds_of(total: int) -> tuple[int, ...]:
    """First rows of COLUMNS hash columns of unequal length, and the total."""
    cuts = [total * (i * i + 3 * i) // (COLUMNS * COLUMNS + 3 * COLUMNS) for i in range(COLUMNS + 1)]
    return tuple(cuts)


def build(module: ModuleType, layer: int, total: int) -> Any:
    """EngramEmbedding as the release wants it."""
    extra = {"column_bounds": bounds_of(total)} if by_columns(module) else {}
    return module.EngramEmbedding(total, 256, layer, **extra)


def owned(module: ModuleType, total: int, rank: int, world: int = WORLD) -> tuple[int, int]:
    """[first, end) of a rank in this release."""
    if by_columns(module) and COLUMNS % world == 0:
        bounds, share = bounds_of(total), COLUMNS // world
        return bounds[rank * share], bounds[(rank + 1) * share]
    return total * rank // world, total * (rank + 1) // world


def tables(directory: Path, module: ModuleType, totals: Sequence[int]) -> list[np.ndarray[Any, Any]]:
    """Random tables of the layers, and their packed shards of all ranks in `directory`."""
    made = []
    for layer, total in zip(LAYERS, totals, strict=True):
        table = table_of(total, seed=layer)
        for rank in range(WORLD):
            first, end = owned(module, total, rank)
            write_packed(directory / f"engram-l{layer}-r{rank}of{WORLD}.bin", table, layer, first, end)
        made.append(table)
    return made


def load(embedding: Any, table: np.ndarray[Any, Any]) -> None:
    """As the engine's loader does from the checkpoint."""
    codes = torch.from_numpy(table[:, :256].copy()).view(torch.float8_e4m3fn)
    scales = torch.from_numpy(table[:, 256:].copy()).view(torch.float8_e8m0fnu)
    embedding.weight.weight_loader(embedding.weight, codes)
    embedding.scale.weight_loader(embedding.scale, scales)


def bits(rows: Any) -> Any:
    """bf16 rows as integers: NaN equals NaN of the same code."""
    return rows.contiguous().view(torch.int16)
