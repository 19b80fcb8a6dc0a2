"""The cheaper draft: a Markov head that looks at the previous token alone.

Scores of the next token are markov_w1[previous] @ markov_w2.T, integers and so exact. Greedy drafting needs only the
best successor of each token, which is computed once at load.
"""

import numpy as np
import numpy.typing as npt

from . import e4m3
from .checkpoint import Checkpoint
from .config import ModelConfig

DRAFT_DIM = 256
CHUNK = 256


class MarkovDraft:
    """Greedy block drafts of one rank (rank 0)."""

    def __init__(self, successors: npt.NDArray[np.int64]) -> None:
        self._successors: list[int] = successors.tolist()

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: ModelConfig) -> "MarkovDraft":
        """Read `mtp.0.markov_head` and fold it into the best successor of each token."""
        shape = (config.vocab_size, DRAFT_DIM)
        first = e4m3.dequantise(*checkpoint.scaled("mtp.0.markov_head.markov_w1", shape, config.block))
        second = e4m3.dequantise(*checkpoint.scaled("mtp.0.markov_head.markov_w2", shape, config.block))
        best = [(first[at : at + CHUNK] @ second.T).argmax(axis=1) for at in range(0, len(first), CHUNK)]
        return cls(np.concatenate(best).astype(np.int64))

    def propose(self, anchor: int, count: int) -> list[int]:
        """`count` drafted tokens after `anchor`."""
        drafted = []
        for _ in range(count):
            anchor = self._successors[anchor]
            drafted.append(anchor)
        return drafted
