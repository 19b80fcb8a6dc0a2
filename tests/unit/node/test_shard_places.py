"""What surrounds shards: other layouts and sizes, networks, the running engine, refusing and full file systems."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from trispark_node import cli, engram, engram_place, native_pack, shard_check
from trispark_node.docker_client import MountPoint
from trispark_node.errors import AgentError

ROOT = Path(__file__).resolve().parents[3]
FILE = "engram-l1-r1of3.bin"
COLUMNS = {"engram_layer_ids": [1], "engram_vocab_size": 3, "engram_max_ngram_size": 3, "engram_n_heads": 3}
COLUMN_ROWS = 3 + 5 + 7 + 11 + 13 + 17


@pytest.fixture
def place(quick_path: Path) -> Path:
    path = quick_path / "engram"
    path.mkdir()
    return path


def request(checkpoint, place, action="ensure", rank=1, **more):
    fields = {"checkpoint": str(checkpoint.directory), "directory": str(place), "rank": rank, "tp": 3, "layers": [1]}
    return {"action": action, **fields, **more}


# -- layouts -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def columns(make_checkpoint, quick_path):
    """A checkpoint that can be divided by columns."""
    checkpoint = make_checkpoint(quick_path / "columns", {1: COLUMN_ROWS})
    (checkpoint.directory / "config.json").write_text(json.dumps(COLUMNS))
    return checkpoint


def test_the_declared_layout_says_which_rows_are_packed(bench, columns, place):
    for layout, rows in (("column", [(0, 8), (8, 26), (26, 56)]), ("even", [(0, 18), (18, 37), (37, 56)])):
        directory = place / layout
        for rank in (0, 1, 2):
            answer = bench.ask("engram", **request(columns, directory, rank=rank, layout=layout))
            file = answer["files"][0]
            assert ((file["first_row"], file["end_row"]), file["layout"]) == (rows[rank], layout)
            content = (directory / f"engram-l1-r{rank}of3.bin").read_bytes()
            first, end = rows[rank]
            assert content[4096:][:256] == columns.weight[1][first * 256 : first * 256 + 256]
            assert len(content) == 4096 + 264 * (end - first)
            assert json.loads((directory / f"engram-l1-r{rank}of3.bin.manifest.json").read_bytes())["ownership"] == {
                "layout": layout,
                "version": 1,
                "rank": rank,
                "tp": 3,
            }


@pytest.mark.parametrize(("made", "declared"), [("column", "even"), ("even", "column")])
def test_a_shard_of_the_other_layout_is_refused_by_name(bench, columns, place, made, declared):
    bench.ask("engram", **request(columns, place, layout=made))
    before = (place / FILE).read_bytes()
    for action in ("verify", "ensure"):
        error = bench.refused("engram", **request(columns, place, action, layout=declared))
        assert error["id"] == "TS-ENGRAM-LAYOUT"
        assert f"this is the {made} layout's rank 1, the site declares {declared}" in error["observed"]
    assert (place / FILE).read_bytes() == before
    bench.ask("engram", **request(columns, place, layout=declared, repair=True))
    assert bench.ask("engram", **request(columns, place, "verify", layout=declared))["files"][0]["state"] == "ok"


def test_columns_are_refused_by_name_where_the_checkpoint_has_none(bench, checkpoint, place):
    error = bench.refused("engram", **request(checkpoint, place, layout="column"))
    assert error["id"] == "TS-ENGRAM-COLUMNS"
    assert list(place.iterdir()) == []
    assert bench.refused("engram", **request(checkpoint, place, layout="odd"))["id"] == "TS-AGENT-REQUEST"


# -- beside the shards -------------------------------------------------------------------------------------------------


def test_other_shards_and_left_overs_are_reported_with_size_and_age(bench, checkpoint, place):
    bench.ask("engram", **request(checkpoint, place))
    files = {
        "engram-l1-r0of2.bin": 9,
        "engram-l1-r1of4.bin": 5,
        "engram-l1-r1of4.bin.manifest.json": 2,
        "engram-l14-r1of3.bin.partial": 7,
    }
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()  # of the node's clock
    for name, size in {**files, "notes.txt": 1}.items():
        (place / name).write_bytes(b"x" * size)
        os.utime(place / name, (now - 36 * 3600, now - 36 * 3600))
    (place / "engram-l2-r0of3.bin").mkdir()
    for action in ("ensure", "verify", "inspect"):
        found = bench.ask("engram", **request(checkpoint, place, action))["others"]
        assert {each["file"]: each["bytes"] for each in found if each["kind"] != "no file"} == files
        assert [each["kind"] for each in found] == ["shard", "shard", "manifest", "partial", "no file"]
        assert {each["age_days"] for each in found if each["kind"] != "no file"} == {1.5}
        assert found[0]["modified"] == "2025-12-31T15:04:05Z"
    assert {name for name in files if (place / name).exists()} == set(files)


def test_inspection_says_what_is_there_and_refuses_nothing(bench, checkpoint, place):
    answer = bench.ask("engram", **request(checkpoint, place, "inspect"))
    assert (answer["files"][0]["state"], answer["changed"]) == ("missing", False)
    (place / FILE).write_bytes(b"x")
    answer = bench.ask("engram", **request(checkpoint, place, "inspect"))
    assert (answer["files"][0]["state"], answer["files"][0]["observed"]) == (
        "wrong_size",
        "1 bytes, less than its header",
    )


# -- a network below the checkpoint ------------------------------------------------------------------------------------


def mounts(bench, *lines: str) -> None:
    directory = bench.procfs / "self"
    directory.mkdir(exist_ok=True)
    (directory / "mountinfo").write_text("".join(f"{line}\n" for line in lines))


ROOT_MOUNT = "20 1 8:1 / / rw - ext4 /dev/sda1 rw"


@pytest.mark.parametrize("fstype", ["nfs4", "fuse.sshfs", "cifs", "9p"])
def test_a_checkpoint_on_a_network_is_said_with_what_it_costs(bench, checkpoint, place, fstype):
    mounts(bench, ROOT_MOUNT, f"21 20 0:50 / {checkpoint.directory.parent} ro - {fstype} head:/ ro")
    found = bench.ask("engram", **request(checkpoint, place))["network"]
    assert found == {
        "fstype": fstype,
        "source": "head:/",
        "mounted_at": str(checkpoint.directory.parent),
        "reads_bytes": len(checkpoint.shard(1, 1)),
    }


def test_a_sample_over_the_network_costs_next_to_nothing(bench, checkpoint, place, monkeypatch):
    bench.ask("engram", **request(checkpoint, place))
    monkeypatch.setattr(shard_check, "WHOLE_BELOW_BYTES", 4096)
    mounts(bench, ROOT_MOUNT, f"21 20 0:50 / {checkpoint.directory} ro - nfs4 head:/ ro")
    assert bench.ask("engram", **request(checkpoint, place, "verify"))["network"]["reads_bytes"] == 0


@pytest.mark.parametrize(
    "line",
    [
        "21 20 8:2 / {} rw - xfs /dev/sdb rw",
        "21 20 0:50 / {}x ro - nfs4 head:/ ro",
        "21 20 0:50 / {}/deeper ro - nfs4 h:/ r",
    ],
)
def test_a_local_checkpoint_is_none(bench, checkpoint, place, line):
    mounts(bench, ROOT_MOUNT, "19 20 0:50 / / ro - nfs4 root:/ ro", ROOT_MOUNT, line.format(checkpoint.directory))
    assert bench.ask("engram", **request(checkpoint, place))["network"] is None


# -- the engine that runs ----------------------------------------------------------------------------------------------


def running(bench, engine_labels, mount: Sequence[MountPoint], status="running") -> None:
    container_id = bench.docker.add("trispark-engine", status, engine_labels())
    container = bench.docker.containers[container_id]
    bench.docker.containers[container_id] = replace(container, mounts=tuple(mount))


def test_a_running_engine_that_reads_elsewhere_is_refused(bench, checkpoint, place, engine_labels):
    bench.ask("engram", **request(checkpoint, place))
    ask = request(checkpoint, place, "verify", running_mount="/engram")
    assert bench.ask("engram", **ask)["files"][0]["state"] == "ok", "nothing runs"
    running(bench, engine_labels, [MountPoint("/old/engram", "/engram", True)])
    error = bench.refused("engram", **ask)
    assert (error["id"], error["observed"], error["expected"]) == ("TS-ENGRAM-MOUNT", "/old/engram", str(place))
    assert bench.ask("engram", **{**ask, "running_mount": None})["files"][0]["state"] == "ok"
    running(bench, engine_labels, [MountPoint("/x", "/other", True)])
    assert bench.refused("engram", **ask)["observed"] == "no such mount"
    running(bench, engine_labels, [MountPoint(str(place), "/engram", True)])
    assert bench.ask("engram", **ask)["files"][0]["state"] == "ok"
    running(bench, engine_labels, [MountPoint("/old/engram", "/engram", True)], "exited")
    assert bench.ask("engram", **ask)["files"][0]["state"] == "ok"


def damage(place) -> None:
    """In place, as a disk would: the file stays the one that an engine has opened."""
    with (place / FILE).open("r+b") as file:
        byte = os.pread(file.fileno(), 1, 4096)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), 4096)


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [("", "running", True), ("", "exited", False), ("/elsewhere", "running", False)],
    ids=["running", "exited", "elsewhere"],
)
@pytest.mark.parametrize("action", ["verify", "ensure"])
def test_of_a_wrong_shard_the_engine_that_may_serve_it_is_named(
    bench, checkpoint, place, engine_labels, source, status, said, action
):
    bench.ask("engram", **request(checkpoint, place))
    running(bench, engine_labels, [MountPoint(source or str(place), "/engram", True)], status)
    assert bench.ask("engram", **request(checkpoint, place, action))["serving"] == [], "all files are good"
    damage(place)
    answer, _ = cli.answer(bench.node, "engram", json.dumps(request(checkpoint, place, action)))
    assert answer["error"]["id"] == "TS-ENGRAM-CONTENT"
    assert answer["serving"] == (["trispark-engine"] if said else [])
    assert ("./trispark play stop: trispark-engine runs" in answer["error"]["remedy"]) is said


def test_a_repair_names_the_engine_that_keeps_the_old_file(bench, checkpoint, place, engine_labels):
    bench.ask("engram", **request(checkpoint, place))
    running(bench, engine_labels, [MountPoint(str(place), "/engram", True)])
    damage(place)
    answer = bench.ask("engram", **request(checkpoint, place, repair=True))
    assert [row["action"] for row in answer["files"]] == ["repaired"]
    assert answer["serving"] == ["trispark-engine"]


def test_no_engine_is_named_whose_rows_are_right(bench, checkpoint, place, engine_labels):
    bench.ask("engram", **request(checkpoint, place))
    running(bench, engine_labels, [MountPoint(str(place), "/engram", True)])
    (place / f"{FILE}.manifest.json").write_bytes(b"{}\n")
    assert "play stop" not in bench.refused("engram", **request(checkpoint, place, "verify"))["remedy"]


def test_without_a_docker_engine_the_files_are_judged_all_the_same(bench, checkpoint, place, monkeypatch):
    bench.ask("engram", **request(checkpoint, place))
    damage(place)

    def silent(_labels):
        raise AgentError("TS-AGENT-DOCKER", "no answer", where="w", expected="e", observed="o", remedy="r")

    monkeypatch.setattr(bench.docker, "labelled", silent)
    assert bench.refused("engram", **request(checkpoint, place, "verify"))["id"] == "TS-ENGRAM-CONTENT"


# -- room --------------------------------------------------------------------------------------------------------------


def test_the_reserve_is_part_of_the_room_that_is_needed(bench, checkpoint, place, monkeypatch):
    size = len(checkpoint.shard(1, 1))
    free = SimpleNamespace(f_bavail=size + 99, f_frsize=1, f_blocks=size)
    monkeypatch.setattr(os, "statvfs", lambda _path: free)
    error = bench.refused("engram", **request(checkpoint, place, reserve_bytes=100))
    assert error["id"] == "TS-ENGRAM-SPACE"
    assert error["expected"] == f"{size + 100} bytes free: {size} for {FILE}, 100 in reserve"
    assert error["observed"] == f"{size + 99} bytes free, 1 too few"
    free.f_bavail += 1
    assert bench.ask("engram", **request(checkpoint, place, reserve_bytes=100))["changed"]


def test_adoption_needs_no_room(bench, checkpoint, place):
    bench.ask("engram", **request(checkpoint, place))
    (place / f"{FILE}.manifest.json").unlink()
    assert bench.ask("engram", **request(checkpoint, place, reserve_bytes=2**62))["files"][0]["action"] == "adopted"


# -- replaced while it is looked at ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["replaced", "removed", "written", "truncated"])
def test_a_file_that_changes_under_the_look_has_no_verdict(checkpoint, place, bench, monkeypatch, how):
    bench.ask("engram", **request(checkpoint, place))
    path = place / FILE
    real = native_pack.compare

    def meanwhile(*given, **more):
        found = real(*given, **more)
        if how == "replaced":
            shutil.copy2(path, place / "copy")
            (place / "copy").rename(path)
        elif how == "removed":
            path.unlink()
        elif how == "written":
            with path.open("r+b") as file:
                file.write(b"D")
            os.utime(path, ns=(1, 1))
        else:
            os.truncate(path, 4096)
        return found

    monkeypatch.setattr(native_pack, "compare", meanwhile)
    assert bench.refused("engram", **request(checkpoint, place, "verify"))["id"] == "TS-ENGRAM-CHANGED"


def test_a_shard_that_ends_early_while_it_is_adopted_is_named(bench, checkpoint, place, monkeypatch):
    bench.ask("engram", **request(checkpoint, place))
    path = place / FILE
    manifests = [each for each in place.iterdir() if each != path]
    for each in manifests:
        each.unlink()
    real = native_pack.hash_file

    def meanwhile(*given, **more):
        os.truncate(path, 4096)
        return real(*given, **more)

    monkeypatch.setattr(native_pack, "hash_file", meanwhile)
    refused = bench.refused("engram", **request(checkpoint, place))
    assert (refused["id"], refused["where"]) == ("TS-ENGRAM-CHANGED", str(path))
    assert [each for each in place.iterdir() if each in manifests] == [], "it got no manifest"


def test_a_checkpoint_that_ends_early_meanwhile_is_no_verdict_on_the_shard(bench, checkpoint, place, monkeypatch):
    bench.ask("engram", **request(checkpoint, place))

    def short(*_given, **_more):
        raise native_pack.ShortRead("checkpoint", 4096, 100, 7)

    monkeypatch.setattr(native_pack, "compare", short)
    error = bench.refused("engram", **request(checkpoint, place, "verify"))
    assert (error["id"], "4096" in error["observed"]) == ("TS-ENGRAM-CHECKPOINT", True)
    monkeypatch.undo()
    monkeypatch.setattr(native_pack, "pack", short)
    (place / FILE).unlink()
    assert bench.refused("engram", **request(checkpoint, place))["id"] == "TS-ENGRAM-CHECKPOINT"
    assert [path.name for path in place.iterdir()] == [f"{FILE}.manifest.json"], "no partial is left"


# -- file systems and rights, through the agent's own command line -----------------------------------------------------


def agent(root: Path, fields: dict, prefix: Sequence[str] = ()) -> dict:
    environment = {**os.environ, "TRISPARK_ROOT": str(root), "PYTHONPATH": str(ROOT / "src")}
    argv = [*prefix, sys.executable, "-m", "trispark_node", "engram"]
    done = subprocess.run(
        argv, input=json.dumps(fields).encode(), env=environment, capture_output=True, timeout=120, check=False
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def mounted(directory: Path, options: str) -> list[str]:
    """A command prefix that gives `directory` a file system of its own, seen by that command alone."""
    prefix = ["unshare", "--mount", "sh", "-c", f'mount -t {options} none {directory} && exec "$@"', "sh"]
    if os.geteuid() != 0 or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs more rights than this test has")
    return prefix


def test_a_file_system_without_direct_access_is_packed_and_verified_through_the_cache(checkpoint, tmp_path):
    place = tmp_path / "ram"
    place.mkdir()
    prefix = mounted(place, "ramfs")
    command = f"cat > {tmp_path}/ask.json; " + " && ".join(
        f"sed s/ACTION/{action}/ {tmp_path}/ask.json | {sys.executable} -m trispark_node engram"
        for action in ("ensure", "verify")
    )
    environment = {**os.environ, "TRISPARK_ROOT": str(tmp_path / "state"), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*prefix, "sh", "-c", command],
        input=json.dumps(request(checkpoint, place, "ACTION")).encode(),
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["ok"] for answer in answers] == [True, True], done
    assert answers[0]["files"][0]["action"] == "packed"
    assert (answers[1]["files"][0]["state"], answers[1]["files"][0]["checked"]) == ("ok", "whole")


def test_a_disk_that_is_full_in_the_middle_gets_its_space_back(make_checkpoint, tmp_path, monkeypatch):
    """The room was there when it was looked for: another one takes it meanwhile."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint", {1: 30_000})
    place = tmp_path / "small"
    place.mkdir()
    prefix = mounted(place, "tmpfs -o size=1m")
    # Whatever the library reserves ahead fails in the same way; the check before the first byte is switched off.
    code = (
        "import sys, trispark_node.engram as e; e._check_space = lambda *_: None; "
        "from trispark_node.cli import main; status = main(sys.argv[1:]); "
        f"import os; print(sorted(os.listdir({str(place)!r}))); sys.exit(status)"
    )
    environment = {**os.environ, "TRISPARK_ROOT": str(tmp_path / "state"), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code, "engram"],
        input=json.dumps(request(checkpoint, place)).encode(),
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    said, left = done.stdout.decode().splitlines()
    error = json.loads(said)["error"]
    assert (error["id"], error["where"]) == ("TS-AGENT-SPACE", str(place / f"{FILE}.partial"))
    assert left == "[]"


