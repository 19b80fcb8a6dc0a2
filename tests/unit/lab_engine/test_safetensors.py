import json
from pathlib import Path

import numpy as np
import pytest

from trispark_lab import safetensors
from trispark_lab.checkpoint import Checkpoint
from trispark_lab.errors import EngineError


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    first = np.arange(6, dtype=np.uint8).reshape(2, 3)
    second = np.arange(4, dtype=np.uint8)
    safetensors.write_file(path, [("b", "F8_E4M3", first), ("a", "F8_E8M0", second)])
    infos = safetensors.read_header(path)
    assert infos["b"].begin % 8 == 0
    assert infos["a"].begin == infos["b"].begin + 6
    assert np.array_equal(safetensors.read_bytes(infos["b"]), first)
    assert np.array_equal(safetensors.read_bytes(infos["a"]), second)


def entry(**changes: object) -> dict[str, object]:
    return {"t": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **changes}}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        json.dumps({"t": 1}).encode(),
        json.dumps(entry(dtype="F64")).encode(),
        json.dumps(entry(shape=[5])).encode(),
        json.dumps(entry(shape=[-4])).encode(),
        json.dumps(entry(shape=[True, 4])).encode(),
        json.dumps(entry(data_offsets=[0, 4, 8])).encode(),
        json.dumps(entry(shape=[900], data_offsets=[0, 900])).encode(),
        json.dumps({**entry(), "u": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}).encode(),
    ],
)
def test_hostile_headers_are_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(EngineError, match="TS-ENGINE-CHECKPOINT"):
        safetensors.read_header(path)


@pytest.mark.parametrize("content", [b"", b"\x01\x02", (1 << 60).to_bytes(8, "little") + b"{}"])
def test_hostile_lengths_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(EngineError, match="TS-ENGINE-CHECKPOINT"):
        safetensors.read_header(path)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "..", ""])
def test_an_index_may_not_name_paths(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"t": name}}))
    with pytest.raises(EngineError, match="weight_map names a path"):
        Checkpoint(tmp_path)
