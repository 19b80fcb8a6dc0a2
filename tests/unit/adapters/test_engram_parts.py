"""Placement, settings, lines, checkpoint tables, bookkeeping and watch of the Engram adapters; no torch, no engine."""

from __future__ import annotations

import itertools
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from engram_store import Code, StoreError
from trispark_adapters.engram_lines import Counts, attached, period
from trispark_adapters.engram_pending import Book, Key, Pending, slice_key
from trispark_adapters.engram_shard import Placement, Settings, column_range, layout_of
from trispark_adapters.engram_tables import find_table
from trispark_adapters.engram_watch import Watch
from trispark_hooks.registry import HookError

ROOT = Path(__file__).resolve().parents[3]
EVIDENCE: dict[str, Any] = yaml.safe_load((ROOT / "experiments/evidence.yml").read_text())["evidence"]
BOUNDS = (0, 5, 9, 20, 22, 30, 41)


def placement(first: int, end: int, rank: int = 1, total: int = 41) -> Placement:
    return Placement(1, rank, 3, first, end, total)


def test_the_real_tables_are_divided_as_the_facts_say() -> None:
    for layer, total, cuts in [
        (1, 384_006_168, (0, 128_002_056, 256_004_112, 384_006_168)),
        (14, 384_016_682, (0, 128_005_560, 256_011_121, 384_016_682)),
    ]:
        for rank in range(3):
            owned = Placement(layer, rank, 3, cuts[rank], cuts[rank + 1], total)
            assert layout_of(owned, None) == "even"
            assert owned.file == f"engram-l{layer}-r{rank}of3.bin"


@pytest.mark.parametrize(
    ("first", "end", "bounds", "layout"),
    [(13, 27, None, "even"), (13, 27, BOUNDS, "even"), (9, 22, BOUNDS, "column")],
)
def test_layouts(first: int, end: int, bounds: tuple[int, ...] | None, layout: str) -> None:
    assert layout_of(placement(first, end), bounds) == layout


@pytest.mark.parametrize(("first", "end", "bounds"), [(9, 22, None), (9, 21, BOUNDS), (13, 28, BOUNDS), (0, 13, None)])
def test_another_division_is_refused(first: int, end: int, bounds: tuple[int, ...] | None) -> None:
    with pytest.raises(HookError, match="TS-ADAPTER-ENGRAM-ROWS"):
        layout_of(placement(first, end), bounds)


def test_columns_that_the_ranks_do_not_divide_have_no_layout() -> None:
    assert column_range(BOUNDS, 0, 4) is None
    assert column_range((0,), 0, 1) is None
    assert [column_range(BOUNDS, rank, 2) for rank in range(2)] == [(0, 20), (20, 41)]


@given(st.integers(1, 10**9), st.integers(1, 9))
def test_even_ranges_meet_and_cover(total: int, world: int) -> None:
    ranges = [Placement(1, rank, world, 0, 0, total).even for rank in range(world)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == total
    assert all(one[1] == other[0] for one, other in itertools.pairwise(ranges))


def test_settings_and_the_share_of_a_layer() -> None:
    environ = {"DSV41_CACHE_GIB": "0.5", "DSV41_CACHE_WAYS": "16", "DSV41_IO_THREADS": "8", "NNODES": "3"}
    settings = Settings.of(environ)
    assert (settings.packed_dir, settings.source) == (Path("/engram"), None)
    assert settings.options(3).cache_bytes == 2**28  # one rank a node, two layers
    assert Settings.of({**environ, "NNODES": "1"}).options(4).cache_bytes == 2**26
    assert settings.options(3).ways == 16
    assert settings.options(3).threads == 8
    assert Settings.of({"DSV41_CACHE_GIB": "0"}).options(3).cache_bytes == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DSV41_CACHE_GIB", "-1"),
        ("DSV41_CACHE_GIB", "nan"),
        ("DSV41_CACHE_GIB", "x"),
        ("DSV41_CACHE_WAYS", "0"),
        ("DSV41_CACHE_WAYS", "2.5"),
        ("DSV41_IO_THREADS", "257"),
        ("NNODES", "0"),
    ],
)
def test_a_setting_is_never_guessed(name: str, text: str) -> None:
    with pytest.raises(HookError, match=f"TS-ADAPTER-ENGRAM-SETTING.*{name}"):
        Settings.of({name: text})


class Opened:
    """As `engram_shard.Opened`, without a file."""

    def __init__(self, packed: bool, slots: int) -> None:
        self.packed = packed
        self.why = ""
        self.store = type("Store", (), {"slots": slots})()


@pytest.mark.parametrize(
    ("packed", "slots", "gib", "found"),
    [
        (True, 0, "0", {"packed.attached", "cache.budget"}),
        (True, 10, "0.25", {"packed.attached", "cache.slots", "cache.budget", "cache.present"}),
        (False, 0, "0", {"packed.fallback", "cache.budget"}),
    ],
)
def test_the_start_line_is_what_the_catalog_looks_for(packed: bool, slots: int, gib: str, found: set[str]) -> None:
    settings = Settings.of({"DSV41_CACHE_GIB": gib, "DSV41_CACHE_WAYS": "16"})
    line = attached(placement(13, 27), Opened(packed, slots), settings)  # type: ignore[arg-type]
    filled = {
        name: EVIDENCE[name]["pattern"].replace("<DSV41_CACHE_WAYS>", "16").replace("<DSV41_CACHE_GIB>", gib)
        for name in ("packed.attached", "packed.fallback", "cache.slots", "cache.budget", "cache.present", "cache.hits")
    }
    assert {name for name, pattern in filled.items() if re.search(pattern, line)} == found


