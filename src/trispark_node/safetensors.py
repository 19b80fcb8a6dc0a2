"""Header of a safetensors file: an unsigned 64-bit length, that many bytes of JSON, then the data.

Validated before any offset is used: bounds, element counts, overlaps, duplicate names.
"""

from __future__ import annotations

import json
import math
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from trispark_node.errors import AgentError
from trispark_node.plain_json import whole_number
from trispark_node.regular_file import open_regular

MAX_HEADER_BYTES = 100 * 2**20
MAX_TENSORS = 50_000
"""In one file. Counted before the header is parsed: parsing what is too much takes minutes and gigabytes."""
MAX_DIMENSIONS = 8
MAX_EXTENT = 2**48
"""Of one dimension; checked before anything is multiplied."""
_MOST = {
    b"{": MAX_TENSORS + 2,
    b"[": 2 * MAX_TENSORS,
    b":": 5 * MAX_TENSORS,
    b",": 12 * MAX_TENSORS,
    b"\\": 12 * MAX_TENSORS,
}
"""How often each of these occurs at most: an entry is one object with two lists, 4 colons and at most 11 commas."""
_PIECE_BYTES = 2**20
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """`offset` is absolute in the file; `size` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


def _bad(path: Path, expected: str, observed: str) -> AgentError:
    return AgentError(
        "TS-ENGRAM-CHECKPOINT",
        "a checkpoint file is not usable",
        where=str(path),
        expected=expected,
        observed=observed,
        remedy="fetch or make the checkpoint again",
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def read_header(path: Path) -> dict[str, Tensor]:
    """All tensors of the file by name. Raises TS-ENGRAM-CHECKPOINT."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            file_size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little") if file_size >= 8 else 0
            if not 2 <= length <= min(MAX_HEADER_BYTES, file_size - 8):
                most = min(MAX_HEADER_BYTES, max(file_size - 8, 0))
                raise _bad(path, f"a header of 2 to {most} bytes", f"{file_size} bytes, a header of {length} bytes")
            content = file.read(length)
        header = _parse(path, content)
    except OSError as error:
        raise _bad(path, "a readable file", error.strerror or str(error)) from error
    tensors = {
        name: _tensor(path, name, entry, 8 + length, file_size)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    _refuse_overlaps(path, tensors)
    return tensors


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    for sign, most in _MOST.items():
        found = 0
        for start in range(0, len(content), _PIECE_BYTES):
            found += content.count(sign, start, start + _PIECE_BYTES)
            if found > most:
                raise _bad(
                    path, f"a header of at most {MAX_TENSORS} tensors", f"more than {most} times {sign.decode()}"
                )
    try:
        header = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=whole_number,
            parse_float=_no_fraction,
            parse_constant=_no_fraction,
        )
    except RecursionError:
        raise _bad(path, "a JSON header", "objects or lists nested too deeply") from None
    except ValueError as error:
        raise _bad(path, "a JSON header", str(error)) from error
    if not isinstance(header, dict):
        raise _bad(path, "a JSON object", type(header).__name__)
    return header


def _no_fraction(literal: str) -> int:
    raise ValueError(f"{literal[:40]} where only whole numbers belong")


def _tensor(path: Path, name: str, entry: Any, data_start: int, file_size: int) -> Tensor:
    try:
        dtype, dimensions, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dimensions, list) or len(dimensions) > MAX_DIMENSIONS:
            raise TypeError("shape")
        shape = tuple(dimensions)
        if not all(type(number) is int and 0 <= number <= MAX_EXTENT for number in (*shape, begin, end)):
            raise TypeError("numbers")
        size = math.prod(shape) * ITEM_BYTES[dtype]
    except (KeyError, TypeError, ValueError) as error:
        raise _bad(path, f"dtype, shape and data_offsets of {_short(name)}", reprlib.repr(entry)) from error
    if end - begin != size or data_start + end > file_size:
        raise _bad(
            path,
            f"{size} bytes of {_short(name)} within the file",
            f"bytes {begin} to {end} of {file_size - data_start}",
        )
    return Tensor(name, dtype, shape, data_start + begin, size)


def _short(name: str) -> str:
    return name if len(name) <= 120 else name[:117] + "..."


def _refuse_overlaps(path: Path, tensors: Mapping[str, Tensor]) -> None:
    ordered = sorted((t for t in tensors.values() if t.size), key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.size > after.offset:
            raise _bad(
                path, f"{_short(before.name)} and {_short(after.name)} apart", f"they overlap at byte {after.offset}"
            )
