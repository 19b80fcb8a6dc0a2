"""Target probabilities of sampled requests, and the random stream of a request.

Everything is float64 over exact integer logits, computed on rank 0 alone; no rank can disagree about a draw.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LOGIT_UNIT = 65536.0
"""Target logits are integers in units of 1/65536 nat: a context that the memory knows stands about ten nats out."""

MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. temperature 0 or top_k 1 is greedy; top_k 0 keeps all tokens."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        """Whether the choice is the argmax."""
        return self.temperature == 0 or self.top_k == 1


GREEDY = Sampling()


def softmax(scores: Floats) -> Floats:
    """Softmax over the last axis."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def target_probabilities(logits: npt.NDArray[np.float32], sampling: Sampling, unit: float = LOGIT_UNIT) -> Floats:
    """[R, V] logits -> [R, V] probabilities: temperature, then the top_k likeliest, then the top_p nucleus of those.

    Among equal probabilities the lower id comes first, so the kept set is defined for ties as well.
    """
    rows = softmax(logits.astype(np.float64) / (unit * sampling.temperature))
    limited = 0 < sampling.top_k < rows.shape[1]
    if not limited and sampling.top_p >= 1.0:
        return rows
    order = np.argsort(-rows, axis=1, kind="stable")
    ranked = np.take_along_axis(rows, order, axis=1)
    if limited:
        ranked[:, sampling.top_k :] = 0.0
        ranked /= ranked.sum(axis=1, keepdims=True)
    if sampling.top_p < 1.0:
        before = np.cumsum(ranked, axis=1) - ranked
        before[:, 0] = 0.0  # the likeliest token always stays
        ranked[before >= sampling.top_p] = 0.0
        ranked /= ranked.sum(axis=1, keepdims=True)
    kept = np.zeros_like(rows)
    np.put_along_axis(kept, order, ranked, axis=1)
    return kept


def stream(seed: int, position: int) -> np.random.Generator:
    """Random numbers of the step that begins at committed position `position` of a request with `seed`.

    A counter-based generator keyed by both: no draw depends on which other requests run, or on how often a step of
    another position drew. Each position begins at most one step of a request, so no number is used twice.
    """
    return np.random.Generator(np.random.Philox(key=np.array([seed, position], dtype=np.uint64)))


def draw(weights: Floats, uniform: float) -> int:
    """Index drawn in proportion to `weights` [V] (not all zero) by one uniform number in [0, 1)."""
    cumulative = np.cumsum(weights)
    index = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    if index < len(weights) and weights[index] > 0:
        return index
    return int(np.flatnonzero(weights)[-1])  # the product was rounded up to the sum
