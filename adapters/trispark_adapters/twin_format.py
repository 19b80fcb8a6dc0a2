"""The bytes of a twin: e4m3 codes with one power of two for each 32 x 32 block, and their order for the kernel.

A twin of a [rows, columns] weight, rows and columns multiples of 32:
- codes: uint8 [rows, columns], e4m3 ("fn": no infinities, 0x7F and 0xFF are NaN and never used)
- exponents: uint8 [rows / 32, columns / 32]; a block's scale is 2**(exponent - 127), 0 is 2**-127
- packed: uint8 [rows * columns], the codes in the order of native/twin_gemm/README.md

The exponent of a block is ceil(log2(largest magnitude / 448)), at least -127: the smallest one that holds the block, so
that every value which any exponent could give exactly is exact with it. All functions work on any torch device.
"""

from dataclasses import dataclass
from typing import Any, Final

from .twin_plan import LARGEST_EXPONENT, ROWS, TILE_K, TILE_ROWS

BIAS: Final = 127
SLICE_ROWS: Final = 256
"""Rows converted at a time; temporaries are below 24 bytes for each of their values."""


@dataclass(frozen=True)
class Coded:
    """Codes and exponents of some rows; `exact`: they give every bit of the weight back."""

    codes: Any
    exponents: Any
    exact: bool


def scales_of(exponents: Any) -> Any:
    """float32 2**(exponent - 127) for each uint8 exponent, made from its bits: no rounding on any device."""
    import torch

    wide = exponents.to(torch.int32)
    bits = torch.where(wide == 0, 1 << 22, wide << 23)
    return bits.view(torch.float32)


def exponents_of(weight: Any) -> Any:
    """uint8 [rows / 32, columns / 32] of a finite float32 [rows, columns] weight."""
    import torch

    rows, columns = weight.shape
    peaks = weight.abs().reshape(rows // ROWS, ROWS, columns // TILE_K, TILE_K).amax(dim=(1, 3))
    mantissa, power = torch.frexp(peaks)  # peak = mantissa * 2**power, mantissa in [0.5, 1); 448 = 0.875 * 2**9
    power = torch.where(mantissa <= 0.875, power - 9, power - 8)
    power = torch.where(peaks == 0, -BIAS, power).clamp(min=-BIAS)
    return (power + BIAS).to(torch.uint8)


def dequantise(codes: Any, exponents: Any) -> Any:
    """bf16 [rows, columns]; exact wherever the scaled code is a bf16, which it is but below 2**-133."""
    import torch

    rows, columns = codes.shape
    values = codes.view(torch.float8_e4m3fn).to(torch.float32)
    blocks = values.view(rows // ROWS, ROWS, columns // TILE_K, TILE_K)
    blocks *= scales_of(exponents)[:, None, :, None]
    return values.to(torch.bfloat16)


def quantise(weight: Any) -> Coded | None:
    """Codes of a bf16 [rows, columns] weight; None when it is not finite or a block is too large for the kernel."""
    import torch

    rows, columns = weight.shape
    wide = weight.to(torch.float32)
    if not bool(torch.isfinite(wide).all()):
        return None
    exponents = exponents_of(wide)
    if int(exponents.max()) > LARGEST_EXPONENT:
        return None
    # Exact: a power of two times a value of 8 bits, and 2**127 times the smallest bf16 is far from float32's limits.
    blocks = wide.view(rows // ROWS, ROWS, columns // TILE_K, TILE_K)
    blocks *= scales_of(2 * BIAS - exponents.to(torch.int32))[:, None, :, None]
    codes = wide.to(torch.float8_e4m3fn).view(torch.uint8)
    exact = torch.equal(dequantise(codes, exponents).view(torch.int16), weight.view(torch.int16))
    return Coded(codes, exponents, exact)


def pack(codes: Any) -> Any:
    """uint8 [rows * columns] in the kernel's order, from uint8 [rows, columns]."""
    import torch

    rows, columns = codes.shape
    order = codes.view(rows // TILE_ROWS, 2, 8, columns // TILE_K, 4, 2, 4).permute(0, 3, 2, 4, 1, 5, 6)
    quads = order.to(torch.int32)
    one, two = quads[..., 0:2], quads[..., 2:4]
    halves = (one & 0x80) << 8 | (one & 0x7F) << 4 | (two & 0x80) << 4 | (two & 0x70) << 8 | (two & 0x0F)
    return (
        torch.where(halves > 0x7FFF, halves - 0x10000, halves).to(torch.int16).contiguous().view(torch.uint8).view(-1)
    )


def unpack(packed: Any, rows: int, columns: int) -> Any:
    """uint8 [rows, columns] from `pack`'s order."""
    import torch

    halves = packed.view(torch.int16).to(torch.int32) & 0xFFFF
    one = (halves >> 8 & 0x80) | (halves >> 4 & 0x7F)
    two = (halves >> 4 & 0x80) | (halves >> 8 & 0x70) | (halves & 0x0F)
    shape = (rows // TILE_ROWS, columns // TILE_K, 8, 4, 2, 2, 2)
    quads = torch.cat([one.view(shape), two.view(shape)], dim=-1).to(torch.uint8)
    return quads.permute(0, 4, 2, 1, 3, 5, 6).reshape(rows, columns)
