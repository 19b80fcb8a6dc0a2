"""Packed shards against an independent reference, and everything that may lie under their names instead."""

from __future__ import annotations

import errno
import os
import random
import struct
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from trispark_node import engram, engram_tables, native_pack, ownership, safetensors, shard_check
from trispark_node.engram_request import EngramRequest
from trispark_node.errors import AgentError
from trispark_node.fields import Fields
from trispark_node.mutation import Mode
from trispark_node.shard_format import Shard
from trispark_node.shard_manifest import Origin

LAYERS = [1, 14]


@pytest.fixture
def place(quick_path: Path) -> Path:
    path = quick_path / "engram"
    path.mkdir()
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def with_manifests(*files: str) -> list[str]:
    return sorted([*files, *(f"{file}.manifest.json" for file in files)])


def request(checkpoint, place, action="ensure", rank=1, **more):
    fields = {"checkpoint": str(checkpoint.directory), "directory": str(place), "rank": rank, "tp": 3, "layers": LAYERS}
    return {"action": action, **fields, **more}


def even(layer, rank, tp, rows):
    return Shard.of(layer, rank, ownership.boundaries("even", {}, layer, rows, tp))


def states(answer):
    return [row["state"] for row in answer["files"]]


@pytest.mark.parametrize(
    ("total", "rank", "first", "end", "size"),
    [
        (384_006_168, 0, 0, 128_002_056, 33_792_546_880),
        (384_006_168, 2, 256_004_112, 384_006_168, 33_792_546_880),
        (384_016_682, 0, 0, 128_005_560, 33_793_471_936),
        (384_016_682, 1, 128_005_560, 256_011_121, 33_793_472_200),
        (384_016_682, 2, 256_011_121, 384_016_682, 33_793_472_200),
    ],
)
def test_partition_of_the_real_tables(total, rank, first, end, size):
    shard = even(14, rank, 3, total)
    assert (shard.first_row, shard.end_row, shard.size, shard.name) == (first, end, size, f"engram-l14-r{rank}of3.bin")


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_packed_files_equal_the_reference(bench, checkpoint, place, rank):
    answer = bench.ask("engram", **request(checkpoint, place, rank=rank))
    assert answer["changed"]
    assert [row["action"] for row in answer["files"]] == ["packed", "packed"]
    for layer in LAYERS:
        path = place / f"engram-l{layer}-r{rank}of3.bin"
        assert path.read_bytes() == checkpoint.shard(layer, rank)
        assert path.stat().st_mode & 0o777 == 0o644
    assert struct.unpack_from("<6Q", path.read_bytes()) == (
        0x31344E4531565344,
        14,
        61 * rank // 3,
        61 * (rank + 1) // 3,
        61,
        264,
    )
    assert path.read_bytes()[:8] == b"DSV1EN41"
    assert states(bench.ask("engram", **request(checkpoint, place, "verify", rank))) == ["ok", "ok"]
    again = bench.ask("engram", **request(checkpoint, place, rank=rank))
    assert (again["changed"], states(again)) == (False, ["ok", "ok"])


def test_verify_finds_flipped_bytes(bench, checkpoint, place):
    """Each byte of the header's fields, and bytes of the padding and of all rows: weights and scales alike."""
    bench.ask("engram", **request(checkpoint, place))
    shard, table = even(1, 1, 3, 50), engram_tables.find_tables(checkpoint.directory, (1,))[1]
    origin = Origin(shard, table, "even", None, None)
    path = place / shard.name

    def judged():
        found = shard_check.judge(place, origin, {}, "quick", shard_check.ALONE)
        return found.state, found.observed

    content = bytearray(path.read_bytes())
    chosen = random.Random(3)
    with path.open("r+b", buffering=0) as file:
        for offset in [*range(48), *range(48, 4096, 31), 4095, *range(4096, len(content), 5), len(content) - 1]:
            file.seek(offset)
            file.write(bytes([content[offset] ^ (1 << chosen.randrange(8))]))
            state, observed = judged()
            expected = shard_check.WRONG_HEADER if offset < 4096 else shard_check.WRONG_CONTENT
            assert state == expected, offset
            if offset >= 4096:
                row, byte = divmod(offset - 4096, 264)
                assert observed == f"row {16 + row} differs first at its byte {byte}"
            file.seek(offset)
            file.write(content[offset : offset + 1])
    assert judged()[0] == shard_check.OK


