"""The engine's real attention layer with and without the skip: the same output and the same events in the same order.

Kernels that no CPU runs (rope, the sparse attention, the KV store) are stand-ins that record that they were called; the
layer, its linear layers, the all-reduce's place and the backend's entry are the engine's.
"""

from __future__ import annotations

import contextlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang")

from parallel_state import pretend  # noqa: E402

from trispark_adapters import padded_attention_skip as skipping  # noqa: E402
from trispark_adapters.pad_plan import plan_of, remember  # noqa: E402
from trispark_hooks.registry import HookError  # noqa: E402

WORLD, WIDTH, RANKS_Q, RANKS_O, HIDDEN, TOKENS = 3, 16, 32, 24, 48, 5
PADDING = plan_of(WORLD, 64, 8, 0, 6)
HOOKED = {
    "models.deepseek_v4": (
        ("MqaAttentionBase", "__init__"),
        ("MQALayer", "forward"),
        ("MQALayer", "_compute_q_b"),
        ("", "_apply_wo_a_bf16_matmul"),
    ),
    "models.deepseek_v4_dspark": (
        ("DSparkAttention", "forward"),
        ("DSparkAttention", "_compute_q"),
        ("", "_apply_wo_a_bf16_matmul"),
    ),
    "layers.attention.deepseek_v4_backend": (("DeepseekV4AttnBackend", "_forward_attention"),),
}


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What happened, in order; the engine's modules are as they were when the test ends."""
    import importlib

    for name, symbols in HOOKED.items():
        module = importlib.import_module(f"sglang.srt.{name}")
        for owner, symbol in symbols:
            holder = getattr(module, owner) if owner else module
            monkeypatch.setattr(holder, symbol, holder.__dict__[symbol])
    from sglang.srt.layers import linear
    from sglang.srt.layers.attention.deepseek_v4_backend import DeepseekV4AttnBackend
    from sglang.srt.models import deepseek_v4

    seen: list[Any] = []

    def reduce(values: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(("all-reduce", tuple(values.shape), not bool(values.any())))
        return values

    def attend(
        self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, compress_ratio: int,
        save_kv_cache: bool = True, attn_sink: Any = None, **_: Any,
    ) -> Any:  # fmt: skip
        if save_kv_cache:
            self.store_cache(layer.layer_id, k, forward_batch)
        seen.append("kernel")
        return torch.tanh(q.float()).to(q.dtype) + 1

    monkeypatch.setattr(DeepseekV4AttnBackend, "_forward_attention", attend)
    monkeypatch.setattr(
        DeepseekV4AttnBackend, "store_cache", lambda self, *args, **kwargs: seen.append("backend store")
    )
    for module in (linear, deepseek_v4):
        for name in ("tensor_model_parallel_all_reduce", "attn_tp_all_reduce"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, reduce)
    for name in ("fused_rope_inplace", "fused_q_norm_rope"):
        if hasattr(deepseek_v4, name):
            monkeypatch.setattr(deepseek_v4, name, lambda *args, **kwargs: None)
    window = SimpleNamespace(commit=lambda layer: seen.append(("window", layer)))
    backend = object.__new__(DeepseekV4AttnBackend)
    backend.token_to_kv_pool = SimpleNamespace(
        request_window=window, _swa_local_layer_id=lambda layer: layer, uniform_fp8=False
    )
    backend.is_dspark_draft = False
    backend.forward_metadata = SimpleNamespace(late_layer_tail=None)
    backend.forward_low_ratio_sources = lambda **kwargs: seen.append(
        ("sources", tuple(kwargs["q_lora"].shape), float(kwargs["q_lora"].float().sum()))
    )
    monkeypatch.setattr(deepseek_v4, "get_attn_backend", lambda: backend)
    monkeypatch.setattr(deepseek_v4, "get_token_to_kv_pool", lambda: backend.token_to_kv_pool, raising=False)
    monkeypatch.setattr(
        deepseek_v4.MQALayer,
        "_compute_kv_to_cache",
        lambda self, x, *args, **kwargs: seen.append(("kv store", float(kwargs["qkv_a"].detach().float().sum()))),
    )
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # 0.5.23 asks on a CPU, too
    monkeypatch.setattr(deepseek_v4, "get_rope_wrapper", lambda **kwargs: None)
    monkeypatch.setattr(deepseek_v4, "get_device", lambda: SimpleNamespace(device="cpu"))
    monkeypatch.setattr(
        deepseek_v4, "get_attn_tp_context", lambda: SimpleNamespace(input_scattered=False), raising=False
    )
    return seen


def layer_of(rank: int, monkeypatch: pytest.MonkeyPatch, ratio: int = 0, zero: bool | None = None) -> Any:
    """MQALayer of a rank; weights are zero where it holds padding, or as `zero` says."""
    from sglang.srt.models import deepseek_v4

    pretend(monkeypatch, tp_rank=rank, attn_tp_rank=rank, tp_size=WORLD, attn_tp_size=WORLD)
    config = SimpleNamespace(
        model_type="deepseek_v41",
        hidden_size=HIDDEN,
        head_dim=WIDTH,
        qk_rope_head_dim=8,
        num_attention_heads=PADDING.heads[1],
        num_key_value_heads=1,
        o_groups=PADDING.groups[1],
        q_lora_rank=RANKS_Q,
        o_lora_rank=RANKS_O,
        rms_norm_eps=1e-6,
        q_head_norm=False,
        compress_ratios=[0],
        compress_rope_theta=10000,
        rope_theta=10000,
        rope_scaling=None,
        rope_parameters={"rope_theta": 10000, "rope_type": "default"},
        max_position_embeddings=16,
        kv_source_layer_ids=(),
        index_source_layer_ids=(),
    )
    remember(config, PADDING)
    torch.set_default_dtype(torch.bfloat16)
    try:
        layer = deepseek_v4.MQALayer(config, 0)
    finally:
        torch.set_default_dtype(torch.float32)
    random = torch.Generator().manual_seed(7)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=random) * 0.2)
    if PADDING.only_padding(rank) if zero is None else zero:
        for name in skipping.WEIGHTS:
            getattr(layer, name).weight.data.zero_()
    if ratio:
        layer.compress_ratio, layer.indexer = ratio, torch.nn.Identity()
    # The q_norm kernel is CUDA's; its torch form is the engine's too.
    for norm in (layer.q_norm, layer.kv_norm):
        norm._forward_method = norm.forward_native
    return layer


