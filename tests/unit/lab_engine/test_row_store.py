import errno
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from trispark_lab import row_library, safetensors
from trispark_lab.errors import EngramFailure
from trispark_lab.hashing import owned_range
from trispark_lab.readers import ReaderPool
from trispark_lab.row_library import CacheBudget, LibraryRows, open_rows
from trispark_lab.row_store import CounterLines, Counts, LayerRows, RowStore, Shard, packed_name, start_line

OpenStore = Callable[..., LayerRows]


def opener(checkpoint: Path, way: str) -> OpenStore:
    infos = safetensors.read_header(checkpoint / "model-00001-of-00003.safetensors")
    weight, scale = infos["layers.1.engram.embed.weight"], infos["layers.1.engram.embed.scale"]
    rows = weight.shape[0]

    def make(directory: Path, rank: int = 1, threads: int = 4, warn: Callable[[str], None] = print) -> LayerRows:
        shard = Shard(1, rank, 3, *owned_range(rows, rank, 3), rows)
        if way == "library":
            return LibraryRows(shard, directory, weight, scale, threads, CacheBudget(), warn)
        return RowStore(shard, directory, weight, scale, ReaderPool(threads), warn)

    return make


@pytest.fixture(params=["python", "library"])
def open_store(checkpoint: Path, request: pytest.FixtureRequest) -> OpenStore:
    """By each way of reading."""
    return opener(checkpoint, request.param)


def truth(checkpoint: Path, ids: list[int]) -> np.ndarray:
    infos = safetensors.read_header(checkpoint / "model-00001-of-00003.safetensors")
    weight = safetensors.read_bytes(infos["layers.1.engram.embed.weight"])
    scale = safetensors.read_bytes(infos["layers.1.engram.embed.scale"])
    return np.concatenate([weight[ids], scale[ids]], axis=1)


@pytest.mark.parametrize("count", [1, 7, 8, 40])
@pytest.mark.parametrize("threads", [1, 4])
def test_packed_and_unpacked_give_the_same_bytes_and_count_their_reads(
    open_store: OpenStore, checkpoint: Path, packed: Path, tmp_path: Path, count: int, threads: int
) -> None:
    near, far = open_store(packed, threads=threads), open_store(tmp_path, threads=threads)
    assert (near.packed, far.packed) == (True, False)
    shard = near.shard
    ids = np.random.default_rng(count).integers(shard.first, shard.end, count)
    ids[:1] = shard.end - 1  # the last row lies at the end of the file
    expected = truth(checkpoint, ids.tolist())
    assert np.array_equal(near.fetch(ids), expected)
    assert np.array_equal(far.fetch(ids), expected)
    assert near.counts == Counts(count, 0, count)
    assert far.counts == Counts(count, 0, 2 * count)


def test_lines(open_store: OpenStore, packed: Path, tmp_path: Path) -> None:
    near, far = open_store(packed, rank=0), open_store(tmp_path, rank=0)
    end = near.shard.end
    assert start_line(near, 0.0, 4, 96) == (
        f"Exact nvme Engram layer=1 rank=0 rows=[0,{end}) cache=0.0GiB (0 slots, 4-way, 0.0% of owned rows) "
        "scales=0.0GiB io_threads=96 packed=True"
    )
    source = CounterLines([near, far], 0.0, 4, 96)
    assert source(False) == []
    near.fetch(np.arange(10))
    far.fetch(np.arange(3))
    tail = "cache=0.0GiB(4-way) scales=0.0GiB threads=96 packed"
    assert source(False) == [
        f"Engram layer=1 lookups=10 hit_rate=0.0% reads=10 {tail}=True",
        f"Engram layer=1 lookups=3 hit_rate=0.0% reads=6 {tail}=False",
    ]
    assert source(False) == []
    assert source(True)[0] == f"Engram layer=1 lookups=0 hit_rate=0.0% reads=0 {tail}=True"