def truncated(path: Path, checkpoint) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES = {
    "trailing byte": (lambda p, c: p.write_bytes(p.read_bytes() + b"\0"), "TS-ENGRAM-SIZE", "wrong_size"),
    "truncated": (truncated, "TS-ENGRAM-SIZE", "wrong_size"),
    "empty": (lambda p, c: p.write_bytes(b""), "TS-ENGRAM-SIZE", "wrong_size"),
    "header only": (lambda p, c: p.write_bytes(p.read_bytes()[:4000]), "TS-ENGRAM-SIZE", "wrong_size"),
    "other rank's": (lambda p, c: p.write_bytes(c.shard(1, 0)), "TS-ENGRAM-HEADER", "wrong_header"),
    "other layer's": (lambda p, c: p.write_bytes(c.shard(14, 1)), "TS-ENGRAM-HEADER", "wrong_header"),
    "other split's": (lambda p, c: p.write_bytes(c.shard(1, 1, 4)), "TS-ENGRAM-HEADER", "wrong_header"),
    "padding": (
        lambda p, c: p.write_bytes(p.read_bytes()[:4095] + b"\1" + p.read_bytes()[4096:]),
        "TS-ENGRAM-HEADER",
        "wrong_header",
    ),
    "rows of rank 0 under our header": (
        lambda p, c: p.write_bytes(p.read_bytes()[:4096] + c.shard(1, 0)[4096:] + bytes(264)),
        "TS-ENGRAM-CONTENT",
        "wrong_content",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_file_is_refused_and_replaced_only_with_repair(bench, checkpoint, place, damage):
    bench.ask("engram", **request(checkpoint, place))
    change, error_id, state = DAMAGES[damage]
    path = place / "engram-l1-r1of3.bin"
    change(path, checkpoint)
    wrong = path.read_bytes()
    for action in ("verify", "ensure"):
        error = bench.refused("engram", **request(checkpoint, place, action))
        assert error["id"] == error_id
        assert f"engram-l1-r1of3.bin {state}" in error["observed"]
        assert "./trispark engram pack --repair" in error["remedy"]
        assert "boot again" in error["remedy"]
        assert "engram-l14-r1of3.bin" not in error["observed"]
        assert path.read_bytes() == wrong
    checked = bench.ask("engram", **request(checkpoint, place, repair=True, check=True))
    assert checked["changed"]
    assert path.read_bytes() == wrong
    answer = bench.ask("engram", **request(checkpoint, place, repair=True))
    assert [(row["state"], row["action"]) for row in answer["files"]] == [(state, "repaired"), ("ok", "none")]
    assert path.read_bytes() == checkpoint.shard(1, 1)


@pytest.mark.parametrize("more", [0, 1])
def test_the_limit_tells_which_files_are_sampled(bench, checkpoint, place, monkeypatch, more):
    """Layer 14's file is the larger one."""
    bench.ask("engram", **request(checkpoint, place))
    assert [row["checked"] for row in bench.ask("engram", **request(checkpoint, place))["files"]] == ["whole"] * 2
    size = len(checkpoint.shard(14, 1))
    monkeypatch.setattr(shard_check, "WHOLE_BELOW_BYTES", size + more)
    expected = ["whole", "whole" if more else "sampled"]
    for action in ("verify", "ensure"):
        answer = bench.ask("engram", **request(checkpoint, place, action))
        assert [row["checked"] for row in answer["files"]] == expected


def test_the_limit_of_whole_comparison_is_one_gib():
    assert shard_check.WHOLE_BELOW_BYTES == 2**30


def test_what_was_not_compared_is_not_called_so(bench, checkpoint, place):
    answer = bench.ask("engram", **request(checkpoint, place))
    assert [(row["action"], row["checked"]) for row in answer["files"]] == [("packed", None)] * 2


def sampled(bench, make_checkpoint, tmp_path, monkeypatch, rows=3000):
    """A checkpoint of one layer, its packed file of rank 1, and its rows by their sample."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint", {1: rows})
    place = tmp_path / "sampled"
    place.mkdir()
    ask = {**request(checkpoint, place), "layers": [1]}
    bench.ask("engram", **ask)
    monkeypatch.setattr(shard_check, "WHOLE_BELOW_BYTES", 4096)
    shard = even(1, 1, 3, rows)
    return ask, place / shard.name, shard, shard_check.sample(shard)


def test_the_sample_is_of_256_rows_and_always_the_same(bench, make_checkpoint, tmp_path, monkeypatch):
    _, _, shard, rows = sampled(bench, make_checkpoint, tmp_path, monkeypatch)
    assert len(set(rows)) == 256
    assert rows == sorted(rows) == shard_check.sample(shard)
    assert (rows[0] >= shard.first_row, rows[-1] < shard.end_row) == (True, True)
    assert max(rows) - min(rows) > shard.rows * 0.9
    assert shard_check.sample(even(1, 1, 3, 3003)) != rows
    assert shard_check.sample(even(2, 1, 3, 3000)) != rows


@pytest.mark.parametrize("byte", [0, 255, 256, 263])
@pytest.mark.parametrize("which", [0, 100, -1])
def test_a_sampled_row_is_compared_with_its_scales(bench, make_checkpoint, tmp_path, monkeypatch, which, byte):
    ask, path, shard, rows = sampled(bench, make_checkpoint, tmp_path, monkeypatch)
    content = bytearray(path.read_bytes())
    content[4096 + (rows[which] - shard.first_row) * 264 + byte] ^= 4
    path.write_bytes(content)
    for action in ("verify", "ensure"):
        error = bench.refused("engram", **{**ask, "action": action})
        assert error["id"] == "TS-ENGRAM-CONTENT"
        assert f"row {rows[which]} differs first at its byte {byte}" in error["observed"]
    row = bench.ask("engram", **ask, repair=True)["files"][0]
    assert (row["state"], row["action"], row["checked"]) == ("wrong_content", "repaired", "sampled")
    assert bench.ask("engram", **ask)["changed"] is False


def test_a_row_outside_the_sample_is_not_read(bench, make_checkpoint, tmp_path, monkeypatch):
    ask, path, shard, rows = sampled(bench, make_checkpoint, tmp_path, monkeypatch)
    other = next(row for row in range(shard.first_row, shard.end_row) if row not in rows)
    content = bytearray(path.read_bytes())
    content[4096 + (other - shard.first_row) * 264] ^= 4
    path.write_bytes(content)
    assert states(bench.ask("engram", **ask)) == ["ok"]
    monkeypatch.undo()
    assert bench.refused("engram", **ask)["id"] == "TS-ENGRAM-CONTENT"


@pytest.mark.parametrize(
    ("change", "error_id"),
    [
        (lambda content: content[:-264], "TS-ENGRAM-SIZE"),
        (lambda content: content + bytes(264), "TS-ENGRAM-SIZE"),
        (lambda content: content[:4095] + b"\1" + content[4096:], "TS-ENGRAM-HEADER"),
        (lambda content: content[:4096] + content[4096 + 264 :] + content[4096 : 4096 + 264], "TS-ENGRAM-CONTENT"),
    ],
)
def test_header_and_size_of_a_sampled_file(bench, make_checkpoint, tmp_path, monkeypatch, change, error_id):
    ask, path, *_ = sampled(bench, make_checkpoint, tmp_path, monkeypatch)
    path.write_bytes(change(path.read_bytes()))
    assert bench.refused("engram", **ask)["id"] == error_id


def test_a_sampled_file_of_few_rows_is_compared_in_all_of_them(bench, make_checkpoint, tmp_path, monkeypatch):
    _, _, shard, rows = sampled(bench, make_checkpoint, tmp_path, monkeypatch, rows=30)
    assert rows == list(range(shard.first_row, shard.end_row))


def test_a_place_without_shards_is_named_before_anything_boots_from_it(bench, checkpoint, place):
    error = bench.refused("engram", **request(checkpoint, place, "verify"))
    assert error["id"] == "TS-ENGRAM-MISSING"
    for layer in (1, 14):
        assert f"engram-l{layer}-r1of3.bin missing" in error["observed"]


def test_missing_and_partial(bench, checkpoint, place):
    (place / "engram-l1-r1of3.bin.partial").write_bytes(b"half")
    for action, error_id in (("verify", "TS-ENGRAM-PARTIAL"),):
        error = bench.refused("engram", **request(checkpoint, place, action))
        assert error["id"] == error_id
        assert "engram-l14-r1of3.bin missing" in error["observed"]
        assert error["remedy"] == "run playbooks/shards.yml (./trispark engram pack)"
    assert names(place) == ["engram-l1-r1of3.bin.partial"]
    checked = bench.ask("engram", **request(checkpoint, place, check=True))
    assert [(row["state"], row["action"]) for row in checked["files"]] == [("partial", "packed"), ("missing", "packed")]
    assert names(place) == ["engram-l1-r1of3.bin.partial"]
    bench.ask("engram", **request(checkpoint, place))
    assert names(place) == with_manifests("engram-l1-r1of3.bin", "engram-l14-r1of3.bin")


def test_other_names_are_never_touched(bench, checkpoint, place):
    others = (
        "engram-l1-r1of4.bin",
        "engram-l1-r0of3.bin",
        "engram-l1-r1of4.bin.partial",
        "notes.txt",
        "engram-l1-r1of3.bin.bak",
    )
    for name in others:
        (place / name).write_bytes(name.encode())
    bench.ask("engram", **request(checkpoint, place, repair=True))
    assert {name: (place / name).read_bytes() for name in others} == {name: name.encode() for name in others}


def link_directory(place: Path) -> Path:
    other = place.with_name("elsewhere")
    place.rename(other)
    place.symlink_to(other)
    return place


def link_parent(place: Path) -> Path:
    link = place.parent.with_name(place.parent.name + "-link")
    link.symlink_to(place.parent)
    return link / place.name


def link_file(place: Path) -> Path:
    (place / "real.bin").write_bytes(b"")
    (place / "engram-l1-r1of3.bin").symlink_to("real.bin")
    return place


def link_partial(place: Path) -> Path:
    (place / "engram-l1-r1of3.bin.partial").symlink_to("/etc/hostname")
    return place


def file_is_directory(place: Path) -> Path:
    (place / "engram-l14-r1of3.bin").mkdir()
    return place


@pytest.mark.parametrize("make", [link_directory, link_parent, link_file, link_partial, file_is_directory])
@pytest.mark.parametrize("action", ["verify", "ensure"])
def test_links_are_refused(bench, checkpoint, place, make, action):
    where = make(place)
    before = names(where)
    repair = {"repair": True} if action == "ensure" else {}
    assert bench.refused("engram", **request(checkpoint, where, action, **repair))["id"] == "TS-ENGRAM-LINK"
    assert names(where) == before
    if where.is_symlink() or where.parent.is_symlink():
        (where if where.is_symlink() else where.parent).unlink()


def test_a_file_mounted_over_a_shard_is_refused(bench, checkpoint, place, monkeypatch):
    """What mountinfo shows for `mount --bind other engram-l1-r1of3.bin`; mounting needs more rights than tests have."""
    bench.ask("engram", **request(checkpoint, place))
    table = place / "mountinfo"
    table.write_text(f"36 35 98:0 /other {place}/engram-l1-r1of3.bin rw - ext4 /dev/sda rw\n")
    monkeypatch.setattr(shard_check, "MOUNTINFO", table)
    assert bench.refused("engram", **request(checkpoint, place, "verify"))["id"] == "TS-ENGRAM-LINK"


def test_space_is_checked_before_the_first_byte(bench, checkpoint, place, monkeypatch):
    needed = sum(len(checkpoint.shard(layer, 1)) for layer in LAYERS)
    free = SimpleNamespace(f_bavail=needed - 1, f_frsize=1, f_blocks=needed)
    monkeypatch.setattr(os, "statvfs", lambda path: free)
    error = bench.refused("engram", **request(checkpoint, place))
    assert error["id"] == "TS-ENGRAM-SPACE"
    assert str(needed) in error["expected"]
    assert error["observed"] == f"{needed - 1} bytes free, 1 too few"
    assert names(place) == []
    free.f_bavail = needed
    assert bench.ask("engram", **request(checkpoint, place))["changed"]


def test_a_disk_that_fills_up_meanwhile_gets_its_space_back(bench, checkpoint, place, monkeypatch):
    real = native_pack.pack

    def full(*given, **more):
        real(*given, **more)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(native_pack, "pack", full)
    error = bench.refused("engram", **request(checkpoint, place))
    assert (error["id"], error["where"]) == ("TS-AGENT-SPACE", str(place / "engram-l1-r1of3.bin.partial"))
    assert names(place) == []


@pytest.mark.parametrize("initial", [None, b"wrong"])
def test_packing_killed_at_every_step(bench, checkpoint, place, crashes, initial):
    path = place / "engram-l1-r1of3.bin"
    fields = request(checkpoint, place, repair=True, layers=[1])
    parsed = EngramRequest.parse(Fields(fields, "request"))

    def operation(disk):
        engram.engram(bench.with_disk(disk), parsed, Mode(False, 0))

    def reset():
        path.unlink(missing_ok=True)
        for beside in (".partial", ".manifest.json"):
            path.with_name(path.name + beside).unlink(missing_ok=True)
        if initial is not None:
            path.write_bytes(initial)

    new = checkpoint.shard(1, 1)
    for point in crashes(operation, reset):
        content = path.read_bytes() if path.exists() else None
        assert content in (initial, new), point
        bench.ask("engram", **fields)
        assert names(place) == with_manifests(path.name), point
        assert path.read_bytes() == new, point


def header(text: bytes, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + data


W, S = '"layers.1.engram.embed.weight"', '"layers.1.engram.embed.scale"'


def table(weight: str, scale: str, data: int = 264) -> bytes:
    return header(f"{{{W}:{weight},{S}:{scale}}}".encode(), bytes(data))


GOOD_W = '{"dtype":"F8_E4M3","shape":[1,256],"data_offsets":[0,256]}'
GOOD_S = '{"dtype":"F8_E8M0","shape":[1,8],"data_offsets":[256,264]}'
BAD_FILES = {
    "empty": b"",
    "length beyond the file": (2**40).to_bytes(8, "little") + b"{}",
    "no JSON": header(b"{{{{"),
    "truncated length": header(b"{}")[:7],
    "no header": bytes(8),
    "truncated header": table(GOOD_W, GOOD_S)[:60],
    "truncated data": table(GOOD_W, GOOD_S)[:-1],
    "byte order mark": header(b"\xef\xbb\xbf" + table(GOOD_W, GOOD_S)[8:-264], bytes(264)),
    "utf-16": header(table(GOOD_W, GOOD_S)[8:-264].decode().encode("utf-16"), bytes(264)),
    "utf-16 without a mark": header(table(GOOD_W, GOOD_S)[8:-264].decode().encode("utf-16-le"), bytes(264)),
    "utf-32": header(table(GOOD_W, GOOD_S)[8:-264].decode().encode("utf-32"), bytes(264)),
    "deep lists": header(b"[" * 90_000),
    "very deep lists": header(b"[" * 10_000_000),
    "deep objects": header(b'{"a":' * 40_000 + b"1" + b"}" * 40_000),
    "an entry that is deep": header(b'{"a":' + b"[" * 500 + b"]" * 500 + b"}"),
    "nine dimensions": table(GOOD_W.replace("[1,256]", "[1,1,1,1,1,1,1,1,256]"), GOOD_S),
    "a dimension of 2^49": table(GOOD_W, GOOD_S.replace("[1,8]", f"[0,{2**49}]").replace("264", "256"), 256),
    "a dimension of many digits": table(GOOD_W.replace("[1,256]", f"[{'9' * 4000}]"), GOOD_S),
    "a million digits": table(GOOD_W.replace("[1,256]", f"[{'9' * 1_000_000}]"), GOOD_S),
    "many large dimensions": table(GOOD_W.replace("[1,256]", f"[{','.join([str(2**48)] * 300_000)}]"), GOOD_S),
    "a shape that is a text": table(GOOD_W.replace("[1,256]", '"256"'), GOOD_S),
    "a shape that is an object": table(GOOD_W.replace("[1,256]", '{"256":1}'), GOOD_S),
    "a shape of truth values": table(GOOD_W.replace("[1,256]", "[true,256]"), GOOD_S),
    "a dtype that is a list": table(GOOD_W.replace('"F8_E4M3"', "[]"), GOOD_S),
    "offsets that are null": table(GOOD_W.replace("[0,256]", "null"), GOOD_S),
    "one offset": table(GOOD_W.replace("[0,256]", "[256]"), GOOD_S),
    "infinite": table(GOOD_W.replace("[0,256]", "[0,Infinity]"), GOOD_S),
    "an entry that is a number": header(b'{"a":1}'),
    "too many entries": header(b"{" + b",".join(b'"%d":{}' % number for number in range(50_010)) + b"}"),
    "far too many entries": header(b'{"a":0' + b',"b":{}' * 1_000_000 + b"}"),
    "too many numbers": header(b'{"a":[0' + b",0" * 3_000_000 + b"]}"),
    "too many escapes": header(b'{"' + b"\\n" * 3_000_000 + b'":0}'),
    "no object": header(b"[]"),
    "no utf-8": header(b'{"\xff":1}'),
    "name twice": header(f"{{{W}:{GOOD_W},{W}:{GOOD_W},{S}:{GOOD_S}}}".encode(), bytes(264)),
    "no scale": header(f"{{{W}:{GOOD_W}}}".encode(), bytes(256)),
    "dtype": table(GOOD_W.replace("F8_E4M3", "F8_E5M2"), GOOD_S),
    "unknown dtype": table(GOOD_W.replace("F8_E4M3", "F7"), GOOD_S),
    "width": table('{"dtype":"F8_E4M3","shape":[2,128],"data_offsets":[0,256]}', GOOD_S),
    "rows differ": table(GOOD_W, '{"dtype":"F8_E8M0","shape":[2,8],"data_offsets":[256,272]}', 272),
    "beyond the end": table(GOOD_W, GOOD_S, 263),
    "overlap": table(GOOD_W, GOOD_S.replace("[256,264]", "[250,258]")),
    "size is not the shape's": table(GOOD_W, GOOD_S.replace("264", "263")),
    "negative": table(GOOD_W, GOOD_S.replace("[1,8]", "[-1,-8]")),
    "float offsets": table(GOOD_W, GOOD_S.replace("256,", "256.0,")),
    "backwards": table(GOOD_W, GOOD_S.replace("[256,264]", "[264,256]")),
}


REFUSED_WITHIN_S = 1
"""Of processor time, which a busy machine does not lengthen much; it is needed a tenth of that."""


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_checkpoint_is_refused_at_once_and_nothing_is_written(bench, place, tmp_path, name):
    (tmp_path / "a.safetensors").write_bytes(BAD_FILES[name])
    started = time.process_time()
    for action in ("verify", "ensure"):
        error = bench.refused("engram", **request(SimpleNamespace(directory=tmp_path), place, action))
        assert (error["id"], len(str(error)) < 1500) == ("TS-ENGRAM-CHECKPOINT", True)
    assert time.process_time() - started < REFUSED_WITHIN_S
    assert names(place) == []


PLACES = {
    "a FIFO": os.mkfifo,
    "a directory": os.mkdir,
    "a device": lambda path: Path(path).symlink_to("/dev/zero"),
    "a dangling link": lambda path: Path(path).symlink_to("nowhere"),
    "a link to itself": lambda path: Path(path).symlink_to(path),
    "an empty file": lambda path: Path(path).touch(),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_no_file_of_a_checkpoint_is_refused_without_waiting(bench, checkpoint, place, name, whole):
    """In place of a shard, and beside a whole checkpoint."""
    shard = checkpoint.directory / ("model-00099.safetensors" if whole else "model-00001.safetensors")
    shard.unlink(missing_ok=True)
    PLACES[name](str(shard))
    for action in ("verify", "ensure"):
        error = bench.refused("engram", **request(checkpoint, place, action))
        assert (error["id"], error["where"]) == ("TS-ENGRAM-CHECKPOINT", str(shard))
    assert names(place) == []


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: Path(path).touch(), lambda path: None])
def test_a_checkpoint_that_is_no_directory_is_refused(bench, place, tmp_path, make):
    make(str(tmp_path / "checkpoint"))
    error = bench.refused("engram", **request(SimpleNamespace(directory=tmp_path / "checkpoint"), place))
    assert error["id"] == "TS-ENGRAM-CHECKPOINT"
    assert names(place) == []


def test_a_header_over_100_mib_is_not_read(bench, place, tmp_path, monkeypatch):
    with (tmp_path / "a.safetensors").open("wb") as file:
        file.write((100 * 2**20 + 1).to_bytes(8, "little") + b"{")
        file.truncate(2**31)
    monkeypatch.setattr(safetensors, "_parse", None)
    error = bench.refused("engram", **request(SimpleNamespace(directory=tmp_path), place))
    assert (error["id"], "104857601" in error["observed"]) == ("TS-ENGRAM-CHECKPOINT", True)


@pytest.mark.parametrize("hangs", [(engram_tables, "find_tables"), (native_pack, "compare")])
@pytest.mark.parametrize("action", ["verify", "ensure"])
def test_a_checkpoint_whose_server_is_gone_ends_the_verb(bench, checkpoint, place, monkeypatch, action, hangs):
    """A hard mount never answers and never fails."""
    bench.ask("engram", **request(checkpoint, place))
    monkeypatch.setattr(*hangs, lambda *_, **__: time.sleep(600))
    monkeypatch.setattr(engram, "INSPECT_S", 0.5)
    began = time.monotonic()
    error = bench.refused("engram", **request(checkpoint, place, action))
    assert (error["id"], error["where"]) == ("TS-ENGRAM-TIMEOUT", str(checkpoint.directory))
    assert time.monotonic() - began < 60


def test_a_shard_may_be_reached_by_a_link(bench, checkpoint, place):
    """As in a download cache."""
    shard = checkpoint.directory / "model-00001.safetensors"
    shard.rename(shard.with_name("blob"))
    shard.symlink_to("blob")
    assert bench.ask("engram", **request(checkpoint, place))["changed"]


@pytest.mark.parametrize("name", [*BAD_FILES, "none", "twice"])
def test_bad_checkpoints(tmp_path, name):
    if name == "twice":
        for file in ("a", "b"):
            (tmp_path / f"{file}.safetensors").write_bytes(table(GOOD_W, GOOD_S))
    elif name != "none":
        (tmp_path / "a.safetensors").write_bytes(BAD_FILES[name])
    with pytest.raises(AgentError) as caught:
        engram_tables.find_tables(tmp_path, (1,))
    assert caught.value.id == "TS-ENGRAM-CHECKPOINT"


def test_the_smallest_good_checkpoint(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(table(GOOD_W, GOOD_S))
    found = engram_tables.find_tables(tmp_path, (1,))[1]
    assert (found.rows, found.scale_offset - found.weight_offset) == (1, 256)
