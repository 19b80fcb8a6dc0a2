"""Padding on the engine's real configuration, linear layers, attention base and vocabulary: small, three ranks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang")

from parallel_state import pretend  # noqa: E402

from trispark_adapters import tp3_pad  # noqa: E402
from trispark_adapters.pad_plan import NEVER, plan_of, remembered  # noqa: E402
from trispark_adapters.pad_tensors import draft_weights, target_weights  # noqa: E402
from trispark_hooks.registry import HookError  # noqa: E402

WORLD = 3
HEADS, GROUPS, WIDTH, RANKS_Q, RANKS_O, HIDDEN = 64, 8, 16, 32, 24, 48
PLAN = plan_of(WORLD, HEADS, GROUPS, 4, 6)


def generator(seed: int = 0) -> Any:
    return torch.Generator().manual_seed(seed)


def checkpoint(layers: int = 2, prefix: str = "layers") -> list[tuple[str, Any]]:
    """Attention weights of a small model, float32, and scales of all types that occur."""
    random = generator()
    named = []
    for layer in range(layers):
        at = f"{prefix}.{layer}.attn"
        named += [
            (f"{at}.wq_b.weight", torch.randn(HEADS * WIDTH, RANKS_Q, generator=random)),
            (f"{at}.wq_b.scale", torch.full((HEADS, 2), 0.5)),
            (f"{at}.wo_a.weight", torch.randn(GROUPS * RANKS_O, HEADS * WIDTH // GROUPS, generator=random)),
            (f"{at}.wo_a.scale", torch.full((GROUPS, 2), 120, dtype=torch.uint8).view(torch.float8_e8m0fnu)),
            (f"{at}.wo_b.weight", torch.randn(HIDDEN, GROUPS * RANKS_O, generator=random).to(torch.float8_e4m3fn)),
            (f"{at}.wo_b.scale", torch.full((2, GROUPS), 120, dtype=torch.uint8)),
            (f"{at}.attn_sink", torch.randn(HEADS, generator=random)),
            (f"{at}.indexer.wq_b.weight", torch.randn(HEADS * WIDTH, 4, generator=random)),
        ]
    return named


def test_padded_tensors_are_theirs_then_zero_and_scales_one() -> None:
    plain, padded = dict(checkpoint()), dict(target_weights(checkpoint(), PLAN))
    assert list(plain) == list(padded)
    for name, tensor in plain.items():
        longer = padded[name]
        if ".indexer." in name:
            assert torch.equal(longer, tensor)
            continue
        dim = 1 if ".wo_b." in name else 0
        length = tensor.shape[dim]
        assert longer.dtype == tensor.dtype
        assert longer.shape[dim] * 2 == length * 3
        assert torch.equal(longer.narrow(dim, 0, length).float(), tensor.float())
        rest = longer.narrow(dim, length, longer.shape[dim] - length)
        if rest.dtype == torch.uint8:
            assert bool((rest == 127).all())
        else:
            assert bool((rest.float() == (1.0 if name.endswith("scale") else 0.0)).all()), name


def test_a_stream_without_what_must_be_padded_ends_the_boot() -> None:
    for missing in ("wq_b.weight", "wo_a.weight", "wo_b.weight", "attn_sink"):
        rest = [(name, tensor) for name, tensor in checkpoint() if not name.endswith(f"layers.1.attn.{missing}")]
        rest = [(name, tensor) for name, tensor in rest if name != f"layers.1.attn.{missing}"]
        with pytest.raises(HookError, match="TS-ADAPTER-PAD-NAMES"):
            list(target_weights(rest, PLAN))
    with pytest.raises(HookError, match="TS-ADAPTER-PAD-NAMES"):
        list(target_weights([("x", torch.zeros(1))], PLAN))
    with pytest.raises(HookError, match="TS-ADAPTER-PAD-SHAPE"):
        list(target_weights([("layers.0.attn.attn_sink", torch.zeros(63))], PLAN))


def attention(rank: int, world: int, heads: int, groups: int) -> Any:
    """The engine's attention base, small."""
    from sglang.srt.models import deepseek_v4

    config = SimpleNamespace(
        model_type="deepseek_v41",
        hidden_size=HIDDEN,
        head_dim=WIDTH,
        qk_rope_head_dim=8,
        num_attention_heads=heads,
        num_key_value_heads=1,
        o_groups=groups,
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
    )
    # 0.5.21 takes the rank as arguments too.
    given = {"attn_tp_rank": rank, "attn_tp_size": world}
    known = inspect.signature(deepseek_v4.MqaAttentionBase.__init__).parameters
    return deepseek_v4.MqaAttentionBase(
        config,
        0,
        None,
        "",
        **{name: value for name, value in given.items() if name in known},
        compress_ratio=0,
        fuse_wqa_wkv=True,
        wo_a_fp8=False,
        wo_b_reduce_results=False,
        rope_original_seq_len=0,
    )


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return pretend(monkeypatch)


