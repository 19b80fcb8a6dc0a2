"""Twins and their products against float64: every code and scale, every row count, strides, capture, release."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from twin_data import COLUMNS, GROUP_ROWS, HEAD, activations, checkpoint, weight

from trispark_adapters import twin_format
from trispark_adapters.twin import DeviceProducts, Twin, transient_bytes, twin_of_codes, twin_of_weight
from trispark_adapters.twin_plan import GB10_SHARED_BYTES, LARGEST_EXPONENT, Chip

TOKENS = (*range(1, 25), 36, 48, 96, 192)
HEAD_TOKENS = (*range(1, 25), 36, 48, 64)
QUICK_TOKENS = (3, 12, 24, 36)
LARGEST_ERROR = 3e-3
"""Of the norm: rounding the result to bf16 alone makes 1.7e-3."""


class Checks:
    """Failures go to out["errors"]; counts to out["checks"]."""

    def __init__(self, out: dict[str, Any]) -> None:
        self.errors: list[str] = out["errors"]
        self.counts: dict[str, int] = out.setdefault("checks", {})

    def hold(self, name: str, true: bool, observed: object = "") -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        if not true:
            self.errors.append(f"{name}: {observed}")


def same_bits(one: Any, other: Any) -> bool:
    return torch.equal(one.contiguous().view(torch.int16), other.contiguous().view(torch.int16))


def reference(x: Any, wide: Any) -> Any:
    """float64 [tokens, groups, rows] of x [tokens, groups, columns] and wide [groups, rows, columns]."""
    return torch.stack([x[:, each].double() @ wide[each].double().T for each in range(wide.shape[0])], dim=1)


def product(kernels: DeviceProducts, twin: Twin, x: Any) -> Any:
    """The product, into memory that held NaN: what is not written shows."""
    poison = torch.full((x.shape[0], twin.groups, twin.rows), float("nan"), dtype=torch.bfloat16, device="cuda")
    del poison
    return kernels.product(twin, x)


def compare(checks: Checks, name: str, got: Any, want: Any, x: Any, wide: Any) -> float:
    """By the norm, and each element: half a unit of bf16's last place and what float32 sums may lose."""
    error = float((got.double() - want).norm() / want.norm())
    loss = reference(x.abs(), wide.abs()) * 2.0**-16
    each = (got.double() - want).abs() <= want.abs() * 2.0**-8 + loss
    checks.hold(
        name, error < LARGEST_ERROR and bool(each.all()), f"error {error:.2e}, {int((~each).sum())} elements off"
    )
    return error


