"""The manifest beside a shard: what it says, what it must not be, and what each level finds with it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.shard_manifest import ShardManifest
from trispark_node import VERSION, native_pack, shard_check, shard_manifest
from trispark_node.shard_format import Shard

LAYER = 14
NAME = "engram-l14-r1of3.bin"
CONFIG = b'{"engram_vocab_size": 3}\n'


@pytest.fixture
def place(quick_path: Path) -> Path:
    path = quick_path / "engram"
    path.mkdir()
    return path


@pytest.fixture
def ask(checkpoint, place):
    (checkpoint.directory / "config.json").write_bytes(CONFIG)
    return {
        "action": "ensure",
        "checkpoint": str(checkpoint.directory),
        "directory": str(place),
        "rank": 1,
        "tp": 3,
        "layers": [LAYER],
    }


@pytest.fixture
def packed(bench, ask, place):
    """A packed shard with its manifest."""
    bench.ask("engram", **ask)
    return place / NAME


def canonical_json(values) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def beside(path: Path) -> Path:
    return path.with_name(path.name + ".manifest.json")


def rewrite(path: Path, change) -> None:
    """Change the manifest's values and write them in the right form."""
    values = json.loads(beside(path).read_bytes())
    change(values)
    if "chunks" in values:
        chunks = "".join(values["chunks"])
        values["whole"] = native_pack.blake3(bytes.fromhex(chunks))
    beside(path).write_bytes(canonical_json(values) + b"\n")


def test_it_says_what_the_shard_is_and_what_it_was_made_of(bench, ask, packed, checkpoint):
    content = beside(packed).read_bytes()
    values = json.loads(content)
    assert content == canonical_json(values) + b"\n"
    shard = packed.read_bytes()
    chunks = [native_pack.blake3(shard)]
    source = checkpoint.directory / "model-00014.safetensors"
    data = source.read_bytes()
    library = Path(native_pack.__file__).with_name("native") / platform.machine() / "libengram_pack.so"
    assert values.pop("packer") == {"agent": VERSION, "library": hashlib.sha256(library.read_bytes()).hexdigest()}
    assert values == {
        "format_version": 1,
        "file": NAME,
        "header": {
            "magic": 0x31344E4531565344,
            "layer": 14,
            "first_row": 20,
            "end_row": 40,
            "total_rows": 61,
            "row_bytes": 264,
        },
        "size": len(shard),
        "chunk_bytes": 2**26,
        "chunks": chunks,
        "whole": native_pack.blake3(b"".join(map(bytes.fromhex, chunks))),
        "source": {
            "file": source.name,
            "size": len(data),
            "weight_offset": data.index(checkpoint.weight[14]),
            "scale_offset": data.index(checkpoint.scale[14]),
        },
        "checkpoint": {"config_sha256": hashlib.sha256(CONFIG).hexdigest(), "revision": None},
        "ownership": {"layout": "even", "version": 1, "rank": 1, "tp": 3},
        "origin": "packed",
    }
    assert beside(packed).stat().st_mode & 0o777 == 0o644


def test_it_has_the_published_form(packed):
    model = ShardManifest.model_validate_json(beside(packed).read_bytes())
    assert canonical_json(model.model_dump(mode="json")) + b"\n" == beside(packed).read_bytes()


def judged(bench, ask, **more):
    error = bench.refused("engram", **{**ask, "action": "verify", **more})
    return error["id"], error["observed"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda v: v.update(size=v["size"] + 1), id="size"),
        pytest.param(lambda v: v.update(file="engram-l14-r2of3.bin"), id="name"),
        pytest.param(lambda v: v["header"].update(first_row=19), id="header"),
        pytest.param(lambda v: v["source"].update(size=1), id="source size"),
        pytest.param(lambda v: v["source"].update(file="other.safetensors"), id="source name"),
        pytest.param(lambda v: v["source"].update(scale_offset=1), id="offset"),
        pytest.param(lambda v: v["checkpoint"].update(config_sha256="0" * 64), id="revision"),
        pytest.param(lambda v: v["checkpoint"].update(config_sha256=None), id="no revision"),
        pytest.param(lambda v: v["ownership"].update(layout="column"), id="layout"),
        pytest.param(lambda v: v["ownership"].update(version=2), id="layout version"),
        pytest.param(lambda v: v["ownership"].update(rank=2), id="rank"),
        pytest.param(lambda v: v.update(chunk_bytes=2**25), id="chunk"),
    ],
)
def test_each_fact_is_compared_at_the_quick_level(bench, ask, packed, change):
    rewrite(packed, change)
    before = beside(packed).read_bytes(), packed.read_bytes()
    error_id, observed = judged(bench, ask)
    assert error_id == "TS-ENGRAM-MANIFEST"
    assert f"{NAME} wrong_manifest" in observed
    assert bench.refused("engram", **ask)["id"] == "TS-ENGRAM-MANIFEST"
    assert (beside(packed).read_bytes(), packed.read_bytes()) == before
    answer = bench.ask("engram", **ask, repair=True)
    assert answer["files"][0]["action"] == "repaired"
    assert bench.ask("engram", **{**ask, "action": "verify", "level": "deep"})["files"][0]["state"] == "ok"