def test_the_periodic_line_is_what_the_catalog_looks_for() -> None:
    settings = Settings.of({"DSV41_CACHE_GIB": "0"})
    line = period(placement(13, 27), True, settings, Counts(6040, 0, 6040))
    assert line == (
        "Engram layer=1 lookups=6040 hit_rate=0.0% reads=6040 cache=0.0GiB(4-way) scales=0.0GiB threads=96 packed=True"
    )
    assert not re.search(EVIDENCE["cache.hits"]["pattern"], line)
    assert re.search(EVIDENCE["cache.hits"]["pattern"], period(placement(13, 27), True, settings, Counts(10, 5, 5)))
    assert re.search(
        EVIDENCE["packed.fallback"]["pattern"], period(placement(13, 27), False, settings, Counts(1, 0, 2))
    )


def checkpoint(directory: Path, count: int = 5, **changes: Any) -> Path:
    names = [f"layers.1.engram.embed.{part}" for part in ("weight", "scale")]
    header: dict[str, Any] = {
        "__metadata__": {},
        names[0]: {"dtype": "F8_E4M3", "shape": [count, 256], "data_offsets": [16, 16 + 256 * count]},
        names[1]: {"dtype": "F8_E8M0", "shape": [count, 8], "data_offsets": [4000, 4000 + 8 * count]},
    }
    for name, change in changes.items():
        header[f"layers.1.engram.embed.{name}"].update(change)
    text = json.dumps(header).encode()
    (directory / "t.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "t.safetensors")})
    )
    return directory


def test_tables_in_the_checkpoint(tmp_path: Path) -> None:
    table = find_table(checkpoint(tmp_path), 1, 5)
    begin = 8 + struct.unpack("<Q", (tmp_path / "t.safetensors").read_bytes()[:8])[0]
    assert (table.path.name, table.weight_at, table.scale_at) == ("t.safetensors", begin + 16, begin + 4000)


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": {"dtype": "BF16"}},
        {"weight": {"shape": [4, 256]}},
        {"scale": {"shape": [5, 16]}},
        {"scale": {"data_offsets": [0, 3]}},
        {"scale": {"data_offsets": 3}},
    ],
)
def test_tables_of_another_form_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(HookError, match="TS-ADAPTER-ENGRAM-CHECKPOINT"):
        find_table(checkpoint(tmp_path, **changes), 1, 5)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, struct.pack("<Q", 3) + b"[1]", struct.pack("<Q", 9) + b"{}"])
def test_files_that_are_no_checkpoint_are_refused(tmp_path: Path, content: bytes) -> None:
    directory = checkpoint(tmp_path)
    with pytest.raises(HookError, match="TS-ADAPTER-ENGRAM-CHECKPOINT"):
        find_table(directory, 14, 5)
    (directory / "t.safetensors").write_bytes(content)
    with pytest.raises(HookError, match="TS-ADAPTER-ENGRAM-CHECKPOINT"):
        find_table(directory, 1, 5)
    (directory / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(HookError, match="TS-ADAPTER-ENGRAM-CHECKPOINT"):
        find_table(directory, 1, 5)


def test_keys_of_slices() -> None:
    assert slice_key(1000, 6, 2, 24, 1, False) == Key(1000 + 8 * 24, 6, 24, 48, False)
    assert slice_key(1000, 6, 2, 24, 1, True) != slice_key(1000, 6, 2, 24, 1, False)
    assert slice_key(1000, 6, 2, 24, 0, False) != slice_key(1008, 6, 2, 24, 0, False)


def test_a_pending_lookup_is_taken_once() -> None:
    book = Book()
    old, new = (Pending(slice_key(at, 1, 2, 24, 0, False), None, None, at) for at in (1, 2))
    book.put(1, old)
    book.put(1, new)
    book.put(14, old)
    assert (book.take(1), book.take(1), book.take(2)) == (new, None, None)
    assert len(book) == 1
    assert book.take_all() == {14: old}
    assert book.take(14) is None
    assert book.take_all() == {}


class Failing:
    failure: BaseException | None = None


def test_a_failure_in_a_graph_ends_the_process() -> None:
    said: list[str] = []
    ended: list[int] = []
    watch = Watch(0, said.append, ended.append)
    good, bad = Failing(), Failing()
    watch.follow(good)
    watch.follow(bad)
    assert watch.look() is False
    bad.failure = StoreError(Code.READ, "disk gone", 5)
    assert watch.look() is True
    assert ended == [70]
    assert said == [f"Engram retrieval failed: {bad.failure}"]


def test_a_failure_ends_the_process_although_nobody_takes_the_line() -> None:
    def broken(line: str) -> None:
        raise BrokenPipeError(line)

    ended: list[int] = []
    watch = Watch(0, broken, ended.append)
    bad = Failing()
    bad.failure = StoreError(Code.READ, "disk gone", 5)
    watch.follow(bad)
    with pytest.raises(BrokenPipeError):
        watch.look()
    assert ended == [70]


def test_a_failure_that_cannot_be_read_ends_the_process() -> None:
    class Unreadable:
        @property
        def failure(self) -> BaseException | None:
            raise ValueError("99 is not a valid Code")

    said: list[str] = []
    ended: list[int] = []
    watch = Watch(0, said.append, ended.append)
    watch.follow(Unreadable())
    assert watch.look() is True
    assert ended == [70]
    assert said == ["Engram retrieval failed: 99 is not a valid Code"]


def test_the_watching_thread_ends_the_process_by_itself() -> None:
    import threading

    over = threading.Event()
    watch = Watch(0.001, lambda line: None, lambda code: over.set())
    bad = Failing()
    bad.failure = StoreError(Code.READ, "disk gone", 5)
    watch.follow(bad)
    assert over.wait(30)
