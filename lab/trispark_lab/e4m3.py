"""Exact 8-bit floats: e4m3 (the "fn" form: no infinities, 0x7F and 0xFF are NaN) and ue8m0 block scales."""

import numpy as np
import numpy.typing as npt

E4M3_MAX = 448.0
UE8M0_BIAS = 127

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


def _e4m3_values() -> Floats:
    values = np.empty(256, dtype=np.float32)
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent, mantissa = (code >> 3) & 0xF, code & 7
        if exponent == 0xF and mantissa == 7:
            magnitude = float("nan")
        elif exponent == 0:
            magnitude = mantissa / 8.0 * 2.0**-6
        else:
            magnitude = (1.0 + mantissa / 8.0) * 2.0 ** (exponent - 7)
        values[code] = sign * magnitude
    return values


E4M3_VALUES: Floats = _e4m3_values()
"""Value of each e4m3 code, [256] float32."""

UE8M0_VALUES: Floats = np.array([2.0 ** (code - UE8M0_BIAS) for code in range(255)] + [np.nan], dtype=np.float32)
"""Value of each ue8m0 code, [256] float32; 255 is NaN."""

_POSITIVE: Floats = E4M3_VALUES[:127]


def encode(values: Floats) -> tuple[Bytes, Bools]:
    """Codes of `values` and where they are exact; where the mask is false the code means nothing."""
    magnitude = np.abs(values)
    index = np.minimum(np.searchsorted(_POSITIVE, magnitude), 126)
    exact = _POSITIVE[index] == magnitude
    sign = np.where(np.signbit(values), 0x80, 0)
    return (index | sign).astype(np.uint8), np.asarray(exact)


def encode_exact(values: Floats) -> Bytes:
    """Codes of `values`; ValueError when one of them has no exact code."""
    codes, exact = encode(values)
    if not bool(exact.all()):
        raise ValueError("a value has no exact e4m3 code")
    return codes


def expand_blocks(scales: Floats, rows: int, columns: int, block: int = 32) -> Floats:
    """[ceil(rows/block), ceil(columns/block)] block scales, repeated to [rows, columns]."""
    return np.repeat(np.repeat(scales, block, axis=0)[:rows], block, axis=1)[:, :columns]


def dequantise(codes: Bytes, scale_codes: Bytes, block: int = 32) -> Floats:
    """float32 [rows, columns] from e4m3 codes and ue8m0 scales of block x block tiles."""
    rows, columns = codes.shape
    scales = expand_blocks(UE8M0_VALUES[scale_codes], rows, columns, block)
    return (E4M3_VALUES[codes] * scales).astype(np.float32)
