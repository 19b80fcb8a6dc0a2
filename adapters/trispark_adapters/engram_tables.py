"""Where the tables of an Engram layer lie in the checkpoint: file and byte offsets, from safetensors headers alone."""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trispark_hooks.registry import HookError

INDEX: Final = "model.safetensors.index.json"
WEIGHT_BYTES: Final = 256
SCALE_BYTES: Final = 8
MAX_HEADER: Final = 1 << 28


@dataclass(frozen=True)
class Table:
    """`path` holds weights [total, 256] at byte `weight_at` and scales [total, 8] at `scale_at`."""

    path: Path
    weight_at: int
    scale_at: int


def find_table(checkpoint: Path, layer: int, total: int) -> Table:
    """The tables of `layer`, both in one file. HookError TS-ADAPTER-ENGRAM-CHECKPOINT."""
    names = [f"layers.{layer}.engram.embed.{part}" for part in ("weight", "scale")]
    try:
        files = json.loads((checkpoint / INDEX).read_text(encoding="utf-8"))["weight_map"]
        paths = {checkpoint / files[name] for name in names}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _wrong(checkpoint / INDEX, f"files of {names[0]} and {names[1]}", repr(error)) from error
    if len(paths) != 1:
        raise _wrong(checkpoint / INDEX, "both tables in one file", ", ".join(sorted(path.name for path in paths)))
    path = paths.pop()
    header, data_at = _header(path)
    weight_at = _place(path, header, names[0], ("F8_E4M3", [total, WEIGHT_BYTES]))
    scale_at = _place(path, header, names[1], ("F8_E8M0", [total, SCALE_BYTES]))
    return Table(path, data_at + weight_at, data_at + scale_at)


def _header(path: Path) -> tuple[dict[str, Any], int]:
    try:
        with path.open("rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            if size > MAX_HEADER:
                raise _wrong(path, f"a header of at most {MAX_HEADER} bytes", str(size))
            header = json.loads(file.read(size))
    except (OSError, ValueError, struct.error) as error:
        raise _wrong(path, "a safetensors file", repr(error)) from error
    if not isinstance(header, dict):
        raise _wrong(path, "a safetensors header", type(header).__name__)
    return header, 8 + size


def _place(path: Path, header: dict[str, Any], name: str, expected: tuple[str, list[int]]) -> int:
    try:
        entry = header[name]
        begin, end = entry["data_offsets"]
        observed = (entry["dtype"], entry["shape"])
    except (KeyError, TypeError, ValueError) as error:
        raise _wrong(path, name, repr(error)) from error
    if observed != expected or end - begin != math.prod(expected[1]):
        raise _wrong(path, f"{name} {expected[0]} {expected[1]}", f"{observed[0]} {observed[1]}, {end - begin} bytes")
    return int(begin)


def _wrong(where: Path, expected: str, observed: str) -> HookError:
    return HookError(
        f"TS-ADAPTER-ENGRAM-CHECKPOINT: the Engram tables are not found in the checkpoint [where: {where}] expected: "
        f"{expected}; observed: {observed}; remedy: check the mount of DSV41_SOURCE"
    )
