import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_lab.hashing import LayerHash, build_hashes, owned_range, primes_above

HASHES = build_hashes((1, 14), max_ngram=4, heads=8, vocab_size=8192, compressed_vocab_size=2000)
TOKENS = st.lists(st.integers(0, 1999), min_size=4, max_size=4)


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def test_primes_ascend_over_all_layers_and_none_comes_twice() -> None:
    drawn = [int(prime) for layer in (1, 14) for prime in HASHES[layer].primes]
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 48
    assert drawn[0] == next(number for number in range(8192, 9000) if is_prime(number))
    assert all(is_prime(prime) for prime in drawn)


def test_a_prime_equal_to_the_vocabulary_counts() -> None:
    assert primes_above(11 - 1, 2) == [11, 13]


@pytest.mark.parametrize("layer", [1, 14])
def test_columns_fill_the_table_without_gap(layer: int) -> None:
    hashes = HASHES[layer]
    assert hashes.rows == int(hashes.primes.sum())
    assert hashes.offsets[0] == 0
    assert np.array_equal(hashes.offsets[1:], np.cumsum(hashes.primes)[:-1])


@pytest.mark.parametrize("layer", [1, 14])
def test_multipliers_are_odd_and_of_the_seed(layer: int) -> None:
    multipliers = HASHES[layer].multipliers
    half = (2**63 - 1) // 2000 // 2
    expected = 2 * np.random.default_rng(10007 * layer).integers(0, half, size=4, dtype=np.int64) + 1
    assert np.array_equal(multipliers, expected)
    assert (multipliers % 2 == 1).all()


def reference(hashes: LayerHash, tokens: list[int]) -> list[int]:
    ids = []
    for size in (2, 3, 4):
        mixed = 0
        for position in range(size):
            mixed ^= tokens[position] * int(hashes.multipliers[position])
        for head in range(8):
            column = (size - 2) * 8 + head
            ids.append(mixed % int(hashes.primes[column]) + int(hashes.offsets[column]))
    return ids


@given(st.lists(TOKENS, min_size=1, max_size=3), st.sampled_from([1, 14]))
def test_row_ids_equal_plain_python(windows: list[list[int]], layer: int) -> None:
    ids = HASHES[layer].row_ids(np.array(windows, dtype=np.int64))
    assert ids.tolist() == [reference(HASHES[layer], window) for window in windows]


@given(TOKENS, st.integers(0, 1999))
def test_short_ngrams_ignore_older_tokens(tokens: list[int], other: int) -> None:
    changed = [*tokens[:3], other]
    ids = HASHES[1].row_ids(np.array([tokens, changed], dtype=np.int64))
    assert np.array_equal(ids[0, :16], ids[1, :16])


@given(st.integers(0, 10**12), st.integers(1, 9))
def test_owned_ranges_are_a_partition(rows: int, world: int) -> None:
    ranges = [owned_range(rows, rank, world) for rank in range(world)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == rows
    assert all(left[1] == right[0] for left, right in itertools.pairwise(ranges))


def test_owned_ranges_of_the_field() -> None:
    assert owned_range(384_016_682, 1, 3) == (128_005_560, 256_011_121)
    assert owned_range(384_006_168, 2, 3) == (256_004_112, 384_006_168)