@pytest.mark.parametrize("is_packed", [True, False])
def test_the_counted_reads_are_those_of_the_kernel(
    checkpoint: Path,
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_packed: bool,
) -> None:
    """One call of preadv a packed row, two an unpacked row, of at most two pages each."""
    store = opener(checkpoint, "python")(packed if is_packed else tmp_path)
    calls: list[int] = []
    real = os.preadv

    def counting(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        calls.append(sum(buffer.nbytes for buffer in buffers))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", counting)
    store.fetch(store.shard.first + np.arange(20))
    assert len(calls) == store.counts.reads == (20 if is_packed else 40)
    assert max(calls) <= 8192


def test_a_start_line_tells_unpacked_rows(open_store: OpenStore, tmp_path: Path) -> None:
    assert start_line(open_store(tmp_path), 0.0, 4, 96).endswith(" packed=False")


HEADER_FIELDS = ["magic", "layer", "first row", "end row", "total rows", "row bytes"]


@pytest.mark.parametrize("field", HEADER_FIELDS)
def test_a_wrong_header_field_ends_the_start(open_store: OpenStore, packed: Path, tmp_path: Path, field: str) -> None:
    content = bytearray((packed / packed_name(1, 1, 3)).read_bytes())
    at = 8 * HEADER_FIELDS.index(field)
    struct.pack_into("<Q", content, at, struct.unpack_from("<Q", content, at)[0] + 1)
    (tmp_path / packed_name(1, 1, 3)).write_bytes(content)
    with pytest.raises(
        EngramFailure,
        match=rf"^Engram retrieval failed: .*(: {field} is |s {field} is wrong).*(pack step|pack this shard) again "
        r"\(errno=0\)$",
    ):
        open_store(tmp_path)


@pytest.mark.parametrize(
    ("size", "reason"), [(0, "has no header"), (4095, "has no header"), (4096, "truncated"), (-1, "truncated")]
)
def test_a_short_file_ends_the_start(
    open_store: OpenStore, packed: Path, tmp_path: Path, size: int, reason: str
) -> None:
    content = (packed / packed_name(1, 1, 3)).read_bytes()
    (tmp_path / packed_name(1, 1, 3)).write_bytes(content[:size])
    with pytest.raises(EngramFailure, match=rf"^Engram retrieval failed: .*{reason}"):
        open_store(tmp_path)


def test_a_longer_file_is_accepted(open_store: OpenStore, packed: Path, tmp_path: Path) -> None:
    content = (packed / packed_name(1, 1, 3)).read_bytes()
    (tmp_path / packed_name(1, 1, 3)).write_bytes(content + b"x")
    assert open_store(tmp_path).packed


def test_another_ranks_or_worlds_file_is_not_seen(open_store: OpenStore, packed: Path, tmp_path: Path) -> None:
    for name in (packed_name(1, 0, 3), packed_name(1, 1, 4), packed_name(14, 1, 3)):
        (tmp_path / name).write_bytes((packed / packed_name(1, 1, 3)).read_bytes())
    assert not open_store(tmp_path).packed


def test_any_failure_to_open_is_passed_over(open_store: OpenStore, tmp_path: Path) -> None:
    (tmp_path / packed_name(1, 1, 3)).symlink_to(tmp_path / "nowhere")
    assert not open_store(tmp_path).packed
    assert not open_store(tmp_path / "absent").packed


def test_without_o_direct_the_packed_file_is_ignored_and_the_checkpoint_is_read_buffered(
    checkpoint: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def no_direct(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument", str(path))
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", no_direct)
    warnings: list[str] = []
    store = opener(checkpoint, "python")(packed, warn=warnings.append)
    assert not store.packed
    assert [line[:37] for line in warnings] == ["Engram: O_DIRECT unavailable for " + str(checkpoint)[:4]]
    ids = np.array([store.shard.first, store.shard.end - 1])
    assert np.array_equal(store.fetch(ids), truth(checkpoint, ids.tolist()))


@pytest.mark.parametrize("count", [1, 40])
def test_a_file_that_shrinks_later_ends_the_lookup(
    open_store: OpenStore, packed: Path, tmp_path: Path, count: int
) -> None:
    path = tmp_path / packed_name(1, 1, 3)
    path.write_bytes((packed / path.name).read_bytes())
    store = open_store(tmp_path)
    os.truncate(path, 8192)
    with pytest.raises(EngramFailure, match=r"short read|a read ended early"):
        store.fetch(np.full(count, store.shard.end - 1))
    assert store.counts == Counts()


@pytest.mark.parametrize("refusal", [None, "TS-STORE-LIBRARY: no library"])
@pytest.mark.parametrize("is_packed", [True, False])
def test_which_way_rows_are_read_is_said(
    checkpoint: Path,
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: str | None,
    is_packed: bool,
) -> None:
    infos = safetensors.read_header(checkpoint / "model-00001-of-00003.safetensors")
    weight, scale = infos["layers.1.engram.embed.weight"], infos["layers.1.engram.embed.scale"]
    shard = Shard(1, 1, 3, *owned_range(weight.shape[0], 1, 3), weight.shape[0])
    monkeypatch.setattr("engram_store.available", lambda: refusal)
    said: list[str] = []
    store = open_rows(
        shard, packed if is_packed else tmp_path, weight, scale, ReaderPool(4), CacheBudget(0.001, 2, 4), said.append
    )
    assert store.packed is is_packed
    assert store.slots == 1968
    if refusal is None:
        assert isinstance(store, LibraryRows)
        assert [line.partition(",")[0] for line in said] == ["Row store of layer 1: library"]
    else:
        assert isinstance(store, RowStore)
        assert said == [f"Row store of layer 1: Python, no library: {refusal}"]
    ids = np.array([shard.first, shard.end - 1, shard.first])
    assert np.array_equal(store.fetch(ids), truth(checkpoint, ids.tolist()))
    assert store.counts == Counts(3, 1, 2 if is_packed else 4)


def test_without_the_adapter_python_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert row_library.why_not() == "its adapter is not mounted"


def test_ids_of_another_rank_end_the_lookup_of_the_library(checkpoint: Path, packed: Path) -> None:
    store = opener(checkpoint, "library")(packed)
    with pytest.raises(EngramFailure, match=r"^Engram retrieval failed: TS-STORE-ID: "):
        store.fetch(np.array([store.shard.end]))
