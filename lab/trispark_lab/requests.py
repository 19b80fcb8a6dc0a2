"""A generation request inside the engine, and where its tokens go."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .sampling import GREEDY, Sampling

Emit = Callable[[list[int], str | None], None]
"""Called with the tokens which a step committed; the last call has the finish reason: "stop", "length" or "abort"."""


@dataclass(frozen=True)
class TokenLogprob:
    """Log probability of a committed token, at temperature 1 and without truncation, and of the likeliest ones."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass
class SpeculationCounts:
    """What verification did for one request. `histogram[n]` counts steps with n correct drafts, `cap_histogram[n]`
    those with n live drafts; `correct` counts what the verification accepted, also past the end of the request."""

    verify_steps: int = 0
    proposed: int = 0
    correct: int = 0
    histogram: dict[int, int] = field(default_factory=dict)
    cap_histogram: dict[int, int] = field(default_factory=dict)

    def add(self, block_size: int, live: int, correct: int) -> None:
        """Count one step."""
        self.verify_steps += 1
        self.proposed += block_size
        self.correct += correct
        self.histogram[correct] = self.histogram.get(correct, 0) + 1
        self.cap_histogram[live] = self.cap_histogram.get(live, 0) + 1


@dataclass(eq=False)
class Request:
    """A request. `prompt` is not empty; `output` holds what is committed; `computed` counts prompt ids done.

    `top_logprobs`: None for no log probabilities, else how many alternatives are kept with each token.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool
    emit: Emit
    sampling: Sampling = GREEDY
    top_logprobs: int | None = None
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    counts: SpeculationCounts = field(default_factory=SpeculationCounts)
    computed: int = 0
    cancelled: bool = False
    submitted: float = field(default_factory=time.perf_counter)
    last_token: float | None = None

    @property
    def reserved(self) -> int:
        """Token places that the request may use."""
        return len(self.prompt) + self.max_tokens

    @property
    def held(self) -> int:
        """Token places in use."""
        return self.computed + len(self.output)

    def commit(self, tokens: list[int], eos: int) -> tuple[list[int], str | None]:
        """Take verified tokens up to the end of the request: (what was taken, the finish reason if it ends here)."""
        taken: list[int] = []
        reason = None
        for token in tokens:
            taken.append(token)
            if token == eos and not self.ignore_eos:
                reason = "stop"
            elif len(self.output) + len(taken) >= self.max_tokens:
                reason = "length"
            if reason is not None:
                break
        self.output.extend(taken)
        return taken, reason
