"""Which rows of a layer's table a rank owns: named, versioned layouts.

`even`    rank r of T owns [N*r//T, N*(r+1)//T).
`column`  boundaries follow the hash columns of the table. The table holds one block of rows for each column, as long as
          the column's prime modulus; rank r owns the columns [C*r//T, C*(r+1)//T). The moduli are the ascending primes
          above engram_vocab_size - 1, drawn in the order layer, n-gram size, head, and never used twice.

An engine of one layout aborts on a shard of the other one, so a shard's layout is part of what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from trispark_node.canonical import sha256_hex
from trispark_node.errors import AgentError
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_bounded

EVEN, COLUMN = "even", "column"
VERSIONS: Mapping[str, int] = {EVEN: 1, COLUMN: 1}
"""Raised when the meaning of a name changes; a manifest says which one a shard was made for."""
CONFIG = "config.json"
MAX_CONFIG_BYTES = 4 * 2**20
MAX_COLUMNS = 4096
"""Of one layer; more than any engine hashes."""
_MAX_VOCABULARY = 2**40
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Miller and Rabin's test with these is exact below 3.3e24."""


@dataclass(frozen=True)
class Checkpoint:
    """What config.json says. `sha256`: of the file, None without one; `values`: its object, empty without one."""

    sha256: str | None
    values: Mapping[str, Any]


def read_config(checkpoint: Path) -> Checkpoint:
    """Raises TS-ENGRAM-CHECKPOINT for a file that is no JSON object."""
    path = checkpoint / CONFIG
    try:
        content = read_bounded(path, MAX_CONFIG_BYTES)
        values = parse_json(content, any_text=True)
        if not isinstance(values, dict):
            raise ValueError(f"a {type(values).__name__}")
    except FileNotFoundError:
        return Checkpoint(None, {})
    except (OSError, ValueError) as error:
        raise AgentError(
            "TS-ENGRAM-CHECKPOINT",
            "the checkpoint's configuration cannot be read",
            where=str(path),
            expected=f"one JSON object of at most {MAX_CONFIG_BYTES} bytes",
            observed=str(error),
            remedy="fetch or make the checkpoint again",
        ) from error
    return Checkpoint(sha256_hex(content), values)


def boundaries(layout: str, config: Mapping[str, Any], layer: int, rows: int, tp: int) -> list[int]:
    """tp + 1 row numbers: rank r owns [result[r], result[r + 1]).

    Raises TS-ENGRAM-COLUMNS where the layout cannot be had from this checkpoint.
    """
    if layout == EVEN:
        return [rows * rank // tp for rank in range(tp + 1)]
    columns = column_rows(config, layer)
    if sum(columns) != rows:
        raise _no_columns(f"{rows} rows of layer {layer}, the sum of its moduli", f"a sum of {sum(columns)}")
    if len(columns) % tp:
        raise _no_columns(f"a number of columns that {tp} divides", f"{len(columns)} columns")
    starts = [0, *accumulate(columns)]
    return [starts[len(columns) * rank // tp] for rank in range(tp + 1)]


def column_rows(config: Mapping[str, Any], layer: int) -> list[int]:
    """The moduli of a layer's hash columns, in their order in the table."""
    layers = config.get("engram_layer_ids")
    if not isinstance(layers, list) or layers.count(layer) != 1 or not all(type(each) is int for each in layers):
        raise _no_columns(f"engram_layer_ids with layer {layer}", f"{layers!r:.80}")
    vocabulary = _whole(config, "engram_vocab_size", _MAX_VOCABULARY)
    columns = (_whole(config, "engram_max_ngram_size", 64) - 1) * _whole(config, "engram_n_heads", 1024)
    if not 0 < columns * len(layers) <= MAX_COLUMNS:
        raise _no_columns(f"1 to {MAX_COLUMNS} hash columns", str(columns * len(layers)))
    place = layers.index(layer) * columns
    moduli: list[int] = []
    candidate = vocabulary
    while len(moduli) < place + columns:
        if is_prime(candidate):
            moduli.append(candidate)
        candidate += 1
    return moduli[place:]


def _whole(config: Mapping[str, Any], key: str, most: int) -> int:
    value = config.get(key)
    if type(value) is not int or not 1 <= value <= most:
        raise _no_columns(f"{key} of 1 to {most}", f"{value!r:.80}")
    return value


def is_prime(number: int) -> bool:
    """Exact for what a table can have."""
    if number < 2:
        return False
    for small in _WITNESSES:
        if number % small == 0:
            return number == small
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, witness, odd, twos) for witness in _WITNESSES)


def _passes(number: int, witness: int, odd: int, twos: int) -> bool:
    value = pow(witness, odd, number)
    if value in (1, number - 1):
        return True
    for _ in range(twos - 1):
        value = value * value % number
        if value == number - 1:
            return True
    return False


def whose(config: Mapping[str, Any], layer: int, rows: int, tp: int, first: int, end: int) -> tuple[str, int] | None:
    """(layout, rank) when [first, end) is the part of a rank in one of the layouts that this checkpoint can have."""
    for layout in VERSIONS:
        try:
            ends = boundaries(layout, config, layer, rows, tp)
        except AgentError:
            continue
        for rank in range(tp):
            if (ends[rank], ends[rank + 1]) == (first, end):
                return layout, rank
    return None


def _no_columns(expected: str, observed: str) -> AgentError:
    return AgentError(
        "TS-ENGRAM-COLUMNS",
        "the column layout cannot be had from this checkpoint",
        where=CONFIG,
        expected=expected,
        observed=observed,
        remedy="set site_engram_layout: even, or give the checkpoint that the engine image is made for",
    )
