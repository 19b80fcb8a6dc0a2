"""Rows from the row store against the engine's own lookup in a table in memory, bit for bit."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang")

from engram_engine import (  # noqa: E402
    LAYERS,
    WORLD,
    as_rank,
    bits,
    bounds_of,
    build,
    by_columns,
    fresh,
    load,
    owned,
    tables,
)
from engram_files import write_packed  # noqa: E402

from engram_store import StoreError  # noqa: E402
from trispark_adapters import engram_backend  # noqa: E402
from trispark_hooks import evidence  # noqa: E402
from trispark_hooks.registry import HookError  # noqa: E402

TOTALS = (1999, 2001)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setenv("DSV41_PACKED_DIR", str(tmp_path))
    monkeypatch.setenv("DSV41_CACHE_GIB", "0")
    return fresh(monkeypatch)


@pytest.mark.parametrize("rank", range(WORLD))
@pytest.mark.parametrize("cache", ["0", "0.001"])
def test_rows_equal_the_engines_own(
    engine: ModuleType, tmp_path: Path, rank: int, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSV41_CACHE_GIB", cache)
    made = tables(tmp_path, engine, TOTALS)
    as_rank(engine, rank)
    own = []
    for layer, table in zip(LAYERS, made, strict=True):
        embedding = build(engine, layer, len(table))
        load(embedding, table)
        own.append(embedding)
    engine_lookup = engine.EngramEmbedding._owned_rows
    engram_backend.install(engine)
    generator = torch.Generator().manual_seed(rank)
    for layer, table, reference in zip(LAYERS, made, own, strict=True):
        ours = build(engine, layer, len(table))
        assert ours.weight.numel() == ours.scale.numel() == 0
        load(ours, table)  # the checkpoint's tensors are let pass
        first, end = owned(engine, len(table), rank)
        for shape in [(7, 6), (1, 24), (16, 24), (3,), (0, 24), (2, 3, 4)]:
            ids = torch.randint(0, len(table), shape, generator=generator)
            assert torch.equal(bits(ours._owned_rows(ids)), bits(engine_lookup(reference, ids)))
        edges = torch.tensor([[first, first, end - 1, max(first - 1, 0), min(end, len(table) - 1), 0, len(table) - 1]])
        assert torch.equal(bits(ours._owned_rows(edges)), bits(engine_lookup(reference, edges)))
        view = torch.randint(0, len(table), (5, 2, 24), generator=generator)[:, 1]
        assert torch.equal(bits(ours.forward(view)), bits(engine_lookup(reference, view)))


def test_ids_of_other_ranks_are_zero_and_of_all_ranks_sum_to_the_table(engine: ModuleType, tmp_path: Path) -> None:
    made = tables(tmp_path, engine, TOTALS)
    engram_backend.install(engine)
    ids = torch.arange(len(made[0]))
    parts = []
    for rank in range(WORLD):
        as_rank(engine, rank)
        parts.append(bits(build(engine, LAYERS[0], len(made[0]))._owned_rows(ids)))
    for rank, part in enumerate(parts):
        first, end = owned(engine, len(made[0]), rank)
        assert not bool(part[:first].any())
        assert not bool(part[end:].any())
        assert bool(part[first:end].any())


def test_the_lines_say_what_the_gates_look_for(
    engine: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = tables(tmp_path, engine, TOTALS)
    engram_backend.install(engine)
    as_rank(engine, 1)
    first, end = owned(engine, len(made[0]), 1)
    embedding = build(engine, 1, len(made[0]))
    line = next(text for text in capfd.readouterr().out.splitlines() if "Exact" in text)
    assert line == (
        f"Exact nvme Engram layer=1 rank=1 rows=[{first},{end}) cache=0.0GiB (0 slots, 4-way, 0.0% of owned rows) "
        "scales=0.0GiB io_threads=96 packed=True"
    )
    embedding._owned_rows(torch.tensor([[first, first + 1, 0]]))
    evidence.REPORTER.flush()
    said = capfd.readouterr().out
    assert (
        "Engram layer=1 lookups=2 hit_rate=0.0% reads=2 cache=0.0GiB(4-way) scales=0.0GiB threads=96 packed=True"
        in said
    )


def test_without_a_shard_the_checkpoint_is_read_and_said(
    engine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import json
    import struct

    made = tables(tmp_path, engine, TOTALS)
    table = made[0]
    as_rank(engine, 0)
    reference = build(engine, 1, len(table))
    load(reference, table)
    engine_lookup = engine.EngramEmbedding._owned_rows
    (tmp_path / "engram-l1-r0of3.bin").unlink()
    engram_backend.install(engine)
    with pytest.raises(HookError, match="TS-ADAPTER-ENGRAM-SOURCE"):
        build(engine, 1, len(table))
    source = tmp_path / "model"
    source.mkdir()
    names = [f"layers.1.engram.embed.{part}" for part in ("weight", "scale")]
    count = len(table)
    header = json.dumps(
        {
            names[0]: {"dtype": "F8_E4M3", "shape": [count, 256], "data_offsets": [0, 256 * count]},
            names[1]: {"dtype": "F8_E8M0", "shape": [count, 8], "data_offsets": [256 * count, 264 * count]},
        }
    ).encode()
    body = table[:, :256].tobytes() + table[:, 256:].tobytes()
    (source / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + body)
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "a.safetensors")})
    )
    monkeypatch.setenv("DSV41_SOURCE", str(source))
    capfd.readouterr()
    ours = build(engine, 1, len(table))
    assert re.search(r"Exact nvme Engram layer=1 .*packed=False$", capfd.readouterr().out, re.MULTILINE)
    ids = torch.arange(len(table)).view(-1, 1)
    assert torch.equal(bits(ours._owned_rows(ids)), bits(engine_lookup(reference, ids)))


def test_a_shard_of_the_other_layout_is_refused_by_name(engine: ModuleType, tmp_path: Path) -> None:
    made = tables(tmp_path, engine, TOTALS)
    total = len(made[0])
    other = (total // 3, total * 2 // 3) if by_columns(engine) else (bounds_of(total)[2], bounds_of(total)[4])
    write_packed(tmp_path / "engram-l1-r1of3.bin", made[0], 1, *other)
    as_rank(engine, 1)
    engram_backend.install(engine)
    mine, theirs = ("column", "even") if by_columns(engine) else ("even", "column")
    with pytest.raises(HookError, match=rf"a shard of the other layout \({theirs}\).*layout {mine}"):
        build(engine, 1, total)


def test_a_shard_of_another_rank_is_refused(engine: ModuleType, tmp_path: Path) -> None:
    made = tables(tmp_path, engine, TOTALS)
    (tmp_path / "engram-l1-r1of3.bin").write_bytes((tmp_path / "engram-l1-r2of3.bin").read_bytes())
    as_rank(engine, 1)
    engram_backend.install(engine)
    with pytest.raises(HookError, match="TS-ADAPTER-ENGRAM-LAYOUT: "):
        build(engine, 1, len(made[0]))


def test_a_failing_read_is_raised_and_gives_no_rows(engine: ModuleType, tmp_path: Path) -> None:
    made = tables(tmp_path, engine, TOTALS)
    engram_backend.install(engine)
    as_rank(engine, 0)
    embedding = build(engine, 1, len(made[0]))
    path = tmp_path / "engram-l1-r0of3.bin"
    with path.open("r+b") as file:
        file.truncate(8192)
    with pytest.raises(StoreError, match="TS-STORE-SHORT"):
        embedding._owned_rows(torch.tensor([[owned(engine, len(made[0]), 0)[1] - 1]]))


def test_a_capture_needs_a_forward_of_its_size_before(
    engine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trispark_adapters import engram_staging

    made = tables(tmp_path, engine, TOTALS)
    engram_backend.install(engine)
    as_rank(engine, 0)
    embedding = build(engine, 1, len(made[0]))
    ids = torch.randint(0, len(made[0]), (6, 24))
    real = engram_staging.capturing
    monkeypatch.setattr(engram_staging, "capturing", lambda device: True)
    with pytest.raises(HookError, match="TS-ADAPTER-ENGRAM-STAGING"):
        embedding._owned_rows(ids)
    monkeypatch.setattr(engram_staging, "capturing", real)
    expected = embedding._owned_rows(ids)
    monkeypatch.setattr(engram_staging, "capturing", lambda device: True)
    assert torch.equal(bits(embedding._owned_rows(ids)), bits(expected))
    rows = getattr(embedding, engram_backend.ROWS)
    assert len(rows.staging._jobs) == 2  # a graph's job is its own
    assert len(rows.staging._buckets) == 1


def test_the_engines_own_tables_are_refused(engine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE", "1")
    with pytest.raises(HookError, match="TS-ADAPTER-ENGRAM-TABLE"):
        engram_backend.install(engine)


def test_installing_twice_replaces_once(engine: ModuleType) -> None:
    engram_backend.install(engine)
    once: Any = engine.EngramEmbedding._owned_rows
    engram_backend.install(engine)
    assert engine.EngramEmbedding._owned_rows is once
