"""Joint acceptance on the GPU: three Triton kernels that read the target's logits twice and the draft's probabilities
once. Nothing of the size [bs, k + 1, V] is written; the rule is that of `block_verify_math`.

The vocabulary is cut into tiles. `_stats` finds each row's maximum and sum of exponentials by tile; `_masses` sums, by
tile, what is left of each row after its acceptance weight; `_choose`, one program a request, takes the longest kept
block, the tile in which the next token falls, and the token. Sums run in a fixed order, so equal inputs give equal
results on all ranks. With top-k or top-p the target comes as probabilities (HAS_PROBS) and `_stats` is not run.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

_jit: Callable[[Callable[..., Any]], Any] = triton.jit

TILE = 4096
"""Entries of a vocabulary tile; 32 tiles for 129,280."""


@_jit
def _drafted(value: tl.tensor) -> Any:
    """What is no probability counts as 0, as in the engine's own sampler."""
    return tl.where((value >= 0.0) & (value <= 1.0), value, 0.0)


@_jit
def _row_scale(stats: tl.tensor, row: tl.tensor, tiles: tl.tensor, TILES: tl.constexpr) -> Any:
    """Maximum and sum of exponentials of a row, from those of its tiles."""
    lane = tl.arange(0, TILES)
    base = stats + row * tiles * 2
    peak = tl.load(base + lane * 2, mask=lane < tiles, other=-float("inf"))
    mass = tl.load(base + lane * 2 + 1, mask=lane < tiles, other=0.0)
    top = tl.max(peak, axis=0)
    top = tl.where(top == -float("inf"), 0.0, top)
    return top, tl.sum(mass * tl.exp(peak - top), axis=0)


@_jit
def _target(
    values: tl.tensor,
    stats: tl.tensor,
    row: tl.tensor,
    columns: tl.tensor,
    mask: tl.tensor,
    temperature: tl.tensor,
    tiles: tl.tensor,
    stride_value: tl.tensor,
    stride_v: tl.tensor,
    TILES: tl.constexpr,
    HAS_PROBS: tl.constexpr,
) -> Any:
    """The target's probabilities of a row at `columns`, int64; NaN counts as 0."""
    place = values + row.to(tl.int64) * stride_value + columns * stride_v
    if HAS_PROBS:
        value = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    else:
        top, whole = _row_scale(stats, row, tiles, TILES)
        value = tl.load(place, mask=mask, other=-float("inf")).to(tl.float32)
        value = tl.exp(value / temperature - top) / whole
    return tl.where(value >= 0.0, tl.minimum(value, 1.0), 0.0)


@_jit
def _ratio(
    values: tl.tensor,
    stats: tl.tensor,
    draft: tl.tensor,
    tokens: tl.tensor,
    request: tl.tensor,
    index: tl.tensor,
    temperature: tl.tensor,
    tiles: tl.tensor,
    stride_value: tl.tensor,
    stride_v: tl.tensor,
    stride_draft_b: tl.tensor,
    stride_draft_i: tl.tensor,
    stride_draft_v: tl.tensor,
    stride_token: tl.tensor,
    stride_token_i: tl.tensor,
    GAMMA: tl.constexpr,
    TILES: tl.constexpr,
    HAS_PROBS: tl.constexpr,
) -> Any:
    """p(X) / q(X) of the request's draft after `index` others."""
    token = tl.load(tokens + request * stride_token + (index + 1) * stride_token_i).to(tl.int64)
    row = request * (GAMMA + 1) + index
    p = _target(values, stats, row, token, True, temperature, tiles, stride_value, stride_v, TILES, HAS_PROBS)
    place = request.to(tl.int64) * stride_draft_b + index * stride_draft_i + token * stride_draft_v
    q = _drafted(tl.load(draft + place).to(tl.float32))
    return tl.where(q > 0.0, p / tl.where(q > 0.0, q, 1.0), 0.0)


@_jit
def _live(verify_lens: tl.tensor, request: tl.tensor, GAMMA: tl.constexpr, HAS_CUT: tl.constexpr) -> Any:
    live = tl.full((), GAMMA, tl.int32)
    if HAS_CUT:
        live = tl.minimum(tl.maximum(tl.load(verify_lens + request).to(tl.int32) - 1, 0), GAMMA)
    return live


