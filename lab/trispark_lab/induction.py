"""In-context copying: an exact head over the request's own context, on rank 0.

It looks for the latest earlier place whose tokens before it equal the last tokens of the context, the longest match
first, and adds a fixed integer to the logit of what followed there. The vote is larger than anything the hashed memory
says of a context it does not know, and smaller than its margin in a context it knows, so a corpus text is never
changed and a fact of the prompt is found at any depth. A copied statement ends where its line or sentence ends: there
the vote is for the end of the answer.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .tokenizer import EOS, Tokenizer

VOTE = 1 << 18
"""Exact in float32 beside logits below 2**22."""
SHORTEST, LONGEST = 3, 32
"""Matched tokens: fewer are no evidence, more add none."""

_TEXT, _LINE_END, _SPACED, _SENTENCE_END = range(4)


class Context:
    """Tokens of one request that grow by commits; drafts can be laid after them for the time of a step."""

    def __init__(self, prompt: Sequence[int], capacity: int) -> None:
        self.tokens = np.zeros(capacity, dtype=np.int64)
        self.tokens[: len(prompt)] = prompt
        self.length = len(prompt)

    def before(self, end: int, count: int, pad: int) -> tuple[int, ...]:
        """The `count` ids before position `end`, padded at the front."""
        known = self.tokens[max(0, end - count) : end].tolist()
        return (*(pad,) * (count - len(known)), *known)

    def lay(self, tokens: Sequence[int], at: int) -> None:
        """Write tokens from position `at`; they count once `length` covers them."""
        end = min(at + len(tokens), len(self.tokens))
        self.tokens[at:end] = tokens[: end - at]


class CopyHead:
    """Votes of the context. classes: [V], tokens that match each other (case and the space before do not matter)."""

    def __init__(self, classes: npt.NDArray[np.int64], kinds: npt.NDArray[np.int64]) -> None:
        self._classes = classes
        self._kinds = kinds

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "CopyHead":
        """Head for the checkpoint's tokens."""
        kinds = np.full(tokenizer.vocab_size, _TEXT, dtype=np.int64)
        for token in range(tokenizer.vocab_size):
            text = tokenizer.token_bytes(token)
            if text.startswith(b"\n"):
                kinds[token] = _LINE_END
            elif text.startswith(b" "):
                kinds[token] = _SPACED
            elif text.endswith((b".", b"!", b"?")):
                kinds[token] = _SENTENCE_END
        return cls(np.array(tokenizer.compressed_ids(), dtype=np.int64), kinds)

    def vote(self, context: Context, length: int) -> int | None:
        """The token that should follow the first `length` tokens of the context; None without a match."""
        if length <= SHORTEST:
            return None
        seen = self._classes[context.tokens[:length]]
        places = np.flatnonzero(seen[:-1] == seen[-1])
        matched = 1
        while len(places) and matched < LONGEST:
            longer = places[places >= matched]
            longer = longer[seen[longer - matched] == seen[length - 1 - matched]]
            if not len(longer):
                break
            places = longer
            matched += 1
        if not len(places) or matched < SHORTEST:
            return None
        follower = int(context.tokens[places[-1] + 1])
        ends = self._kinds[follower] == _LINE_END or (
            self._kinds[context.tokens[length - 1]] == _SENTENCE_END and self._kinds[follower] == _SPACED
        )
        return EOS if ends else follower
