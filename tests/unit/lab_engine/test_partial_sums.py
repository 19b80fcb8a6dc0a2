"""Sums over ranks: every row is of one rank, also at the borders of the ranks' shares."""

from pathlib import Path
from typing import Any

import numpy as np
from local_ranks import HISTORY, Loading, local_ranks

from trispark_lab.collective import Collective
from trispark_lab.steps import Segment, StepRunner
from trispark_lab.tokenizer import FIRST_PIECE, Tokenizer


def windows_at(layer: Any, classes: Any, wanted: int) -> list[tuple[int, ...]]:
    """Tokens, oldest first, of a window that needs the row `wanted`; found by trying."""
    tried = np.random.default_rng(wanted).integers(FIRST_PIECE, len(classes), (120_000, HISTORY + 1))
    found = (layer.hashes.row_ids(classes[tried]) == wanted).any(axis=1)
    return [tuple(window[::-1].tolist()) for window in tried[found][:1]]


def test_a_row_at_a_border_is_of_one_rank(
    checkpoint: Path, packed: Path, tmp_path: Path, tokenizer: Tokenizer, generator: Any
) -> None:
    classes = np.array(tokenizer.compressed_ids())
    with local_ranks(checkpoint, packed, tmp_path, tokenizer, Loading()) as ranks:
        segments = []
        for place, layer in enumerate(generator.model.layers):
            for rank in range(3):
                shard = ranks.models[rank].layers[place].store.shard
                for row in (shard.first, shard.end - 1):
                    windows = windows_at(layer, classes, row)
                    assert windows, "no tokens need the row"
                    segments += [Segment(window[:-1], window[-1:], 1) for window in windows]
        one = StepRunner(generator.model, Collective(None)).forward(segments)
        assert np.array_equal(ranks.runner.forward(segments), one)
        for place in range(len(generator.model.layers)):
            assert sum(counts.lookups for counts in ranks.counts(place)) == 24 * len(segments)
