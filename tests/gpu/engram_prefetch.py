"""Engram lookups on one GPU: capture and replay of both paths with changing ids, and how much of a lookup is hidden.

`run(out)` needs torch with CUDA and the engine's `engram_gather` (or any kernel of its interface, see `gather_of`). The
lookup is real: the built row store, a host function, pinned memory, side streams. What a lookup takes depends on the
disk, so it is lengthened to a known time by asking for more rows; the computation before the join is a product that is
repeated until it takes longer than the lookup.
"""

from __future__ import annotations

import statistics
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engram_store import Code, RowStore, StoreError
from trispark_adapters.engram_backend import LayerRows
from trispark_adapters.engram_prefetch import Prefetch
from trispark_adapters.engram_shard import Opened, Placement

LAYERS = (1, 14)
COLUMNS = 24
TOTAL = 60_000
WORLD, RANK = 3, 1
REPLAYS = 60
GOAL = 0.9


def gather_of() -> tuple[Callable[..., Any], str]:
    """The engine's gather kernel where it can be imported, else the same arithmetic in torch, and which it is."""
    try:
        from sglang.kernels.ops.embeddings.engram_gather import engram_gather
    except Exception as error:  # a machine without the engine, or without what its kernels package imports
        return _torch_gather(), f"torch ({type(error).__name__}: {error})"
    return engram_gather, "engine"


def _torch_gather() -> Callable[..., Any]:
    buffers: dict[int, tuple[Any, Any]] = {}

    def gather(weights: int, scales: int, ids: Any, out: Any, dim: int, block: int, row_lo: int, row_hi: int) -> Any:
        rows, exponents = buffers[weights]
        count = row_hi - row_lo
        values = rows[:count].view(torch.float8_e4m3fn).float().unflatten(-1, (-1, block))
        powers = exponents[:count].view(torch.float8_e8m0fnu).float().unsqueeze(-1)
        out.copy_((values * powers).flatten(-2).to(torch.bfloat16))
        return out

    gather.buffers = buffers  # type: ignore[attr-defined]
    return gather


def open_layers(directory: Path, gather: Callable[..., Any]) -> tuple[list[LayerRows], list[Any], list[str]]:
    """Rank 1's rows of both layers, the whole tables on the CPU, and how each is read."""
    layers, tables, how = [], [], []
    for layer in LAYERS:
        table = np.random.default_rng(layer).integers(0, 256, (TOTAL, 264), dtype=np.uint8)
        table[:, :256][table[:, :256] & 0x7F == 0x7F] = 1  # no NaN: rows are compared as numbers elsewhere too
        table[:, 256:] = table[:, 256:] % 32 + 112
        first, end = TOTAL * RANK // WORLD, TOTAL * (RANK + 1) // WORLD
        placement = Placement(layer, RANK, WORLD, first, end, TOTAL)
        path = directory / placement.file
        header = struct.pack("<6Q", 0x31344E4531565344, layer, first, end, TOTAL, 264).ljust(4096, b"\0")
        path.write_bytes(header + table[first:end].tobytes())
        try:
            opened = Opened(RowStore.open_packed(path, placement.rows), True, "")
        except StoreError as error:
            if error.code != Code.NO_DIRECT:
                raise
            plain = directory / f"layer{layer}.bin"
            plain.write_bytes(table[:, :256].tobytes() + table[:, 256:].tobytes())
            store = RowStore.open_checkpoint(plain, 0, 256 * TOTAL, placement.rows, allow_buffered=True)
            opened = Opened(store, False, str(error))
        layers.append(LayerRows(placement, opened, gather))
        tables.append(torch.from_numpy(table))
        how.append(f"packed={opened.packed} {opened.store.backend.name}")
    return layers, tables, how


def expected(table: Any, ids: Any) -> Any:
    """bf16 rows of this rank for `ids`, zeros else, by plain torch on the CPU."""
    first, end = TOTAL * RANK // WORLD, TOTAL * (RANK + 1) // WORLD
    rows = table[ids.cpu()]
    values = rows[..., :256].contiguous().view(torch.float8_e4m3fn).float().unflatten(-1, (-1, 32))
    scales = rows[..., 256:].contiguous().view(torch.float8_e8m0fnu).float().unsqueeze(-1)
    mine = ((ids.cpu() >= first) & (ids.cpu() < end)).unsqueeze(-1)
    return (values * scales).flatten(-2).to(torch.bfloat16).masked_fill(~mine, 0)


