"""Minimal safetensors reader and writer: enough for 8-bit checkpoints, strict about what it reads."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .errors import EngineError

ITEM_BYTES = {"F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "BF16": 2, "I32": 4, "F32": 4}
MAX_HEADER_BYTES = 16 << 20


@dataclass(frozen=True)
class TensorInfo:
    """Place of one tensor: `begin` is its absolute byte offset in `path`."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    nbytes: int


def _damaged(
    path: Path, observed: str, expected: str = "a safetensors file as written by the checkpoint maker"
) -> EngineError:
    return EngineError(
        "TS-ENGINE-CHECKPOINT",
        "checkpoint file can not be used",
        where=str(path),
        expected=expected,
        observed=observed,
        remedy="make or copy the checkpoint again",
    )


def read_header(path: Path) -> dict[str, TensorInfo]:
    """All tensors of one file. EngineError TS-ENGINE-CHECKPOINT when header, sizes or offsets do not fit."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) != 8:
                raise _damaged(path, f"{size} bytes")
            length = int.from_bytes(prefix, "little")
            if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise _damaged(path, f"header length {length} in a file of {size} bytes")
            document = json.loads(file.read(length))
    except OSError as error:
        raise _damaged(path, error.strerror or "unreadable") from error
    except ValueError as error:
        raise _damaged(path, "header is not JSON") from error
    if not isinstance(document, dict):
        raise _damaged(path, "header is not an object")
    start = 8 + length
    tensors: dict[str, TensorInfo] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in document.items():
        if name == "__metadata__":
            continue
        info = _tensor_info(path, name, entry, start)
        if info.begin + info.nbytes > size:
            raise _damaged(path, f"{name} ends at {info.begin + info.nbytes}, the file at {size}")
        spans.append((info.begin, info.begin + info.nbytes))
        tensors[name] = info
    spans.sort()
    if any(left[1] > right[0] for left, right in itertools.pairwise(spans)):
        raise _damaged(path, "tensors overlap")
    return tensors


def _tensor_info(path: Path, name: str, entry: object, start: int) -> TensorInfo:
    if not isinstance(entry, dict):
        raise _damaged(path, f"entry of {name} is not an object")
    dtype, shape, offsets = entry.get("dtype"), _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
    if dtype not in ITEM_BYTES:
        raise _damaged(path, f"{name} has dtype {dtype!r}")
    if shape is None or offsets is None or len(offsets) != 2:
        raise _damaged(path, f"{name} has shape {entry.get('shape')!r}, offsets {entry.get('data_offsets')!r}")
    nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != nbytes:
        raise _damaged(path, f"{name} holds {offsets[1] - offsets[0]} bytes", f"{nbytes} bytes")
    return TensorInfo(name, path, dtype, shape, start + offsets[0], nbytes)


def _sizes(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(item) is int and item >= 0 for item in value):
        return tuple(value)
    return None


def read_bytes(info: TensorInfo) -> npt.NDArray[np.uint8]:
    """Raw bytes of an 8-bit tensor, in its shape."""
    if ITEM_BYTES[info.dtype] != 1:
        raise _damaged(info.path, f"{info.name} is {info.dtype}", "an 8-bit tensor")
    flat = np.fromfile(info.path, dtype=np.uint8, count=info.nbytes, offset=info.begin)
    if flat.size != info.nbytes:
        raise _damaged(info.path, f"{info.name} is cut short")
    return flat.reshape(info.shape)


def write_file(path: Path, tensors: Sequence[tuple[str, str, npt.NDArray[np.uint8]]]) -> None:
    """Write (name, dtype, 8-bit data) in the given order; the data begins at a multiple of 8."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, data in tensors:
        header[name] = {"dtype": dtype, "shape": list(data.shape), "data_offsets": [position, position + data.nbytes]}
        position += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, _, data in tensors:
            file.write(np.ascontiguousarray(data).data)
