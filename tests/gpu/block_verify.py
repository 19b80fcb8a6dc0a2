"""Joint acceptance on a GPU: against the rule in float64, in captured graphs, and its time beside the engine's own.

`run(out)` needs torch with CUDA and triton; for the times also SGLang up to 0.5.21 on the path (with `engine_stubs`).
What is compared is one call of AcceptSampling.execute, before and after the adapter is installed, for batches of 1 and
4, blocks of 5 and a vocabulary of 129,280: device time in a graph over input sets that do not fit the cache together,
and time by the clock of calls as the engine makes them. Where flashinfer is absent the engine's softmax is its Triton
kernel; since that is a slow one, the same is measured with torch's softmax in its place, and the worse ratio counts.
"""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from trispark_adapters import block_verify, block_verify_kernels, block_verify_math

GAMMA, VOCAB = 5, 129_280
BATCHES = (1, 4)
SETS = 8
"""Input sets of a graph: 22 MB each at a batch of 4, more together than the cache holds."""
TRIALS = 40
ROUNDING = 1e-4
"""Distance of a uniform from the bound that decides it, below which float32 may decide otherwise than float64."""
GOAL = 1.2


def inputs(bs: int, seed: int) -> dict[str, Any]:
    """Arguments of one call: logits as peaked as a model's, a draft near enough for blocks of every length."""
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def rand(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device="cuda")

    logits = rand(bs, GAMMA + 1, VOCAB) * 3
    draft = ((logits[:, :GAMMA] + rand(bs, GAMMA, VOCAB) * 0.5) / 0.7).softmax(2)
    tokens = torch.multinomial(draft.view(-1, VOCAB), 1, generator=generator).view(bs, GAMMA)
    return {
        "candidates": torch.cat([torch.zeros((bs, 1), dtype=torch.int64, device="cuda"), tokens], 1),
        "target_logits": logits.view(-1, VOCAB),
        "draft_probs": draft,
        "sampling_info": SimpleNamespace(
            temperatures=torch.full((bs, 1), 0.7, device="cuda"),
            need_top_k_sampling=False,
            need_top_p_sampling=False,
        ),
        "draft_input": SimpleNamespace(max_top_k=None, uniform_top_k_value=None),
        "gamma": GAMMA,
        "verify_num_draft_tokens": GAMMA + 1,
        "cutoff_verify_lens": None,
    }


def kernel(given: dict[str, Any], uniforms: Any, lens: Any = None, target: Any = None) -> tuple[Any, Any, Any]:
    """The kernels on one call's arguments."""
    values = given["target_logits"] if target is None else target
    temperatures = given["sampling_info"].temperatures if target is None else None
    return block_verify_kernels.accept(values, temperatures, given["draft_probs"], given["candidates"], lens, uniforms)


def doubtful(target: Any, draft: Any, tokens: Any, live: Any, uniforms: Any) -> Any:
    """bool [bs]: a uniform lies so near to its bound that rounding may decide."""
    found = block_verify_math.chances(target, draft, tokens, live)
    return ((uniforms[:, :-1] - found.kept).abs() < ROUNDING).any(1)


def next_to(target: Any, draft: Any, tokens: Any, live: Any, uniforms: Any, token: Any) -> Any:
    """bool [bs]: the running mass at `token` holds the uniform, but for rounding."""
    found = block_verify_math.chances(target, draft, tokens, live)
    tau = block_verify_math.longest(found.kept, uniforms[:, :-1])
    mass = block_verify_math.corrections(target, draft, found.weights, tau, live)
    running = mass.cumsum(1) / mass.sum(1, keepdim=True)
    rows = torch.arange(len(token), device=token.device)
    upper = running[rows, token]
    lower = upper - mass[rows, token] / mass.sum(1)
    last = uniforms[:, -1]
    return (last >= lower - ROUNDING) & (last <= upper + ROUNDING) & (mass[rows, token] > 0)


def correctness(out: dict[str, Any]) -> None:
    """Kept drafts and tokens of many calls against the rule in float64; with cuts, and with filtered probabilities."""
    torch.manual_seed(1)
    for bs in BATCHES:
        counts = {"calls": 0, "requests": 0, "doubtful": 0, "wrong_kept": 0, "wrong_token": 0}
        lengths: dict[int, int] = {}
        for trial in range(TRIALS):
            given = inputs(bs, trial)
            uniforms = torch.rand((bs, GAMMA + 1), device="cuda")
            lens = torch.randint(1, GAMMA + 2, (bs,), device="cuda") if trial % 2 else None
            target = (given["target_logits"].double() / 0.7).softmax(1).view(bs, GAMMA + 1, VOCAB)
            filtered = None
            if trial % 4 >= 2:
                bound = target.topk(50, 2).values[..., -1:]
                target = torch.where(target >= bound, target, 0)
                target = target / target.sum(2, keepdim=True)
                filtered = target.float()
                target = filtered.double()
            kept, token, trim = kernel(given, uniforms, lens, filtered)
            live = block_verify_math.live_drafts(lens, bs, GAMMA, "cuda")
            exact = (target, given["draft_probs"].double(), given["candidates"][:, 1:], live, uniforms.double())
            wanted, _ = block_verify_math.accept(*exact)
            unsure = doubtful(*exact)
            same = kept == wanted
            counts["calls"] += 1
            counts["requests"] += bs
            counts["doubtful"] += int(unsure.sum())
            counts["wrong_kept"] += int((~same & ~unsure).sum())
            counts["wrong_token"] += int((same & ~next_to(*exact, token)).sum())
            assert int(trim.abs().sum()) == 0
            for length in kept.tolist():
                lengths[length] = lengths.get(length, 0) + 1
        counts["ok"] = counts["wrong_kept"] == 0 and counts["wrong_token"] == 0
        out[f"correctness_bs{bs}"] = {**counts, "kept": {str(key): lengths[key] for key in sorted(lengths)}}


