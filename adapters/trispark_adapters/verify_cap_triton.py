"""The Triton kernel of `verify_cap_kernels.remap`."""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

_jit: Callable[[Callable[..., Any]], Any] = triton.jit


@_jit
def copy_anchor(
    ids: tl.tensor,
    weights: tl.tensor,
    packed: tl.tensor,
    live: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    stride: tl.tensor,
    stride_ids: tl.tensor,
    stride_weights: tl.tensor,
    stride_packed: tl.tensor,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_PACKED: tl.constexpr,
) -> None:
    """Dead rows take the anchor's ids, weights and packed ids; ids of -1 stay."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)[None, :]
    inside = row < rows
    place = row % stride
    dead = inside & (place >= tl.load(live + row // stride, mask=inside, other=1).to(tl.int32))
    wanted = dead[:, None] & (column < width)
    own = tl.load(ids + row[:, None] * stride_ids + column, mask=wanted, other=-1)
    wanted = wanted & (own != -1)
    anchor = (row - place)[:, None]
    taken = tl.load(ids + anchor * stride_ids + column, mask=wanted, other=-1)
    weight = tl.load(weights + anchor * stride_weights + column, mask=wanted, other=0.0)
    tl.store(ids + row[:, None] * stride_ids + column, taken, mask=wanted)
    tl.store(weights + row[:, None] * stride_weights + column, weight, mask=wanted)
    if HAS_PACKED:
        both = tl.load(packed + anchor * stride_packed + column, mask=wanted, other=0)
        tl.store(packed + row[:, None] * stride_packed + column, both, mask=wanted)
