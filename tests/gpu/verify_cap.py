"""The verify cap on a GPU: dead rows of the engine's own router in a captured graph, and what the remap costs.

`run(out)` needs torch with CUDA and triton; for the router also SGLang on the path (with `engine_stubs`). A graph holds
the router of a target verify with the remap behind it; it is replayed with other scores and other live lengths, and
compared with what the router alone gives: dead rows equal their anchors, all others are untouched, padding stays.
"""

from __future__ import annotations

import statistics
import traceback
from types import SimpleNamespace
from typing import Any

import torch

from trispark_adapters import verify_cap, verify_cap_kernels
from trispark_adapters.verify_cap import VerifyCap
from trispark_adapters.verify_cap_policy import Policy

STRIDE, EXPERTS, TOP_K = 6, 384, 6
BATCHES = (1, 2, 4, 21)
LAYERS = 40


def wanted(values: Any, live: Any, padding: int) -> Any:
    """[M, K] in which dead rows are their anchors'."""
    rows = torch.arange(values.shape[0], device=values.device)
    dead = (rows % STRIDE >= live[rows // STRIDE]) & (rows < values.shape[0] - padding)
    return values[torch.where(dead, rows - rows % STRIDE, rows)]


def remap(out: dict[str, Any]) -> None:
    """The kernel alone: against its rule, replayed with other lengths, and its time a layer."""
    for bs in BATCHES:
        rows = bs * STRIDE
        live = torch.ones(64, dtype=torch.int64, device="cuda")
        ids = torch.zeros((rows, TOP_K), dtype=torch.int32, device="cuda")
        weights = torch.zeros((rows, TOP_K), device="cuda")
        packed = torch.zeros((rows, TOP_K), dtype=torch.int32, device="cuda")
        verify_cap_kernels.remap(ids, weights, packed, live, STRIDE)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            verify_cap_kernels.remap(ids, weights, packed, live, STRIDE)
        wrong = 0
        for padding in (0, 1, 5, 0):
            ids.copy_(torch.randint(0, EXPERTS, ids.shape, device="cuda"))
            weights.copy_(torch.rand(weights.shape, device="cuda"))
            packed.copy_(torch.randint(0, 1 << 30, packed.shape, device="cuda"))
            if padding:
                ids[-padding:] = -1
            live.copy_(torch.randint(1, STRIDE + 1, live.shape, device="cuda"))
            before = [each.clone() for each in (ids, weights, packed)]
            graph.replay()
            for values, old in zip((ids, weights, packed), before, strict=True):
                wrong += int((values != wanted(old, live, padding)).sum())
        many = torch.cuda.CUDAGraph()
        with torch.cuda.graph(many):
            for _ in range(LAYERS):
                verify_cap_kernels.remap(ids, weights, packed, live, STRIDE)
        times = []
        for _ in range(50):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            many.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / LAYERS)
        out[f"remap_rows{rows}"] = {"wrong": wrong, "us_a_layer": statistics.median(times), "ok": wrong == 0}


def router(out: dict[str, Any]) -> None:
    """The engine's own router, wrapped, in a graph; fixed and confidence policies write the same buffer."""
    import engine_stubs

    engine_stubs.install()
    from sglang.kernels.ops.moe import moe_fused_gate as module

    stock = module.moe_fused_gate
    alone = SimpleNamespace(broadcast=lambda values, src: values)
    cap = VerifyCap(Policy("conf:0.3", thresholds=(0.3,)), {}, alone)
    verify_cap.wrap_router(module, cap)
    for bs in BATCHES:
        rows = bs * STRIDE
        scores = torch.randn((rows, EXPERTS), device="cuda")
        bias = torch.randn(EXPERTS, device="cuda") * 0.1
        real = torch.full((1,), rows, dtype=torch.int32, device="cuda")
        given: dict[str, Any] = {
            "topk": TOP_K,
            "scoring_func": "sqrtsoftplus",
            "num_token_non_padded": real,
            "sqrtsoftplus_log1p": True,
        }
        packed = torch.zeros((rows, TOP_K), dtype=torch.int32, device="cuda")
        mode = SimpleNamespace(is_target_verify=lambda: True)
        batch = SimpleNamespace(forward_mode=mode, batch_size=bs, spec_info=SimpleNamespace(draft_token_num=STRIDE))
        cap.allocate("cuda")

        def forward(
            batch: Any = batch, scores: Any = scores, bias: Any = bias, packed: Any = packed, given: Any = given
        ) -> Any:
            cap.begin_forward(batch, scores)
            try:
                return module.moe_fused_gate(scores, bias, packed_out=packed, **given)
            finally:
                cap.end_forward()

        forward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            weights, ids = forward()
        wrong = cut = 0
        for trial in range(12):
            padding = (0, 0, STRIDE // 2)[trial % 3]
            scores.copy_(torch.randn(scores.shape, device="cuda"))
            real.fill_(rows - padding)
            cap.offer(torch.rand((bs, STRIDE - 1), device="cuda"))
            cap.before_verify(bs, STRIDE, "cuda")
            plain_packed = torch.zeros_like(packed)
            plain_weights, plain_ids = stock(scores, bias, packed_out=plain_packed, **given)
            graph.replay()
            cut += int((cap.live[:bs] < STRIDE).sum())
            for values, plain in ((weights, plain_weights), (ids, plain_ids), (packed, plain_packed)):
                wrong += int((values != wanted(plain, cap.live, padding)).sum())
        out[f"router_rows{rows}"] = {"wrong": wrong, "requests_cut": cut, "ok": wrong == 0 and cut > 0}


def run(out: dict[str, Any]) -> None:
    """Fill out["verify_cap"]; a part that fails leaves its error there, and `ok` false."""
    found: dict[str, Any] = {}
    out["verify_cap"] = found
    torch.manual_seed(2)
    for part in (remap, router):
        try:
            part(found)
        except Exception:
            found[part.__name__] = {"ok": False, "error": traceback.format_exc()[-2000:]}
    found["ok"] = all(value["ok"] for value in found.values() if isinstance(value, dict))
