"""Triton's interpreter runs the kernels of speculation beside their torch forms; prints {case: what differed} as JSON.

A program of its own, since TRITON_INTERPRET has to be set before triton is imported.
"""

import json
import os
import sys
from itertools import product
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch

from trispark_adapters import block_verify_kernels, block_verify_math, verify_cap_kernels
from trispark_adapters.verify_cap_triton import copy_anchor

ROWS = 64


def block_case(seed: int, vocab: int, gamma: int, filtered: bool, cut: bool, strided: bool) -> int:
    """Requests of a batch for which the kernels and the rule in float64 differ."""
    generator = torch.Generator().manual_seed(seed)
    bs = 6

    def rand(*shape: int) -> Any:
        return torch.rand(shape, generator=generator)

    logits = rand(bs * (gamma + 1), vocab) * 6
    logits[1, : vocab // 2] = -float("inf")
    temperatures = rand(bs, 1) + 0.4
    scaled = (logits.double() / temperatures.double().repeat_interleave(gamma + 1, 0)).softmax(1)
    target = scaled.view(bs, gamma + 1, vocab)
    draft = (rand(bs, gamma, vocab) * 6).softmax(2)
    draft = 0.6 * draft + 0.4 * target[:, :gamma].float()  # near enough for blocks of every length to be kept
    candidates = torch.multinomial(draft.reshape(-1, vocab), 1, generator=generator).view(bs, gamma)
    candidates = torch.cat([torch.zeros((bs, 1), dtype=torch.int64), candidates], 1)
    uniforms = rand(bs, gamma + 1)
    lens = torch.randint(1, gamma + 2, (bs,), generator=generator) if cut else None
    if filtered:
        target = torch.where(target >= target.topk(min(5, vocab), 2).values[..., -1:], target, 0)
        target = target / target.sum(2, keepdim=True)
    values = target.float().contiguous() if filtered else logits
    if strided and not filtered:
        values = torch.cat([logits, rand(bs * (gamma + 1), 3)], 1)[:, :vocab]
    given = (values, None if filtered else temperatures, draft, candidates, lens, uniforms)
    kept, token, trim = block_verify_kernels.accept(*given)
    live = block_verify_math.live_drafts(lens, bs, gamma, "cpu")
    wanted = block_verify_math.accept(target.double(), draft.double(), candidates[:, 1:], live, uniforms)
    assert kept.dtype == torch.int32
    assert token.dtype == torch.int64
    assert trim.tolist() == [0] * bs
    assert len(set(kept.tolist())) > 1, "a case in which every block is kept alike shows little"
    return int(((kept != wanted[0]) | (token != wanted[1])).sum())


def remap_case(seed: int, bs: int, stride: int, packed: bool) -> int:
    """Entries for which the remap kernel and its torch form differ."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = bs * stride, 6
    ids = torch.randint(0, 384, (rows, width), generator=generator, dtype=torch.int32)
    ids[-stride // 2 :] = -1
    weights = torch.rand((rows, width), generator=generator)
    both = torch.randint(0, 1 << 30, (rows, width), generator=generator, dtype=torch.int32) if packed else None
    live = torch.randint(1, stride + 1, (64,), generator=generator)
    live[0] = 2
    mine, theirs = ([each.clone() if each is not None else None for each in (ids, weights, both)] for _ in range(2))
    verify_cap_kernels.remap_torch(*theirs, live, stride)
    shown = mine[0] if both is None else mine[2]
    grid = (-(-rows // ROWS),)
    strides = (width, width, width)
    shape: dict[str, Any] = {"ROWS": ROWS, "WIDTH": 8, "HAS_PACKED": packed}
    copy_anchor[grid](mine[0], mine[1], shown, live, rows, width, stride, *strides, **shape)
    assert not torch.equal(theirs[0], ids)
    pairs = [(a, b) for a, b in zip(mine, theirs, strict=True) if a is not None]
    return sum(int((a != b).sum()) for a, b in pairs)


def router_case() -> int:
    """Entries of the engine's own router, wrapped, that are not what dead rows should hold."""
    from sglang.kernels.ops.moe import moe_fused_gate as module

    from trispark_adapters.verify_cap import VerifyCap, wrap_router
    from trispark_adapters.verify_cap_policy import Policy

    generator = torch.Generator().manual_seed(5)
    bs, stride = 3, 4
    scores = torch.randn((bs * stride, 384), generator=generator)
    bias = torch.zeros(384)
    given = {"topk": 6, "scoring_func": "sqrtsoftplus", "num_token_non_padded": torch.tensor([9], dtype=torch.int32)}

    def route() -> tuple[Any, Any, Any]:
        packed = torch.zeros((bs * stride, 6), dtype=torch.int32)
        weights, ids = module.moe_fused_gate(scores, bias, packed_out=packed, **given)
        return weights, ids, packed

    plain = route()
    cap = VerifyCap(Policy("2", fixed=2), {})
    wrap_router(module, cap)
    assert all(torch.equal(a, b) for a, b in zip(plain, route(), strict=True)), "not in a target verify"
    cap.before_verify(bs, stride, "cpu")
    mode = SimpleNamespace(is_target_verify=lambda: True)
    batch = SimpleNamespace(forward_mode=mode, batch_size=bs, spec_info=SimpleNamespace(draft_token_num=stride))
    cap.begin_forward(batch, torch.zeros(bs * stride))
    found = route()
    wrong = 0
    for values, before in zip(found, plain, strict=True):
        for row in range(bs * stride):
            dead = row % stride == 3 and row < 9  # rows from 9 on are padding and stay
            wrong += int((values[row] != before[row - row % stride if dead else row]).sum())
    return wrong


def main() -> None:
    found: dict[str, int] = {}
    block_verify_kernels.TILE = 8
    for filtered, cut, strided in product((False, True), (False, True), (False, True)):
        if strided == (cut and not filtered):
            found[f"block {filtered=} {cut=} {strided=}"] = block_case(3, 21, 3, filtered, cut, strided)
    found["block one tile"] = block_case(4, 7, 2, False, True, False)
    found["block one draft"] = block_case(4, 20, 1, False, False, False)
    for bs, stride, packed in ((1, 6, True), (4, 6, False), (21, 4, True)):
        found[f"remap {bs=} {stride=} {packed=}"] = remap_case(7, bs, stride, packed)
    if "--router" in sys.argv:
        found["router"] = router_case()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