def every_code_and_scale(checks: Checks, kernels: DeviceProducts) -> None:
    """All codes in all lanes' places, and all exponents that a twin may have, subnormal codes and -0 among them."""
    exponents = torch.arange(LARGEST_EXPONENT + 1, device="cuda").to(torch.uint8)[:, None].repeat(1, COLUMNS // 32)
    codes, _ = checkpoint(32 * (LARGEST_EXPONENT + 1), COLUMNS, 1)
    codes[:, :256] = torch.arange(256, device="cuda").to(torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x80
    checks.hold("pack and unpack", torch.equal(twin_format.unpack(twin_format.pack(codes), *codes.shape), codes))
    twin = twin_of_codes(codes, exponents, codes.shape[0])
    assert twin is not None
    wide = twin_format.dequantise(codes, exponents)
    checks.hold("widened bits of every code and scale", same_bits(kernels.widen(twin), wide))
    usual = wide[32 * 8 :]  # below, products are subnormal floats, which tensor cores do not promise
    twin = twin_of_codes(codes[32 * 8 :], exponents[8:], usual.shape[0])
    assert twin is not None
    for first in range(0, 256, 8):
        x = torch.zeros((8, 1, COLUMNS), dtype=torch.bfloat16, device="cuda")
        x[torch.arange(8), 0, first + torch.arange(8)] = 1
        got = product(kernels, twin, x)[:, 0]
        checks.hold("operands are the wide weight's bits", torch.equal(got, usual[:, first : first + 8].T), first)


def wo_a(checks: Checks, kernels: DeviceProducts, tokens: tuple[int, ...]) -> float:
    worst = 0.0
    for groups in (2, 4):
        wide = weight(groups * GROUP_ROWS, COLUMNS, groups)
        twin = twin_of_weight(wide, GROUP_ROWS, exact=True)
        checks.hold("twin of a weight that has one", twin is not None and same_bits(kernels.widen(twin), wide))
        assert twin is not None
        grouped = wide.view(groups, GROUP_ROWS, COLUMNS)
        for count in tokens:
            dense = activations((count, groups, COLUMNS), count)
            wider = activations((count, groups + 1, COLUMNS + 72), count)
            for x in (dense, wider[:, 1:, 8 : COLUMNS + 8]):
                want = reference(x, grouped)
                got = product(kernels, twin, x)
                worst = max(worst, compare(checks, f"wo_a G={groups}", got, want, x, grouped))
                checks.hold("the same bits again", same_bits(got, product(kernels, twin, x)))
    return worst


def head(checks: Checks, kernels: DeviceProducts, tokens: tuple[int, ...]) -> float:
    source = activations(HEAD, 7) * 0.02
    twin = twin_of_weight(source, HEAD[0], exact=False)
    assert twin is not None
    wide = kernels.widen(twin)
    rounding = float((wide.double() - source.double()).norm() / source.double().norm())
    checks.hold("rounding of the head", 0 < rounding < 0.04, rounding)
    checks.hold("a rounded head has no exact twin", twin_of_weight(source, HEAD[0], exact=True) is None)
    worst = 0.0
    for count in tokens:
        x = activations((count, HEAD[1]), count)[:, None]
        worst = max(worst, compare(checks, "head", product(kernels, twin, x), reference(x, wide[None]), x, wide[None]))
    return worst


def twins(checks: Checks, kernels: DeviceProducts, quick: bool) -> dict[str, float]:
    """Which weights have a twin, and what building one needs."""
    rows = 4 * GROUP_ROWS
    zeros = torch.zeros((rows, COLUMNS), dtype=torch.bfloat16, device="cuda")
    twin = twin_of_weight(zeros, GROUP_ROWS, exact=True)
    checks.hold("a padded shard of zeros is exact", twin is not None and same_bits(kernels.widen(twin), zeros))
    checks.hold(
        "and gives zeros", twin is not None and not kernels.product(twin, activations((6, 4, COLUMNS), 1)).any()
    )
    wide = weight(rows, COLUMNS, 3)
    for name, value in (("finer", 1.0078125 * 2.0**-8), ("infinite", float("inf")), ("large", 3.0e38)):
        bad = wide.clone()
        bad[1234, 567] = value
        if name == "finer":  # eight bits of mantissa beside a large value of its block
            bad[1234, 566] = 1.0
        checks.hold(
            f"no twin of a weight with a value that is {name}", twin_of_weight(bad, GROUP_ROWS, exact=True) is None
        )
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    twin = twin_of_weight(wide, GROUP_ROWS, exact=True)
    assert twin is not None
    peak = torch.cuda.max_memory_allocated() - before - twin.nbytes
    bound = transient_bytes(COLUMNS)
    # Under compute-sanitizer the allocator keeps no such statistics.
    checks.hold("building a twin stays within its bound", quick or peak <= bound, f"{peak} > {bound}")
    return {"peak_mib": round(peak / 2**20, 1), "bound_mib": round(bound / 2**20, 1), "twin_mib": twin.nbytes / 2**20}


def captured(checks: Checks, kernels: DeviceProducts) -> None:
    """Graphs whose inputs change between replays, behind a copy, a join with another stream, and a kernel."""
    wide = weight(4 * GROUP_ROWS, COLUMNS, 5)
    twin = twin_of_weight(wide, GROUP_ROWS, exact=True)
    assert twin is not None
    grouped = wide.view(4, GROUP_ROWS, COLUMNS)
    for count in (6, 16, 24, 36):
        given = activations((count, 4, COLUMNS), count)
        held, busy = torch.empty_like(given), torch.zeros(1 << 24, device="cuda")
        stream, side = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                fork = torch.cuda.Event()
                fork.record(stream)
                side.wait_event(fork)
                with torch.cuda.stream(side):
                    busy.add_(1)
                    held.copy_(given)
                    join = torch.cuda.Event()
                    join.record(side)
                stream.wait_event(join)
                behind_join = kernels.product(twin, held)
                held.mul_(2)
                behind_kernel = kernels.product(twin, held)
                held.zero_()
            for seed in range(8):
                given.copy_(activations((count, 4, COLUMNS), 100 + seed))
                behind_join.fill_(float("nan"))
                behind_kernel.fill_(float("nan"))
                graph.replay()
                torch.cuda.synchronize()
                want = reference(given, grouped)
                compare(checks, "captured behind a join", behind_join, want, given, grouped)
                doubled = bool((behind_kernel == behind_join * 2).all())
                checks.hold("captured behind a kernel", doubled)


class _Linear(torch.nn.Module):
    def __init__(self, wide: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(wide, requires_grad=False)


class _Attention(torch.nn.Module):
    def __init__(self, wide: Any) -> None:
        super().__init__()
        self.wo_a, self.o_lora_rank = _Linear(wide), GROUP_ROWS


def adapter(checks: Checks, kernels: DeviceProducts, quick: bool) -> None:
    """The hooked dispatch on the GPU, with the wide copies released."""
    from trispark_adapters.wo_a_w8 import PATHS, Adapter, Modes, install_target
    from trispark_hooks.evidence import Counters

    def dispatch(o: Any, wo_a: Any, is_decode: bool, is_target_verify: bool = False) -> Any:
        return torch.einsum("tgd,grd->tgr", o, wo_a)

    class Model(torch.nn.Module):
        def __init__(self, weights: list[Any]) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(_Attention(each.clone()) for each in weights)

        def load_weights(self, weights: Any) -> None:
            del weights

        def forward(self, input_ids: Any, positions: Any, forward_batch: Any) -> None:
            del input_ids, positions, forward_batch

    module = ModuleType("engine")
    module._apply_wo_a_bf16_matmul, module.DeepseekV4ForCausalLM = dispatch, Model  # type: ignore[attr-defined]
    lines: list[str] = []
    count = Counters("wo_a_w8", *PATHS)
    install_target(module, Adapter(Modes(mid=True, drop=True), lambda: kernels, count, lines.append))
    weights = [weight(4 * GROUP_ROWS, COLUMNS, seed) for seed in (11, 12)]
    model = Model(weights)
    held = torch.cuda.memory_allocated()
    model.load_weights([])
    freed = held - torch.cuda.memory_allocated()
    checks.hold("released memory", quick or freed >= 2 * 16 * 2**20 - 2**17, freed)
    checks.hold("lines", any("fp8 twins for 2 wo_a weights, 0 left on bf16" in line for line in lines), lines)
    for layer, wide in zip(model.layers, weights, strict=True):
        view = layer.wo_a.weight.view(4, GROUP_ROWS, COLUMNS)
        checks.hold("a released weight is NaN", bool(view[0, 0].isnan().all()))
        for rows, verify, path in ((1, False, "single"), (6, True, "small"), (24, True, "mid"), (24, False, "widened")):
            x = activations((rows, 4, COLUMNS), rows)
            before = count.read()
            got = module._apply_wo_a_bf16_matmul(x, view, False, is_target_verify=verify)
            grouped = wide.view(4, GROUP_ROWS, COLUMNS)
            compare(checks, f"adapter {path}", got, reference(x, grouped), x, grouped)
            checks.hold("counted", count.read()[path] == before[path] + 1, path)
        prefill = activations((512, 4, COLUMNS), 9)
        got = module._apply_wo_a_bf16_matmul(prefill, view, False)
        checks.hold(
            "prefill has the wide weight's bits",
            same_bits(got, dispatch(prefill, wide.view(4, GROUP_ROWS, COLUMNS), False)),
        )


def run(out: dict[str, Any]) -> None:
    """Adds `checks`, `relative_error` and `twin_memory`."""
    checks, quick = Checks(out), bool(out.get("quick"))
    kernels = DeviceProducts()
    small = DeviceProducts(chip=Chip(48, GB10_SHARED_BYTES))  # the launches of a GB10, on this GPU
    every_code_and_scale(checks, kernels)
    out["relative_error"] = {}
    for name, each in (("", kernels), (", launched as on a GB10", small)):
        out["relative_error"][f"wo_a{name}"] = wo_a(checks, each, QUICK_TOKENS if quick else TOKENS)
    out["twin_memory"] = twins(checks, kernels, quick)
    adapter(checks, kernels, quick)
    if quick:
        return
    for name, each in (("", kernels), (", launched as on a GB10", small)):
        captured(checks, each)
        out["relative_error"][f"head{name}"] = head(checks, each, HEAD_TOKENS)
