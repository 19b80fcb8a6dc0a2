"""The checkpoint and the packed shards that tests of the engine read."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

from trispark_lab import make_checkpoint, safetensors

READY = "TRISPARK_TEST_ENGINE_FILES"
"""Names a folder with `checkpoint` and `engram` that are made already, for runs which only read them."""
WORLDS = (1, 3)


def make_engine_files(directory: Path) -> None:
    """`checkpoint`, and `engram` with the shards of a world of one and of three."""
    make_checkpoint.make(directory / "checkpoint")
    (directory / "engram").mkdir()
    for world in WORLDS:
        pack(directory / "checkpoint", directory / "engram", world)


def ready(name: str) -> Path | None:
    """`checkpoint` or `engram` of the folder that the environment names."""
    directory = os.environ.get(READY)
    return Path(directory) / name if directory else None


def pack(checkpoint: Path, directory: Path, world: int) -> None:
    """Packed shards by the field's format, written here independently of the node agent."""
    for path in sorted(checkpoint.glob("model-*.safetensors")):
        infos = safetensors.read_header(path)
        for name in infos:
            if not name.endswith("engram.embed.weight"):
                continue
            layer = int(name.split(".")[1])
            weight = safetensors.read_bytes(infos[name])
            scale = safetensors.read_bytes(infos[f"layers.{layer}.engram.embed.scale"])
            rows = np.concatenate([weight, scale], axis=1)
            for rank in range(world):
                low, high = len(rows) * rank // world, len(rows) * (rank + 1) // world
                header = struct.pack("<6Q", 0x31344E4531565344, layer, low, high, len(rows), 264).ljust(4096, b"\0")
                (directory / f"engram-l{layer}-r{rank}of{world}.bin").write_bytes(header + rows[low:high].tobytes())
