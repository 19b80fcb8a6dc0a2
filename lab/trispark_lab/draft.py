"""The cheaper draft: a Markov head that looks at the previous token alone, and its confidence head.

Scores of the next token are markov_w1[previous] @ markov_w2.T, integers and so exact. Greedy drafting needs only the
best successor of each token, which is computed once at load; sampled drafting draws from the softmax of the scores.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import e4m3
from .checkpoint import Checkpoint
from .config import ModelConfig
from .sampling import draw, softmax

DRAFT_DIM = 256
CHUNK = 256
DRAFT_UNIT = 256.0
"""Draft scores are integers in units of 1/256 nat."""
CONFIDENCE_STEPS = 15
"""The confidence head stores fifteenths."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SampledBlock:
    """Drafted tokens and the distributions [k, V] that they were drawn from."""

    tokens: list[int]
    proposal: Floats


class MarkovDraft:
    """Block drafts of one rank (rank 0). first, second: [V, 256]; confidences: [V], of the token after each token."""

    def __init__(self, first: npt.NDArray[np.float32], second: npt.NDArray[np.float32], confidences: Floats) -> None:
        self._first = first
        self._second = second
        best = [(first[at : at + CHUNK] @ second.T).argmax(axis=1) for at in range(0, len(first), CHUNK)]
        self._successors: list[int] = np.concatenate(best).tolist()
        self._confidences: list[float] = confidences.tolist()

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: ModelConfig) -> "MarkovDraft":
        """Read `mtp.0.markov_head` and `mtp.0.confidence_head`."""
        shape = (config.vocab_size, DRAFT_DIM)
        first = e4m3.dequantise(*checkpoint.scaled("mtp.0.markov_head.markov_w1", shape, config.block))
        second = e4m3.dequantise(*checkpoint.scaled("mtp.0.markov_head.markov_w2", shape, config.block))
        steps = e4m3.dequantise(*checkpoint.scaled("mtp.0.confidence_head", (config.vocab_size, 1), config.block))
        return cls(first, second, steps[:, 0].astype(np.float64) / CONFIDENCE_STEPS)

    def propose(self, anchor: int, count: int) -> list[int]:
        """`count` drafted tokens after `anchor`, the likeliest one each time."""
        drafted = []
        for _ in range(count):
            anchor = self._successors[anchor]
            drafted.append(anchor)
        return drafted

    def sample(self, anchor: int, temperature: float, uniforms: Floats) -> SampledBlock:
        """One drafted token for each uniform number, from the softmax at `temperature`."""
        tokens: list[int] = []
        rows = []
        for uniform in uniforms:
            scores = (self._first[anchor] @ self._second.T).astype(np.float64)
            rows.append(softmax(scores / (DRAFT_UNIT * temperature)))
            anchor = draw(rows[-1], float(uniform))
            tokens.append(anchor)
        return SampledBlock(tokens, np.stack(rows))

    def confidences(self, anchor: int, drafted: list[int]) -> list[float]:
        """Chance of each draft to survive given those before it; draft i is judged by the token before it alone."""
        return [self._confidences[token] for token in (anchor, *drafted[:-1])]
