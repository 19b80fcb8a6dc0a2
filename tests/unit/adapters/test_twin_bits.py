"""The kernel's way from an e4m3 code to the wide weight's bf16, by numpy: every code with every scale."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from trispark_adapters.twin_plan import LARGEST_EXPONENT
from trispark_lab import e4m3

ROOT = Path(__file__).resolve().parents[3]
SOURCE = (ROOT / "native/twin_gemm/twin_gemm.cu").read_text(encoding="utf-8")
CODES = np.array([code for code in range(256) if code & 0x7F != 0x7F], dtype=np.uint32)


def constant(pattern: str) -> list[int]:
    found = re.search(pattern, SOURCE)
    assert found is not None, pattern
    return [int(value, 0) for value in found.groups()]


[FIRST] = constant(r"return word & (0x[0-9a-f]+)u; }")
SIGNS, REST = constant(r"\(\(word << 4\) & (0x[0-9a-f]+)u\) \| \(\(word >> 4\) & (0x[0-9a-f]+)u\)")
[SHIFT] = constant(r"kScaleShift = (\d+);")


def bf16(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """Values of bf16 bits; float64 holds each, and the product of two, exactly."""
    return (bits << 16).astype(np.uint32).view(np.float32).astype(np.float64)


def half(first: npt.NDArray[np.uint32], second: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """16 bits that hold two codes, as README.md of the kernels says."""
    one = (first & 0x80) << 8 | (first & 0x7F) << 4
    return one | (second & 0x80) << 4 | (second & 0x70) << 8 | second & 0x0F


def test_both_codes_of_a_half_come_out_as_their_value_times_a_power_of_two() -> None:
    first, second = (each.ravel() for each in np.meshgrid(CODES, CODES))
    low, high = half(first, second), half(second, first)
    word = low | high << 16
    assert int(word.max()) <= 0xFFFFFFFF
    ones, twos = word & FIRST, (word << 4 & SIGNS) | (word >> 4 & REST)
    values = e4m3.E4M3_VALUES.astype(np.float64)
    for got, codes in ((ones & 0xFFFF, first), (ones >> 16, second), (twos & 0xFFFF, second), (twos >> 16, first)):
        want = values[codes] * 2.0**-SHIFT
        assert np.array_equal(bf16(got), want)
        assert np.array_equal(got >> 15, codes >> 7)  # the sign, of zeros too


@pytest.mark.parametrize("exponent", range(LARGEST_EXPONENT + 1))
def test_the_scaled_code_is_the_wide_weight(exponent: int) -> None:
    scale_bits = np.uint32(exponent + SHIFT) << 7
    assert scale_bits < 0x7F80, "the scale is finite"
    scale = bf16(np.array([scale_bits], dtype=np.uint32))[0]
    assert scale == 2.0 ** (exponent - 127 + SHIFT)
    product = bf16(half(CODES, np.zeros_like(CODES)) & FIRST) * scale
    assert np.array_equal(product, e4m3.E4M3_VALUES[CODES].astype(np.float64) * 2.0 ** (exponent - 127))
    # A bf16, but for mantissas below 2**-133, which a weight that has an exact twin does not have.
    if exponent - 127 - 9 >= -133:
        bits = product.astype(np.float32).view(np.uint32)
        assert not (bits & 0xFFFF).any()


def test_one_more_exponent_would_overflow_the_scale() -> None:
    assert LARGEST_EXPONENT + 1 + SHIFT == 0xFF