def graphs(out: dict[str, Any]) -> None:
    """Captured once, replayed with other inputs, cuts and uniforms: equal to a call outside of a graph, bit by bit."""
    bs = 4
    static = inputs(bs, 0)
    uniforms = torch.rand((bs, GAMMA + 1), device="cuda")
    lens = torch.full((bs,), GAMMA + 1, dtype=torch.int64, device="cuda")
    for _ in range(2):
        kernel(static, uniforms, lens)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernel(static, uniforms, lens)
    wrong = 0
    for trial in range(20):
        given = inputs(bs, 500 + trial)
        for name in ("candidates", "target_logits", "draft_probs"):
            static[name].copy_(given[name])
        uniforms.copy_(torch.rand((bs, GAMMA + 1), device="cuda"))
        lens.copy_(torch.randint(1, GAMMA + 2, (bs,), device="cuda"))
        graph.replay()
        plain = kernel(given, uniforms, lens)
        wrong += sum(not torch.equal(a, b) for a, b in zip(captured, plain, strict=True))
    out["graph"] = {"replays": 20, "wrong": wrong, "ok": wrong == 0}


def microseconds(call: Callable[[], object], calls: int, replays: int = 60) -> dict[str, float]:
    """Median device time of one of the `calls` of a captured `call`, and of `call` itself by the device's clock."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def timed(run: Callable[[], object]) -> float:
        times = []
        for _ in range(replays):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return statistics.median(times) * 1000 / calls

    timed(graph.replay)
    return {"graph": timed(graph.replay), "eager": timed(call)}


def memory(call: Callable[[], object]) -> int:
    """Most bytes that one call holds beside what was there before."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def engine() -> ModuleType:
    """The engine's module of the acceptance."""
    import engine_stubs

    engine_stubs.install()
    from sglang.kernels.ops.speculative.dspark import dspark_accept

    engine_stubs.forget_softmax(dspark_accept)
    return dspark_accept


def torch_softmax(*, logits: Any, temperature: Any) -> Any:
    return torch.softmax(logits / temperature[:, None], dim=-1)


def times(out: dict[str, Any]) -> None:
    """The engine's acceptance and ours, in turn, in one run."""
    accept = engine()
    if block_verify.native(accept):
        out["times"] = {"ok": False, "reason": "this engine has block verification itself"}
        return
    stock = accept.AcceptSampling.__dict__["execute"]
    block_verify.install(accept)
    ours = accept.AcceptSampling.__dict__["execute"]
    flashinfer = accept._flashinfer_softmax
    for bs in BATCHES:
        sets = [inputs(bs, 900 + number) for number in range(SETS)]

        def call(sets: list[dict[str, Any]] = sets) -> None:
            for given in sets:
                accept.AcceptSampling.execute(**given)

        row: dict[str, Any] = {}
        for name, execute, softmax in (
            ("engine", stock, flashinfer),
            ("engine_torch_softmax", stock, torch_softmax),
            ("ours", ours, flashinfer),
        ):
            accept.AcceptSampling.execute = execute
            accept._flashinfer_softmax = softmax  # type: ignore[attr-defined]
            row[name] = microseconds(call, SETS)
            row[name]["bytes"] = memory(lambda sets=sets: accept.AcceptSampling.execute(**sets[0]))  # type: ignore[misc]
        accept._flashinfer_softmax = flashinfer  # type: ignore[attr-defined]
        ratios = {
            kind: max(row["ours"][kind] / row[name][kind] for name in ("engine", "engine_torch_softmax"))
            for kind in ("graph", "eager")
        }
        whole = bs * (GAMMA + 1) * VOCAB * 4
        row |= {
            "ratio": ratios,
            "goal": GOAL,
            "copy_bytes": whole,
            "no_copy": row["ours"]["bytes"] < whole / 8,
            "softmax": "triton" if flashinfer is None else "flashinfer",
        }
        row["ok"] = max(ratios.values()) <= GOAL and row["no_copy"]
        out[f"times_bs{bs}"] = row


def run(out: dict[str, Any]) -> None:
    """Fill out["block_verify"]; a part that fails leaves its error there, and `ok` false."""
    found: dict[str, Any] = {"gamma": GAMMA, "vocab": VOCAB}
    out["block_verify"] = found
    for part in (correctness, graphs, times):
        try:
            part(found)
        except Exception:
            found[part.__name__] = {"ok": False, "error": traceback.format_exc()[-2000:]}
    found["ok"] = all(value["ok"] for value in found.values() if isinstance(value, dict))
