"""Rows of a layer as they lie in a packed shard, read from the checkpoint's two tensors.

The kernel does the interleaving: one `preadv` scatters 1024 weight rows into places 264 bytes apart. That is several
times as fast as any copying in Python and needs no library.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trispark_node import safetensors
from trispark_node.errors import AgentError
from trispark_node.regular_file import open_regular
from trispark_node.shard_format import ROW_BYTES, SCALE_BYTES, WEIGHT_BYTES

CHUNK_ROWS = 4096
"""About 1 MiB: it stays in a core's cache."""
VECTORS = 1024
"""IOV_MAX on Linux: buffers of one preadv."""


@dataclass(frozen=True)
class Table:
    """The two tensors of one layer: `rows` rows of 256 weight bytes and of 8 scale bytes, apart in one file."""

    path: Path
    layer: int
    rows: int
    weight_offset: int
    scale_offset: int


def _bad(where: Path, expected: str, observed: str) -> AgentError:
    return AgentError(
        "TS-ENGRAM-CHECKPOINT",
        "the checkpoint has no usable Engram table",
        where=str(where),
        expected=expected,
        observed=observed,
        remedy="see that the checkpoint is mounted and complete",
    )


def find_tables(checkpoint: Path, layers: tuple[int, ...]) -> dict[int, Table]:
    """The table of each layer. Raises TS-ENGRAM-CHECKPOINT when one is missing, twice there or of another shape."""
    headers: dict[Path, dict[str, safetensors.Tensor]] = {}
    paths = sorted(checkpoint.glob("*.safetensors"))
    if not paths:
        raise _bad(checkpoint, "safetensors files", "none")
    for path in paths:
        headers[path] = safetensors.read_header(path)
    return {layer: _table(checkpoint, headers, layer) for layer in layers}


def _table(checkpoint: Path, headers: dict[Path, dict[str, safetensors.Tensor]], layer: int) -> Table:
    found = {}
    for part, dtype, width in (("weight", "F8_E4M3", WEIGHT_BYTES), ("scale", "F8_E8M0", SCALE_BYTES)):
        name = f"layers.{layer}.engram.embed.{part}"
        holders = [(path, header[name]) for path, header in headers.items() if name in header]
        if len(holders) != 1:
            raise _bad(checkpoint, f"{name} in one file", f"in {len(holders)} files")
        path, tensor = holders[0]
        if tensor.dtype != dtype or len(tensor.shape) != 2 or tensor.shape[1] != width:
            raise _bad(path, f"{name} as {dtype} [N,{width}]", f"{tensor.dtype} {list(tensor.shape)}")
        found[part] = (path, tensor)
    (weight_path, weight), (scale_path, scale) = found["weight"], found["scale"]
    if weight_path != scale_path or weight.shape[0] != scale.shape[0]:
        raise _bad(
            weight_path,
            f"weight and scale of layer {layer} in one file, with as many rows",
            f"{weight.shape[0]} rows here, {scale.shape[0]} in {scale_path.name}",
        )
    return Table(weight_path, layer, weight.shape[0], weight.offset, scale.offset)


class RowReader:
    """Reads the packed rows [first_row, end_row) of one table.

    One buffer is used again and again: a chunk is valid until the next one.
    """

    def __init__(self, table: Table, descriptor: int, first_row: int, end_row: int) -> None:
        self._table = table
        self._descriptor = descriptor
        self._first_row = first_row
        self._end_row = end_row
        self._capacity = min(CHUNK_ROWS, end_row - first_row)
        self._chunk = bytearray(self._capacity * ROW_BYTES)
        view = memoryview(self._chunk)
        self._weights = [view[row * ROW_BYTES : row * ROW_BYTES + WEIGHT_BYTES] for row in range(self._capacity)]
        self._scale_bytes = memoryview(bytearray(self._capacity * SCALE_BYTES))
        # Eight scales are moved as one 64-bit word; the byte order within it is the same on both sides.
        self._words = view.cast("Q")
        self._scale_words = self._scale_bytes.cast("Q")

    def chunks(self) -> Iterator[memoryview]:
        """Packed rows in order, at most CHUNK_ROWS at a time."""
        view = memoryview(self._chunk)
        stride, place = ROW_BYTES // 8, WEIGHT_BYTES // 8
        for start in range(self._first_row, self._end_row, CHUNK_ROWS):
            count = min(self._capacity, self._end_row - start)
            offset = self._table.weight_offset + start * WEIGHT_BYTES
            for low in range(0, count, VECTORS):
                high = min(count, low + VECTORS)
                self._read(self._weights[low:high], offset + low * WEIGHT_BYTES, (high - low) * WEIGHT_BYTES)
            scales = self._scale_bytes[: count * SCALE_BYTES]
            self._read([scales], self._table.scale_offset + start * SCALE_BYTES, len(scales))
            self._words[place : count * stride : stride] = self._scale_words[:count]
            yield view[: count * ROW_BYTES]

    def row(self, row: int) -> bytes:
        """One packed row by its number in the layer."""
        packed = bytearray(ROW_BYTES)
        view = memoryview(packed)
        self._read([view[:WEIGHT_BYTES]], self._table.weight_offset + row * WEIGHT_BYTES, WEIGHT_BYTES)
        self._read([view[WEIGHT_BYTES:]], self._table.scale_offset + row * SCALE_BYTES, SCALE_BYTES)
        return bytes(packed)

    def _read(self, buffers: list[memoryview], offset: int, expected: int) -> None:
        """Fill all buffers; a network file system may answer in parts."""
        got = os.preadv(self._descriptor, buffers, offset)
        while got < expected:
            remaining = []
            skip = got
            for buffer in buffers:
                if skip < len(buffer):
                    remaining.append(buffer[skip:])
                skip = max(0, skip - len(buffer))
            more = os.preadv(self._descriptor, remaining, offset + got)
            if more == 0:
                raise _bad(self._table.path, f"{expected} bytes at {offset}", f"the file ends after {got}")
            got += more


@contextmanager
def open_rows(table: Table, first_row: int, end_row: int) -> Iterator[RowReader]:
    descriptor = open_regular(table.path)
    try:
        yield RowReader(table, descriptor, first_row, end_row)
    finally:
        # The tables are far larger than memory that the engine will want; do not leave them in the page cache.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
