"""The packed Engram shard: one file for the rows of one layer that one rank owns.

4096 bytes of header: six unsigned 64-bit little-endian integers (magic, layer, first row, end row, total rows, row
bytes), the rest zero. Then the rows back to back, 264 bytes each: 256 weights (F8_E4M3), 8 scales (F8_E8M0).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

MAGIC = 0x31344E4531565344
HEADER_BYTES = 4096
WEIGHT_BYTES = 256
SCALE_BYTES = 8
ROW_BYTES = WEIGHT_BYTES + SCALE_BYTES
_FIELDS = struct.Struct("<6Q")
FIELD_NAMES = ("magic", "layer", "first_row", "end_row", "total_rows", "row_bytes")
MANIFEST_SUFFIX = ".manifest.json"
PARTIAL_SUFFIX = ".partial"
FILE_NAME = re.compile(r"engram-l\d+-r\d+of\d+\.bin(?P<suffix>\.manifest\.json|\.partial)?")
"""Of a shard, or of what lies beside one."""


@dataclass(frozen=True)
class Shard:
    """`first_row` inclusive, `end_row` exclusive, of `total_rows` of the layer."""

    layer: int
    rank: int
    tp: int
    first_row: int
    end_row: int
    total_rows: int

    @classmethod
    def of(cls, layer: int, rank: int, ends: Sequence[int]) -> Shard:
        """`ends`: tp + 1 row numbers, as `ownership.boundaries` gives them."""
        return cls(layer, rank, len(ends) - 1, ends[rank], ends[rank + 1], ends[-1])

    @property
    def name(self) -> str:
        return f"engram-l{self.layer}-r{self.rank}of{self.tp}.bin"

    @property
    def rows(self) -> int:
        return self.end_row - self.first_row

    @property
    def size(self) -> int:
        return HEADER_BYTES + ROW_BYTES * self.rows

    def fields(self) -> dict[str, int]:
        """The six fields of the header by FIELD_NAMES."""
        values = (MAGIC, self.layer, self.first_row, self.end_row, self.total_rows, ROW_BYTES)
        return dict(zip(FIELD_NAMES, values, strict=True))

    def header(self) -> bytes:
        """All 4096 bytes."""
        return _FIELDS.pack(*self.fields().values()).ljust(HEADER_BYTES, b"\0")


def fields_of(header: bytes) -> dict[str, int]:
    """The six fields of 48 bytes or more, by FIELD_NAMES."""
    return dict(zip(FIELD_NAMES, _FIELDS.unpack_from(header), strict=True))


def header_difference(expected: bytes, observed: bytes) -> str | None:
    """In words; None when the 4096 bytes are equal."""
    if expected == observed:
        return None
    wanted, found = fields_of(expected), fields_of(observed)
    fields = [
        f"{name.replace('_', ' ')} is {found[name]}, not {wanted[name]}"
        for name in FIELD_NAMES
        if found[name] != wanted[name]
    ]
    return ", ".join(fields) or "bytes after the six fields are not zero"
