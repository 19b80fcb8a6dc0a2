"""Block scales, MXFP8 routing, indexer plans and the emptied allocator on the engine's real modules."""

from __future__ import annotations

import contextlib
import functools
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang")

from trispark_adapters import block_scales, indexer_metadata, mxfp8_routing, prefill_empty_cache  # noqa: E402
from trispark_hooks.registry import HookError  # noqa: E402

BLOCK = (32, 32)


def weight_of(rows: int, columns: int, empty: list[tuple[int, int]]) -> Any:
    """Codes that are nowhere zero but in the blocks `empty`, where both zeros occur."""
    codes = torch.full((rows, columns), 0x38, dtype=torch.uint8)
    for row, column in empty:
        at = slice(row * 32, row * 32 + 32), slice(column * 32, column * 32 + 32)
        codes[at] = 0
        codes[at[0], at[1]][0, 0] = 0x80
    return codes.view(torch.float8_e4m3fn)


NEVER_WRITTEN = [0.0, -0.0, 1e-40, float("nan"), float("inf"), -2.0, 3.0, torch.finfo(torch.float32).min]


@pytest.mark.parametrize("junk", NEVER_WRITTEN)
def test_a_padded_shard_is_taken_by_the_engines_encoder(junk: float) -> None:
    from sglang.srt.layers.quantization import fp8_utils

    weight = weight_of(64, 96, [(0, 1), (1, 0), (1, 1), (1, 2)])
    scale = torch.full((2, 3), 0.25)
    scale[0, 1] = scale[1, 0] = scale[1, 2] = junk
    if junk == float("inf"):  # which the encoder takes, for NaN
        assert 255 in fp8_utils.block_fp8_scale_to_mxfp8_e8m0(scale, (64, 96), list(BLOCK))
    else:
        with pytest.raises(ValueError, match="powers of two"):
            fp8_utils.block_fp8_scale_to_mxfp8_e8m0(scale, (64, 96), list(BLOCK))
    assert block_scales.repair(weight, scale, BLOCK) == 3
    assert torch.equal(scale, torch.tensor([[0.25, 1.0, 0.25], [1.0, 0.25, 1.0]]))
    codes = fp8_utils.block_fp8_scale_to_mxfp8_e8m0(scale, (64, 96), list(BLOCK))
    assert codes.shape == (64, 3)
    assert set(codes.unique().tolist()) == {125, 127}
    assert block_scales.repair(weight, scale, BLOCK) == 0


def test_a_bad_scale_of_a_block_with_values_stays() -> None:
    weight = weight_of(64, 64, [(0, 0)])
    scale = torch.tensor([[0.0, 0.0], [0.5, -1.0]])
    assert block_scales.repair(weight, scale, BLOCK) == 1
    assert torch.equal(scale, torch.tensor([[1.0, 0.0], [0.5, -1.0]]))


@pytest.mark.parametrize("kind", [torch.uint8, torch.float8_e8m0fnu])
def test_scales_that_are_exponents(kind: Any) -> None:
    weight = weight_of(40, 64, [(0, 0), (0, 1), (1, 1)])  # the last rows are no whole block
    codes = torch.tensor([[0, 200], [255, 255]], dtype=torch.uint8)
    scale = codes.view(kind)
    assert block_scales.repair(weight, scale, BLOCK) == 2
    assert codes.tolist() == [[127, 200], [255, 127]]