def load(base: Any, weights: dict[str, Any]) -> None:
    """As the engine's load_weights does, by each parameter's loader."""
    for name in ("wq_b", "wo_a", "wo_b"):
        parameter = getattr(base, name).weight
        tensor = weights[f"layers.0.attn.{name}.weight"].to(parameter.dtype)
        parameter.weight_loader(parameter, tensor)
    base.attn_sink.data.copy_(weights["layers.0.attn.attn_sink"])


def project(base: Any, latent: Any) -> Any:
    """[T, HIDDEN]: query heads of `latent`, an arbitrary function of each head in place of attention, both outputs."""
    heads = torch.nn.functional.linear(latent, base.wq_b.weight).view(len(latent), base.n_local_heads, WIDTH)
    mixed = torch.tanh(heads) + 1  # not zero for a head of zeros, as attention is not
    grouped = mixed.reshape(len(latent), base.n_local_groups, -1).to(base.wo_a.weight.dtype)
    down = base.wo_a.weight.view(base.n_local_groups, RANKS_O, -1)
    each = torch.einsum("bgd,grd->bgr", grouped.double(), down.double())
    return torch.nn.functional.linear(each.flatten(1), base.wo_b.weight.double())


def test_three_padded_ranks_give_the_unpadded_output_and_the_last_one_exact_zeros(
    parallel: Callable[..., None],
) -> None:
    plain = dict(checkpoint(1))
    padded = dict(target_weights(checkpoint(1), PLAN))
    whole = attention(0, 1, HEADS, GROUPS)
    load(whole, plain)
    latent = torch.randn(5, RANKS_Q, generator=generator(1))
    parts = []
    for rank in range(WORLD):
        parallel(tp_rank=rank, attn_tp_rank=rank, tp_size=WORLD, attn_tp_size=WORLD)
        base = attention(rank, WORLD, PLAN.heads[1], PLAN.groups[1])
        assert (base.n_local_heads, base.n_local_groups) == (32, 4)
        for tensor in (base.wq_b.weight, base.wo_a.weight, base.wo_b.weight, base.attn_sink):
            tensor.data.fill_(7)  # what loading does not write must show
        load(base, padded)
        parts.append(project(base, latent))
        assert torch.equal(base._local_attn_sink()[:32], padded["layers.0.attn.attn_sink"][32 * rank : 32 * rank + 32])
        empty = [not bool(w.weight.any()) for w in (base.wq_b, base.wo_a, base.wo_b)]
        assert empty == [PLAN.only_padding(rank)] * 3
    assert torch.equal(parts[2], torch.zeros_like(parts[2]))
    assert bool(parts[1].any())
    assert torch.allclose(sum(parts), project(whole, latent), rtol=1e-12, atol=1e-9)


