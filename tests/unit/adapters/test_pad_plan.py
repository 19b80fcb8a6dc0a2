"""How far a model is padded, and which tensors of a checkpoint are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_adapters.pad_plan import (
    LOCAL_HEADS,
    Plan,
    attention_target,
    copies_of,
    gate_target,
    plan_of,
    vocabulary_padding,
)
from trispark_hooks.registry import HookError

REAL = plan_of(3, 64, 8, 128, 384)


def test_the_real_model_on_three_ranks() -> None:
    assert Plan(3, (64, 96), (8, 12), (128, 129)) == REAL
    assert REAL.local_heads == 32
    assert [REAL.only_padding(rank) for rank in range(3)] == [False, False, True]
    assert REAL.lines() == [
        "DSV41 TP pad: num_attention_heads 64→96, o_groups 8→12 (tp=3, local_heads=32)",
        "DSV41 TP pad: dspark_n_routed_experts 128→129 (tp=3)",
    ]


@pytest.mark.parametrize(("world", "local"), [(1, 64), (2, 32), (4, 16)])
def test_nothing_is_padded_where_the_ranks_divide_the_model(world: int, local: int) -> None:
    plan = plan_of(world, 64, 8, 128, 384)
    assert not plan.changed
    assert plan.local_heads == local
    assert plan.lines() == []
    assert attention_target(plan, "layers.0.attn.wq_b.weight") is None
    assert gate_target(plan, "mtp.0.ffn.gate.bias") is None
    assert copies_of(plan, "mtp.0.ffn.experts.127.w1.weight") == []


@given(st.integers(2, 8), st.integers(1, 16), st.integers(1, 16))
def test_padding_keeps_groups_whole_and_is_the_smallest(world: int, groups: int, each: int) -> None:
    heads = groups * each
    legal = [n for n in LOCAL_HEADS if n * world >= heads and n % each == 0]
    if not legal:
        with pytest.raises(HookError, match="TS-ADAPTER-PAD:"):
            plan_of(world, heads, groups, 0, world)
        return
    plan = plan_of(world, heads, groups, 0, world)
    assert plan.local_heads == min(legal)
    assert plan.heads[1] // plan.groups[1] == each
    assert plan.groups[1] % world == 0


@pytest.mark.parametrize("wrong", [(3, 60, 8, 0, 384), (0, 64, 8, 0, 384), (3, 64, 8, 0, 385), (3, 1000, 8, 0, 384)])
def test_what_does_not_fit_is_refused(wrong: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(HookError, match="TS-ADAPTER-PAD:"):
        plan_of(*wrong)


@given(st.integers(1, 300_000), st.integers(1, 8))
def test_ranks_divide_a_padded_vocabulary(size: int, world: int) -> None:
    step = vocabulary_padding(size, 64, world)
    padded = -(-size // step) * step
    assert padded % world == 0
    assert size <= padded < size + 64 * world


def test_the_real_vocabulary() -> None:
    assert vocabulary_padding(129_280, 64, 3) == 192
    assert -(-129_280 // 192) * 192 == 129_408 == 3 * 43_136
    assert vocabulary_padding(129_408, 64, 3) == vocabulary_padding(129_280, 64, 4) == 64


@pytest.mark.parametrize(
    ("name", "kind", "dim", "parts", "fill"),
    [
        ("layers.3.attn.wq_b.weight", "wq_b.weight", 0, (64, 96), "zero"),
        ("layers.3.attn.wq_b.scale", "wq_b.scale", 0, (64, 96), "one"),
        ("model.layers.3.self_attn.wq_b.weight_scale_inv", "wq_b.scale", 0, (64, 96), "one"),
        ("layers.3.attn.wo_a.weight", "wo_a.weight", 0, (8, 12), "zero"),
        ("layers.3.attn.wo_a.scale", "wo_a.scale", 0, (8, 12), "one"),
        ("mtp.0.attn.wo_b.weight", "wo_b.weight", 1, (8, 12), "zero"),
        ("mtp.0.attn.wo_b.scale", "wo_b.scale", 1, (8, 12), "one"),
        ("layers.3.attn.attn_sink", "attn_sink", 0, (64, 96), "zero"),
        ("layers.3.attn.indexer.wq_b.weight", None, 0, (0, 0), ""),
        ("layers.3.attn.wq_a.weight", None, 0, (0, 0), ""),
        ("layers.3.attn.wkv.weight", None, 0, (0, 0), ""),
        ("vision.blocks.0.attn.wo.weight", None, 0, (0, 0), ""),
        ("layers.3.ffn.experts.0.w1.weight", None, 0, (0, 0), ""),
        ("layers.1.engram.wkv.weight", None, 0, (0, 0), ""),
    ],
)
def test_tensors_of_attention(name: str, kind: str | None, dim: int, parts: tuple[int, int], fill: str) -> None:
    target = attention_target(REAL, name)
    if kind is None:
        assert target is None
    else:
        assert target is not None
        assert (target.kind, target.dim, (target.before, target.after), target.fill) == (kind, dim, parts, fill)


def test_tensors_of_the_drafts_router_and_experts() -> None:
    weight, bias = gate_target(REAL, "mtp.1.ffn.gate.weight"), gate_target(REAL, "mtp.1.ffn.gate.bias")
    assert weight is not None
    assert bias is not None
    assert (weight.fill, bias.fill) == ("zero", "never")
    assert gate_target(REAL, "layers.1.ffn.gate.bias") is None
    assert gate_target(REAL, "mtp.1.ffn.gate.tid2eid") is None
    assert copies_of(REAL, "mtp.1.ffn.experts.127.w2.scale") == ["mtp.1.ffn.experts.128.w2.scale"]
    assert copies_of(REAL, "mtp.1.ffn.experts.126.w2.scale") == []
    assert copies_of(REAL, "layers.1.ffn.experts.127.w2.scale") == []
    assert copies_of(REAL, "mtp.1.ffn.shared_experts.w2.scale") == []
    five = plan_of(5, 64, 8, 128, 385)
    assert copies_of(five, "mtp.0.ffn.experts.127.w1.weight") == [
        f"mtp.0.ffn.experts.{number}.w1.weight" for number in (128, 129)
    ]
