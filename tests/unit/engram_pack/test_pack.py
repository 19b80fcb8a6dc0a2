"""A shard that is packed natively is the one that NumPy makes, and hashing and comparing it say so."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pack_files import ROW_BYTES, Checkpoint, cached_pages, chunk_hashes, header_of

from trispark.page_cache import drop
from trispark_node import native_pack
from trispark_node.native_pack import CHUNK_BYTES, Outcome, Source

PAGE = 4096


def packed(path: Path, checkpoint: Checkpoint, header: bytes, first: int, end: int, threads: int) -> Outcome:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        return native_pack.pack(checkpoint.source, header, first, end, descriptor, threads=threads)
    finally:
        os.close(descriptor)


def hashed(path: Path, threads: int) -> Outcome:
    with path.open("rb") as file:
        return native_pack.hash_file(file.fileno(), path.stat().st_size, threads=threads)


def compared(
    path: Path, source: Source, header: bytes, first: int, end: int, threads: int = 2
) -> tuple[int, int] | None:
    with path.open("rb") as file:
        return native_pack.compare(source, len(header), first, end, file.fileno(), threads=threads)


def check(directory: Path, checkpoint: Checkpoint, header: bytes, first: int, end: int, threads: int) -> None:
    path = directory / "shard"
    expected = checkpoint.packed(header, first, end)
    outcome = packed(path, checkpoint, header, first, end, threads)
    assert path.read_bytes() == expected
    assert (outcome.bytes, outcome.chunk_hashes) == (len(expected), chunk_hashes(expected))
    assert hashed(path, threads).chunk_hashes == outcome.chunk_hashes
    assert compared(path, checkpoint.source, header, first, end, threads) is None


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [0, 1, 2, 15, 16, 17, 7943, 7944, 20001])
def test_every_number_of_rows_and_threads(tmp_path: Path, rows: int, threads: int) -> None:
    """Around a page of rows, around a block of them."""
    checkpoint = Checkpoint.write(tmp_path / "checkpoint", rows)
    check(tmp_path, checkpoint, header_of(4096), 0, rows, threads)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_offsets_any_part_of_the_rows(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 40) | st.integers(8000, 17000))
    first = data.draw(st.integers(0, rows))
    end = data.draw(st.integers(first, rows))
    offsets = st.integers(0, 600) | st.integers(PAGE - 300, PAGE + 300)
    before, gap, after = (data.draw(offsets) for _ in range(3))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        checkpoint = Checkpoint.write(path / "checkpoint", rows, before, gap, after, seed=rows)
        check(path, checkpoint, header_of(data.draw(offsets)), first, end, data.draw(st.integers(1, 4)))


AT_BORDER = CHUNK_BYTES % ROW_BYTES + 10 * ROW_BYTES
"""Bytes of a header with which whole rows end at the end of a chunk."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    rows = (CHUNK_BYTES + (2 << 20)) // ROW_BYTES
    return Checkpoint.write(tmp_path_factory.mktemp("large") / "checkpoint", rows, before=777, gap=3)


@pytest.mark.parametrize(
    ("header_bytes", "beyond"),
    [(AT_BORDER, 0), (AT_BORDER - 1, 0), (AT_BORDER + 1, 0), (4096, -1), (4096, 0), (4096, 1), (4096, 5000)],
)
def test_sizes_around_the_border_of_a_chunk(tmp_path: Path, large: Checkpoint, header_bytes: int, beyond: int) -> None:
    rows = (CHUNK_BYTES - header_bytes) // ROW_BYTES + beyond
    path, header = tmp_path / "shard", header_of(header_bytes)
    expected = large.packed(header, 1, 1 + rows)
    outcome = packed(path, large, header, 1, 1 + rows, 2)
    assert path.stat().st_size == len(expected)
    assert path.read_bytes() == expected
    assert outcome.chunk_hashes == chunk_hashes(expected)
    assert len(outcome.chunk_hashes) == (1 if len(expected) <= CHUNK_BYTES else 2)
    assert hashed(path, 2).chunk_hashes == outcome.chunk_hashes
    assert compared(path, large.source, header, 1, 1 + rows) is None


