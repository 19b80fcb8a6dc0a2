"""The compiled copy of an installed agent: used while it is whole, made anew when it is not, and never trusted."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
import zipfile
import zipimport
from collections.abc import Callable
from pathlib import Path

import pytest

from trispark_node import bytecode
from trispark_node.build import build

ROOT = Path(__file__).resolve().parents[3]
MODULE = "agent_of_this_test"
SOURCE = "VALUE = 'as built'\n"
INPUT = "ab" * 32


@pytest.fixture(scope="module")
def agent_bytes(tmp_path_factory) -> bytes:
    out = tmp_path_factory.mktemp("agent") / "trispark-node"
    build(ROOT, out)
    return out.read_bytes()


def install(root: Path, data: bytes, place: str = "bin") -> Path:
    path = root / place / "trispark-node"
    path.parent.mkdir()
    path.write_bytes(data)
    return path


def ask(agent: Path, root: Path) -> dict:
    done = subprocess.run(
        [sys.executable, str(agent), "version"],
        input="{}",
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "TRISPARK_ROOT": str(root)},
    )
    return json.loads(done.stdout)


def copies(root: Path) -> list[Path]:
    return sorted((root / "run").glob("agent-*"))


def test_one_copy_is_made_and_used_and_an_altered_one_is_not(tmp_path, agent_bytes) -> None:
    agent = install(tmp_path, agent_bytes)
    first = ask(agent, tmp_path)
    (copy,) = copies(tmp_path)
    made = copy.stat().st_ino
    assert ask(agent, tmp_path) == first
    assert copy.stat().st_ino == made
    alter_compiled(copy / "trispark_node" / "__init__.py")
    assert ask(agent, tmp_path) == first
    assert copies(tmp_path) == [copy]
    assert copy.stat().st_ino != made


def test_the_copy_is_what_runs(tmp_path, agent_bytes) -> None:
    """With the archive's own package gone: what answers then can only be the copy."""
    agent = install(tmp_path, agent_bytes)
    first = ask(agent, tmp_path)
    (copy,) = copies(tmp_path)
    with zipfile.ZipFile(agent) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if not name.startswith("trispark_node/")}
    with zipfile.ZipFile(agent, "w") as archive:
        for name, data in kept.items():
            archive.writestr(name, data)
    assert ask(agent, tmp_path) == first
    assert copies(tmp_path) == [copy]


