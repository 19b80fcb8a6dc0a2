"""Twins: which weights have one, that it gives every bit back, and that its bytes are what the kernel reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from twin_reference import CpuProducts, kernel_operands

from trispark_adapters import twin_format
from trispark_adapters.twin import Twin, fits, twin_of_codes, twin_of_weight
from trispark_adapters.twin_plan import LARGEST_EXPONENT

COLUMNS = 4096
NAN = 0x7F


def checkpoint(rows: int, columns: int, seed: int, low: int = 90, high: int = 135) -> tuple[Any, Any]:
    """Codes without NaN, with zero blocks, and exponents in [low, high)."""
    source = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (rows, columns), generator=source, dtype=torch.uint8)
    codes = torch.where((codes & NAN) == NAN, codes - 1, codes)
    codes[:32, :64] = 0
    codes[:32, 64:96] = 0x80
    exponents = torch.randint(low, high, (rows // 32, columns // 32), generator=source, dtype=torch.uint8)
    return codes, exponents


def bits(tensor: Any) -> Any:
    return tensor.contiguous().view(torch.int16)


@settings(max_examples=6)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(0, 16), (90, 135)]))
def test_a_weight_of_codes_and_powers_of_two_has_an_exact_twin(seed: int, bounds: tuple[int, int]) -> None:
    codes, exponents = checkpoint(64, COLUMNS, seed, *bounds)
    if bounds[0] == 0:
        codes &= 0xF8  # below 2**-133 a bf16 holds no mantissa of three bits
        exponents += 4
    weight = twin_format.dequantise(codes, exponents)
    twin = twin_of_weight(weight, 32, exact=True)
    assert twin is not None
    assert torch.equal(bits(kernel_operands(twin)), bits(weight))
    again = twin_format.unpack(twin.codes, 64, COLUMNS)
    assert torch.equal(bits(twin_format.dequantise(again, twin.exponents)), bits(weight))


def test_signed_zeros_and_the_smallest_codes_come_back() -> None:
    codes = torch.zeros((32, COLUMNS), dtype=torch.uint8)
    codes[0, :8] = torch.tensor([0x80, 0x01, 0x81, 0x07, 0x87, 0x08, 0x7E, 0xFE])
    exponents = torch.full((1, COLUMNS // 32), 120, dtype=torch.uint8)
    weight = twin_format.dequantise(codes, exponents)
    assert weight[0, 1] == 2.0**-9 * 2.0**-7
    twin = twin_of_weight(weight, 32, exact=True)
    assert twin is not None
    assert torch.equal(bits(kernel_operands(twin)), bits(weight))
    assert torch.equal(twin_format.unpack(twin.codes, 32, COLUMNS), codes)


def test_a_padded_shard_of_zeros_is_exact() -> None:
    zeros = torch.zeros((128, COLUMNS), dtype=torch.bfloat16)
    twin = twin_of_weight(zeros, 32, exact=True)
    assert twin is not None
    assert not twin.exponents.any()
    assert torch.equal(bits(kernel_operands(twin)), bits(zeros))


def test_the_exponent_is_the_smallest_that_holds_the_block() -> None:
    """All positive finite bf16 as largest magnitudes, by float64."""
    peaks = torch.arange(1, 0x7F80, dtype=torch.int16).view(torch.bfloat16)
    flat = torch.zeros((32, 32 * len(peaks)), dtype=torch.float32)
    flat[3, 5::32] = peaks.to(torch.float32)
    found = twin_format.exponents_of(flat)[0].to(torch.float64) - 127
    held = peaks.to(torch.float64)
    assert bool((held <= 448 * torch.exp2(found)).all())
    assert bool(((found == -127) | (held > 448 * torch.exp2(found - 1))).all())


@pytest.mark.parametrize(
    ("name", "values", "exact", "lossy"),
    [
        ("five bits of mantissa", {(3, 4): 1.0625}, False, True),
        ("a small value beside a large one", {(3, 4): 1.0, (3, 5): 1.125 * 2.0**-17}, False, True),
        ("not a number", {(3, 4): float("nan")}, False, False),
        ("infinite", {(3, 4): float("-inf")}, False, False),
        ("too large for the scale", {(3, 4): 1.25 * 2.0**16}, False, False),
        ("the largest", {(3, 4): 448.0 * 2.0**7}, True, True),
    ],
)
def test_which_weights_have_twins(name: str, values: dict[tuple[int, int], float], exact: bool, lossy: bool) -> None:
    weight = torch.zeros((64, COLUMNS), dtype=torch.bfloat16)
    for place, value in values.items():
        weight[place] = value
    assert (twin_of_weight(weight, 32, exact=True) is not None) is exact, name
    assert (twin_of_weight(weight, 32, exact=False) is not None) is lossy, name


def test_a_rounded_twin_is_within_half_a_step() -> None:
    weight = torch.randn((64, COLUMNS), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    twin = twin_of_weight(weight, 64, exact=False)
    assert twin is not None
    wide = kernel_operands(twin)
    peaks = weight.abs().to(torch.float32).view(2, 32, COLUMNS // 32, 32).amax(dim=(1, 3))
    least = (peaks / 448 * 2).repeat_interleave(32, 0).repeat_interleave(32, 1) * 2.0**-10
    error = (wide.to(torch.float32) - weight.to(torch.float32)).abs()
    assert bool((error <= torch.maximum(weight.abs().to(torch.float32) * 2.0**-4, least)).all())


def test_slices_make_the_same_twin_as_the_whole() -> None:
    codes, exponents = checkpoint(2 * twin_format.SLICE_ROWS + 64, COLUMNS, 5)
    weight = twin_format.dequantise(codes, exponents)
    twin = twin_of_weight(weight, 64, exact=True)
    whole = twin_format.quantise(weight)
    assert twin is not None
    assert whole is not None
    assert torch.equal(twin.codes, twin_format.pack(whole.codes))
    assert torch.equal(twin.exponents, whole.exponents)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8])
def test_the_checkpoints_own_bytes_are_used_as_they_are(dtype: Any) -> None:
    codes, exponents = checkpoint(320, COLUMNS, 6)
    twin = twin_of_codes(codes.view(dtype), exponents, 64)
    assert twin is not None
    assert (twin.groups, twin.rows, twin.columns) == (5, 64, COLUMNS)
    assert torch.equal(twin_format.unpack(twin.codes, 320, COLUMNS), codes)
    assert torch.equal(bits(kernel_operands(twin)), bits(twin_format.dequantise(codes, exponents)))


@pytest.mark.parametrize("broken", ["nan", "scale", "blocks", "dtype"])
def test_bytes_that_are_no_twin(broken: str) -> None:
    codes, exponents = checkpoint(64, COLUMNS, 7)
    if broken == "nan":
        codes[40, 5] = 0xFF
    elif broken == "scale":
        exponents[1, 3] = LARGEST_EXPONENT + 1
    elif broken == "blocks":
        exponents = exponents[:, : COLUMNS // 128]
    else:
        codes = codes.to(torch.float32)
    assert twin_of_codes(codes, exponents, 32) is None


@pytest.mark.parametrize(
    ("shape", "group_rows"),
    [((64, 4128), 32), ((64, COLUMNS), 48), ((64, COLUMNS), 128), ((2, 32, COLUMNS), 32), ((0, COLUMNS), 32)],
)
def test_shapes_without_a_kernel_have_no_twin(shape: tuple[int, ...], group_rows: int) -> None:
    assert twin_of_weight(torch.zeros(shape, dtype=torch.bfloat16), group_rows, exact=True) is None


def test_other_types_have_no_twin() -> None:
    assert twin_of_weight(torch.zeros((64, COLUMNS)), 32, exact=True) is None


def test_the_reference_product_is_the_wide_one() -> None:
    codes, exponents = checkpoint(64, COLUMNS, 8, 118, 122)
    weight = twin_format.dequantise(codes, exponents)
    twin = twin_of_weight(weight, 32, exact=True)
    assert twin is not None
    x = torch.randn((5, 2, COLUMNS), generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    want = torch.einsum("tgd,grd->tgr", x.double(), weight.view(2, 32, COLUMNS).double())
    got = CpuProducts().product(twin, x)
    assert float((got.double() - want).norm() / want.norm()) < 3e-3


def of(groups: int) -> Twin:
    codes = torch.zeros(groups * 32 * COLUMNS, dtype=torch.uint8)
    return Twin(codes, torch.zeros((groups, COLUMNS // 32), dtype=torch.uint8), groups, 32, COLUMNS)


def test_which_activations_the_kernel_takes() -> None:
    twin = of(2)
    storage = torch.zeros(64 * 4 * COLUMNS, dtype=torch.bfloat16)
    good = storage[: 6 * 2 * COLUMNS].view(6, 2, COLUMNS)
    assert fits(twin, good)
    apart = storage.view(16, 4, 4 * COLUMNS)[:, 1:3, 8 : COLUMNS + 8]
    assert fits(twin, apart)
    refused = {
        "float32": good.float(),
        "two axes": good.view(12, COLUMNS),
        "other groups": storage[: 6 * 3 * COLUMNS].view(6, 3, COLUMNS),
        "other columns": storage.view(-1, 2, 2 * COLUMNS),
        "no tokens": good[:0],
        "columns apart": storage.view(-1, 2, 2 * COLUMNS)[:, :, ::2],
        "rows off the boundary": storage.view(16, 4, 4 * COLUMNS)[:, 1:3, 4 : COLUMNS + 4],
        "token stride": torch.as_strided(storage, (4, 2, COLUMNS), (2 * COLUMNS + 4, COLUMNS, 1)),
        "group stride": torch.as_strided(storage, (4, 2, COLUMNS), (2 * COLUMNS + 64, COLUMNS + 4, 1)),
        "another device": good.to("meta"),
    }
    assert {name: fits(twin, x) for name, x in refused.items()} == dict.fromkeys(refused, False)
