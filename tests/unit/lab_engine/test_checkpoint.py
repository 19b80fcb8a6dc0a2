import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest

from trispark_lab import e4m3, make_checkpoint, projection, safetensors
from trispark_lab.checkpoint import Checkpoint
from trispark_lab.config import load_model_config, parse
from trispark_lab.errors import EngineError
from trispark_lab.logs import EngineLog
from trispark_lab.rank import start_rank
from trispark_lab.tokenizer import Tokenizer

TABLES = {1: "model-00001-of-00003.safetensors", 14: "model-00002-of-00003.safetensors"}


def test_the_same_bytes_each_time(checkpoint: Path, tmp_path: Path) -> None:
    make_checkpoint.make(tmp_path)
    digests = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}
        for directory in (checkpoint, tmp_path)
    ]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 6


@pytest.mark.parametrize("layer", [1, 14])
def test_table_layout(checkpoint: Path, layer: int) -> None:
    infos = safetensors.read_header(checkpoint / TABLES[layer])
    weight, scale = infos[f"layers.{layer}.engram.embed.weight"], infos[f"layers.{layer}.engram.embed.scale"]
    config = load_model_config(checkpoint)
    rows = config.rows[config.layers.index(layer)]
    assert 190_000 < rows < 210_000
    assert (weight.dtype, weight.shape) == ("F8_E4M3", (rows, 256))
    assert (scale.dtype, scale.shape) == ("F8_E8M0", (rows, 8))
    assert scale.begin - (weight.begin + weight.nbytes) > 1 << 20, "another tensor lies between"
    assert infos[f"layers.{layer}.attn.wo_a.weight"].shape == (2048, 768)
    assert infos[f"layers.{layer}.attn.wo_a.scale"].shape == (64, 24)


@pytest.mark.parametrize("layer", [1, 14])
def test_rows_are_small_integers_with_small_scales(checkpoint: Path, layer: int) -> None:
    infos = safetensors.read_header(checkpoint / TABLES[layer])
    values = e4m3.E4M3_VALUES[safetensors.read_bytes(infos[f"layers.{layer}.engram.embed.weight"])[::17]]
    assert np.array_equal(values, np.round(values))
    assert np.abs(values).max() <= 15
    scales = np.unique(safetensors.read_bytes(infos[f"layers.{layer}.engram.embed.scale"]))
    assert set(scales.tolist()) <= {127, 128, 129, 130}
    # The largest partial sum the engine can meet, all terms at their bound, is exact in float32.
    assert 15 * 8 * (1 + 4 + 16) * 256 * 8 * 2 < 1 << 24


FILES = [
    "config.json",
    "tokenizer.json",
    "model.safetensors.index.json",
    TABLES[14],
    "model-00003-of-00003.safetensors",
]


def start(directory: Path, packed: Path) -> None:
    """What each rank does first, on one rank."""
    engine = parse(["--model-path", str(directory)], {"DSV41_PACKED_DIR": str(packed), "DSV41_STATS_SECONDS": "0"})
    start_rank(engine, EngineLog(0, 1, io.StringIO()))


def linked(checkpoint: Path, directory: Path) -> Path:
    for path in checkpoint.iterdir():
        (directory / path.name).symlink_to(path)
    return directory


@pytest.mark.parametrize("name", [*FILES, ""])
def test_a_missing_checkpoint_is_one_line(checkpoint: Path, packed: Path, tmp_path: Path, name: str) -> None:
    directory = linked(checkpoint, tmp_path)
    if name:
        (directory / name).unlink()
    else:
        directory = tmp_path / "nowhere"
    with pytest.raises(EngineError, match=r"^TS-ENGINE-CHECKPOINT: ") as caught:
        start(directory, packed)
    assert str(directory) in caught.value.where
    assert "\n" not in str(caught.value)
    assert all((caught.value.expected, caught.value.observed, caught.value.remedy))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff\xfe", b"\x00" * 64], ids=str)
def test_a_hostile_checkpoint_is_one_line(
    checkpoint: Path, packed: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    (linked(checkpoint, tmp_path) / name).unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(EngineError, match=r"^TS-ENGINE-CHECKPOINT: ") as caught:
        start(tmp_path, packed)
    assert "\n" not in str(caught.value)
    assert (tmp_path / name).read_bytes() == content


def test_the_checkpoint_that_the_others_are_made_from_starts(checkpoint: Path, packed: Path, tmp_path: Path) -> None:
    start(linked(checkpoint, tmp_path), packed)


def test_index_names_every_tensor(checkpoint: Path) -> None:
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    found = {name: path.name for path in checkpoint.glob("*.safetensors") for name in safetensors.read_header(path)}
    assert index["weight_map"] == found
    assert sum(name.startswith("mtp.0.") for name in found) == 6


def test_the_vocabulary_fits(checkpoint: Path, tokenizer: Tokenizer) -> None:
    config = load_model_config(checkpoint)
    assert tokenizer.vocab_size == config.vocab_size
    assert 2000 <= config.vocab_size <= 4000
    assert max(tokenizer.compressed_ids()) + 1 == config.compressed_vocab_size


def test_groups_are_padded_to_four_a_rank(checkpoint: Path) -> None:
    codes, scales = Checkpoint(checkpoint).scaled("layers.1.attn.wo_a", (2048, 768), 32)
    shards = [projection.local_weight(codes, scales, 8, rank, 3) for rank in range(3)]
    assert [shard.shape for shard in shards] == [(4, 256, 768)] * 3
    assert not shards[2].any()
    whole = projection.local_weight(codes, scales, 8, 0, 1)
    assert np.array_equal(np.concatenate(shards[:2]), whole)
    magnitudes = np.abs(whole)
    assert [np.unique(magnitudes[:, :, at : at + 256]).tolist() for at in (0, 256, 512)] == [[0, 1], [0, 4], [0, 16]]


def test_quantise_rounds_and_scales_by_block() -> None:
    sums = np.zeros((1, 256), dtype=np.int32)
    sums[0, :3] = [15, -15, 7]
    sums[0, 32:35] = [31, 16, -5]
    sums[0, 64] = 10_000
    codes, scales = make_checkpoint.quantise_rows(sums)
    values = (e4m3.E4M3_VALUES[codes].reshape(8, 32) * e4m3.UE8M0_VALUES[scales].reshape(8, 1)).reshape(-1)
    assert values[:3].tolist() == [15, -15, 7]
    assert values[32:35].tolist() == [32, 16, -4]
    assert values[64] == 120
    assert scales.tolist() == [[127, 129, 130, 127, 127, 127, 127, 127]]


@pytest.mark.parametrize("broken", ["directory", "corpus"])
def test_a_checkpoint_that_cannot_be_made_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" if broken == "directory" else tmp_path / "made"
    corpus = [] if broken == "directory" else ["--corpus", str(tmp_path / "nowhere")]
    assert make_checkpoint.main([str(target), *corpus]) == 1
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith(f"TS-CHECKPOINT-MAKE: checkpoint not made [where: {target}]")
    assert not said.out
    assert not (target / "config.json").exists(), "it is written last"