def test_without_its_place_or_a_writable_one_the_file_itself_runs(tmp_path, agent_bytes) -> None:
    elsewhere = install(tmp_path, agent_bytes, "somewhere")
    assert ask(elsewhere, tmp_path)["ok"]
    assert copies(tmp_path) == []
    agent = install(tmp_path, agent_bytes)
    (tmp_path / "run").write_text("a file in the way", encoding="utf-8")
    assert ask(agent, tmp_path)["ok"]


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    """An archive of one module and one package, at its place; this process's module path is put back afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    path = tmp_path / "bin" / "trispark-node"
    path.parent.mkdir()
    pack(path)
    yield path
    sys.modules.pop(MODULE, None)


def pack(path: Path, source: str = SOURCE, fingerprint: str = INPUT) -> None:
    path.unlink(missing_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{MODULE}.py", source)
        archive.writestr("package/__init__.py", "")
        archive.writestr("package/data.txt", "data")
        archive.writestr(bytecode.INPUT_NAME, fingerprint)
    zipimport._zip_directory_cache.clear()  # an agent is a new process each time


def value(copy: Path) -> str:
    """What a fresh import from the copy gives."""
    sys.modules.pop(MODULE, None)
    importlib.invalidate_caches()
    module = importlib.import_module(MODULE)
    assert Path(module.__file__).parent == copy
    return module.VALUE


def compiled(source: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(source)))


def alter_compiled(source: Path) -> None:
    """A valid module of the same size as before and with its times: only its content tells."""
    target = compiled(source)
    before = target.stat()
    data = target.read_bytes()
    planted = data.replace(b"as built", b"planted!").replace(b"0.1.0", b"6.6.6")
    assert planted != data
    target.write_bytes(planted)
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))


def plant(copy: Path) -> None:
    """As one whole compiled module, from another source."""
    source = copy.parent / "planted.py"
    source.write_text("VALUE = 'planted'\n", encoding="utf-8")
    py_compile.compile(
        str(source),
        str(compiled(copy / f"{MODULE}.py")),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def forget_last(copy: Path) -> None:
    manifest = json.loads((copy / bytecode.MANIFEST).read_bytes())
    manifest["files"].popitem()
    (copy / bytecode.MANIFEST).write_text(json.dumps(manifest), encoding="ascii")


def into_link(copy: Path) -> None:
    moved = copy.with_name("moved")
    copy.rename(moved)
    copy.symlink_to(moved)


def into_file(copy: Path) -> None:
    shutil.rmtree(copy)
    copy.write_bytes(b"")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "compiled module altered": lambda copy: alter_compiled(copy / f"{MODULE}.py"),
    "compiled module planted": plant,
    "compiled module truncated": lambda copy: cut(compiled(copy / f"{MODULE}.py"), 40),
    "compiled module empty": lambda copy: cut(compiled(copy / f"{MODULE}.py"), 0),
    "compiled module lost": lambda copy: compiled(copy / f"{MODULE}.py").unlink(),
    "source altered": lambda copy: (copy / f"{MODULE}.py").write_text("VALUE = 'planted!'\n", encoding="utf-8"),
    "source lost": lambda copy: (copy / f"{MODULE}.py").unlink(),
    "data truncated": lambda copy: cut(copy / "package" / "data.txt", 1),
    "module added": lambda copy: (copy / "json.py").write_text("raise SystemExit\n", encoding="utf-8"),
    "manifest lost": lambda copy: (copy / bytecode.MANIFEST).unlink(),
    "manifest truncated": lambda copy: cut(copy / bytecode.MANIFEST, 30),
    "manifest shorter": forget_last,
    "manifest of something else": lambda copy: (copy / bytecode.MANIFEST).write_text("[]", encoding="ascii"),
    "writable for others": lambda copy: copy.chmod(0o777),
    "a link": into_link,
    "a file": into_file,
    "empty": lambda copy: (shutil.rmtree(copy), copy.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_copy_that_is_not_whole_is_made_anew(small, damage) -> None:
    copy = bytecode.prefer_compiled(small)
    assert copy is not None
    assert value(copy) == "as built"
    DAMAGES[damage](copy)
    assert not bytecode.whole(copy, INPUT)
    assert bytecode.prefer_compiled(small) == copy
    assert value(copy) == "as built"
    assert bytecode.whole(copy, INPUT)
    assert not list(copy.parent.glob(".agent-*"))


def test_the_manifest_names_every_file_and_the_input(small) -> None:
    copy = bytecode.prefer_compiled(small)
    manifest = json.loads((copy / bytecode.MANIFEST).read_bytes())
    there = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert set(manifest["files"]) == there - {bytecode.MANIFEST}
    assert {name.rpartition(".")[2] for name in there} >= {"py", "pyc"}
    assert manifest["input"] == INPUT


def test_a_copy_of_another_input_with_the_same_beginning_is_not_used(small) -> None:
    copy = bytecode.prefer_compiled(small)
    pack(small, "VALUE = 'later'\n", INPUT[:16] + "c" * 48)
    assert bytecode.prefer_compiled(small) == copy
    assert value(copy) == "later"


def test_a_run_directory_that_others_can_write_is_not_used(small) -> None:
    run = small.parent.parent / "run"
    run.mkdir()
    run.chmod(0o777)
    assert bytecode.prefer_compiled(small) is None
    assert list(run.iterdir()) == []


@pytest.mark.parametrize("obstacle", ["being made", "archive truncated", "no room"])
def test_when_no_copy_can_be_made_the_archive_is_used(small, monkeypatch, obstacle) -> None:
    run = small.parent.parent / "run"
    run.mkdir(mode=0o700)
    before = list(sys.path)
    lock = (run / ".agent.lock").open("w")
    if obstacle == "being made":
        fcntl.flock(lock, fcntl.LOCK_EX)
    elif obstacle == "archive truncated":
        small.write_bytes(small.read_bytes()[:50])
    else:

        def full(*_arguments: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    assert bytecode.prefer_compiled(small) is None
    lock.close()
    assert sys.path == before
    assert not [path for path in run.iterdir() if path.name != ".agent.lock"]


def test_copies_of_other_agents_stay_while_they_may_be_in_use(small) -> None:
    """A running agent imports from its own copy late; an upgrade must not take it away."""
    run = small.parent.parent / "run"
    ages = {"agent-0": 60, "agent-1": 86400, "agent-2": 3 * 86400, ".agent-3": 60, ".agent-4": 3700, "other": 10**8}
    bytecode.prefer_compiled(small)
    now = (run / next(path.name for path in run.glob("agent-*"))).stat().st_mtime
    for name, age in ages.items():
        (run / name).mkdir()
        os.utime(run / name, (now - age, now - age))
    copy = bytecode.prefer_compiled(small)
    left = {path.name for path in run.iterdir()} - {".agent.lock", copy.name}
    assert left == {"agent-0", "agent-1", ".agent-3", "other"}


def test_use_keeps_a_copy_young(small) -> None:
    copy = bytecode.prefer_compiled(small)
    os.utime(copy, (1, 1))
    assert bytecode.prefer_compiled(small) == copy
    assert copy.stat().st_mtime > 1
