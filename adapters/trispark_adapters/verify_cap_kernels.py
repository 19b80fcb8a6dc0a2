"""Router outputs of dead verify rows overwritten, in place, by those of their request's anchor row.

Rows come in blocks of `stride` a request, the anchor first. Row r is dead when its place in the block is not below the
request's live length. A dead row takes the anchor's expert ids, weights and, where the router also packs them, packed
ids; so it reads no expert of its own. Ids of -1 stay: they mark rows of padding, which no expert computes. An anchor
is always live, so nothing that is read is written.
"""

from typing import Any

import torch

MOST_ROWS = 1024
BLOCK = 64
"""Rows of a program of the kernel."""


def remap_torch(ids: Any, weights: Any, packed: Any, live: Any, stride: int) -> None:
    """The rule for tensors on the CPU; shapes as for `remap`."""
    rows, width = ids.shape
    row = torch.arange(rows, device=ids.device)
    anchor = row - row % stride
    dead = (row % stride >= live[row // stride])[:, None].expand(rows, width) & (ids != -1)
    for values in (ids, weights, packed):
        if values is not None:
            values.copy_(torch.where(dead, values.index_select(0, anchor), values))


def remap(ids: Any, weights: Any, packed: Any, live: Any, stride: int) -> None:
    """Overwrite the dead rows of int32 ids [M, K], float32 weights [M, K] and int32 packed [M, K] or None.

    live: int64 [>= M / stride], the anchor counted. One small launch a layer on a GPU, capturable.
    """
    if not ids.is_cuda:
        remap_torch(ids, weights, packed, live, stride)
        return
    import triton

    from .verify_cap_triton import copy_anchor

    rows, width = ids.shape
    shown = ids if packed is None else packed
    copy_anchor[(triton.cdiv(rows, BLOCK),)](
        ids,
        weights,
        shown,
        live,
        rows,
        width,
        stride,
        ids.stride(0),
        weights.stride(0),
        shown.stride(0),
        ROWS=BLOCK,
        WIDTH=triton.next_power_of_2(width),
        HAS_PACKED=packed is not None,
        num_warps=1,
    )