def run(layer: Any) -> Any:
    """One forward of TOKENS rows."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    batch = SimpleNamespace(forward_mode=ForwardMode.DECODE, out_cache_loc=None)
    return layer(x, torch.arange(TOKENS), batch)


def hook(skip: skipping.Skip) -> None:
    from sglang.srt.layers.attention import deepseek_v4_backend
    from sglang.srt.models import deepseek_v4, deepseek_v4_dspark

    skipping.install_attention(deepseek_v4, skip)
    skipping.install_draft(deepseek_v4_dspark, skip)
    skipping.install_backend(deepseek_v4_backend, skip)


@pytest.mark.parametrize("ratio", [0, 1])
def test_on_the_rank_of_padding_output_and_order_are_the_engines(
    events: list[Any], monkeypatch: pytest.MonkeyPatch, ratio: int, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = run(layer_of(2, monkeypatch, ratio))
    plain = list(events)
    assert "kernel" in plain
    events.clear()
    skip = skipping.Skip()
    hook(skip)
    layer = layer_of(2, monkeypatch, ratio)
    for _ in range(2):
        events.clear()
        output = run(layer)
        assert torch.equal(output, expected)
        assert not bool(output.any())
        assert events == [event for event in plain if event != "kernel"]
    assert skip.taken == 1
    assert isinstance(layer.wo_b.quant_method, type(layer.wq_b.quant_method))
    assert "adapter=padded_attention_skip rank=- state=active" in capfd.readouterr().out
    assert [event[0] for event in events] == [
        "kv store",
        *(["sources"] if ratio else []),
        "window",
        "all-reduce",
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_with_real_heads_compute_as_before(events: list[Any], monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    expected = run(layer_of(rank, monkeypatch))
    plain = list(events)
    events.clear()
    skip = skipping.Skip()
    hook(skip)
    output = run(layer_of(rank, monkeypatch))
    assert torch.equal(output, expected)
    assert bool(output.any())
    assert events == plain
    assert skip.taken == 0


@pytest.mark.parametrize("name", skipping.WEIGHTS)
def test_a_shard_that_is_not_zero_is_refused_and_computed(
    events: list[Any], monkeypatch: pytest.MonkeyPatch, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def planted() -> Any:
        layer = layer_of(2, monkeypatch)
        getattr(layer, name).weight.data.view(-1)[-1] = 2.0**-30
        return layer

    expected = run(planted())
    plain = list(events)
    events.clear()
    skip = skipping.Skip()
    hook(skip)
    layer = planted()
    assert torch.equal(run(layer), expected)
    assert events == plain
    assert skip.taken == 0
    said = capfd.readouterr().out
    assert "state=refused" in said
    assert f"not zero on a rank of padding: {name} of layer 0" in said


def test_an_idle_batch_is_the_engines_own(events: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It stores no keys then, and has no metadata to store them by."""
    from sglang.srt.layers.attention.deepseek_v4_backend import DeepseekV4AttnBackend
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    skip = skipping.Skip()
    hook(skip)
    layer = layer_of(2, monkeypatch)
    run(layer)
    assert layer.attn_mqa.trispark_skip is True
    backend = object.__new__(DeepseekV4AttnBackend)
    for mode, happened in ((ForwardMode.IDLE, ["kernel"]), (ForwardMode.DECODE, ["backend store"])):
        events.clear()
        q = torch.zeros(0, 32, WIDTH, dtype=torch.bfloat16)
        batch = SimpleNamespace(forward_mode=mode)
        save = mode is ForwardMode.DECODE
        backend._forward_attention(q, q, q, layer.attn_mqa, batch, compress_ratio=0, save_kv_cache=save)
        assert events == happened


