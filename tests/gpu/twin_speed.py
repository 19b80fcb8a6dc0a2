"""Time of the products beside the engine's bf16 ones, in CUDA graphs over weights that no cache holds.

Both graphs are replayed in turns in one run; a time is the median over the replays, a ratio that of the medians. The
GB10 projection takes the time with the weight in the L2 cache, where conversion, tensor cores and latency decide and
memory does not, and scales it by multiprocessors times clock.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import torch
from twin_data import COLUMNS, GROUP_ROWS, HEAD, activations, checkpoint, weight

from trispark_adapters.twin import DeviceProducts, twin_of_codes, twin_of_weight
from trispark_adapters.twin_plan import GB10_SHARED_BYTES, Chip

LAYERS = 40
HEADS = 4
GROUPS = 4
REPLAYS = 41
ROWS = (3, 4, 5, 6, 8, 10, 12, 16, 18, 20, 24)
MORE_ROWS = (1, 2, 36, 48, 96, 192)
HEAD_ROWS = (3, 4, 5, 6, 8, 9, 10, 12, 15, 16, 18, 20)
GB10 = {"multiprocessors": 48, "clock_ghz": 2.4, "bytes_per_s": 273e9, "share": 0.8}
FORMULA = (
    "resident_us * (multiprocessors * clock_ghz) / (48 * 2.4) < 0.8 * twin_bytes / 273 GB/s; "
    "resident_us: one product by a GB10's kernels over this GPU's multiprocessors, with the same weight 40 times in a "
    "graph, so that it stays in the L2 cache"
)


def captured(calls: Sequence[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
    """A graph of `calls`, warmed up."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return graph


def replayed(graphs: dict[str, torch.cuda.CUDAGraph], calls: int) -> dict[str, list[float]]:
    """Microseconds a call of each replay, the graphs in turns."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(REPLAYS):
        for name, graph in graphs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e3 / calls)
    return times


def summary(times: Sequence[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(times, n=4)
    return {"median_us": round(middle, 3), "q1_us": round(low, 3), "q3_us": round(high, 3)}


def compared(wide: Callable[[int], Any], twin: Callable[[int], Any], weights: int) -> dict[str, Any]:
    """Both over all weights, in turns."""
    graphs = {
        "bf16": captured([lambda i=i: wide(i) for i in range(weights)]),
        "twin": captured([lambda i=i: twin(i) for i in range(weights)]),
    }
    found: dict[str, Any] = {name: summary(times) for name, times in replayed(graphs, weights).items()}
    found["ratio"] = round(found["bf16"]["median_us"] / found["twin"]["median_us"], 3)
    return found


def clock_ghz(work: torch.cuda.CUDAGraph) -> float:
    """The multiprocessors' clock while `work` runs."""
    for _ in range(4000):
        work.replay()
    asked = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits", "--id=0"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    torch.cuda.synchronize()
    return int(said.split()[0]) / 1000


def wo_a(out: dict[str, Any], kernels: DeviceProducts) -> None:
    chip = Chip(out["device"]["multiprocessors"], GB10_SHARED_BYTES)
    small = DeviceProducts(chip=chip)
    wide, twins = [], []
    for seed in range(LAYERS):
        wide.append(weight(GROUPS * GROUP_ROWS, COLUMNS, seed).view(GROUPS, GROUP_ROWS, COLUMNS))
        twin = twin_of_weight(wide[-1].view(-1, COLUMNS), GROUP_ROWS, exact=True)
        assert twin is not None
        twins.append(twin)
    raw = {}
    for rows in sorted((*ROWS, *MORE_ROWS)):
        x = activations((rows, GROUPS, COLUMNS), rows)

        def einsum(layer: int, x: Any = x) -> Any:
            return torch.einsum("tgd,grd->tgr", x, wide[layer])

        def product(layer: int, x: Any = x) -> Any:
            return kernels.product(twins[layer], x)

        def resident(x: Any = x) -> Any:
            return small.product(twins[0], x)

        raw[str(rows)] = compared(einsum, product, LAYERS)
        raw[str(rows)]["resident"] = summary(replayed({"": captured([resident] * LAYERS)}, LAYERS)[""])
    x = activations((6, GROUPS, COLUMNS), 6)
    ghz = clock_ghz(captured([lambda i=i: kernels.product(twins[i], x) for i in range(LAYERS)]))
    widen = captured([lambda i=i: kernels.widen(twins[i]) for i in range(LAYERS)])
    out["raw"]["widen"] = summary(replayed({"": widen}, LAYERS)[""])
    out["wo_a_ratio"] = {rows: found["ratio"] for rows, found in raw.items()}
    out["raw"]["wo_a"] = raw
    out["gb10_projection"] = projection(raw, twins[0].nbytes, out["device"]["multiprocessors"], ghz)


def projection(raw: dict[str, Any], twin_bytes: int, multiprocessors: int, ghz: float) -> dict[str, Any]:
    """What a product's own work would take on a GB10, against its memory's time."""
    factor = multiprocessors * ghz / (GB10["multiprocessors"] * GB10["clock_ghz"])
    memory_us = twin_bytes / GB10["bytes_per_s"] * 1e6
    rows = {
        name: {
            "resident_us": found["resident"]["median_us"],
            "projected_us": round(found["resident"]["median_us"] * factor, 2),
            "holds": found["resident"]["median_us"] * factor < GB10["share"] * memory_us,
        }
        for name, found in raw.items()
    }
    return {
        "formula": FORMULA,
        "inputs": {
            "multiprocessors": multiprocessors,
            "clock_ghz": ghz,
            "twin_bytes": twin_bytes,
            "gb10": GB10,
            "factor": round(factor, 4),
        },
        "memory_us": round(memory_us, 2),
        "bf16_memory_us": round(2 * memory_us, 2),
        "limit_us": round(GB10["share"] * memory_us, 2),
        "rows": rows,
    }


def head(out: dict[str, Any], kernels: DeviceProducts) -> None:
    wide, twins = [], []
    for seed in range(HEADS):
        codes, exponents = checkpoint(*HEAD, seed)
        twin = twin_of_codes(codes, exponents, HEAD[0])
        assert twin is not None
        twins.append(twin)
        wide.append(kernels.widen(twin))
    raw = {}
    for rows in HEAD_ROWS:
        x = activations((rows, HEAD[1]), rows)

        def matmul(each: int, x: Any = x) -> Any:
            return torch.matmul(x, wide[each].T)

        def product(each: int, x: Any = x) -> Any:
            return kernels.product(twins[each], x[:, None])

        raw[str(rows)] = compared(matmul, product, HEADS)
    out["draft_head_ratio"] = {rows: found["ratio"] for rows, found in raw.items()}
    out["raw"]["draft_head"] = raw


def run(out: dict[str, Any]) -> None:
    """Adds `wo_a_ratio`, `draft_head_ratio`, `gb10_projection` and `raw`."""
    if out.get("quick"):
        return
    kernels = DeviceProducts()
    out.setdefault("raw", {})
    wo_a(out, kernels)
    torch.cuda.empty_cache()
    head(out, kernels)
