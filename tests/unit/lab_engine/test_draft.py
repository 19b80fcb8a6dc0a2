"""The checkpoint's draft: what it reports is what it draws from, and a block is one chain of tokens."""

from typing import Any

import numpy as np
import pytest

from trispark_lab import e4m3
from trispark_lab.checkpoint import Checkpoint
from trispark_lab.config import load_model_config
from trispark_lab.draft import DRAFT_DIM, DRAFT_UNIT

COUNT = 6


@pytest.fixture(scope="module")
def scores(checkpoint: Any) -> Any:
    """scores(token): of each next token, in nats."""
    config = load_model_config(checkpoint)
    heads = [
        e4m3.dequantise(*Checkpoint(checkpoint).scaled(f"mtp.0.markov_head.markov_w{number}", shape, config.block))
        for number, shape in ((1, (config.vocab_size, DRAFT_DIM)), (2, (config.vocab_size, DRAFT_DIM)))
    ]
    first, second = (head.astype(np.float64) for head in heads)
    return lambda token: second @ first[token] / DRAFT_UNIT


def test_a_greedy_block_follows_the_best_successors(generator: Any, scores: Any) -> None:
    anchor = generator.tokenizer.encode("Bread")[0]
    drafted = generator.draft.propose(anchor, COUNT)
    line = [anchor, *drafted]
    assert drafted == [int(scores(token).argmax()) for token in line[:-1]]
    assert len(set(drafted)) > 2


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.0])
def test_a_sampled_block_is_drawn_from_what_it_reports(generator: Any, scores: Any, temperature: float) -> None:
    """Token by token: the softmax of the scores after the token before, and its quantile at the uniform number."""
    anchor = generator.tokenizer.encode("Bread")[0]
    for seed in range(5):
        uniforms = np.random.default_rng(seed).random(COUNT)
        block = generator.draft.sample(anchor, temperature, uniforms)
        before = anchor
        for row, token, uniform in zip(block.proposal, block.tokens, uniforms, strict=True):
            weights = np.exp((scores(before) - scores(before).max()) / temperature)
            assert row == pytest.approx(weights / weights.sum(), abs=1e-12)
            below = np.cumsum(row)
            assert (below[token - 1] if token else 0.0) <= uniform <= below[token] + 1e-12
            assert row[token] > 0
            before = token