def test_each_difference_is_found_and_the_first_is_told(tmp_path: Path) -> None:
    rows, header = 30000, header_of(4096)
    checkpoint = Checkpoint.write(tmp_path / "checkpoint", rows + 7)
    path = tmp_path / "shard"
    packed(path, checkpoint, header, 7, 7 + rows, 2)
    content = path.read_bytes()
    for row, column in [(29999, 263), (29999, 0), (15887, 256), (15886, 255), (8000, 100), (7943, 1), (1, 257), (0, 0)]:
        damaged = bytearray(path.read_bytes())
        damaged[4096 + row * ROW_BYTES + column] ^= 0x80
        path.write_bytes(damaged)
        assert compared(path, checkpoint.source, header, 7, 7 + rows, 3) == (7 + row, column)
        assert hashed(path, 2).chunk_hashes == chunk_hashes(bytes(damaged)) != chunk_hashes(content)


def test_a_difference_in_the_header_is_not_one_of_rows(tmp_path: Path) -> None:
    checkpoint = Checkpoint.write(tmp_path / "checkpoint", 40)
    packed(tmp_path / "shard", checkpoint, header_of(4096), 0, 40, 1)
    with (tmp_path / "shard").open("r+b") as file:
        file.write(b"\xff" * 4096)
    assert compared(tmp_path / "shard", checkpoint.source, header_of(4096), 0, 40) is None


def test_progress_ends_with_all_of_it_and_never_goes_back(tmp_path: Path, large: Checkpoint) -> None:
    seen: list[tuple[int, int]] = []
    rows = len(large.table)
    descriptor = os.open(tmp_path / "shard", os.O_RDWR | os.O_CREAT, 0o644)
    size = 4096 + rows * ROW_BYTES
    report = lambda done, total: seen.append((done, total))  # noqa: E731
    rate = 60 * 2**20  # so that it takes longer than one report
    native_pack.pack(large.source, header_of(4096), 0, rows, descriptor, threads=2, limit_bytes_s=rate, progress=report)
    os.close(descriptor)
    assert len(seen) >= 2
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {size}
    assert seen[-1] == (size, size)


@pytest.mark.parametrize("what", ["pack", "hash", "compare"])
def test_a_rate_is_kept(tmp_path: Path, what: str) -> None:
    """24 MiB at 40 MiB/s: the first block is free, so not less than 22/40 s of it; comparing reads twice that."""
    rows, header = (24 << 20) // ROW_BYTES, header_of(4096)
    checkpoint = Checkpoint.write(tmp_path / "checkpoint", rows)
    path, rate = tmp_path / "shard", 40 << 20
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    calls = {
        "pack": lambda limit: native_pack.pack(
            checkpoint.source, header, 0, rows, descriptor, threads=2, limit_bytes_s=limit
        ),
        "hash": lambda limit: native_pack.hash_file(descriptor, path.stat().st_size, threads=2, limit_bytes_s=limit),
        "compare": lambda limit: native_pack.compare(
            checkpoint.source, 4096, 0, rows, descriptor, threads=2, limit_bytes_s=limit
        ),
    }
    if what != "pack":
        calls["pack"](0)
    began = os.times().elapsed
    calls[what](rate)
    took = os.times().elapsed - began
    os.close(descriptor)
    assert took >= (2 if what == "compare" else 1) * 20 / 40


def test_nothing_stays_in_the_page_cache(tmp_path: Path) -> None:
    rows, header, shard = 60000, header_of(4096), tmp_path / "shard"
    checkpoint = Checkpoint.write(tmp_path / "checkpoint", rows)
    drop(checkpoint.source.path)
    if cached_pages(checkpoint.source.path):
        pytest.skip("NOT TESTED: this file system is the page cache")
    outcome = packed(shard, checkpoint, header, 0, rows, 2)
    assert (outcome.direct_read, outcome.direct_write) == (True, True)
    assert cached_pages(shard) <= 1  # the one in which the file is cut
    assert cached_pages(checkpoint.source.path) == 0
    assert hashed(shard, 2).direct_read
    assert compared(shard, checkpoint.source, header, 0, rows) is None
    assert cached_pages(shard) <= 1
    assert cached_pages(checkpoint.source.path) == 0


def test_no_hole_is_left_in_a_packed_file(tmp_path: Path) -> None:
    """The row store refuses a shard with a range that was never written."""
    checkpoint = Checkpoint.write(tmp_path / "checkpoint", 20000)
    packed(tmp_path / "shard", checkpoint, header_of(4096), 0, 20000, 2)
    with (tmp_path / "shard").open("rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 4096 + 20000 * ROW_BYTES
