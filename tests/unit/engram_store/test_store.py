"""Rows through the built library are those of a plain reader, and the counters those of the plain cache."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from engram_files import plain_rows, table_of, write_checkpoint, write_packed
from hypothesis import given, settings
from hypothesis import strategies as st

from engram_store import Backend, Options, RowStore, StoreError
from trispark_lab.row_cache import SLOT_BYTES, RowCache, sets_for

BACKENDS = [Backend.IO_URING, Backend.THREADS]


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    chosen: Backend = request.param
    if chosen is Backend.IO_URING:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "probe"
            rows = write_packed(path, table_of(1), 1, 0, 1)
            try:
                RowStore.open_packed(path, rows, Options(chosen)).close()
            except StoreError as error:
                pytest.skip(f"NOT TESTED with io_uring: {error}")
    return chosen


class PlainStore:
    """What is counted: `take` of all ids, then one `put` of the distinct missing ones in ascending order."""

    def __init__(self, sets: int, ways: int) -> None:
        self.cache = RowCache(sets, ways, 264) if sets else None
        self.lookups = self.hits = self.rows = 0

    def count(self, ids: list[int], table: np.ndarray) -> None:
        wanted = np.array(ids, dtype=np.int64)
        missing = len(ids)
        if self.cache is not None:
            left = self.cache.take(wanted, np.empty((len(ids), 264), dtype=np.uint8))
            distinct = np.unique(wanted[left])
            self.cache.put(distinct, table[distinct])
            missing = len(distinct)
        self.lookups += len(ids)
        self.hits += len(ids) - missing
        self.rows += missing


@st.composite
def shards(draw: st.DrawFn) -> tuple[int, int, int]:
    """(first, end, total); a rank may own nothing."""
    total = draw(st.integers(1, 700))
    first = draw(st.integers(0, total))
    return first, draw(st.integers(first, total)), total


@settings(max_examples=60)
@given(
    shard=shards(),
    ways=st.integers(1, 16),
    budget=st.integers(0, 40_000) | st.just(10**7),
    depth=st.integers(1, 20),
    threads=st.integers(1, 9),
    data=st.data(),
)
def test_rows_and_counters_are_those_of_a_plain_reader(
    backend: Backend,
    shard: tuple[int, int, int],
    ways: int,
    budget: int,
    depth: int,
    threads: int,
    data: st.DataObject,
) -> None:
    first, end, total = shard
    table = table_of(total, seed=total)
    options = Options(backend, depth, threads, ways, budget)
    batch = st.lists(st.integers(first, max(first, end - 1)), max_size=90) if end > first else st.just([])
    with tempfile.TemporaryDirectory() as directory:
        packed = Path(directory) / "packed"
        rows = write_packed(packed, table, 14, first, end)
        tables = write_checkpoint(Path(directory) / "checkpoint", table, gap=data.draw(st.integers(0, 5000)))
        with (
            RowStore.open_packed(packed, rows, options) as near,
            RowStore.open_checkpoint(
                tables.path, tables.weight_at, tables.scale_at, rows, options, allow_buffered=True
            ) as far,
        ):
            assert near.backend is far.backend is backend
            sets = min(budget // (SLOT_BYTES * ways + 1), -(-(end - first) // ways))
            assert (near.sets, near.slots) == (sets, sets * ways)
            assert near.sets == sets_for(budget / 2**30, 1, ways, end - first)
            plain = PlainStore(sets, ways)
            for ids in data.draw(st.lists(batch, max_size=5)):
                expected = plain_rows(packed, first, ids)
                for store in (near, far):
                    found = store.fetch(ids)
                    assert found.shape == (len(ids), 264)
                    assert [row.tobytes() for row in found] == expected
                plain.count(ids, table)
            for store, reads in ((near, 1), (far, 2)):
                counters = store.counters
                assert (counters.lookups, counters.hits) == (plain.lookups, plain.hits)
                assert counters.reads == reads * plain.rows
                assert sum(counters.latency) <= counters.calls
                assert counters.bytes >= 264 * plain.rows
                assert counters.bytes <= 8192 * counters.reads


def test_a_row_over_two_pages_is_one_read(tmp_path: Path, backend: Backend) -> None:
    table = table_of(100)
    rows = write_packed(tmp_path / "shard", table, 1, 0, 100)
    with RowStore.open_packed(tmp_path / "shard", rows, Options(backend)) as store:
        over = [row for row in range(64) if (264 * row) % 4096 + 264 > 4096]
        assert over
        assert np.array_equal(store.fetch(over), table[over])
        assert (store.counters.reads, store.counters.bytes) == (len(over), 8192 * len(over))
        store.fetch([0, 1])
        assert store.counters.bytes == 8192 * len(over) + 2 * 4096, "a row within a page costs that page"


def test_a_row_that_occurs_twice_in_a_call(tmp_path: Path, backend: Backend) -> None:
    table = table_of(100)
    rows = write_packed(tmp_path / "shard", table, 1, 0, 100)
    ids = [7, 99, 7, 7, 0]
    for budget, reads, hits in ((0, 5, 0), (10**6, 3, 2)):
        with RowStore.open_packed(tmp_path / "shard", rows, Options(backend, cache_bytes=budget)) as store:
            assert np.array_equal(store.fetch(ids), table[ids])
            counters = store.counters
            assert (counters.calls, counters.lookups, counters.reads, counters.hits) == (1, 5, reads, hits)


def test_only_calls_that_read_have_a_latency(tmp_path: Path, backend: Backend) -> None:
    rows = write_packed(tmp_path / "shard", table_of(100), 1, 0, 100)
    with RowStore.open_packed(tmp_path / "shard", rows, Options(backend, cache_bytes=10**6)) as store:
        for _ in range(3):
            store.fetch(range(100))
        store.fetch([])
        counters = store.counters
        assert (counters.calls, sum(counters.latency), counters.reads) == (4, 1, 100)


def test_rows_go_into_the_callers_buffer(tmp_path: Path, backend: Backend) -> None:
    table = table_of(50)
    rows = write_packed(tmp_path / "shard", table, 1, 0, 50)
    whole = np.full((12, 264), 0xEE, dtype=np.uint8)
    with RowStore.open_packed(tmp_path / "shard", rows, Options(backend)) as store:
        out = store.fetch(np.arange(10), whole[1:11])
        assert np.shares_memory(out, whole)
    assert np.array_equal(whole[1:11], table[:10])
    assert (whole[[0, 11]] == 0xEE).all(), "nothing beside it is written"
