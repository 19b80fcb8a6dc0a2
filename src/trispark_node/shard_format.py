"""The packed Engram shard: one file for the rows of one layer that one rank owns.

4096 bytes of header: six unsigned 64-bit little-endian integers (magic, layer, first row, end row, total rows, row
bytes), the rest zero. Then the rows back to back, 264 bytes each: 256 weights (F8_E4M3), 8 scales (F8_E8M0).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC = 0x31344E4531565344
HEADER_BYTES = 4096
WEIGHT_BYTES = 256
SCALE_BYTES = 8
ROW_BYTES = WEIGHT_BYTES + SCALE_BYTES
_FIELDS = struct.Struct("<6Q")


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
    def of(cls, layer: int, rank: int, tp: int, total_rows: int) -> Shard:
        return cls(layer, rank, tp, total_rows * rank // tp, total_rows * (rank + 1) // tp, total_rows)

    @property
    def name(self) -> str:
        return f"engram-l{self.layer}-r{self.rank}of{self.tp}.bin"

    @property
    def rows(self) -> int:
        return self.end_row - self.first_row

    @property
    def size(self) -> int:
        return HEADER_BYTES + ROW_BYTES * self.rows

    def header(self) -> bytes:
        """All 4096 bytes."""
        values = (MAGIC, self.layer, self.first_row, self.end_row, self.total_rows, ROW_BYTES)
        return _FIELDS.pack(*values).ljust(HEADER_BYTES, b"\0")


def header_difference(expected: bytes, observed: bytes) -> str | None:
    """In words; None when the 4096 bytes are equal."""
    if expected == observed:
        return None
    names = ("magic", "layer", "first row", "end row", "total rows", "row bytes")
    pairs = zip(names, _FIELDS.unpack_from(expected), _FIELDS.unpack_from(observed), strict=True)
    fields = [f"{name} is {was}, not {wanted}" for name, wanted, was in pairs if wanted != was]
    return ", ".join(fields) or "bytes after the six fields are not zero"