class Bench:
    """One static set of ids on the device and what graphs do with it."""

    def __init__(self, layers: list[LayerRows], check: bool) -> None:
        self.layers = layers
        self.lines: list[str] = []
        self.prefetch = Prefetch(check, say=self.lines.append)
        for index, rows in enumerate(layers):
            self.prefetch.add(index, rows)
        self.left = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
        self.right = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) / 45

    def compute(self, products: int) -> None:
        """Work of the main stream."""
        for _ in range(products):
            torch.mm(self.left, self.right)

    def step(self, ids: Any, products: int, mode: str) -> list[Any]:
        """Rows of both layers; `mode` is ahead, synchronous, or compute (no lookup: rows as they lie)."""
        if mode == "ahead":
            self.prefetch.ids_known(ids)
        found = []
        for index, rows in enumerate(self.layers):
            self.compute(products)
            view = ids[:, index]
            if mode == "compute":
                found.append(torch.empty(*view.shape, 256, dtype=torch.bfloat16, device="cuda"))
                continue
            taken = self.prefetch.take(rows, view) if mode == "ahead" else None
            found.append(rows.read(view) if taken is None else taken)
        return found

    def capture(self, ids: Any, products: int, mode: str) -> tuple[Any, list[Any]]:
        """A graph of a step, after two eager ones, and its outputs."""
        for _ in range(2):
            self.step(ids, products, mode)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self.step(ids, products, mode)
        return graph, outputs


def random_ids(tokens: int, random: np.random.Generator) -> Any:
    ids = random.integers(0, TOTAL, (tokens, len(LAYERS), COLUMNS))
    if tokens > 1:
        ids[-1] = ids[0]
    return torch.from_numpy(ids)


def milliseconds(graph: Any, ids: Any, random: np.random.Generator, replays: int = REPLAYS) -> float:
    """Median time of a replay with other ids each time."""
    times = []
    for _ in range(replays):
        ids.copy_(random_ids(ids.shape[0], random))
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def check_rows(bench: Bench, tables: list[Any], tokens: int, random: np.random.Generator) -> dict[str, Any]:
    """Replays with changed ids give the rows of the table, on both paths."""
    ids = random_ids(tokens, random).cuda()
    wrong = {"ahead": 0, "synchronous": 0, "eager": 0}
    graphs = {mode: bench.capture(ids, 1, mode) for mode in ("ahead", "synchronous")}
    for _ in range(20):
        ids.copy_(random_ids(tokens, random))
        wanted = [expected(table, ids[:, index]) for index, table in enumerate(tables)]
        for mode, (graph, outputs) in graphs.items():
            graph.replay()
            torch.cuda.synchronize()
            wrong[mode] += sum(not torch.equal(rows.cpu(), want) for rows, want in zip(outputs, wanted, strict=True))
        eager = bench.step(ids, 0, "ahead")
        torch.cuda.synchronize()
        wrong["eager"] += sum(not torch.equal(rows.cpu(), want) for rows, want in zip(eager, wanted, strict=True))
    return {"tokens": tokens, "replays": 20, "wrong": wrong, "enabled": bench.prefetch.enabled}


def hidden(bench: Bench, tokens: int, random: np.random.Generator) -> dict[str, Any]:
    """Share of the synchronous lookup's time that is gone with the lookup ahead, computation longer than it."""
    ids = random_ids(tokens, random).cuda()
    alone = milliseconds(bench.capture(ids, 0, "synchronous")[0], ids, random)
    one = milliseconds(bench.capture(ids, 8, "compute")[0], ids, random) / 16
    # One host thread runs both lookups one after the other: before each join lies 1.5 times the time of both.
    products = max(int(1.5 * alone / max(one, 1e-4)) + 1, 8)
    graphs = {mode: bench.capture(ids, products, mode)[0] for mode in ("compute", "synchronous", "ahead")}
    ms = {mode: milliseconds(graph, ids, random) for mode, graph in graphs.items()}
    lookup = ms["synchronous"] - ms["compute"]
    share = (ms["synchronous"] - ms["ahead"]) / lookup if lookup > 0 else float("nan")
    return {
        "tokens": tokens,
        "lookup_ms": lookup,
        "compute_before_join_ms": ms["compute"] / 2,
        "milliseconds": ms,
        "hidden_share": share,
        "goal": GOAL,
        "reached": share >= GOAL,
    }


