"""Joint acceptance of a drafted block, in torch: the rule itself, and the path for tensors that are not on a GPU.

Drafts X_1..X_g were drawn from q_1..q_g; p_1..p_(g+1) are the target's distributions. With w_0 = 1 and
w_i = min(w_(i-1) p_i(X_i) / q_i(X_i), 1), the first i drafts are kept with the chance

    h_i = S_i / (S_i + 1 - w_i) for i < g, h_g = w_g,  where S_i = sum over x of max(w_i p_(i+1)(x) - q_(i+1)(x), 0),

each i tried with a uniform of its own, the longest success counting. The token after tau kept drafts comes from
max(w_tau p_(tau+1) - q_(tau+1), 0), normalised, or from p_(g+1) after all g. The output is distributed as the target.
g may differ between requests (`live`): a cut that looks at drafts before it alone is a shorter block.

Source: Sun et al., arXiv 2403.10444; facts of the field, 3.5.
"""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Chances:
    """weights [bs, g + 1]: w_0..w_g; kept [bs, g]: h_1..h_g. Both are 0 beyond a request's live drafts."""

    weights: Any
    kept: Any


def live_drafts(verify_lens: Any, bs: int, gamma: int, device: Any) -> Any:
    """int64 [bs]: drafts that count, from verify lengths that count the anchor too; None: all."""
    if verify_lens is None:
        return torch.full((bs,), gamma, dtype=torch.int64, device=device)
    return (verify_lens[:bs].to(device=device, dtype=torch.int64) - 1).clamp(0, gamma)


def chances(target: Any, draft: Any, tokens: Any, live: Any) -> Chances:
    """target [bs, g + 1, V], draft [bs, g, V] probabilities; tokens int64 [bs, g]; live int64 [bs]."""
    bs, gamma, _ = draft.shape
    target, draft = _finite(target), _drafted(draft)
    p = target[:, :gamma].gather(2, tokens[..., None])[..., 0]
    q = draft.gather(2, tokens[..., None])[..., 0]
    ratio = torch.where(q > 0, p / torch.where(q > 0, q, 1), 0)  # a draft that its own distribution denies
    weights = torch.zeros((bs, gamma + 1), dtype=target.dtype, device=target.device)
    kept = torch.zeros((bs, gamma), dtype=target.dtype, device=target.device)
    weight = torch.ones((bs,), dtype=target.dtype, device=target.device)
    weights[:, 0] = weight
    for index in range(1, gamma + 1):
        weight = torch.where(index <= live, (weight * ratio[:, index - 1]).clamp(max=1), 0)
        weights[:, index] = weight
        chance = weight
        if index < gamma:
            excess = (weight[:, None] * target[:, index] - draft[:, index]).clamp(min=0).sum(1)
            whole = excess + 1 - weight
            inner = torch.where(whole > 0, excess / torch.where(whole > 0, whole, 1), 1)
            chance = torch.where(index < live, inner, weight)
        kept[:, index - 1] = torch.where(index <= live, chance, 0)
    return Chances(weights, kept)


def longest(kept: Any, uniforms: Any) -> Any:
    """int64 [bs]: the largest i whose uniform in [0, 1) lies below h_i, else 0; kept, uniforms [bs, g]."""
    index = torch.arange(1, kept.shape[1] + 1, device=kept.device)
    return torch.where(uniforms < kept, index, 0).amax(1)


def corrections(target: Any, draft: Any, weights: Any, tau: Any, live: Any) -> Any:
    """[bs, V], not normalised: what the token after `tau` drafts is drawn from."""
    gamma = draft.shape[1]
    target, draft = _finite(target), _drafted(draft)
    rows = torch.arange(len(target), device=target.device)
    p = target[rows, tau]
    rest = (weights[rows, tau][:, None] * p - draft[rows, tau.clamp(max=gamma - 1)]).clamp(min=0)
    rest = torch.where((tau < live)[:, None], rest, p)
    return torch.where(rest.sum(1, keepdim=True) > 0, rest, p)  # nothing left: p and q are equal but for rounding


def draw(mass: Any, uniforms: Any) -> Any:
    """int64 [bs]: the token where the running sum of mass [bs, V] passes uniforms [bs] of the whole; never one of
    mass 0, unless all are."""
    running = mass.double().cumsum(1)
    reached = running > (uniforms.double() * running[:, -1])[:, None]
    last = mass.shape[1] - 1 - (mass > 0).flip(1).int().argmax(1)
    return torch.where(reached.any(1), reached.int().argmax(1), last)


def accept(target: Any, draft: Any, tokens: Any, live: Any, uniforms: Any) -> tuple[Any, Any]:
    """(kept drafts int32 [bs], next token int64 [bs]); uniforms [bs, g + 1], the last one for the next token."""
    found = chances(target, draft, tokens, live)
    tau = longest(found.kept, uniforms[:, :-1].to(found.kept.dtype))
    return tau.to(torch.int32), draw(corrections(target, draft, found.weights, tau, live), uniforms[:, -1])


def _finite(target: Any) -> Any:
    """NaN counts as 0."""
    return torch.where(target >= 0, target.clamp(max=1), 0)


def _drafted(draft: Any) -> Any:
    """What is no probability (NaN, infinite, negative, above 1) counts as 0, as in the engine's own sampler."""
    return torch.where((draft >= 0) & (draft <= 1), draft, 0)
