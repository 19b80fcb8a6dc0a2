"""The quick level on a file of the real size: it reads next to nothing, so it may run at each boot."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from trispark_node import native_pack, ownership, shard_manifest
from trispark_node.engram_tables import find_tables
from trispark_node.shard_format import Shard
from trispark_node.shard_manifest import Origin

ROWS = 384_006_168
SHARD_BYTES = 33_792_546_880
READS_AT_MOST = 4 * 2**20


def counted_reads() -> int:
    """Bytes that this process and its ended children have read by system calls."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


@pytest.fixture
def real_size(tmp_path):
    """(request, path of the shard, which is still to be made): a sparse checkpoint with a table of the real size."""
    checkpoint, place = tmp_path / "checkpoint", tmp_path / "engram"
    checkpoint.mkdir()
    place.mkdir()
    weights, scales = ROWS * 256, ROWS * 8
    header = json.dumps(
        {
            "layers.1.engram.embed.weight": {"dtype": "F8_E4M3", "shape": [ROWS, 256], "data_offsets": [0, weights]},
            "layers.1.engram.embed.scale": {
                "dtype": "F8_E8M0",
                "shape": [ROWS, 8],
                "data_offsets": [weights, weights + scales],
            },
        }
    ).encode()
    with (checkpoint / "model-00047.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + weights + scales)
    shard = Shard.of(1, 0, ownership.boundaries("even", {}, 1, ROWS, 3))
    assert shard.size == SHARD_BYTES
    origin = Origin(shard, find_tables(checkpoint, (1,))[1], "even", None, None)
    chunks = ("00" * 32,) * -(-shard.size // native_pack.CHUNK_BYTES)
    manifest = shard_manifest.make(origin, chunks, "packed").content()
    (place / f"{shard.name}.manifest.json").write_bytes(manifest)
    ask = {"checkpoint": str(checkpoint), "directory": str(place), "rank": 0, "tp": 3, "layers": [1]}
    return {"action": "verify", **ask}, place / shard.name, shard.header()


def test_a_file_of_the_real_size_is_judged_by_a_few_reads(bench, real_size):
    ask, path, header = real_size
    with path.open("wb") as file:
        file.write(header)
        file.truncate(SHARD_BYTES)
    before = counted_reads()
    row = bench.ask("engram", **ask)["files"][0]
    assert (row["state"], row["checked"], row["bytes"]) == ("ok", "sampled", SHARD_BYTES)
    assert 256 * 264 * 2 < counted_reads() - before < READS_AT_MOST


@pytest.mark.slow
def test_an_allocated_file_of_the_real_size_takes_less_than_two_seconds(bench, real_size, tmp_path):
    ask, path, header = real_size
    free = os.statvfs(tmp_path)
    if free.f_bavail * free.f_frsize < SHARD_BYTES + 8 * 2**30:
        pytest.skip("no room for a shard of the real size")
    with path.open("wb") as file:
        file.write(header)
        try:
            os.posix_fallocate(file.fileno(), 0, SHARD_BYTES)
        except OSError as error:
            pytest.skip(f"this file system allocates nothing ahead: {error.strerror}")
    began = time.monotonic()
    assert bench.ask("engram", **ask)["files"][0]["state"] == "ok"
    seconds = time.monotonic() - began
    path.unlink()
    assert seconds < 2, seconds