def failing_read(layers: list[LayerRows], directory: Path) -> dict[str, Any]:
    """Eager: a shard cut short turns the prefetch off and raises on the synchronous path; no rows come out."""
    bench = Bench(layers, check=False)
    ids = random_ids(6, np.random.default_rng(9)).cuda()
    bench.step(ids, 0, "ahead")
    for rows in layers:
        name = rows.placement.file if rows.opened.packed else f"layer{rows.placement.layer}.bin"
        with (directory / name).open("r+b") as file:
            file.truncate(4096)
    try:
        bench.step(ids, 0, "ahead")
        raised = "nothing"
    except StoreError as error:
        raised = error.id
    return {"raised": raised, "enabled": bench.prefetch.enabled, "lines": bench.lines[-2:]}


def failing_capture(layers: list[LayerRows], tables: list[Any], random: np.random.Generator) -> dict[str, Any]:
    """A capture in which the second layer cannot begin its lookup: the graph is valid, its rows are right."""
    bench = Bench(layers, check=False)
    ids = random_ids(6, random).cuda()
    for _ in range(2):
        bench.step(ids, 1, "ahead")
        bench.step(ids, 1, "synchronous")
    torch.cuda.synchronize()

    def refuse(*_: Any) -> Any:
        raise RuntimeError("planted")

    bench.prefetch._layers[LAYERS[1]].staging.get = refuse  # type: ignore[method-assign]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = bench.step(ids, 1, "ahead")
    wrong = 0
    for _ in range(20):
        ids.copy_(random_ids(6, random))
        graph.replay()
        torch.cuda.synchronize()
        wanted = [expected(table, ids[:, index]) for index, table in enumerate(tables)]
        wrong += sum(not torch.equal(rows.cpu(), want) for rows, want in zip(outputs, wanted, strict=True))
    return {"replays": 20, "wrong": wrong, "enabled": bench.prefetch.enabled, "lines": bench.lines[-2:]}


def run(out: dict[str, Any]) -> None:
    """Fill `out` with rows checked, shares hidden and what was wrong; raises where rows differ."""
    gather, which = gather_of()
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=".") as name:
        directory = Path(name)
        layers, tables, how = open_layers(directory, gather)
        if which != "engine":
            _know_buffers(gather)
        result: dict[str, Any] = {"gather": which, "reads": how}
        out["engram_prefetch"] = result
        bench = Bench(layers, check=False)
        result["rows"] = [check_rows(bench, tables, tokens, random) for tokens in (1, 4, 6, 24)]
        result["hidden"] = [hidden(bench, tokens, random) for tokens in (6, 24)]
        checked = Bench(layers, check=True)
        graph, _ = checked.capture(ids := random_ids(6, random).cuda(), 1, "ahead")
        milliseconds(graph, ids, random, 10)
        torch.cuda.synchronize()
        result["check"] = checked.prefetch.differing
        result["lines"] = [*bench.lines, *checked.lines, checked.prefetch.line()]
        result["failing_capture"] = failing_capture(layers, tables, random)
        result["failing_read"] = failing_read(layers, directory)
    wrong = sum(sum(row["wrong"].values()) for row in result["rows"]) + result["failing_capture"]["wrong"]
    if wrong or result["check"] != [0, 0] or not all(row["enabled"] for row in result["rows"]):
        raise AssertionError(f"prefetched rows are not the synchronous ones: {result}")


def _know_buffers(gather: Any) -> None:
    """The torch kernel finds tensors by the address that the staging passes."""
    from trispark_adapters import engram_staging

    make = engram_staging.Bucket.__init__

    def made(self: Any, *args: Any) -> None:
        make(self, *args)
        gather.buffers[self.device_weights.data_ptr()] = (self.device_weights, self.device_scales)

    engram_staging.Bucket.__init__ = made  # type: ignore[method-assign]


if __name__ == "__main__":
    import json

    answer: dict[str, Any] = {}
    run(answer)
    print(json.dumps(answer, indent=1))