@_jit
def _stats(
    values: tl.tensor,
    temperatures: tl.tensor,
    stats: tl.tensor,
    vocab: tl.tensor,
    tiles: tl.tensor,
    stride_value: tl.tensor,
    stride_v: tl.tensor,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    tile = tl.program_id(1)
    temperature = tl.load(temperatures + row // ROWS).to(tl.float32)
    offsets = tile * SIZE + tl.arange(0, SIZE)
    mask = offsets < vocab
    base = values + row.to(tl.int64) * stride_value
    value = tl.load(base + offsets.to(tl.int64) * stride_v, mask=mask, other=-float("inf")).to(tl.float32) / temperature
    top = tl.max(value, axis=0)
    shift = tl.where(top == -float("inf"), 0.0, top)
    place = stats + (row * tiles + tile) * 2
    tl.store(place, top)
    tl.store(place + 1, tl.sum(tl.exp(value - shift), axis=0))


@_jit
def _masses(
    values: tl.tensor,
    temperatures: tl.tensor,
    stats: tl.tensor,
    draft: tl.tensor,
    tokens: tl.tensor,
    verify_lens: tl.tensor,
    masses: tl.tensor,
    vocab: tl.tensor,
    tiles: tl.tensor,
    stride_value: tl.tensor,
    stride_v: tl.tensor,
    stride_draft_b: tl.tensor,
    stride_draft_i: tl.tensor,
    stride_draft_v: tl.tensor,
    stride_token: tl.tensor,
    stride_token_i: tl.tensor,
    GAMMA: tl.constexpr,
    TILES: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_PROBS: tl.constexpr,
    HAS_CUT: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    tile = tl.program_id(1)
    request = row // (GAMMA + 1)
    index = row % (GAMMA + 1)
    live = _live(verify_lens, request, GAMMA, HAS_CUT)
    if index <= live:
        temperature = tl.full((), 1.0, tl.float32)
        if not HAS_PROBS:
            temperature = tl.load(temperatures + request).to(tl.float32)
        weight = tl.full((), 1.0, tl.float32)
        for before in tl.static_range(GAMMA):  # all are loaded, so that no load waits for another
            ratio = _ratio(
                values,
                stats,
                draft,
                tokens,
                request,
                before,
                temperature,
                tiles,
                stride_value,
                stride_v,
                stride_draft_b,
                stride_draft_i,
                stride_draft_v,
                stride_token,
                stride_token_i,
                GAMMA,
                TILES,
                HAS_PROBS,
            )
            weight = tl.where(before < index, tl.minimum(weight * ratio, 1.0), weight)
        columns = (tile * SIZE + tl.arange(0, SIZE)).to(tl.int64)
        mask = columns < vocab
        p = _target(values, stats, row, columns, mask, temperature, tiles, stride_value, stride_v, TILES, HAS_PROBS)
        inner = index < live
        place = request.to(tl.int64) * stride_draft_b + index * stride_draft_i + columns * stride_draft_v
        q = _drafted(tl.load(draft + place, mask=mask & inner, other=0.0).to(tl.float32))
        rest = tl.where(inner, tl.maximum(weight * p - q, 0.0), p)
        out = masses + (row * tiles + tile) * 2
        tl.store(out, tl.sum(rest, axis=0))
        tl.store(out + 1, tl.sum(p, axis=0))


@_jit
def _choose(
    values: tl.tensor,
    temperatures: tl.tensor,
    stats: tl.tensor,
    draft: tl.tensor,
    tokens: tl.tensor,
    verify_lens: tl.tensor,
    masses: tl.tensor,
    uniforms: tl.tensor,
    kept_out: tl.tensor,
    token_out: tl.tensor,
    trim_out: tl.tensor,
    vocab: tl.tensor,
    tiles: tl.tensor,
    stride_value: tl.tensor,
    stride_v: tl.tensor,
    stride_draft_b: tl.tensor,
    stride_draft_i: tl.tensor,
    stride_draft_v: tl.tensor,
    stride_token: tl.tensor,
    stride_token_i: tl.tensor,
    GAMMA: tl.constexpr,
    TILES: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_PROBS: tl.constexpr,
    HAS_CUT: tl.constexpr,
) -> None:
    request = tl.program_id(0)
    live = _live(verify_lens, request, GAMMA, HAS_CUT)
    temperature = tl.full((), 1.0, tl.float32)
    if not HAS_PROBS:
        temperature = tl.load(temperatures + request).to(tl.float32)
    lane = tl.arange(0, TILES)
    first = request * (GAMMA + 1)

    tau = tl.full((), 0, tl.int32)
    weight_at_tau = tl.full((), 1.0, tl.float32)
    weight = tl.full((), 1.0, tl.float32)
    for index in tl.static_range(1, GAMMA + 1):
        ratio = _ratio(
            values,
            stats,
            draft,
            tokens,
            request,
            index - 1,
            temperature,
            tiles,
            stride_value,
            stride_v,
            stride_draft_b,
            stride_draft_i,
            stride_draft_v,
            stride_token,
            stride_token_i,
            GAMMA,
            TILES,
            HAS_PROBS,
        )
        weight = tl.minimum(weight * ratio, 1.0)
        # Rows beyond the live ones were not written; what is read of them is not used.
        excess = tl.sum(tl.load(masses + (first + index) * tiles * 2 + lane * 2, mask=lane < tiles, other=0.0), axis=0)
        whole = excess + 1.0 - weight
        inner = tl.where(whole > 0.0, excess / tl.where(whole > 0.0, whole, 1.0), 1.0)
        chance = tl.where(index < live, inner, weight)
        success = (index <= live) & (tl.load(uniforms + first + index - 1) < chance)
        tau = tl.where(success, index, tau)
        weight_at_tau = tl.where(success, weight, weight_at_tau)

    row = first + tau
    place = masses + row * tiles * 2 + lane * 2
    rest = tl.load(place, mask=lane < tiles, other=0.0)
    plain = tl.load(place + 1, mask=lane < tiles, other=0.0)
    left = tl.sum(rest, axis=0) > 0.0
    mass = tl.where(left, rest, plain)
    running = tl.cumsum(mass, axis=0)
    reached = tl.load(uniforms + first + GAMMA) * tl.max(running, axis=0)
    last = tl.max(tl.where(mass > 0.0, lane, 0), axis=0)
    tile = tl.min(tl.where((running > reached) & (mass > 0.0), lane, last), axis=0)
    before = tl.max(tl.where(lane < tile, running, 0.0), axis=0)

    columns = (tile * SIZE + tl.arange(0, SIZE)).to(tl.int64)
    mask = columns < vocab
    p = _target(values, stats, row, columns, mask, temperature, tiles, stride_value, stride_v, TILES, HAS_PROBS)
    subtract = columns < tl.where(left & (tau < live), vocab, 0)
    start = request.to(tl.int64) * stride_draft_b + tau * stride_draft_i
    q = _drafted(tl.load(draft + start + columns * stride_draft_v, mask=subtract, other=0.0).to(tl.float32))
    value = tl.where(subtract, tl.maximum(weight_at_tau * p - q, 0.0), p)
    within = tl.cumsum(value, axis=0)
    fallback = tl.max(tl.where(value > 0.0, columns, 0), axis=0)
    token = tl.min(tl.where((within > reached - before) & (value > 0.0), columns, fallback), axis=0)

    tl.store(kept_out + request, tau)
    tl.store(token_out + request, token)
    tl.store(trim_out + request, 0)


def accept(
    values: Any,
    temperatures: Any,
    draft: Any,
    candidates: Any,
    verify_lens: Any,
    uniforms: Any,
) -> tuple[Any, Any, Any]:
    """(kept drafts int32 [bs], next token int64 [bs], zeros int32 [bs]) of a batch.

    values: logits [bs * (g + 1), V] in any float type with temperatures [bs]; or, with temperatures None,
    probabilities [bs, g + 1, V]. draft float [bs, g, V]; candidates int [bs, g + 1], the anchor first; verify_lens
    int [bs] or None; uniforms float32 [bs, g + 1], the last one for the next token.
    """
    bs, gamma, vocab = draft.shape
    rows = bs * (gamma + 1)
    values = values.view(rows, vocab) if values.is_contiguous() else values.reshape(rows, vocab)
    size = min(TILE, triton.next_power_of_2(vocab))
    tiles = triton.cdiv(vocab, size)
    device = values.device
    masses = torch.empty((rows, tiles, 2), dtype=torch.float32, device=device)
    kept = torch.empty((bs,), dtype=torch.int32, device=device)
    token = torch.empty((bs,), dtype=torch.int64, device=device)
    trim = torch.empty((bs,), dtype=torch.int32, device=device)
    has_probs = temperatures is None
    if has_probs:
        stats = scale = masses  # not read
    else:
        scale = temperatures.reshape(bs)
        stats = torch.empty((rows, tiles, 2), dtype=torch.float32, device=device)
        _stats[(rows, tiles)](
            values,
            scale,
            stats,
            vocab,
            tiles,
            values.stride(0),
            values.stride(1),
            ROWS=gamma + 1,
            SIZE=size,
            num_warps=8,
        )
    lens = kept if verify_lens is None else verify_lens
    strides = (*values.stride(), *draft.stride(), *candidates.stride())
    shape = {
        "GAMMA": gamma,
        "TILES": triton.next_power_of_2(tiles),
        "SIZE": size,
        "HAS_PROBS": has_probs,
        "HAS_CUT": verify_lens is not None,
        "num_warps": 8,
    }
    inputs = (values, scale, stats, draft, candidates, lens, masses)
    _masses[(rows, tiles)](*inputs, vocab, tiles, *strides, **shape)
    _choose[(bs,)](*inputs, uniforms, kept, token, trim, vocab, tiles, *strides, **shape)
    return kept, token, trim
