"""Products with twins on the CPU, by the arithmetic of the GPU kernel: its bit operations, its scale, float32 sums."""

from __future__ import annotations

from typing import Any

import torch

from trispark_adapters.twin import Twin
from trispark_adapters.twin_plan import TILE_K, TILE_ROWS

SCALE_SHIFT = 120


def kernel_operands(twin: Twin) -> Any:
    """bf16 [rows, columns]: what each lane of the kernel hands to the tensor cores, put back where it belongs.

    Written from the kernel's source alone: lane 4 g + t of unit (tile, column block) reads four words; words 0 and 1
    are row g, 2 and 3 row g + 8; a word's first pair are columns 0 and 1 of its four, the second pair 2 and 3.
    """
    rows, columns = twin.groups * twin.rows, twin.columns
    words = (
        twin.codes.view(torch.int32).view(rows // TILE_ROWS, columns // TILE_K, 8, 4, 4).to(torch.int64) & 0xFFFFFFFF
    )
    first = words & 0x87F087F0
    second = ((words << 4) & 0x80F080F0) | ((words >> 4) & 0x07000700)
    halves = torch.stack([first & 0xFFFF, first >> 16, second & 0xFFFF, second >> 16], dim=-1)
    signed = torch.where(halves > 0x7FFF, halves - 0x10000, halves).to(torch.int16)
    values = signed.view(torch.bfloat16).to(torch.float64)
    exponents = twin.exponents.to(torch.int64).repeat_interleave(2, dim=0)
    scale_bits = ((exponents + SCALE_SHIFT) << 7).to(torch.int16)
    scales = scale_bits.view(torch.bfloat16).to(torch.float64)
    scaled = values * scales[:, :, None, None, None, None]
    # [tile, block, g, t, word, column of four] -> rows (half, g), columns (block, t, word's half, column)
    parts = scaled.view(*scaled.shape[:4], 2, 2, 4).permute(0, 4, 2, 1, 3, 5, 6)
    return parts.reshape(rows, columns).to(torch.bfloat16)


class CpuProducts:
    """`Kernels` on the CPU; counts what it was asked for."""

    def __init__(self) -> None:
        self.products = 0
        self.widened = 0

    def product(self, twin: Twin, x: Any) -> Any:
        self.products += 1
        wide = kernel_operands(twin).view(twin.groups, twin.rows, twin.columns).to(torch.float32)
        return torch.einsum("tgd,grd->tgr", x.to(torch.float32), wide).to(torch.bfloat16)

    def widen(self, twin: Twin) -> Any:
        self.widened += 1
        return kernel_operands(twin)
