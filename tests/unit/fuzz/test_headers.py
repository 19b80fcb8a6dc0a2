"""Headers damaged by chance: each is refused in the known way, or what is read from it holds.

The default run takes seconds, the slow one is the same with many more examples. Each target is shown to find a check
that was taken away. The row store's own parser is also fuzzed by coverage, where clang is there.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mutations import mutated

from engram_store import Code, Options, Rows, RowStore, StoreError
from engram_store.store import Backend
from trispark.native_build import COMMON, STORE
from trispark_node import safetensors
from trispark_node.errors import AgentError
from trispark_node.shard_format import HEADER_BYTES, Shard, header_difference

ROOT = Path(__file__).resolve().parents[3]
FEW, MANY = 500, 8000


def checkpoint_file(tensors: dict[str, object], data: int) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


WEIGHT, SCALE = "layers.1.engram.embed.weight", "layers.1.engram.embed.scale"
CHECKPOINTS = (
    checkpoint_file({}, 0),
    checkpoint_file({"__metadata__": {"format": "pt"}, "x": entry("U8", [3], 0, 3)}, 3),
    checkpoint_file({WEIGHT: entry("F8_E4M3", [2, 256], 0, 512), SCALE: entry("F8_E8M0", [2, 8], 512, 528)}, 528),
    checkpoint_file({"a": entry("I64", [2, 2], 8, 40), "b": entry("BF16", [], 0, 2), "c": entry("F32", [0], 3, 3)}, 40),
)


def read_of(content: bytes) -> dict[str, safetensors.Tensor] | None:
    """None when it is refused as it should be."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            return safetensors.read_header(Path(file.name))
        except AgentError as error:
            if error.id != "TS-ENGRAM-CHECKPOINT":
                raise
            return None


def check_checkpoint(content: bytes) -> None:
    tensors = read_of(content)
    if tensors is None:
        return
    begin = 8 + int.from_bytes(content[:8], "little")
    for name, tensor in tensors.items():
        assert name == tensor.name
        assert begin <= tensor.offset <= tensor.offset + tensor.size <= len(content)
        assert tensor.size == math.prod(tensor.shape) * safetensors.ITEM_BYTES[tensor.dtype]
        assert all(extent >= 0 for extent in tensor.shape)
    filled = sorted((each.offset, each.size) for each in tensors.values() if each.size)
    assert all(one + size <= other for (one, size), (other, _) in pairwise(filled))


QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


def fuzz(check: Callable[[bytes], None], contents: st.SearchStrategy[bytes], examples: int) -> None:
    settings(QUIET, max_examples=examples)(given(contents)(check))()


def find(check: Callable[[bytes], None], contents: st.SearchStrategy[bytes]) -> None:
    """Raises what `check` raises first, the same each time; nothing is made smaller."""
    settings(QUIET, max_examples=10 * FEW, derandomize=True, phases=[Phase.generate])(given(contents)(check))()


@st.composite
def damaged_checkpoints(draw: st.DrawFn) -> bytes:
    """Any part of a file is changed, or only its text, whose length is then the right one."""
    if draw(st.booleans()):
        return draw(mutated(CHECKPOINTS))
    seed = draw(st.sampled_from(CHECKPOINTS))
    end = 8 + int.from_bytes(seed[:8], "little")
    text = draw(mutated((seed[8:end],)))
    return len(text).to_bytes(8, "little") + text + seed[end:]


@pytest.mark.parametrize("content", CHECKPOINTS)
def test_each_seed_is_a_good_checkpoint(content: bytes) -> None:
    assert read_of(content) is not None


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_checkpoint_headers(examples: int) -> None:
    fuzz(check_checkpoint, damaged_checkpoints(), examples)


def without_overlap_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors, "_refuse_overlaps", lambda path, tensors: None)


def without_file_end(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = safetensors._tensor
    monkeypatch.setattr(
        safetensors, "_tensor", lambda path, name, entry, start, size: whole(path, name, entry, start, size + 4096)
    )


@pytest.mark.parametrize("break_it", [without_overlap_check, without_file_end])
def test_a_missing_check_of_checkpoints_is_found(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    with pytest.raises(AssertionError):
        find(check_checkpoint, damaged_checkpoints())


SHARD = Shard(14, 1, 3, 5, 15, 30)
CONTENT = SHARD.header() + bytes(range(1, 251)) * 10 + bytes(SHARD.size - HEADER_BYTES - 2500)
SHARDS = (CONTENT, CONTENT[:HEADER_BYTES], CONTENT + CONTENT)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a file system has no O_DIRECT, a shard is refused before its header."""
    if native_answer(tmp_path / "shard", CONTENT) is Code.NO_DIRECT:
        pytest.skip("NOT TESTED: this file system refuses O_DIRECT")
    return tmp_path / "shard"


def native_answer(path: Path, content: bytes) -> Code | None:
    """None when the shard is opened."""
    path.write_bytes(content)
    try:
        RowStore.open_packed(path, Rows(14, 5, 15, 30), Options(Backend.THREADS, threads=1)).close()
    except StoreError as error:
        return error.code
    return None


def check_shard(path: Path, content: bytes) -> None:
    """The agent's parser and the row store's say the same, and only the very header is good."""
    answer = native_answer(path, content)
    header = content[:HEADER_BYTES]
    if len(header) < HEADER_BYTES:
        assert answer is Code.HEADER
        return
    difference = header_difference(SHARD.header(), header)
    assert (difference is None) == (header == SHARD.header())
    if difference is not None:
        assert answer is Code.HEADER
    elif len(content) != SHARD.size:
        assert answer is Code.SIZE
    else:
        assert answer is None


@pytest.mark.parametrize("examples", [FEW // 2, pytest.param(MANY // 4, marks=pytest.mark.slow)])
def test_shard_headers(place: Path, examples: int) -> None:
    fuzz(lambda content: check_shard(place, content), mutated(SHARDS), examples)


def test_a_missing_check_of_shards_is_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the padding of the header were not looked at."""
    whole = header_difference
    monkeypatch.setitem(
        globals(), "header_difference", lambda expected, observed: whole(expected[:64], observed[:64].ljust(64, b"\0"))
    )
    with pytest.raises(AssertionError):
        find(lambda content: check_shard(place, content), mutated(SHARDS))


@pytest.mark.slow
def test_the_row_store_by_coverage(tmp_path: Path) -> None:
    """libFuzzer with the address sanitizer on es_open_packed, from the same seeds."""
    clang = shutil.which("clang++")
    if clang is None:
        pytest.skip("NOT TESTED by coverage: there is no clang++ (apt-get install clang)")
    base = ROOT / STORE.sources
    program, corpus = tmp_path / "fuzz", tmp_path / "corpus"
    corpus.mkdir()
    for number, content in enumerate(SHARDS):
        (corpus / str(number)).write_bytes(content)
    sources = [str(path) for path in (*(ROOT / COMMON).glob("*.cc"), *base.glob("*.cc"), base / "test/fuzz_header.cc")]
    argv = [clang, "-std=c++20", "-O1", "-g", "-pthread", "-fsanitize=fuzzer,address,undefined", f"-I{ROOT / COMMON}"]
    built = subprocess.run([*argv, *sources, "-o", str(program)], capture_output=True, text=True, check=False)
    if "libclang_rt" in built.stderr:
        pytest.skip("NOT TESTED by coverage: clang has no libFuzzer (apt-get install libclang-rt-14-dev)")
    assert built.returncode == 0, built.stderr[-2000:]
    argv = [str(program), "-max_total_time=20", "-max_len=16384", "-timeout=5", str(corpus)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "DONE" in done.stderr
