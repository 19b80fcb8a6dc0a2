"""Next-token statistics of the corpus by n-gram context."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .corpus import Workload
from .tokenizer import EOS, PAD, Tokenizer

Sample = tuple[tuple[int, ...], int]
UNIT = 16
"""Weight of the most frequent successor of a context (the first in the corpus among equals)."""
OTHERS_UNIT = 8
"""All other successors share this weight by frequency, rounded; so a context never loses its own best successor in
the noise of rows that it shares with others."""


@dataclass(frozen=True)
class ContextTable:
    """Distinct contexts of one n-gram size. contexts [C, n] newest first, ids of the compressed vocabulary;
    pairs (context index, next token, weight) as three arrays, sorted by context."""

    contexts: npt.NDArray[np.int64]
    pair_context: npt.NDArray[np.int64]
    pair_token: npt.NDArray[np.int64]
    pair_weight: npt.NDArray[np.int64]


def samples(workload: Workload, tokenizer: Tokenizer, history: int) -> Iterator[Sample]:
    """(last `history` ids, oldest first; next id) for each answer token and its EOS."""
    documents = [(tokenizer.encode(item.prompt), [*tokenizer.encode(item.answer), EOS]) for item in workload.documents]
    for prompt, answer in documents:
        yield from _continuation([PAD] * history + prompt, answer, len(answer), history)
    if workload.stream:
        for index, (_, answer) in enumerate(documents):
            following = documents[(index + 1) % len(documents)][1]
            yield from _continuation([PAD] * history + answer, following, history, history)


def _continuation(before: list[int], after: list[int], count: int, history: int) -> Iterator[Sample]:
    line = before[-history:] + after
    for position in range(min(count, len(after))):
        yield tuple(line[position : position + history]), line[position + history]


def count_contexts(
    all_samples: Iterable[Sample], compress: Sequence[int], sizes: Sequence[int]
) -> dict[int, ContextTable]:
    """One table for each n-gram size, contexts in ascending order."""
    counts: dict[int, dict[tuple[int, ...], Counter[int]]] = {size: defaultdict(Counter) for size in sizes}
    for window, token in all_samples:
        classes = tuple(compress[item] for item in reversed(window))
        for size in sizes:
            counts[size][classes[:size]][token] += 1
    return {size: _table(counts[size], size) for size in sizes}


def _table(counts: dict[tuple[int, ...], Counter[int]], size: int) -> ContextTable:
    contexts = sorted(counts)
    pairs: list[tuple[int, int, int]] = []
    for index, context in enumerate(contexts):
        successors = counts[context]
        best, total = successors.most_common(1)[0][0], successors.total()
        for token, number in sorted(successors.items()):
            weight = UNIT if token == best else (2 * OTHERS_UNIT * number + total) // (2 * total)
            if weight:
                pairs.append((index, token, weight))
    columns = np.array(pairs, dtype=np.int64).T
    return ContextTable(np.array(contexts, dtype=np.int64).reshape(-1, size), columns[0], columns[1], columns[2])


def successor_shares(all_samples: Iterable[Sample], vocab_size: int) -> npt.NDArray[np.float64]:
    """[V]: how often the most frequent successor of each token follows it; 0 for tokens that nothing follows."""
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for window, token in all_samples:
        counts[window[-1]][token] += 1
    shares = np.zeros(vocab_size)
    for token, successors in counts.items():
        shares[token] = successors.most_common(1)[0][1] / successors.total()
    return shares


def bigram_pairs(
    all_samples: Iterable[Sample], vocab_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(previous token, next token, weight) of the draft's Markov head, sorted by the previous token."""
    counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for window, token in all_samples:
        counts[(window[-1],)][token] += 1
    table = _table(counts, 1)
    return table.contexts[table.pair_context, 0], table.pair_token, table.pair_weight
