"""The rows of SGLang's Engram tables from the NVMe of each rank, in place of 63 GiB of memory a rank.

`EngramEmbedding` holds no table then: which rows a rank owns comes from its own constructor (0.5.21 and 0.5.22 divide
evenly, 0.5.23 by hash columns), `_owned_rows` reads them through the row store and gives bf16 [*ids.shape, 256] with
zeros for ids of other ranks, bit for bit as the engine's own lookup. Outside of a capture a failing read is raised at
once; inside a graph it gives NaN and ends the process (`engram_watch`). Facts: field 2.2 to 2.9, engine facts 2.2.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from trispark_adapters import engram_lines
from trispark_adapters.engram_shard import Opened, Placement, Settings, layout_of, open_rows
from trispark_hooks import binding, evidence
from trispark_hooks.registry import HookError

NAME: Final = "engram_backend"
DIM: Final = 256
ROWS: Final = "trispark_rows"
"""Attribute of an EngramEmbedding: its `LayerRows`."""
OTHER_TABLES: Final = ("SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE", "SGLANG_OPT_DSV41_ENGRAM_PEER_SHARDS")


@dataclass
class LayerRows:
    """Where the rows of one layer come from. `gather` is the engine's kernel, called with the rows on the device."""

    placement: Placement
    opened: Opened
    gather: Callable[..., Any]

    def __post_init__(self) -> None:
        from trispark_adapters.engram_staging import Staging

        self.where = f"layer {self.placement.layer}, rank {self.placement.rank}"
        self.staging = Staging(self.opened.store, self.owned, self.where)

    @property
    def owned(self) -> tuple[int, int]:
        """[first, end)."""
        return self.placement.first, self.placement.end

    def read(self, ids: Any) -> Any:
        """bf16 [*ids.shape, 256] of int64 `ids`; zeros where a row is not owned. Raises StoreError outside of a
        capture, HookError in one that was not warmed."""
        import torch

        from trispark_adapters import engram_staging as staging

        out = torch.empty(*ids.shape, DIM, dtype=torch.bfloat16, device=ids.device)
        count = ids.numel()
        if count == 0:
            return out
        flat = ids.reshape(-1).to(torch.int64)
        staged = self.staging.get(staging.Shape(1, count, count), ids.device)
        if staging.capturing(ids.device):
            staging.start(staged, flat)
        else:
            staging.read_now(staged, flat)
        return staging.dequantise(staged, out, self.gather)


def attach(
    module: ModuleType, embed: Any, layer: int, total: int, bounds: Sequence[int] | None, environ: Mapping[str, str]
) -> LayerRows:
    """Open the rows that `embed` owns, and say so. HookError, StoreError: no rows, or not those."""
    placement = Placement(
        layer=layer,
        rank=int(module.get_parallel().tp_rank),
        world=int(embed.tp_size),
        first=int(embed.row_start),
        end=int(embed.row_start) + int(embed.rows),
        total=total,
    )
    settings = Settings.of(environ)
    layout = layout_of(placement, bounds)
    opened = open_rows(placement, layout, settings)
    evidence.write(engram_lines.attached(placement, opened, settings))
    reads = opened.store.backend.name
    evidence.report(NAME, "armed", opened.why, layer=layer, layout=layout, packed=opened.packed, reads=reads)
    evidence.REPORTER.follow(engram_lines.Layer(placement, opened, settings).line)
    return LayerRows(placement, opened, module.engram_gather)


def install(module: ModuleType) -> None:
    """Replace constructor and lookup of `EngramEmbedding` in sglang.srt.layers.engram."""
    embedding = binding.symbol(module, "EngramEmbedding")
    for name in ("get_parallel", "envs", "engram_gather"):
        binding.symbol(module, name)
    binding.require_parameters(embedding.__init__, "num_embeddings", "dim", "layer_id")
    binding.require_parameters(embedding._owned_rows, "indices")
    binding.require_parameters(module.engram_gather, "weight_ptr", "scale_ptr", "row_lo", "row_hi")
    for variable in OTHER_TABLES:
        switch = getattr(module.envs, variable, None)
        if switch is not None and switch.get():
            raise HookError(
                f"TS-ADAPTER-ENGRAM-TABLE: the engine would keep its own table [where: {variable}] expected: 0; "
                f"observed: {switch.get()}; remedy: set it to 0"
            )
    binding.replace(module, "EngramEmbedding.__init__", NAME, lambda original: _constructor(module, original))
    binding.replace(module, "EngramEmbedding._owned_rows", NAME, _lookup)


def _constructor(module: ModuleType, original: Callable[..., None]) -> Callable[..., None]:
    import torch

    def construct(self: Any, num_embeddings: int, dim: int, layer_id: int, *args: Any, **kwargs: Any) -> None:
        if dim != DIM:
            raise HookError(
                f"TS-ADAPTER-ENGRAM-WIDTH: rows have another width [where: layer {layer_id}] expected: {DIM}; "
                f"observed: {dim}; remedy: use the adapters for this checkpoint"
            )
        with torch.device("meta"):  # its rows are counted, but take no memory
            original(self, num_embeddings, dim, layer_id, *args, **kwargs)
        bounds = kwargs.get("column_bounds", args[0] if args else None)
        for name in ("weight", "scale"):
            kept = torch.nn.Parameter(torch.empty(0, dtype=getattr(self, name).dtype), requires_grad=False)
            setattr(kept, "weight_loader", _leave_to_the_store)  # noqa: B010 - a tensor has no such field
            setattr(self, name, kept)
        rows = attach(module, self, layer_id, num_embeddings, bounds, os.environ) if self.rows else None
        object.__setattr__(self, ROWS, rows)

    return construct


def _leave_to_the_store(parameter: Any, loaded: Any) -> None:
    """The checkpoint's table is not read: its rows come from the store."""


def _lookup(original: Callable[..., Any]) -> Callable[..., Any]:
    def owned_rows(self: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
        rows: LayerRows | None = getattr(self, ROWS)
        if rows is None:  # this rank owns nothing, and the engine's own path gives zeros for that
            return original(self, indices, *args, **kwargs)
        return rows.read(indices)

    return owned_rows
