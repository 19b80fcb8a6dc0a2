"""The checkpoint's Engram tables: where the two tensors of a layer lie, and single rows of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trispark_node import safetensors
from trispark_node.errors import AgentError
from trispark_node.native_pack import Source
from trispark_node.regular_file import open_regular
from trispark_node.shard_format import SCALE_BYTES, WEIGHT_BYTES


@dataclass(frozen=True)
class Table:
    """The two tensors of one layer: `rows` rows of 256 weight bytes and of 8 scale bytes, apart in one file of `size`
    bytes."""

    path: Path
    size: int
    layer: int
    rows: int
    weight_offset: int
    scale_offset: int

    @property
    def source(self) -> Source:
        """For the packing library."""
        return Source(self.path, self.weight_offset, self.scale_offset)


def unusable(where: Path, expected: str, observed: str) -> AgentError:
    """TS-ENGRAM-CHECKPOINT."""
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
        raise unusable(checkpoint, "safetensors files", "none")
    for path in paths:
        headers[path] = safetensors.read_header(path)
    return {layer: _table(checkpoint, headers, layer) for layer in layers}


def _table(checkpoint: Path, headers: dict[Path, dict[str, safetensors.Tensor]], layer: int) -> Table:
    found = {}
    for part, dtype, width in (("weight", "F8_E4M3", WEIGHT_BYTES), ("scale", "F8_E8M0", SCALE_BYTES)):
        name = f"layers.{layer}.engram.embed.{part}"
        holders = [(path, header[name]) for path, header in headers.items() if name in header]
        if len(holders) != 1:
            raise unusable(checkpoint, f"{name} in one file", f"in {len(holders)} files")
        path, tensor = holders[0]
        if tensor.dtype != dtype or len(tensor.shape) != 2 or tensor.shape[1] != width:
            raise unusable(path, f"{name} as {dtype} [N,{width}]", f"{tensor.dtype} {list(tensor.shape)}")
        found[part] = (path, tensor)
    (weight_path, weight), (scale_path, scale) = found["weight"], found["scale"]
    if weight_path != scale_path or weight.shape[0] != scale.shape[0]:
        raise unusable(
            weight_path,
            f"weight and scale of layer {layer} in one file, with as many rows",
            f"{weight.shape[0]} rows here, {scale.shape[0]} in {scale_path.name}",
        )
    size = weight_path.stat().st_size
    return Table(weight_path, size, layer, weight.shape[0], weight.offset, scale.offset)


class RowReader:
    """Single rows of a table as they lie in a packed shard."""

    def __init__(self, table: Table, descriptor: int) -> None:
        self._table = table
        self._descriptor = descriptor

    def row(self, row: int) -> bytes:
        """One packed row by its number in the layer."""
        weight = self._read(self._table.weight_offset + row * WEIGHT_BYTES, WEIGHT_BYTES)
        return weight + self._read(self._table.scale_offset + row * SCALE_BYTES, SCALE_BYTES)

    def _read(self, offset: int, size: int) -> bytes:
        """A network file system may answer in parts."""
        content = b""
        while len(content) < size:
            piece = os.pread(self._descriptor, size - len(content), offset + len(content))
            if not piece:
                raise unusable(self._table.path, f"{size} bytes at {offset}", f"the file ends after {len(content)}")
            content += piece
        return content


@contextmanager
def open_rows(table: Table) -> Iterator[RowReader]:
    descriptor = open_regular(table.path)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead: rows are far apart
        yield RowReader(table, descriptor)
    finally:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