HOSTILE = {
    "empty": b"",
    "no JSON": b"{",
    "no object": b"[]\n",
    "huge": b" " * (shard_manifest.MAX_BYTES + 1),
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "no UTF-8": b'{"\xff":1}\n',
    "many digits": b'{"size":' + b"9" * 100_000 + b"}\n",
    "many names": b"{" + b",".join(b'"%d":0' % number for number in range(200_000)) + b"}\n",
}
CHANGES = {
    "blanks": lambda text: text.replace(b",", b", ", 1),
    "no line end": lambda text: text[:-1],
    "a name twice": lambda text: text.replace(b'"size":', b'"size":1,"size":', 1),
    "NaN": lambda text: text.replace(b'"chunk_bytes":67108864', b'"chunk_bytes":NaN'),
    "infinite": lambda text: text.replace(b'"chunk_bytes":67108864', b'"chunk_bytes":1e999'),
    "a fraction": lambda text: text.replace(b'"chunk_bytes":67108864', b'"chunk_bytes":67108864.0'),
    "zero chunks": lambda text: text.replace(b'"chunk_bytes":67108864', b'"chunk_bytes":0'),
    "a truth value": lambda text: text.replace(b'"layer":14', b'"layer":true'),
    "another format": lambda text: text.replace(b'"format_version":1', b'"format_version":2'),
    "an unknown origin": lambda text: text.replace(b'"origin":"packed"', b'"origin":"stolen"'),
    "an unknown key": lambda text: text.replace(b'"origin":"packed"', b'"origin":"packed","other":1'),
    "an unknown inner key": lambda text: text.replace(b'"layer":14', b'"layer":14,"more":1'),
    "whole": lambda text: text.replace(b'"whole":"', b'"whole":"0')[:-2] + b"\n",
}


def hostile(name: str, text: bytes) -> bytes:
    return HOSTILE[name] if name in HOSTILE else CHANGES[name](text)


@pytest.mark.parametrize("name", [*HOSTILE, *CHANGES])
def test_a_hostile_manifest_is_a_named_state(bench, ask, packed, name):
    content = hostile(name, beside(packed).read_bytes())
    assert content != beside(packed).read_bytes()
    beside(packed).write_bytes(content)
    error_id, observed = judged(bench, ask)
    assert (error_id, len(observed) < 1000) == ("TS-ENGRAM-MANIFEST", True)
    assert "damaged" in observed


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda v: v["chunks"].pop(), id="one too few"),
        pytest.param(lambda v: v["chunks"].append("0" * 64), id="one too many"),
        pytest.param(lambda v: v.update(chunks="x"), id="a text"),
        pytest.param(lambda v: v["chunks"].__setitem__(0, "0" * 63), id="short"),
        pytest.param(lambda v: v["chunks"].__setitem__(0, 7), id="a number"),
        pytest.param(lambda v: v.pop("chunks"), id="none"),
        pytest.param(lambda v: v.update(whole="0" * 64), id="another whole"),
        pytest.param(lambda v: v.update(header=[]), id="a header that is a list"),
        pytest.param(lambda v: v["source"].pop("size"), id="a source without its size"),
    ],
)
def test_wrong_types_and_numbers_of_chunks(bench, ask, packed, change):
    values = json.loads(beside(packed).read_bytes())
    change(values)
    beside(packed).write_bytes(canonical_json(values) + b"\n")
    error_id, observed = judged(bench, ask)
    assert error_id == "TS-ENGRAM-MANIFEST"
    assert "damaged" in observed


@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_raise_anything_else(content):
    with pytest.raises(ValueError, match=r"."):
        shard_manifest.parse(content)


@pytest.mark.parametrize("kind", ["link", "directory", "loop"])
def test_a_manifest_that_is_no_file_is_refused(bench, ask, packed, kind):
    path = beside(packed)
    path.rename(path.with_suffix(".aside"))
    if kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(path.with_suffix(".aside") if kind == "link" else path)
    assert judged(bench, ask)[0] == "TS-ENGRAM-LINK"


# -- levels ------------------------------------------------------------------------------------------------------------


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        old = file.read(1)
        file.seek(offset)
        file.write(bytes([old[0] ^ 1]))


