"""A toy model with a vocabulary that can be enumerated, behind the scheduler's own interfaces."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from trispark_lab.draft import SampledBlock
from trispark_lab.requests import Request
from trispark_lab.sampling import Sampling, draw, softmax
from trispark_lab.scheduler import Limits, Scheduler, Speculation
from trispark_lab.steps import Segment

VOCAB = 3
NO_EOS = -1
HISTORY = 2


class ToyModel:
    """Logits from the last three tokens, in nats; dead rows (copies of the anchor) are given the anchor's logits."""

    def __init__(self, seed: int = 1) -> None:
        self._table = np.random.default_rng(seed).normal(0.0, 1.3, (VOCAB, VOCAB, VOCAB, VOCAB)).astype(np.float32)
        self.rows = 0
        self.shapes: list[list[int]] = []

    def logits(self, tokens: Sequence[int]) -> Any:
        return self._table[tuple(tokens[-3:])]

    def forward(self, segments: Sequence[Segment]) -> Any:
        rows = []
        self.shapes.append([len(segment.tokens) for segment in segments])
        for segment in segments:
            line = (*segment.history, *segment.tokens)
            for index in range(len(segment.tokens) - segment.logit_rows, len(segment.tokens)):
                own = index if not segment.live or index < segment.live else 0
                rows.append(self.logits(line[: HISTORY + own + 1]))
        self.rows += len(rows)
        return np.array(rows, dtype=np.float32).reshape(len(rows), VOCAB)

    def ping(self) -> None:
        pass


class ToyDraft:
    """Proposals from the last token alone: near the target on average, and never the target itself."""

    def __init__(self, seed: int = 2) -> None:
        self._scores = np.random.default_rng(seed).normal(0.0, 1.0, (VOCAB, VOCAB))
        self.confidence = [0.9, 0.5, 0.2]
        self.asked: list[tuple[int, list[int]]] = []

    def propose(self, anchor: int, count: int) -> list[int]:
        drafted = []
        for _ in range(count):
            anchor = int(self._scores[anchor].argmax())
            drafted.append(anchor)
        return drafted

    def sample(self, anchor: int, temperature: float, uniforms: Any) -> SampledBlock:
        tokens, rows = [], []
        for uniform in uniforms:
            rows.append(softmax(self._scores[anchor] / temperature))
            anchor = draw(rows[-1], float(uniform))
            tokens.append(anchor)
        return SampledBlock(tokens, np.stack(rows))

    def confidences(self, anchor: int, drafted: list[int]) -> list[float]:
        self.asked.append((anchor, drafted))
        return [self.confidence[token] for token in (anchor, *drafted[:-1])]


def toy_scheduler(
    model: Any, block_size: int, speculation: Speculation | None = None, draft: Any = None, **sizes: int
) -> Scheduler:
    large = 1 << 20
    values = {"max_running": 4, "chunk": 64, "max_total_tokens": large, "log_interval": large, "max_queued": large}
    values |= sizes
    limits = Limits(block_size=block_size, history=HISTORY, eos=NO_EOS, pad=0, **values)
    if speculation is None:
        speculation = Speculation(logit_unit=1.0)
    return Scheduler(limits, model, draft or ToyDraft(), lambda line: None, speculation)


def sequences(
    block_size: int, count: int, length: int, sampling: dict[str, Any], speculation: Speculation | None = None
) -> tuple[Counter[tuple[int, ...]], Scheduler]:
    """How often each output came, over `count` seeds."""
    scheduler = toy_scheduler(ToyModel(), block_size, speculation)
    requests = [
        Request((1, 2, 0), length, True, lambda tokens, reason: None, Sampling(**sampling, seed=seed))
        for seed in range(count)
    ]
    for request in requests:
        scheduler.submit(request)
    scheduler.drain()
    return Counter(tuple(request.output) for request in requests), scheduler


def chances(logits: Any, temperature: float, top_p: float = 1.0, top_k: int = 0) -> list[float]:
    """Probabilities of the next token, in plain Python and by another way than the engine's."""
    weights = [math.exp(float(value) / temperature) for value in logits]
    ranked = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    if top_k:
        ranked = ranked[:top_k]
    total = sum(weights[token] for token in ranked)
    kept: list[int] = []
    for token in ranked:
        if kept and sum(weights[other] for other in kept) >= top_p * total:
            break
        kept.append(token)
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(weights))]


def exact(length: int, sampling: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """Probability of each output, by enumeration of all of them."""
    model = ToyModel()
    result = {}
    for output in itertools.product(range(VOCAB), repeat=length):
        line = [1, 2, 0]
        chance = 1.0
        for token in output:
            chance *= chances(model.logits(line), **sampling)[token]
            line.append(token)
        result[output] = chance
    return result