def test_a_shard_that_may_not_be_read_is_an_error_of_the_node(bench, make_checkpoint, tmp_path):
    """As another user, since root may read everything."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user")
    checkpoint, place = make_checkpoint(tmp_path / "checkpoint", {1: 50}), tmp_path / "engram"
    bench.ask("engram", **request(checkpoint, place))
    for path in (*tmp_path.parents, *tmp_path.rglob("*"), tmp_path):
        if path.is_relative_to(tempfile.gettempdir()) and path != Path(tempfile.gettempdir()):
            path.chmod(path.stat().st_mode | 0o055)
    (place / FILE).chmod(0o600)
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    readable = [*prefix, "test", "-r", str(ROOT / "src" / "trispark_node" / "__main__.py")]
    runnable = [*prefix, sys.executable, "-c", ""]
    if any(subprocess.run(argv, capture_output=True, check=False).returncode for argv in (readable, runnable)):
        pytest.skip("this interpreter, or this project's directory, is root's alone")
    answer = agent(tmp_path / "state", request(checkpoint, place, "verify"), prefix)
    assert (answer["error"]["id"], answer["error"]["where"]) == ("TS-AGENT-OS", str(place / FILE))
    assert "EACCES" in answer["error"]["observed"]


@pytest.mark.parametrize("name", [FILE, f"{FILE}.partial", f"{FILE}.manifest.json"])
def test_a_link_to_itself_is_refused(bench, checkpoint, place, name):
    (place / name).symlink_to(name)
    for action in ("verify", "ensure"):
        error = bench.refused("engram", **request(checkpoint, place, action))
        assert (error["id"], error["where"]) == ("TS-ENGRAM-LINK", str(place / name))


def test_every_state_has_an_id_and_each_is_one_of_the_documented() -> None:
    states = {value for name, value in vars(shard_check).items() if name.isupper() and isinstance(value, str)}
    states -= {*shard_check.LEVELS, *shard_check.GOOD, shard_check.MANIFEST_SUFFIX, shard_check.PARTIAL_SUFFIX}
    assert set(engram.ERROR_IDS) == states
    text = (ROOT / "docs/shards.md").read_text(encoding="utf-8")
    assert [state for state in (*states, *shard_check.GOOD) if f"`{state}`" not in text] == []
    assert [name for name in engram.ERROR_IDS.values() if f"`{name}`" not in text] == []


def test_a_mount_is_found_for_the_root_itself() -> None:
    mount = engram_place._mount_of(engram_place.parse_mounts(ROOT_MOUNT), Path("/anything"))
    assert mount is not None
    assert mount.fstype == "ext4"
