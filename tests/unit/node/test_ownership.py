"""Which rows a rank owns: both layouts against the known real tables, and by their definitions."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_node import ownership
from trispark_node.errors import AgentError

REAL = {"engram_layer_ids": [1, 14], "engram_vocab_size": 16_000_000, "engram_max_ngram_size": 4, "engram_n_heads": 8}
SMALL = {"engram_layer_ids": [1, 14], "engram_vocab_size": 3, "engram_max_ngram_size": 3, "engram_n_heads": 3}


@pytest.mark.parametrize(
    ("layer", "rows", "ends"),
    [
        (1, 384_006_168, [0, 128_000_880, 256_002_934, 384_006_168]),
        (14, 384_016_682, [0, 128_004_290, 256_009_984, 384_016_682]),
    ],
)
def test_the_real_tables_by_columns(layer, rows, ends):
    """Numbers of the field, which came from the engine itself."""
    assert ownership.boundaries("column", REAL, layer, rows, 3) == ends
    assert sum(ownership.column_rows(REAL, layer)) == rows


def test_moduli_are_drawn_in_order_and_never_twice():
    assert ownership.column_rows(SMALL, 1) == [3, 5, 7, 11, 13, 17]
    assert ownership.column_rows(SMALL, 14) == [19, 23, 29, 31, 37, 41]
    assert ownership.boundaries("column", SMALL, 1, 56, 3) == [0, 8, 26, 56]
    assert ownership.column_rows({**SMALL, "engram_layer_ids": [14, 1]}, 14) == [3, 5, 7, 11, 13, 17]


@given(st.integers(0, 200_000))
def test_primes_by_division(number):
    divided = number > 1 and all(number % low for low in range(2, int(number**0.5) + 1))
    assert ownership.is_prime(number) == divided


@pytest.mark.parametrize("composite", [561, 3_215_031_751, 3_825_123_056_546_413_051, 341_550_071_728_321])
def test_strong_pseudoprimes_are_no_primes(composite):
    """Those of the first bases; 37 as the last witness excludes them."""
    assert not ownership.is_prime(composite)
    assert ownership.is_prime(2**61 - 1)


@given(rows=st.integers(1, 10**9), tp=st.integers(1, 16))
def test_even_parts_cover_the_table_and_differ_by_one_row(rows, tp):
    ends = ownership.boundaries("even", {}, 1, rows, tp)
    sizes = [end - first for first, end in pairwise(ends)]
    assert (ends[0], ends[-1], len(sizes)) == (0, rows, tp)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("config", "rows", "tp", "said"),
    [
        ({}, 56, 3, "engram_layer_ids"),
        ({**SMALL, "engram_layer_ids": [2]}, 56, 3, "engram_layer_ids"),
        ({**SMALL, "engram_layer_ids": [1, 1]}, 56, 3, "engram_layer_ids"),
        ({**SMALL, "engram_layer_ids": "1"}, 56, 3, "engram_layer_ids"),
        ({**SMALL, "engram_vocab_size": 0}, 56, 3, "engram_vocab_size"),
        ({**SMALL, "engram_vocab_size": True}, 56, 3, "engram_vocab_size"),
        ({**SMALL, "engram_vocab_size": 10**30}, 56, 3, "engram_vocab_size"),
        ({**SMALL, "engram_n_heads": None}, 56, 3, "engram_n_heads"),
        ({**SMALL, "engram_n_heads": 1024, "engram_max_ngram_size": 64}, 56, 3, "hash columns"),
        ({**SMALL, "engram_max_ngram_size": 1}, 56, 3, "hash columns"),
        (SMALL, 57, 3, "57 rows"),
        (SMALL, 56, 4, "4 divides"),
    ],
)
def test_a_checkpoint_without_columns_is_refused_by_name(config, rows, tp, said):
    with pytest.raises(AgentError) as caught:
        ownership.boundaries("column", config, 1, rows, tp)
    assert caught.value.id == "TS-ENGRAM-COLUMNS"
    assert said in caught.value.expected
    assert ownership.boundaries("even", config, 1, rows, tp)[-1] == rows


def test_whose_rows_they_are():
    assert ownership.whose(SMALL, 1, 56, 3, 8, 26) == ("column", 1)
    assert ownership.whose(SMALL, 1, 56, 3, 18, 37) == ("even", 1)
    assert ownership.whose({}, 1, 56, 3, 8, 26) is None
    assert ownership.whose(SMALL, 1, 56, 3, 8, 37) is None


@pytest.mark.parametrize(
    "content",
    [b"[]", b"{", b"\xff", b"[" * 100_000, b'{"a":' + b"9" * 5_000_000 + b"}", json.dumps("x" * 5_000_000).encode()],
)
def test_a_configuration_that_cannot_be_read_is_a_bad_checkpoint(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(AgentError) as caught:
        ownership.read_config(tmp_path)
    assert caught.value.id == "TS-ENGRAM-CHECKPOINT"
    assert len(str(caught.value)) < 1000


def test_a_checkpoint_without_configuration_has_none(tmp_path):
    assert ownership.read_config(tmp_path) == ownership.Checkpoint(None, {})