def vocabulary(kind: str, rank: int, size: int, world: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    from sglang.srt.layers import vocab_parallel_embedding as module

    state = SimpleNamespace(tp_rank=rank, tp_size=world, attn_tp_rank=rank, attn_tp_size=world)
    monkeypatch.setattr(module, "get_parallel", lambda: state)
    if hasattr(module, "_resolve_linear_group"):
        monkeypatch.setattr(module, "_resolve_linear_group", lambda name: None)
    monkeypatch.setattr(module, "_is_cpu", False, raising=False)  # where 0.5.21 would pad by itself
    return getattr(module, kind)(size, 8)


@pytest.mark.parametrize("size", [640, 1280, 129_280, 576])
def test_logits_of_a_padded_vocabulary_are_cut_before_anybody_samples(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.layers import vocab_parallel_embedding as module

    monkeypatch.setattr(module.VocabParallelEmbedding, "__init__", module.VocabParallelEmbedding.__init__)
    tp3_pad.install_vocabulary(module)
    weight = -torch.rand(size, 8, generator=generator(size)) - 0.5  # all logits negative: a padded row's zero would win
    hidden = torch.rand(4, 8, generator=generator(2))
    shards, heads = [], []
    for rank in range(WORLD):
        head = vocabulary("ParallelLMHead", rank, size, WORLD, monkeypatch)
        head.weight.data.fill_(7)
        head.weight_loader(head.weight, weight.to(head.weight.dtype))
        heads.append(head)
        shards.append(hidden.to(head.weight.dtype) @ head.weight.T)
    assert len({tuple(shard.shape) for shard in shards}) == 1
    gathered = torch.cat(shards, dim=-1)
    assert gathered.shape[1] == heads[0].num_embeddings_padded
    assert not bool(gathered[:, size:].any())
    expected = hidden @ weight.T
    cropped = gathered[:, :size].float()
    assert torch.allclose(cropped, expected, rtol=1e-5)
    # As the engine takes it: the logits processor by config.vocab_size, the draft by org_vocab_size.
    from sglang.srt.models import dspark

    monkeypatch.setattr(dspark, "tensor_model_parallel_all_gather", lambda local, dim: gathered)
    drafted = dspark.gather_and_crop_vocab(shards[0], heads[0])
    assert drafted.shape[1] == size
    assert torch.equal(drafted.argmax(-1), expected.argmax(-1))


def test_the_real_numbers_and_the_lines(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.configs.deepseek_v41 import DeepseekV41Config

    config = DeepseekV41Config(
        num_attention_heads=64, o_groups=8, n_routed_experts=384, dspark_n_routed_experts=128, vocab_size=129_280
    )
    tp3_pad.pad_config(config, 3)
    tp3_pad.pad_config(config, 3)
    assert (config.num_attention_heads, config.o_groups, config.dspark_n_routed_experts) == (96, 12, 129)
    assert (config.n_routed_experts, config.vocab_size) == (384, 129_280)
    config.to_json_string()  # the engine prints it
    assert remembered(copy.copy(config)) == plan_of(3, 64, 8, 128, 384)
    assert capfd.readouterr().out.splitlines() == [
        "DSV41 TP pad installed (tp=3)",
        "DSV41 TP pad: num_attention_heads 64→96, o_groups 8→12 (tp=3, local_heads=32)",
        "DSV41 TP pad: dspark_n_routed_experts 128→129 (tp=3)",
    ]
    with pytest.raises(HookError, match="TS-ADAPTER-PAD-TWICE"):
        tp3_pad.pad_config(config, 2)
    from sglang.srt.layers import vocab_parallel_embedding as module

    monkeypatch.setattr(module.VocabParallelEmbedding, "__init__", module.VocabParallelEmbedding.__init__)
    tp3_pad.install_vocabulary(module)
    head = vocabulary("ParallelLMHead", 2, 129_280, 3, monkeypatch)
    assert head.num_embeddings_padded == 129_408
    assert tuple(head.weight.shape) == (43_136, 8)


def draft_stream() -> list[tuple[str, Any]]:
    named = [*checkpoint(2, "mtp"), ("layers.0.attn.attn_sink", torch.ones(HEADS))]
    for stage in range(2):
        at = f"mtp.{stage}.ffn"
        named += [(f"{at}.gate.weight", torch.randn(4, HIDDEN)), (f"{at}.gate.bias", torch.randn(4))]
        for expert in range(4):
            named += [
                (f"{at}.experts.{expert}.w1.weight", torch.randint(0, 9, (6, 4), dtype=torch.uint8)),
                (f"{at}.experts.{expert}.w1.scale", torch.full((6, 1), 121, dtype=torch.uint8)),
            ]
    return named


def test_a_padded_draft_expert_is_zero_and_never_chosen() -> None:
    plain = dict(draft_stream())
    padded = dict(draft_weights(draft_stream(), PLAN))
    assert PLAN.experts == (4, 6)
    assert torch.equal(padded["layers.0.attn.attn_sink"], plain["layers.0.attn.attn_sink"])
    assert padded["mtp.0.attn.wq_b.weight"].shape[0] == 96 * WIDTH
    for stage in range(2):
        at = f"mtp.{stage}.ffn"
        for expert in (4, 5):
            assert not bool(padded[f"{at}.experts.{expert}.w1.weight"].any())
            assert bool((padded[f"{at}.experts.{expert}.w1.scale"] == 127).all())
        gate, bias = padded[f"{at}.gate.weight"], padded[f"{at}.gate.bias"]
        assert gate.shape == (6, HIDDEN)
        assert bool((bias[4:] == NEVER).all())
        assert bool(torch.isfinite(bias.to(torch.bfloat16)).all())
        hidden = torch.randn(64, HIDDEN, generator=generator(stage))
        from sglang.srt.layers.moe.topk import biased_topk_impl

        weights, chosen = biased_topk_impl(
            hidden_states=hidden,
            gating_output=hidden @ gate.T,
            correction_bias=bias,
            topk=3,
            renormalize=True,
            scoring_func="sqrtsoftplus",
        )
        assert int(chosen.max()) < 4
        assert bool(torch.isfinite(weights).all())


@pytest.mark.parametrize("missing", [".experts.", ".gate.", "mtp.1.ffn.experts.3.", "mtp.1.ffn.gate.bias"])
def test_a_stage_of_the_draft_whose_padding_could_be_chosen_ends_the_boot(missing: str) -> None:
    without = [(name, tensor) for name, tensor in draft_stream() if missing not in name]
    with pytest.raises(HookError, match="TS-ADAPTER-PAD-NAMES"):
        list(draft_weights(without, PLAN))


def test_a_table_of_experts_needs_no_bias() -> None:
    stream = [(name.replace("1.ffn.gate.bias", "1.ffn.gate.tid2eid"), tensor) for name, tensor in draft_stream()]
    padded = dict(draft_weights(stream, PLAN))
    assert padded["mtp.1.ffn.gate.tid2eid"].shape == (4,)
    assert padded["mtp.1.ffn.gate.weight"].shape == (6, HIDDEN)


@pytest.mark.parametrize(
    ("name", "install"),
    [("DeepseekV4ForCausalLM", "install_model"), ("DeepseekV4ForCausalLMDSpark", "install_draft")],
)
def test_the_real_classes_take_the_wrappers(name: str, install: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.models import deepseek_v4, deepseek_v4_dspark

    module: ModuleType = deepseek_v4 if install == "install_model" else deepseek_v4_dspark
    model = getattr(module, name)
    built: list[Any] = []
    loaded: list[str] = []

    def construct(self: Any, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        torch.nn.Module.__init__(self)
        built.append((config.num_attention_heads, prefix))

    def load_weights(self: Any, weights: Any, is_nextn: bool = False) -> None:
        loaded.extend(name for name, _ in weights)

    getattr(tp3_pad, install)(SimpleNamespace(**{name: model, "get_parallel": None}))  # the real signatures fit
    replaced = (model.__init__, model.load_weights)
    getattr(tp3_pad, install)(SimpleNamespace(**{name: model, "get_parallel": None}))
    assert (model.__init__, model.load_weights) == replaced
    monkeypatch.setattr(model, "__init__", construct)
    monkeypatch.setattr(model, "load_weights", load_weights)
    state = SimpleNamespace(attn_tp_rank=2, attn_tp_size=3)
    monkeypatch.setattr(module, "get_parallel", lambda: state)
    getattr(tp3_pad, install)(module)
    config = SimpleNamespace(num_attention_heads=64, o_groups=8, n_routed_experts=6, dspark_n_routed_experts=4)
    made = model(config, None, prefix="p")
    assert built == [(96, "p")]
    stream = draft_stream() if install == "install_draft" else [*checkpoint(), *checkpoint(2, "mtp")]
    made.load_weights(iter(stream))
    assert set(loaded) > {name for name, _ in stream} or set(loaded) == {name for name, _ in stream}
    with pytest.raises(HookError, match="TS-ADAPTER-PAD-NAMES"):
        made.load_weights(iter([("norm.weight", torch.ones(1))]))
