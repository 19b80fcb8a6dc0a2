"""Verb `parity`: hash trees and loaded libraries are those of the real files, read from outside and bounded by the root
directory of the container; tactics know their image."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trispark_node import libraries
from trispark_node.docker_client import Executed
from trispark_node.file_tree import hash_directory, hash_of
from trispark_node.inside import open_inside

SOURCES = "/opt/engine"
TACTICS = "/state/autotune"
IMAGE = "registry:5000/trispark/lab-engine@sha256:" + "a" * 64


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tree_of(directory: Path):
    descriptor = open_inside(directory, ".")
    try:
        return hash_directory(descriptor)
    finally:
        os.close(descriptor)


@pytest.fixture
def engine(bench, stage_request):
    """A running engine of a generation that says what to hash, with real files as its root; that root."""
    mounts = [{"source": "{engine_state}/state", "target": "/state", "read_only": False}]
    request = stage_request(mounts=mounts)
    request["spec"]["observe"]["identity"] = {
        "sources": [SOURCES, "/opt/other"],
        "compiled": ["/root/.triton"],
        "autotune": TACTICS,
    }
    bench.ask("stage", **request)
    bench.ask("activate", generation=request["generation"])
    bench.ask("fence", epoch=5, boot_id="b1")
    bench.ask("start", boot_id="b1", epoch=5)
    (container_id,) = bench.docker.containers
    root = bench.container_root(container_id)
    (root / "opt/engine/srt").mkdir(parents=True)
    (root / "opt/engine/__init__.py").write_text("A = 1\n")
    (root / "opt/engine/srt/layer.py").write_text("B = 2\n")
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/libnccl.so.2").write_bytes(b"nccl")
    (bench.procfs / "70" / "maps").write_text(maps("/usr/lib/libnccl.so.2"))
    return root


def maps(*paths: str) -> str:
    """As the kernel shows it: data, code, and memory without a file."""
    lines = ["7f00-7f01 rw-p 00000000 00:00 0 ", "7f01-7f02 r-xp 00000000 00:00 0                 [vdso]"]
    for path in paths:
        lines += [f"7f02-7f03 r--p 00000000 00:59 16{len(lines)}        {path}"]
        lines += [f"7f03-7f04 r-xp 00001000 00:59 16{len(lines)}        {path}"]
    return "\n".join(lines) + "\n"


def seen(bench, **request):
    return bench.ask("parity", **request)["running"]["identity"]


def test_the_whole_answer(bench, engine):
    answer = bench.ask("parity", files=True)
    identity = answer["running"]["identity"]
    sources = {f"{SOURCES}/__init__.py": sha(b"A = 1\n"), f"{SOURCES}/srt/layer.py": sha(b"B = 2\n")}
    assert identity["source"] == {"hash": hash_of(sources), "files": 2, "bytes": 12, "listed": sources}
    assert identity["adapters"]["listed"] == answer["staged"]["listed"]
    assert identity["adapters"]["hash"] == answer["staged"]["hash"]
    assert identity["libraries"]["listed"] == {"/usr/lib/libnccl.so.2": sha(b"nccl")}
    reference = answer["image"]["reference"]
    assert answer["image"] == {"reference": reference, "id": "sha256:" + "b" * 64, "digests": [reference]}
    assert answer["running"]["image_id"] == answer["image"]["id"]
    assert answer["autotune"] == {"state": "empty", "image": reference, "made_under": reference, "files": 0}
    short = seen(bench)
    assert short["source"] == {"hash": hash_of(sources), "files": 2, "bytes": 12}
    bench.docker.executed = {"python3": Executed(0, '{"numpy": "2"}', ""), "engine-version": Executed(0, "1\n", "")}
    assert bench.ask("observe", identity=True)["identity"] == short


def stop(bench):
    shutil.rmtree(bench.procfs / "70")
    bench.ask("stop", deadline_s=1)


def test_nothing_runs_and_nothing_is_staged(bench, engine):
    stop(bench)
    answer = bench.ask("parity")
    assert answer["running"] is None
    assert answer["staged"]["files"] == 2
    other = bench.ask("parity", generation="g" + "0" * 16)
    assert (other["staged"], other["image"], other["autotune"]) == (None, None, None)
    bench.node.layout.current.unlink()
    assert bench.ask("parity")["generation"] is None


def test_an_image_that_is_not_here_has_no_id(bench, engine):
    stop(bench)
    bench.docker.images.clear()
    assert bench.ask("parity")["image"]["id"] is None


def test_what_cannot_be_read_is_a_problem_and_no_hash(bench, engine):
    shutil.rmtree(engine / "opt/engine")
    assert "no such directory" in seen(bench)["source"]["problem"]
    shutil.rmtree(bench.procfs / "70")
    identity = seen(bench)
    assert all("no process" in identity[name]["problem"] for name in ("source", "adapters"))
    assert identity["libraries"]["listed"] == {}


def test_the_hash_is_one_that_a_person_can_make(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("z.py", "b/a.py", "b-c.py"):
        (tmp_path / name).write_text(name)
    command = "LC_ALL=C find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    by_hand = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert tree_of(tmp_path).hash == by_hand.split()[0]


NAMES = st.text("ab.", min_size=1, max_size=3).filter(lambda name: name.strip("."))
CONTENTS = st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(min_size=1, max_size=9))


@settings(max_examples=60, deadline=None)
@given(contents=CONTENTS, data=st.data())
def test_any_changed_byte_changes_its_file_and_the_whole(tmp_path_factory, contents, data):
    root = tmp_path_factory.mktemp("tree")
    for path, content in contents.items():
        try:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        except OSError:  # a file and a directory of one name
            continue
    before = tree_of(root)
    if not before.files:
        return
    path = data.draw(st.sampled_from(sorted(before.files)))
    content = bytearray((root / path).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    (root / path).write_bytes(content)
    after = tree_of(root)
    assert {name for name in before.files if before.files[name] != after.files[name]} == {path}
    assert before.hash != after.hash


@pytest.mark.parametrize(
    ("mode", "counts"),
    [("TIMESTAMP", False), ("CHECKED_HASH", False), ("UNCHECKED_HASH", True)],
)
def test_bytecode_counts_where_the_interpreter_believes_it(tmp_path, mode, counts):
    source = tmp_path / "m.py"
    source.write_text("A = 1\n")
    made = py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode[mode], doraise=True)
    name = Path(made).relative_to(tmp_path).as_posix()
    assert set(tree_of(tmp_path).files) == {"m.py", *([name] if counts else [])}
    Path(made).rename(tmp_path / "n.pyc")
    assert "n.pyc" in tree_of(tmp_path).files, "without a source it is what runs"
    assert importlib.util.source_from_cache(made) == str(source)


def test_a_link_is_told_and_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.py").write_text("x")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "directory").symlink_to(outside)
    (tree / "file.py").symlink_to("/etc/passwd")
    os.mkfifo(tree / "pipe")
    assert tree_of(tree).files == {
        "directory": f"a link to {outside}",
        "file.py": "a link to /etc/passwd",
        "pipe": "no regular file",
    }


def test_a_tree_without_bounds_is_refused(tmp_path, monkeypatch):
    for number in range(4):
        (tmp_path / f"{number}.py").write_text("x" * 10)
    monkeypatch.setattr("trispark_node.file_tree.MOST_FILES", 3)
    with pytest.raises(OSError, match="more than 3 files"):
        tree_of(tmp_path)
    monkeypatch.setattr("trispark_node.file_tree.MOST_FILES", 9)
    monkeypatch.setattr("trispark_node.file_tree.MOST_BYTES", 39)
    with pytest.raises(OSError, match="39 bytes"):
        tree_of(tmp_path)


@pytest.mark.parametrize(
    ("target", "read"),
    [("/real/f", "inside"), ("real/f", "inside"), ("../../../../real/f", "inside"), ("/etc/hostname", None)],
)
def test_links_stay_inside_the_root(tmp_path, target, read):
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (root / "real/f").write_text("inside")
    (root / "link").symlink_to(target)
    if read is None:
        assert Path(target).parent.exists(), "here there is such a place"
        with pytest.raises(FileNotFoundError):
            open_inside(root, "/link")
        return
    with os.fdopen(open_inside(root, "/link")) as file:
        assert file.read() == read


@pytest.mark.parametrize("place", ["/loop", "/pipe", "/real/f/below", "/gone"])
def test_what_is_no_file_inside_is_an_error_and_no_wait(tmp_path, place):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/f").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - of this process, while it is looked at
    with pytest.raises(OSError):  # noqa: PT011 - of each kind
        open_inside(tmp_path, place)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_loaded_code_is_found_whatever_else_is_mapped(bench, engine):
    other = bench.process(71, container_id=next(iter(bench.docker.containers)))
    (other / "root").symlink_to(engine)
    (engine / "lib with space.so").write_bytes(b"space")
    lines = [
        "7f10-7f11 r-xp 0 00:59 7      /lib with space.so",
        "7f11-7f12 r--p 0 00:59 8      /only/data.bin",
        "7f12-7f13 r-xp 0 00:01 9      /memfd:jit (deleted)",
        "7f13-7f14 r-xp 0 00:05 9      /dev/nvidia0",
        "7f14-7f15 r-xp 0 00:59 9      /tmp/ffi1 (deleted)",
        "7f15-7f16 r-xp 0 00:59 9      /root/.triton/cache/a.so",
        "7f16-7f17 r-xp 0 00:59 9      /state/jit.so",
        "7f17-7f18 r-xp 0 00:59 9      /usr/lib/libgone.so (deleted)",
        "7f18-7f19 r-xp 0 00:59 9      /usr/lib/libabsent.so",
    ]
    (other / "maps").write_text("\n".join(lines) + "\n")
    found = seen(bench)["libraries"]
    assert found["listed"] == {
        "/lib with space.so": sha(b"space"),
        "/usr/lib/libabsent.so": "cannot be read: No such file or directory",
        "/usr/lib/libgone.so": libraries.GONE,
        "/usr/lib/libnccl.so.2": sha(b"nccl"),
    }
    assert found["made_here"] == ["/root/.triton/cache/a.so", "/state/jit.so", "/tmp/ffi1"]
    assert found["bytes"] == len(b"spacenccl")


def test_a_real_process_shows_the_bits_that_it_runs():
    """This machine's own tables: a child, and the file of its interpreter."""
    child = subprocess.Popen([sys.executable, "-c", "import ctypes; print(1, flush=True); input()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert child.stdout is not None
        child.stdout.readline()
        listed = libraries.hashed(Path("/proc"), [child.pid], ())["listed"]
    finally:
        child.communicate(b"\n", timeout=30)
    program = os.path.realpath(sys.executable)
    assert listed[program] == sha(Path(program).read_bytes())
    assert any("/libc.so" in path or "/libc-" in path or "musl" in path for path in listed)


def place_tactics(bench, generation, made_under=None):
    """Tactics of a generation as someone would bring them; with the agent's note of another directory, if given."""
    directory = bench.node.layout.engine_state(generation)
    (directory / "state/autotune").mkdir(parents=True, exist_ok=True)
    (directory / "state/autotune/rank_tp1.json").write_text("{}")
    note = directory / "image.json"
    note.unlink(missing_ok=True)
    if made_under is not None:
        note.write_text(json.dumps({"image": made_under}))
    return directory


OTHER = "registry:5000/trispark/lab-engine@sha256:" + "c" * 64


@pytest.mark.parametrize(("made_under", "state"), [(OTHER, "other"), (None, "unknown")])
def test_tactics_of_another_image_are_refused_or_cleared(bench, engine, made_under, state):
    stop(bench)
    generation = bench.ask("status")["current"]
    directory = place_tactics(bench, generation, made_under)
    bench.ask("fence", epoch=6, boot_id="b2")
    answer = bench.ask("parity")["autotune"]
    assert (answer["state"], answer["made_under"], answer["files"]) == (state, made_under, 1)
    before = bench.tree()
    error = bench.refused("start", boot_id="b2", epoch=6)
    assert (error["id"], (made_under or "unknown image") in error["observed"]) == ("TS-AGENT-AUTOTUNE", True)
    assert bench.tree() == before
    assert bench.ask("start", boot_id="b2", epoch=6, clear_autotune=True)["cleared_autotune"] is True
    assert not (directory / "state/autotune").exists()
    assert bench.ask("parity")["autotune"]["state"] == "empty"


def test_tactics_of_the_same_image_stay(bench, engine):
    (engine / "state/autotune").mkdir(parents=True)
    (engine / "state/autotune/rank_tp1.json").write_text("{}")
    assert seen(bench)["autotune"]["listed"] == {"rank_tp1.json": sha(b"{}")}
    stop(bench)
    tactics = place_tactics(bench, bench.ask("status")["current"], IMAGE) / "state/autotune/rank_tp1.json"
    assert bench.ask("parity")["autotune"]["state"] == "same"
    bench.ask("fence", epoch=6, boot_id="b2")
    assert bench.ask("start", boot_id="b2", epoch=6)["cleared_autotune"] is False
    assert tactics.exists()


def test_what_an_older_agent_made_is_known_by_its_boot(bench, engine):
    """It wrote no note; the record of a boot says that the directory was an agent's."""
    generation = bench.ask("status")["current"]
    place_tactics(bench, generation)
    assert bench.ask("parity")["autotune"]["state"] == "unknown"
    record = {"seq": 1, "id": "b1", "kind": "boot", "previous": None, "resolved": {"generation": generation}}
    bench.ask("record-append", record=record, previous=None)
    assert bench.ask("parity")["autotune"]["state"] == "same"


def test_a_note_that_cannot_be_read_is_none(bench, engine):
    generation = bench.ask("status")["current"]
    directory = place_tactics(bench, generation)
    (directory / "image.json").write_text("[")
    assert bench.ask("parity")["autotune"]["state"] == "unknown"


def test_an_engine_without_tactics_has_none(bench, active):
    assert bench.ask("parity")["autotune"] is None