LARGE = Shard.of(1, 0, [0, 256_000])
"""Of two chunks."""


@pytest.fixture
def large(bench, make_checkpoint, quick_path, place, monkeypatch):
    """A file that counts as a large one: (request, path, offset of a byte that no sample sees)."""
    monkeypatch.setattr(shard_check, "SAMPLED_ROWS", 16)
    checkpoint = make_checkpoint(quick_path / "large", {1: LARGE.rows})
    ask = {"checkpoint": str(checkpoint.directory), "directory": str(place), "rank": 0, "tp": 1, "layers": [1]}
    bench.ask("engram", action="ensure", **ask)
    monkeypatch.setattr(shard_check, "WHOLE_BELOW_BYTES", 4096)
    path = place / LARGE.name
    first, end = LARGE.first_row, LARGE.end_row
    unseen = next(row for row in range(end - 1000, end) if row not in shard_check.sample(LARGE))
    offset = 4096 + (unseen - first) * 264 + 7
    assert offset > native_pack.CHUNK_BYTES
    return {"action": "verify", **ask}, path, offset


@pytest.mark.parametrize(("level", "checked"), [("quick", "sampled"), ("full", "hashed"), ("deep", "whole")])
def test_a_whole_file_passes_every_level(bench, large, level, checked):
    row = bench.ask("engram", **large[0], level=level)["files"][0]
    assert (row["state"], row["checked"]) == ("ok", checked)


@pytest.mark.parametrize(
    ("level", "error_id"), [("quick", None), ("full", "TS-ENGRAM-MANIFEST"), ("deep", "TS-ENGRAM-CONTENT")]
)
def test_a_bit_outside_the_sample_is_found_by_the_level_that_reads_it(bench, large, level, error_id):
    ask, path, offset = large
    flip(path, offset)
    if error_id is None:
        assert bench.ask("engram", **ask, level=level)["files"][0]["state"] == "ok"
        return
    error = bench.refused("engram", **ask, level=level)
    assert error["id"] == error_id
    row = LARGE.first_row + (offset - 4096) // 264
    said = "(chunk 1)" if level == "full" else f"row {row} differs first at its byte 7"
    assert said in error["observed"]


@pytest.mark.parametrize("level", ["full", "deep"])
def test_a_wrong_hash_in_the_manifest_is_the_manifests(bench, large, level):
    ask, path, _ = large
    rewrite(path, lambda values: values["chunks"].__setitem__(1, "ab" * 32))
    assert bench.ask("engram", **ask)["files"][0]["state"] == "ok"
    error = bench.refused("engram", **ask, level=level)
    assert (error["id"], "(chunk 1)" in error["observed"]) == ("TS-ENGRAM-MANIFEST", True)


def punch(path: Path, offset: int, length: int) -> None:
    """Rewrite the file with a hole where `length` bytes were."""
    content = path.read_bytes()
    path.unlink()
    with path.open("wb") as file:
        file.write(content[:offset])
        file.seek(offset + length)
        file.write(content[offset + length :])


def sparse_place(tmp_path: Path) -> bool:
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        file.seek(2**20)
        file.write(b"x")
    with probe.open("rb") as file:
        return os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 0


@pytest.mark.parametrize("level", ["full", "deep"])
def test_a_file_with_a_hole_is_called_so(bench, make_checkpoint, tmp_path, monkeypatch, level):
    """Also where the checkpoint's rows are zeros, too: the engine's row store refuses holes."""
    if not sparse_place(tmp_path):
        pytest.skip("this file system shows no holes")
    checkpoint = make_checkpoint(tmp_path / "checkpoint", {1: 300})
    (tmp_path / "out").mkdir()
    ask = {"checkpoint": str(checkpoint.directory), "directory": str(tmp_path / "out"), "rank": 0, "tp": 1}
    ask["layers"] = [1]
    bench.ask("engram", action="ensure", **ask)
    monkeypatch.setattr(shard_check, "WHOLE_BELOW_BYTES", 4096)
    punch(tmp_path / "out" / "engram-l1-r0of1.bin", 8192, 32768)
    error = bench.refused("engram", action="verify", level=level, **ask)
    assert (error["id"], "byte 8192" in error["observed"]) == ("TS-ENGRAM-HOLES", True)


def test_levels_belong_to_verify_and_repair_to_ensure(bench, ask):
    for wrong in ({"level": "deep"}, {"action": "verify", "level": "some"}, {"action": "verify", "repair": True}):
        assert bench.refused("engram", **{**ask, **wrong})["id"] == "TS-AGENT-REQUEST"


# -- adoption ----------------------------------------------------------------------------------------------------------


