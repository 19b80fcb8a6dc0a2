"""The row cache against a plain model of it, and in front of a row store."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_lab import safetensors
from trispark_lab.hashing import owned_range
from trispark_lab.readers import ReaderPool
from trispark_lab.row_cache import RowCache, make_cache, sets_for
from trispark_lab.row_library import CacheBudget, LibraryRows
from trispark_lab.row_store import (
    CounterLines,
    Counts,
    LayerRows,
    RowCacheSwitch,
    RowStore,
    Shard,
    packed_name,
    start_line,
)


class Model:
    """One list of ids a set, a victim counter a set."""

    def __init__(self, sets: int, ways: int) -> None:
        self.held = [[-1] * ways for _ in range(sets)]
        self.victim = [0] * sets

    def has(self, row: int) -> bool:
        return row in self.held[row % len(self.held)]

    def put(self, row: int) -> None:
        place = row % len(self.held)
        if not self.has(row):
            self.held[place][self.victim[place]] = row
            self.victim[place] = (self.victim[place] + 1) % len(self.held[place])


def row_of(ids: np.ndarray) -> np.ndarray:
    return np.stack([ids % 251, ids % 241, ids % 239], axis=1).astype(np.uint8)


@given(
    st.integers(1, 5), st.integers(1, 16), st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=40), max_size=12)
)
def test_it_holds_what_the_model_holds(sets: int, ways: int, calls: list[list[int]]) -> None:
    cache, model = RowCache(sets, ways, 3), Model(sets, ways)
    for rows in calls:
        ids = np.array(rows, dtype=np.int64)
        out = np.zeros((len(ids), 3), dtype=np.uint8)
        missing = cache.take(ids, out)
        assert missing.tolist() == [index for index, row in enumerate(rows) if not model.has(row)]
        held = np.setdiff1d(np.arange(len(ids)), missing)
        assert np.array_equal(out[held], row_of(ids[held]))
        distinct = np.unique(ids[missing])
        cache.put(distinct, row_of(distinct))
        for row in distinct.tolist():
            model.put(row)


@pytest.mark.parametrize(
    ("gib", "layers", "ways", "owned", "sets"),
    [
        (0.0, 2, 4, 1000, 0),
        (0.001, 2, 4, 66_660, 492),  # 536,870 bytes a layer, 1,089 a set
        (0.25, 2, 16, 10**9, 30_833),
        (64.0, 2, 4, 66_660, 16_665),  # each owned row has its own slot, more would be of no use
        (1e-9, 2, 1, 1000, 0),
    ],
)
def test_the_budget_is_divided_over_the_layers(gib: float, layers: int, ways: int, owned: int, sets: int) -> None:
    assert sets_for(gib, layers, ways, owned) == sets
    cache = make_cache(gib, layers, ways, owned, 264)
    assert (0 if cache is None else cache.slots) == sets * ways


def open_store(checkpoint: Path, directory: Path, gib: float, ways: int, way: str) -> LayerRows:
    infos = safetensors.read_header(checkpoint / "model-00001-of-00003.safetensors")
    weight, scale = infos["layers.1.engram.embed.weight"], infos["layers.1.engram.embed.scale"]
    shard = Shard(1, 1, 3, *owned_range(weight.shape[0], 1, 3), weight.shape[0])
    if way == "library":
        return LibraryRows(shard, directory, weight, scale, 4, CacheBudget(gib, 2, ways))
    cache = make_cache(gib, 2, ways, shard.end - shard.first, 264)
    return RowStore(shard, directory, weight, scale, ReaderPool(4), cache=cache)


WAYS_OF_READING = ["python", "library"]


@pytest.mark.parametrize("way", WAYS_OF_READING)
@pytest.mark.parametrize("reads_a_miss", [1, 2])
@pytest.mark.parametrize("ways", [1, 4, 16])
def test_bytes_and_counts(
    checkpoint: Path, packed: Path, tmp_path: Path, ways: int, reads_a_miss: int, way: str
) -> None:
    directory = packed if reads_a_miss == 1 else tmp_path
    plain = open_store(checkpoint, directory, 0.0, ways, way)
    store = open_store(checkpoint, directory, 0.001, ways, way)
    first = store.shard.first
    ids = np.array([first, first + 7, first, store.shard.end - 1, first + 7])
    for _ in range(2):
        assert np.array_equal(store.fetch(ids), plain.fetch(ids))
    # The first call reads three distinct rows, the second none.
    assert store.counts == Counts(10, 7, 3 * reads_a_miss)
    assert plain.counts == Counts(10, 0, 10 * reads_a_miss)
    generator = np.random.default_rng(ways)
    for _ in range(20):
        some = generator.integers(first, store.shard.end, 500)
        some[::2] = first + some[::2] % 900
        assert np.array_equal(store.fetch(some), plain.fetch(some))
    counts = store.counts
    assert counts.reads == reads_a_miss * (counts.lookups - counts.hits)
    assert 0.2 < counts.hits / counts.lookups < 0.9


@pytest.mark.parametrize("way", WAYS_OF_READING)
def test_lines(checkpoint: Path, packed: Path, way: str) -> None:
    store = open_store(checkpoint, packed, 0.001, 4, way)
    owned = store.shard.end - store.shard.first
    share = 100 * 1968 / owned
    assert f" cache=0.001GiB (1968 slots, 4-way, {share:.1f}% of owned rows) scales=0.0GiB " in start_line(
        store, 0.001, 4, 96
    )
    source = CounterLines([store], 0.001, 4, 96)
    store.fetch(store.shard.first + np.array([1, 2, 3, 1]))
    assert source(False) == [
        "Engram layer=1 lookups=4 hit_rate=25.0% reads=3 cache=0.001GiB(4-way) scales=0.0GiB threads=96 packed=True "
        "hits=1"
    ]
    store.fetch(store.shard.first + np.array([1, 2]))
    assert " lookups=2 hit_rate=100.0% reads=0 " in source(False)[0]


@pytest.mark.parametrize("way", WAYS_OF_READING)
@pytest.mark.parametrize("reads_a_miss", [1, 2])
def test_rows_are_read_past_the_cache_and_through_it_again(
    checkpoint: Path, packed: Path, tmp_path: Path, reads_a_miss: int, way: str
) -> None:
    store = open_store(checkpoint, packed if reads_a_miss == 1 else tmp_path, 0.001, 4, way)
    ids = np.arange(store.shard.first, store.shard.first + 32)
    rows = store.fetch(ids)
    for cached in (True, False, True):
        store.use_cache(cached)
        before = store.counts
        assert np.array_equal(store.fetch(ids), rows)
        now = store.counts - before
        assert (now.lookups, now.hits) == (32, 32 if cached else 0), "what it holds stays in it"
        assert now.reads == reads_a_miss * (now.lookups - now.hits)
    store.close()


def test_a_rank_with_a_cache_has_the_switch(checkpoint: Path, packed: Path) -> None:
    plain, cached = (open_store(checkpoint, packed, gib, 4, "python") for gib in (0.0, 0.001))
    assert RowCacheSwitch.of([plain]) == {}
    (switch,) = RowCacheSwitch.of([plain, cached]).values()
    assert switch.on
    switch.turn(False)
    assert not switch.on
    ids = np.array([cached.shard.first] * 2)
    cached.fetch(ids)
    assert cached.counts == Counts(2, 0, 2)


class Layer:
    """A layer that may refuse to read past its cache."""

    slots = 1

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.on = True

    def use_cache(self, on: bool) -> None:
        if self.refuses:
            raise RuntimeError("not this layer")
        self.on = on


def test_a_layer_that_refuses_leaves_all_layers_as_they_were() -> None:
    layers = [Layer(), Layer(refuses=True), Layer()]
    switch = RowCacheSwitch(layers)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="not this layer"):
        switch.turn(False)
    assert (switch.on, [layer.on for layer in layers]) == (True, [True, True, True])
    layers[1].refuses = False
    switch.turn(False)
    layers[1].refuses = True
    with pytest.raises(RuntimeError, match="not this layer"):
        switch.turn(True)
    assert (switch.on, [layer.on for layer in layers]) == (False, [False, False, False])


def assert_reads_through_the_cache(store: LibraryRows) -> None:
    before = store.counts
    store.fetch(np.array([store.shard.first] * 2))
    assert (store.counts - before).hits >= 1


def test_a_second_store_that_reads_another_way_is_no_switch_of_the_cache(checkpoint: Path, packed: Path) -> None:
    store = open_store(checkpoint, packed, 0.001, 4, "library")
    assert isinstance(store, LibraryRows)
    closed: list[bool] = []
    other = SimpleNamespace(backend=SimpleNamespace(name="OTHER"), close=lambda: closed.append(True))
    store._open = lambda cache_bytes: other  # type: ignore[assignment, return-value]
    with pytest.raises(RuntimeError, match="OTHER"):
        store.use_cache(False)
    assert closed == [True]
    assert_reads_through_the_cache(store)
    store.close()


def open_files(path: Path) -> int:
    """How often this process has the file open, whatever its name is now."""
    wanted = path.stat()
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += os.path.samestat(each.stat(), wanted)
    return found


@pytest.mark.parametrize("reads_a_miss", [1, 2])
def test_a_file_that_was_replaced_is_not_read_past_the_cache(
    checkpoint: Path, packed: Path, tmp_path: Path, reads_a_miss: int
) -> None:
    source = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, source)
    directory = tmp_path / "shards"
    shutil.copytree(packed, directory) if reads_a_miss == 1 else directory.mkdir()
    store = open_store(source, directory, 0.001, 4, "library")
    assert isinstance(store, LibraryRows)
    shard = store.shard
    path = directory / packed_name(shard.layer, shard.rank, shard.world)
    path = path if reads_a_miss == 1 else source / "model-00001-of-00003.safetensors"
    held = open_files(path)
    for _ in range(2):  # not replaced: a second store as long as it reads, and no longer
        store.use_cache(False)
        assert open_files(path) == 2 * held
        store.use_cache(True)
        assert open_files(path) == held
    copy = path.with_suffix(".new")
    shutil.copyfile(path, copy)
    copy.replace(path)
    with pytest.raises(RuntimeError, match=f"{path} was replaced"):
        store.use_cache(False)
    assert open_files(path) == 0, "what was refused is closed"
    assert_reads_through_the_cache(store)
    store.close()