@pytest.mark.parametrize("planted", [False, True])
def test_a_released_projection_is_proven_by_its_twin(
    events: list[Any], monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """With the release of wide copies the weight itself is NaN, on every rank."""
    from twin_reference import CpuProducts

    from trispark_adapters.wo_a_twin import Twins

    skip = skipping.Skip()
    hook(skip)
    layer = layer_of(2, monkeypatch)
    weight = torch.zeros(32, 4096, dtype=torch.bfloat16)
    weight[31, 4095] = 0.5 * planted
    layer.wo_a.weight.data = weight
    layer.o_lora_rank = 32
    twins = Twins(CpuProducts())
    taken = twins.take(layer, drop=True)
    assert taken.released == 1
    assert bool(layer.wo_a.weight.isnan().all())
    skip.prepare(layer, layer.attn_mqa)
    assert getattr(layer, skipping.STATE) == ("kept" if planted else "taken")
    assert skip.is_zero_output(layer.wo_a.weight) is not planted
    twins.give_back(layer)
    assert torch.equal(layer.wo_a.weight, weight)
    assert skipping.is_zero(layer.wo_a.weight) is not planted


def test_nothing_is_left_out_while_kernels_are_timed(events: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    skip = skipping.Skip()
    hook(skip)
    layer = layer_of(2, monkeypatch)
    run(layer)
    assert "kernel" not in events
    module = ModuleType("flashinfer_autotune")
    module.flashinfer_autotune_context = contextlib.contextmanager(lambda runner: iter([runner]))
    skipping.install_autotune(module, skip)
    calls: list[str] = []
    real = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *args: calls.append("product") or real(*args))
    with module.flashinfer_autotune_context("runner") as value:
        assert value == "runner"
        events.clear()
        inside = run(layer)
        assert "kernel" in events
        timed = len(calls)
    calls.clear()
    events.clear()
    assert torch.equal(run(layer), inside)
    assert "kernel" not in events
    assert len(calls) == timed - 2  # query and output


def test_a_layer_split_otherwise_is_kept(events: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    skip = skipping.Skip()
    hook(skip)
    layer = layer_of(2, monkeypatch)
    layer.attn_tp_size = 1
    skip.prepare(layer, layer.attn_mqa)
    assert getattr(layer, skipping.STATE) == "kept"
    assert skip.taken == 0


def test_without_the_padding_adapter_the_boot_ends() -> None:
    wrapped = skipping._mark(lambda self, config: setattr(self, "layer_id", 3))
    with pytest.raises(HookError, match=r"TS-ADAPTER-SKIP-PAD: .*layer 3"):
        wrapped(SimpleNamespace(), SimpleNamespace())


@pytest.mark.parametrize(
    ("weight", "zero"),
    [
        (torch.zeros(4, 4), True),
        (-torch.zeros(4, 4), True),
        (torch.zeros(4, 4).to(torch.float8_e4m3fn), True),
        (torch.full((4, 4), 128, dtype=torch.uint8).view(torch.float8_e4m3fn), True),  # minus zero
        (torch.full((4, 4), 1, dtype=torch.uint8).view(torch.float8_e4m3fn), False),
        (torch.full((4, 4), float("nan")), False),
        (torch.eye(4, dtype=torch.bfloat16), False),
    ],
)
def test_what_counts_as_zero(weight: Any, zero: bool) -> None:
    assert skipping.is_zero(weight) is zero


def test_a_build_without_a_part_for_the_kernel_is_refused() -> None:
    module = ModuleType("deepseek_v4_backend")
    module.DeepseekV4AttnBackend = type("DeepseekV4AttnBackend", (), {"forward": None})
    with pytest.raises(HookError, match=r"TS-ADAPTER-SYMBOL.*_forward_attention"):
        skipping.install_backend(module)
