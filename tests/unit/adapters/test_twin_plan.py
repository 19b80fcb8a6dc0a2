"""How products are launched: the plan against the kernels' source, the chips' limits, and what must be covered."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_adapters.twin_plan import COLUMNS, GB10_SHARED_BYTES, KERNELS, ROWS, TILE_K, TOKENS, Chip, plan

ROOT = Path(__file__).resolve().parents[3]
SOURCE = (ROOT / "native/twin_gemm/twin_gemm.cu").read_text(encoding="utf-8")
GB10 = Chip(48, GB10_SHARED_BYTES)
H200 = Chip(132, 227 << 10)
CHIPS = (GB10, H200)
REGISTERS = 1 << 16
LEAST_REGISTERS = 96


def test_the_kernels_are_those_of_the_source() -> None:
    found = re.findall(
        r"^PRODUCT\((\w+), (\d+), (\d+), (\d+), (\d+), \d+, \w+, (\w+), (\w+), (\d+)\)$", SOURCE, re.MULTILINE
    )
    listed = [
        (name, int(tiles), int(warps), int(blocks), int(units), staged == "true", once == "true", int(residents))
        for name, tiles, warps, blocks, units, staged, once, residents in found
    ]
    assert listed == [
        (each.name, each.tiles, each.warps, each.blocks, each.units, each.staged, each.once, each.residents)
        for each in KERNELS
    ]


def test_each_kernel_covers_its_columns_and_fits_a_multiprocessor() -> None:
    for each in KERNELS:
        assert each.columns == TILE_K * each.units * each.warps * each.blocks, each.name
        assert each.threads * each.residents * LEAST_REGISTERS <= REGISTERS, each.name
        assert each.shared_bytes * each.residents <= H200.shared_bytes, each.name
        if not each.staged:
            assert each.shared_bytes * each.residents <= GB10.shared_bytes, each.name


def test_every_width_has_kernels_of_each_size_for_every_chip() -> None:
    for columns in COLUMNS:
        for chip in CHIPS:
            sizes = {
                each.tiles for each in KERNELS if each.columns == columns and each.shared_bytes <= chip.shared_bytes
            }
            assert sizes == {1, 2, 3}


@given(
    st.integers(1, 192),
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from([1024, 32, 96, 512]),
    st.sampled_from(sorted(COLUMNS)),
    st.sampled_from([*CHIPS, Chip(1, GB10_SHARED_BYTES), Chip(80, 163 << 10)]),
)
def test_a_launch_covers_every_token_and_row_once(
    tokens: int, groups: int, rows: int, columns: int, chip: Chip
) -> None:
    launch = plan(tokens, groups, rows, columns, chip)
    kernel, (cluster, chunks, clusters) = launch.kernel, launch.grid
    assert kernel.columns == columns
    assert kernel.shared_bytes <= chip.shared_bytes
    assert cluster == kernel.blocks
    assert kernel.tokens * (chunks - 1) < tokens <= kernel.tokens * chunks
    blocks = groups * rows // ROWS
    # As the kernel divides the rows: none is left out, and those of a cluster are of one group.
    bounds = [blocks * each // clusters for each in range(clusters + 1)]
    assert bounds[0] == 0
    assert bounds[-1] == blocks
    for first, end in itertools.pairwise(bounds):
        assert first < end
        assert end == first + 1 or not kernel.once
        assert first * ROWS // rows == (end * ROWS - 1) // rows


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("tokens", [3, 8, 12, 16, 24, 36, 192])
def test_the_real_shapes_keep_every_multiprocessor_busy_in_few_rounds(chip: Chip, tokens: int) -> None:
    """Rounds of work of the busiest slot, beside the even share, for wo_a of three ranks and the head."""
    for groups, rows, columns in ((4, 1024, 4096), (1, 43136, 5120)):
        launch = plan(tokens, groups, rows, columns, chip)
        slots = max(1, chip.multiprocessors * launch.kernel.residents // launch.kernel.blocks)
        blocks, clusters = groups * rows // ROWS, launch.grid[2]
        busiest = -(-clusters // slots) * -(-blocks // clusters)
        assert busiest <= 1.25 * blocks / slots + 1


def test_chunks_are_even() -> None:
    assert plan(36, 4, 1024, 4096, H200).kernel.tokens == 24
    assert plan(32, 4, 1024, 4096, GB10).kernel.tokens == 16
    assert [plan(tokens, 4, 1024, 4096, H200).grid[1] for tokens in (24, 25, 48, 49, 192)] == [1, 2, 2, 3, 8]
    assert {plan(tokens, 4, 1024, 4096, H200).kernel.tiles for tokens in range(1, TOKENS + 1)} == {1}


@pytest.mark.parametrize(
    ("tokens", "groups", "rows", "columns"),
    [(0, 4, 1024, 4096), (4, 0, 1024, 4096), (4, 4, 1000, 4096), (4, 4, 0, 4096), (4, 4, 1024, 2048)],
)
def test_what_has_no_kernel_is_refused(tokens: int, groups: int, rows: int, columns: int) -> None:
    with pytest.raises(ValueError, match="no kernel"):
        plan(tokens, groups, rows, columns, H200)


def test_a_chip_with_too_little_shared_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="no kernel"):
        plan(4, 4, 1024, 4096, Chip(20, 16 << 10))