def test_a_shard_of_another_tool_is_adopted_and_stays_so(bench, ask, packed):
    beside(packed).unlink()
    before = packed.stat()
    assert judged(bench, ask)[0] == "TS-ENGRAM-UNPROVEN"
    answer = bench.ask("engram", **ask)
    assert answer["changed"]
    assert (answer["files"][0]["state"], answer["files"][0]["action"]) == ("no_manifest", "adopted")
    after = packed.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "never packed again"
    assert json.loads(beside(packed).read_bytes())["origin"] == "adopted"
    for level in ("quick", "full", "deep"):
        row = bench.ask("engram", **{**ask, "action": "verify"}, level=level)["files"][0]
        assert row["state"] == "adopted"
    assert bench.ask("engram", **ask)["changed"] is False


def test_adoption_reports_without_doing_in_check_mode(bench, ask, packed):
    beside(packed).unlink()
    answer = bench.ask("engram", **ask, check=True)
    assert (answer["changed"], answer["files"][0]["action"]) == (True, "adopted")
    assert not beside(packed).exists()


def test_a_shard_of_another_tool_with_wrong_rows_is_not_adopted(bench, large):
    ask, path, _ = large
    beside(path).unlink()
    row = shard_check.sample(LARGE)[3]
    flip(path, 4096 + (row - LARGE.first_row) * 264)
    assert bench.refused("engram", **{**ask, "action": "ensure"})["id"] == "TS-ENGRAM-CONTENT"
    assert not beside(path).exists()


def test_the_declared_revision_is_compared_where_it_is_declared(bench, ask, packed):
    assert judged(bench, ask, revision="r2")[0] == "TS-ENGRAM-MANIFEST"
    bench.ask("engram", **ask, repair=True, revision="r2")
    assert json.loads(beside(packed).read_bytes())["checkpoint"]["revision"] == "r2"
    assert bench.ask("engram", **{**ask, "action": "verify", "revision": "r2"})["files"][0]["state"] == "ok"
    assert bench.ask("engram", **{**ask, "action": "verify"})["files"][0]["state"] == "ok"
    assert judged(bench, ask, revision="r3")[0] == "TS-ENGRAM-MANIFEST"


def test_two_shards_exchanged_with_their_manifests_are_called_by_their_rank(bench, ask, place):
    bench.ask("engram", **ask)
    bench.ask("engram", **{**ask, "rank": 2})
    one, two = place / NAME, place / "engram-l14-r2of3.bin"
    for first, second in ((one, two), (beside(one), beside(two))):
        first.rename(place / "aside")
        second.rename(first)
        (place / "aside").rename(second)
    error_id, observed = judged(bench, ask)
    assert error_id == "TS-ENGRAM-HEADER"
    assert "this is the even layout's rank 2, the site declares even and this is rank 1" in observed
    assert judged(bench, ask, rank=2)[0] == "TS-ENGRAM-HEADER"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is no JSON object"),
        (b"\xff\x00", "it is no JSON object"),
        (b"[]\n", "it is no JSON object"),
        (b"{}\n", "it lacks the key format_version"),
        (b'{"format_version":null}\n', "it lacks the key format_version"),
        (b'{"format_version":"1"}\n', "format_version has the wrong form: expected an integer of at least 0"),
        (b"{ }", "it is not in canonical form"),
    ],
)
def test_a_damaged_manifest_is_said_in_words_of_the_file(content, says):
    with pytest.raises(ValueError, match=says) as caught:
        shard_manifest.parse(content)
    assert "9223372036854775807" not in str(caught.value)
    assert "nothing" not in str(caught.value)


def test_of_a_part_the_missing_key_is_named_with_its_place(packed):
    rewrite(packed, lambda values: values["header"].pop("magic"))
    with pytest.raises(ValueError, match=r"it lacks the key header\.magic"):
        shard_manifest.parse(beside(packed).read_bytes())


@pytest.mark.parametrize("whole", [True, False])
def test_the_line_says_how_to_learn_which_of_the_two_is_wrong(bench, ask, packed, monkeypatch, whole):
    if not whole:
        monkeypatch.setattr(shard_check, "WHOLE_BELOW_BYTES", 0)
    beside(packed).write_bytes(b"{}\n")
    error = bench.refused("engram", **{**ask, "action": "verify"})
    assert error["id"] == "TS-ENGRAM-MANIFEST"
    assert "./trispark engram verify --level deep" in error["remedy"]
    assert ("the manifest is wrong" in error["remedy"]) is whole
    assert ("tells which of the two is wrong" in error["remedy"]) is not whole
    assert "whose file" not in error["remedy"]
    assert "./trispark engram pack --repair" in error["remedy"]