def test_the_engines_method_repairs_before_it_prepares(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from sglang.srt.layers.quantization import fp8

    kind = fp8.Fp8LinearMethod
    path = "process_weights_after_loading_block_quant"
    seen: list[Any] = []
    monkeypatch.setattr(kind, path, lambda self, layer: seen.append(layer.weight_scale_inv.clone()))
    block_scales.install(fp8)
    assert "DSV41 padded-shard block-scale repair installed" in capfd.readouterr().out
    method = object.__new__(kind)
    method.weight_block_size = list(BLOCK)
    parameter = functools.partial(torch.nn.Parameter, requires_grad=False)
    layer = SimpleNamespace(
        weight=parameter(weight_of(32, 64, [(0, 1)])), weight_scale_inv=parameter(torch.zeros(1, 2))
    )
    before = block_scales.COUNTERS.read()
    method.process_weights_after_loading_block_quant(layer)
    assert torch.equal(seen[0], torch.tensor([[0.0, 1.0]]))
    assert block_scales.COUNTERS.read() == {"layers": before["layers"] + 1, "blocks": before["blocks"] + 1}
    plain = SimpleNamespace(weight=parameter(torch.zeros(4, 4)), weight_scale_inv=None)
    method.process_weights_after_loading_block_quant.__wrapped__  # noqa: B018 - the wrapper is there
    block_scales._wrap(lambda self, layer: seen.append(layer))(method, plain)
    assert seen[-1] is plain


class Kernel:
    """FlashInfer's mm_mxfp8: which backends it has."""

    def __init__(self, *backends: str) -> None:
        self.backends = backends

    def is_backend_supported(self, backend: str, sm: int) -> bool:
        return sm == 121 and backend in self.backends


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    from sglang.srt.layers.quantization import fp8_utils

    for name in ("dispatch_block_fp8_mxfp8_linear", "dispatch_w8a8_mxfp8_linear"):
        monkeypatch.setattr(fp8_utils, name, getattr(fp8_utils, name))
    monkeypatch.setattr(fp8_utils, "get_device_sm", lambda: 121)
    monkeypatch.setattr(fp8_utils, "_raw_flashinfer_mm_mxfp8", Kernel("b12x", "cudnn", "cutlass"), raising=False)
    return fp8_utils


def product(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Backends that the engine's linear function passes to FlashInfer."""
    seen: list[str] = []

    def multiply(a: Any, b: Any, *args: Any, backend: str, **kwargs: Any) -> Any:
        seen.append(backend)
        return torch.zeros(a.shape[0], b.shape[1], dtype=torch.bfloat16)

    monkeypatch.setattr(module, "flashinfer_mm_mxfp8", multiply, raising=False)
    monkeypatch.setattr(
        module, "flashinfer_mxfp8_quantize", lambda x, **_: (x.to(torch.float8_e4m3fn), None), raising=False
    )
    import sys

    tuner = ModuleType("flashinfer.autotuner")
    tuner.autotune = lambda *args, **kwargs: contextlib.nullcontext()
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
    monkeypatch.setitem(sys.modules, "flashinfer.autotuner", tuner)
    return seen


@pytest.mark.parametrize("backend", ["b12x", "cudnn", "cutlass"])
def test_cutlass_products_go_to_the_named_kernel(
    routed: ModuleType, monkeypatch: pytest.MonkeyPatch, backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = product(routed, monkeypatch)
    monkeypatch.setenv("DSV41_MXFP8_BACKEND", backend)
    mxfp8_routing.install(routed)
    linear = routed.dispatch_block_fp8_mxfp8_linear(routed.Mxfp8DenseGemmBackend.FLASHINFER_CUTLASS)
    said = capfd.readouterr().out
    assert f"DSV41 MXFP8 dense linears routed to FlashInfer backend '{backend}' (sm121, in place of cutlass)" in said
    for width, expected in ((256, backend), (96, "cutlass" if backend == "b12x" else backend)):
        weight = torch.zeros(64, width).to(torch.float8_e4m3fn)
        out = linear(torch.ones(3, width, dtype=torch.bfloat16), weight, torch.zeros(8, dtype=torch.uint8))
        assert out.shape == (3, 64)
        assert seen.pop() == expected
    native = routed.dispatch_block_fp8_mxfp8_linear(routed.Mxfp8DenseGemmBackend.FLASHINFER_CUTEDSL)
    assert native.keywords["backend"] == "cute-dsl"


def test_a_kernel_that_is_not_there_ends_the_boot(routed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed, "_raw_flashinfer_mm_mxfp8", Kernel("cutlass"), raising=False)
    mxfp8_routing.install(routed)
    with pytest.raises(HookError, match="TS-ADAPTER-MXFP8-KERNEL"):
        routed.dispatch_block_fp8_mxfp8_linear(routed.Mxfp8DenseGemmBackend.FLASHINFER_CUTLASS)
    monkeypatch.delattr(routed, "_raw_flashinfer_mm_mxfp8")
    with pytest.raises(HookError, match="no FlashInfer"):
        routed.dispatch_block_fp8_mxfp8_linear(routed.Mxfp8DenseGemmBackend.FLASHINFER_CUTLASS)
    unsupported = routed.dispatch_block_fp8_mxfp8_linear(routed.Mxfp8DenseGemmBackend.UNSUPPORTED)
    assert unsupported is routed._unsupported_mxfp8_linear


@pytest.mark.parametrize(
    ("sm120", "ratio", "forced"), [(True, 1, True), (True, 2, True), (True, 4, False), (False, 1, False)]
)
def test_plans_of_low_ratios_come_from_deep_gemm(
    monkeypatch: pytest.MonkeyPatch, sm120: bool, ratio: int, forced: bool
) -> None:
    from sglang.srt.environ import envs
    from sglang.srt.layers.attention.dsv4 import metadata

    planners: list[str] = []
    import sys

    def planner(name: str) -> Any:
        return lambda lengths, page, sms: planners.append(name) or torch.zeros(sms, 2, dtype=torch.int32)

    deep_gemm = ModuleType("deep_gemm")
    deep_gemm.get_num_sms = lambda: 48
    deep_gemm.get_paged_mqa_logits_metadata = planner("deep_gemm")
    monkeypatch.setitem(sys.modules, "deep_gemm", deep_gemm)
    own = ModuleType("sglang.kernels.ops.attention.dsv4")
    own.get_paged_mqa_logits_metadata = planner("engine")
    monkeypatch.setitem(sys.modules, "sglang.kernels.ops.attention.dsv4", own)
    monkeypatch.setattr(metadata, "_IS_SM120", sm120)
    kind = metadata.PagedIndexerMetadata
    monkeypatch.setattr(kind, "__post_init__", kind.__post_init__)
    indexer_metadata.install(metadata)
    with envs.SGLANG_OPT_USE_JIT_INDEXER_METADATA.override(True):
        made = kind(
            page_size=256,
            compressed_page_size=64,
            page_table=torch.zeros(2, 3, dtype=torch.int32),
            compressed_seq_lens=torch.tensor([5, 9], dtype=torch.int32),
            use_topk_v2=False,
            compress_ratio=ratio,
        )
    assert planners == ["deep_gemm" if forced else "engine"]
    assert made.force_deep_gemm_metadata is forced


def batch_of(mode: Any, lengths: list[int] | None) -> Any:
    return SimpleNamespace(forward_mode=mode, seq_lens_cpu=None if lengths is None else torch.tensor(lengths))


def test_the_allocator_is_emptied_after_long_prompts_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from sglang.srt.model_executor import model_runner
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    order: list[str] = []
    monkeypatch.setattr(
        model_runner.ModelRunner, "forward", lambda self, forward_batch, *args, **kwargs: order.append("forward") or 7
    )
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: order.append("empty"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setenv("DSV41_PREFILL_EMPTY_CACHE_TOKENS", "100")
    prefill_empty_cache.install(model_runner)
    assert (
        "DSV41 prefill empty_cache hook installed (extend forwards with a sequence >= 100 tokens)"
        in capfd.readouterr().out
    )
    runner = object.__new__(model_runner.ModelRunner)
    for mode, lengths, emptied in [
        (ForwardMode.EXTEND, [3, 100], True),
        (ForwardMode.MIXED, [3, 500], True),
        (ForwardMode.EXTEND, [3, 99], False),
        (ForwardMode.DECODE, [500], False),
        (ForwardMode.TARGET_VERIFY, [500], False),
        (ForwardMode.IDLE, [], False),
        (ForwardMode.EXTEND, None, False),
    ]:
        order.clear()
        assert runner.forward(batch_of(mode, lengths), reinit_attn_backend=False) == 7
        assert order == ["forward", *(["empty"] if emptied else [])]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    order.clear()
    runner.forward(batch_of(ForwardMode.EXTEND, [500]))
    assert order == ["forward"]


def test_a_length_of_zero_hooks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.model_executor import model_runner

    monkeypatch.setattr(model_runner.ModelRunner, "forward", lambda self, forward_batch: 1)
    before = model_runner.ModelRunner.forward
    monkeypatch.setenv("DSV41_PREFILL_EMPTY_CACHE_TOKENS", "0")
    prefill_empty_cache.install(model_runner)
    assert model_runner.ModelRunner.forward is before
