"""Shards that are missing, partial, foreign or wrong: packed, refused or left alone; never served."""

from __future__ import annotations

import hashlib

import pytest

pytestmark = pytest.mark.lab

FILE = "/srv/engram/engram-l{layer}-r{rank}of3.bin"


def digest(lab, name: str, path: str) -> str:
    return lab.node(name, "sha256sum", path).decode().split()[0]


def write_at(lab, name: str, path: str, offset: int, data: bytes) -> None:
    lab.node(name, "dd", f"of={path}", "bs=1", f"seek={offset}", "conv=notrunc", "status=none", data=data)


def flip(lab, name: str, path: str, offset: int) -> None:
    old = lab.node(name, "dd", f"if={path}", "bs=1", f"skip={offset}", "count=1", "status=none")
    write_at(lab, name, path, offset, bytes([old[0] ^ 0x10]))


@pytest.fixture
def whole(serving):
    """Serving, and repaired afterwards whatever the test did to the shards."""
    yield serving
    played = serving.play("shards", repair="true")
    assert played.rc == 0, played.output[-3000:]


def test_missing_and_partial_shards_are_packed_again_to_the_same_bytes(whole) -> None:
    one, two = FILE.format(layer=1, rank=1), FILE.format(layer=14, rank=2)
    before = digest(whole, "spark1", one), digest(whole, "spark2", two)
    whole.node("spark1", "rm", one)
    whole.node("spark2", "cp", two, f"{two}.partial")
    whole.node("spark2", "rm", two)
    whole.node("spark2", "truncate", "-s", "1000000", f"{two}.partial")
    played = whole.play("shards")
    assert played.rc == 0, played.output[-3000:]
    assert (digest(whole, "spark1", one), digest(whole, "spark2", two)) == before
    files = [FILE.format(layer=layer, rank=2).rsplit("/", 1)[1] for layer in (1, 14)]
    manifests = [f"{file}.manifest.json" for file in files]
    assert whole.node("spark2", "ls", "/srv/engram").decode().split() == sorted([*files, *manifests])


def test_a_shard_without_manifest_is_refused_by_a_boot_and_adopted_by_shards(whole) -> None:
    path = FILE.format(layer=1, rank=1)
    before = digest(whole, "spark1", path)
    whole.node("spark1", "rm", f"{path}.manifest.json")
    played = whole.play("boot")
    assert (played.rc != 0, "TS-ENGRAM-UNPROVEN" in played.output) == (True, True)
    played = whole.play("shards")
    assert played.rc == 0, played.output[-3000:]
    assert "no_manifest, adopted" in played.output
    assert digest(whole, "spark1", path) == before
    assert b'"origin":"adopted"' in whole.node("spark1", "cat", f"{path}.manifest.json")


@pytest.mark.parametrize("level", ["quick", pytest.param("deep", marks=pytest.mark.slow)])
def test_every_row_of_every_rank_is_the_checkpoints(whole, level) -> None:
    played = whole.play("shards_verify", level=level)
    assert played.rc == 0, played.output[-3000:]


@pytest.mark.parametrize(
    ("offset", "error"),
    [
        pytest.param(0, "TS-ENGRAM-HEADER", id="magic"),
        pytest.param(8, "TS-ENGRAM-HEADER", id="layer", marks=pytest.mark.slow),
        pytest.param(60, "TS-ENGRAM-HEADER", id="padding", marks=pytest.mark.slow),
        pytest.param(4096 + 264 * 777 + 5, "TS-ENGRAM-CONTENT", id="weight-byte"),
        pytest.param(4096 + 264 * 31 + 260, "TS-ENGRAM-CONTENT", id="scale-byte", marks=pytest.mark.slow),
    ],
)
def test_one_changed_byte_is_refused_and_repaired_only_when_asked(whole, offset, error) -> None:
    path = FILE.format(layer=14, rank=0)
    before = digest(whole, "spark0", path)
    flip(whole, "spark0", path, offset)
    spoiled = digest(whole, "spark0", path)
    played = whole.play("shards")
    assert played.rc != 0
    assert error in played.output
    assert "spark0" in played.output
    assert digest(whole, "spark0", path) == spoiled, "a refusal changes nothing"
    assert whole.play("shards", repair="true").rc == 0
    assert digest(whole, "spark0", path) == before


def test_swapped_ranks_are_refused_before_the_running_engine_is_touched(whole) -> None:
    """Rank 1's bytes under rank 2's name and the reverse: right size, wrong owner. boot.yml alone must see it, too."""
    one, two = FILE.format(layer=1, rank=1), FILE.format(layer=1, rank=2)
    bytes_one, bytes_two = whole.node("spark1", "cat", one), whole.node("spark2", "cat", two)
    assert hashlib.sha256(bytes_one).digest() != hashlib.sha256(bytes_two).digest()
    whole.node("spark1", "sh", "-c", f"cat > {one}", data=bytes_two)
    whole.node("spark2", "sh", "-c", f"cat > {two}", data=bytes_one)
    engines = {name: whole.inspect(name)["Id"] for name in whole.nodes}
    played = whole.play("stage_a")
    assert played.rc != 0
    assert "TS-ENGRAM-HEADER" in played.output
    assert {name: whole.inspect(name)["Id"] for name in whole.nodes} == engines
    played = whole.play("boot")
    assert played.rc != 0
    assert "TS-ENGRAM-HEADER" in played.output


def test_every_row_is_proven_beside_the_running_engine_and_a_changed_one_is_named(whole) -> None:
    for level in ("full", "deep"):
        played = whole.play("shards_verify", level=level)
        assert played.rc == 0, played.output[-3000:]
        assert played.output.count(" ok, ") == 6
    path = FILE.format(layer=14, rank=2)
    flip(whole, "spark2", path, 9_000_000)
    played = whole.play("shards_verify", level="deep")
    assert played.rc != 0
    assert "TS-ENGRAM-CONTENT" in played.output


def test_foreign_files_are_never_touched(whole) -> None:
    foreign = {"/srv/engram/engram-l1-r0of4.bin": b"another tp size", "/srv/engram/notes.txt": b"mine"}
    for path, data in foreign.items():
        whole.node("spark0", "sh", "-c", f"cat > {path}", data=data)
    try:
        assert whole.play("shards", repair="true").rc == 0
        assert {path: whole.node("spark0", "cat", path) for path in foreign} == foreign
    finally:
        whole.node("spark0", "rm", *foreign)


def test_a_rank_pointed_to_another_mount_is_refused(whole) -> None:
    """A symlink in place of the directory would serve whatever lies at its end."""
    whole.node("spark2", "sh", "-c", "mkdir -p /srv/elsewhere && cp /srv/engram/* /srv/elsewhere/")
    path = FILE.format(layer=1, rank=2)
    try:
        whole.node(
            "spark2", "sh", "-c", f"mv {path} {path}.aside && ln -s /srv/elsewhere/{path.rsplit('/', 1)[1]} {path}"
        )
        played = whole.play("shards")
        assert played.rc != 0
        assert "TS-ENGRAM-LINK" in played.output
    finally:
        whole.node("spark2", "sh", "-c", f"rm -f {path} && mv {path}.aside {path} && rm -r /srv/elsewhere")
