"""Acceptance of sampled drafts, exact in distribution: token by token, or jointly over the block.

`target` [m + 1, V] holds the target's distributions after 0..m drafts, `proposal` [m, V] the distributions that the
drafts were really drawn from. `uniforms` [m + 1]: one for each draft, the last for the correction or bonus token.
A block may be cut to fewer drafts by a rule that looks at earlier drafts alone; it is then a block of that length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .sampling import draw

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """How many drafts are committed, and the target's token after them."""

    accepted: int
    token: int


def token_wise(target: Floats, proposal: Floats, drafted: Sequence[int], uniforms: Floats) -> Verdict:
    """Accept each draft with min(1, p/q) until one fails; then a token of the residual max(p - q, 0)."""
    for index, token in enumerate(drafted):
        if uniforms[index] * proposal[index, token] < target[index, token]:
            continue
        return Verdict(index, _correction(target[index], proposal[index], 1.0, uniforms[-1]))
    return Verdict(len(drafted), draw(target[len(drafted)], float(uniforms[-1])))


def block_wise(target: Floats, proposal: Floats, drafted: Sequence[int], uniforms: Floats) -> Verdict:
    """Joint acceptance (Sun et al., "Block verification accelerates speculative decoding", arXiv 2403.10444).

    weight_i = min(weight_(i-1) p_i(x_i) / q_i(x_i), 1); the longest prefix i whose own uniform lies below h_i is kept,
    with h_i = s / (s + 1 - weight_i), s = sum_x max(weight_i p_(i+1)(x) - q_(i+1)(x), 0), and h = weight at the end.
    """
    count = len(drafted)
    accepted, kept_weight, weight = 0, 1.0, 1.0
    for index, token in enumerate(drafted, start=1):
        weight = min(weight * float(target[index - 1, token] / proposal[index - 1, token]), 1.0)
        threshold = weight
        if index < count:
            rest = float(np.maximum(weight * target[index] - proposal[index], 0.0).sum())
            below = rest + 1.0 - weight
            threshold = rest / below if below > 0 else 1.0
        if uniforms[index - 1] < threshold:
            accepted, kept_weight = index, weight
    if accepted == count:
        return Verdict(count, draw(target[count], float(uniforms[-1])))
    return Verdict(accepted, _correction(target[accepted], proposal[accepted], kept_weight, uniforms[-1]))


def _correction(target: Floats, proposal: Floats, weight: float, uniform: np.float64) -> int:
    residual = np.maximum(weight * target - proposal, 0.0)
    return draw(residual if residual.any() else target, float(uniform))


def accept_length(draft: Sequence[int], chosen: Sequence[int]) -> int:
    """Greedy: how many drafted tokens equal the target's choices before the first difference."""
    for index, token in enumerate(draft):
        if token != chosen[index]:
            return index
    return len(draft)
