"""Tensors of a checkpoint directory by name."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import safetensors
from .errors import EngineError


class Checkpoint:
    """Index over the safetensors files; headers are read once, data on demand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        path = directory / "model.safetensors.index.json"
        try:
            weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
            if not isinstance(weight_map, dict):
                raise ValueError("weight_map is no object")
            names = sorted(set(weight_map.values()))
            if not all(isinstance(name, str) and name == Path(name).name and name not in ("", "..") for name in names):
                raise ValueError("weight_map names a path")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._error(
                str(path), "an index of tensors by plain file name", f"{type(error).__name__}: {error}"
            ) from error
        self._infos: dict[str, safetensors.TensorInfo] = {}
        for name in names:
            for tensor, info in safetensors.read_header(directory / name).items():
                if weight_map.get(tensor) == name:
                    self._infos[tensor] = info

    def info(self, name: str, dtype: str, shape: tuple[int, ...]) -> safetensors.TensorInfo:
        """Place of a tensor which must have this dtype and shape."""
        info = self._infos.get(name)
        if info is None or info.dtype != dtype or info.shape != shape:
            observed = "absent" if info is None else f"{info.dtype} {list(info.shape)}"
            raise self._error(f"{self.directory}: {name}", f"{dtype} {list(shape)}", observed)
        return info

    def scaled(
        self, name: str, shape: tuple[int, int], block: int
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """(weight codes, block scale codes) of `name`.weight and `name`.scale."""
        weight = self.info(f"{name}.weight", "F8_E4M3", shape)
        scale = self.info(f"{name}.scale", "F8_E8M0", (-(-shape[0] // block), -(-shape[1] // block)))
        return safetensors.read_bytes(weight), safetensors.read_bytes(scale)

    @staticmethod
    def _error(where: str, expected: str, observed: str) -> EngineError:
        return EngineError(
            "TS-ENGINE-CHECKPOINT",
            "checkpoint does not fit",
            where=where,
            expected=expected,
            observed=observed,
            remedy="check --model-path and DSV41_SOURCE, or make the checkpoint again",
        )
