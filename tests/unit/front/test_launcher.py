"""The POSIX sh launcher, run by dash with stub interpreters: what it picks, skips, refuses and hands on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).resolve().parents[3] / "trispark"

# A stub interpreter: it answers the launcher's questions and notes what it was asked to run.
STUB = """#!/bin/sh
case "$*" in
*'sys.version_info'*) {probe} ;;
*'import ensurepip'*) exit {ensurepip} ;;
*'environment.py ready'*) echo "{name} ready" >>"$CALLS"; exit {ready} ;;
*'environment.py make'*)
  echo "{name} make" >>"$CALLS"
  [ {make} = 0 ] || exit {make}
  mkdir -p "$ROOT/.venv/bin"
  cp "$STUBS/venv-python" "$ROOT/.venv/bin/python" ;;
*'-m trispark'*) echo "{name} cli $* PATH=${{PATH%%:*}} VIRTUAL_ENV=$VIRTUAL_ENV" >>"$CALLS"; exit 7 ;;
*) exit 99 ;;
esac
"""


class Tree:
    """A checkout with only the launcher, a PATH made of given directories, and stub interpreters in them."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "check out"
        self.calls = tmp_path / "calls"
        self.stubs = tmp_path / "stubs"
        self.base = tmp_path / "base"
        for directory in (self.root, self.stubs, self.base):
            directory.mkdir()
        shutil.copy(LAUNCHER, self.root / "trispark")
        self.stub(self.stubs / "venv-python", "venv", ready=0)
        for tool in ("dirname", "readlink", "mkdir", "cp", "cat"):
            found = shutil.which(tool)
            assert found
            (self.base / tool).symlink_to(found)

    def stub(
        self, path: Path, name: str, *, version: str = "3.11", ensurepip: int = 0, ready: int = 1, make: int = 0
    ) -> Path:
        path.parent.mkdir(exist_ok=True, parents=True)
        supported = version in ("3.11", "3.12", "3.13")
        probe = f"echo {version}" if supported else "echo 'not found' >&2; exit 127"
        path.write_text(STUB.format(name=name, probe=probe, ensurepip=ensurepip, ready=ready, make=make))
        path.chmod(0o755)
        return path

    def run(self, *directories: Path, python: str = "", arguments: tuple[str, ...] = ()) -> tuple[int, str, list[str]]:
        environment = {
            "PATH": ":".join(str(directory) for directory in (*directories, self.base)),
            "CALLS": str(self.calls),
            "ROOT": str(self.root),
            "STUBS": str(self.stubs),
            "HOME": str(self.root.parent),
        }
        if python:
            environment["TRISPARK_PYTHON"] = python
        dash = shutil.which("dash") or "/bin/sh"
        done = subprocess.run(
            [dash, str(self.root / "trispark"), *arguments],
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        return done.returncode, done.stderr, calls


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_newest_supported_python_makes_the_environment(tree: Tree) -> None:
    tree.stub(tree.root.parent / "a" / "python3.11", "old", version="3.11")
    tree.stub(tree.root.parent / "b" / "python3.13", "new", version="3.13")
    tree.stub(tree.root.parent / "b" / "python3.14", "too-new", version="3.14")
    rc, err, calls = tree.run(tree.root.parent / "a", tree.root.parent / "b", arguments=("play", "a b"))
    assert (rc, err) == (7, "")
    venv = tree.root / ".venv"
    assert calls == ["new make", f"venv cli -m trispark play a b PATH={venv}/bin VIRTUAL_ENV={venv}"]


def test_shim_that_does_not_run_is_skipped_for_the_next_on_path(tree: Tree) -> None:
    shims, real = tree.root.parent / "shims", tree.root.parent / "real"
    for name in ("python3.13", "python3.12", "python3.11"):
        tree.stub(shims / name, "shim", version="none")
    tree.stub(real / "python3.11", "real", version="3.11")
    rc, _, calls = tree.run(shims, real)
    assert rc == 7
    assert calls[0] == "real make"


def test_python_with_venv_goes_before_a_newer_one_without(tree: Tree) -> None:
    where = tree.root.parent / "bin"
    tree.stub(where / "python3.13", "bare", version="3.13", ensurepip=1)
    tree.stub(where / "python3.12", "whole", version="3.12")
    assert tree.run(where)[2][0] == "whole make"


def test_python_without_venv_is_used_when_there_is_no_other(tree: Tree) -> None:
    where = tree.root.parent / "bin"
    tree.stub(where / "python3", "bare", version="3.11", ensurepip=1)
    assert tree.run(where)[2][0] == "bare make"


@pytest.mark.parametrize(
    ("version", "python", "expected"),
    [
        pytest.param("3.10", "", "TS-PYTHON-MISSING", id="only-an-old-python"),
        pytest.param("", "", "TS-PYTHON-MISSING", id="no-python"),
        pytest.param("3.12", "nowhere/python", "TS-PYTHON-UNSUPPORTED", id="named-one-is-absent"),
        pytest.param("3.12", "old", "TS-PYTHON-UNSUPPORTED", id="named-one-is-old"),
    ],
)
def test_refusals_are_one_line_with_an_id(tree: Tree, version: str, python: str, expected: str) -> None:
    where = tree.root.parent / "bin"
    if version:
        tree.stub(where / "python3", "found", version=version)
    named = str(tree.stub(where / "other", "named", version="3.9")) if python == "old" else python
    rc, err, calls = tree.run(where, python=named)
    assert rc == 3
    assert err.startswith(f"trispark: {expected}: ")
    assert err.count("\n") == 1
    assert calls == []


def test_ready_environment_is_used_without_looking_for_a_python(tree: Tree) -> None:
    tree.stub(tree.root / ".venv" / "bin" / "python", "venv", ready=0)
    rc, err, calls = tree.run(arguments=("status",))
    assert (rc, err) == (7, "")
    assert [call.split(" PATH")[0] for call in calls] == ["venv ready", "venv cli -m trispark status"]


def test_environment_that_is_not_ready_is_made_again(tree: Tree) -> None:
    where = tree.root.parent / "bin"
    tree.stub(where / "python3.12", "base", version="3.12")
    tree.stub(tree.root / ".venv" / "bin" / "python", "half", ready=1)
    assert [call.split(" cli")[0] for call in tree.run(where)[2]] == ["half ready", "base make", "venv"]


def test_named_python_is_asked_even_when_an_environment_exists(tree: Tree) -> None:
    named = tree.stub(tree.root.parent / "named", "named", version="3.12")
    tree.stub(tree.root / ".venv" / "bin" / "python", "venv", ready=0)
    assert [call.split(" cli")[0] for call in tree.run(python=str(named))[2]] == ["named ready", "named make", "venv"]


@pytest.mark.parametrize("status", [1, 3, 130])
def test_status_of_a_failed_setup_is_handed_on(tree: Tree, status: int) -> None:
    where = tree.root.parent / "bin"
    tree.stub(where / "python3.12", "base", version="3.12", make=status)
    rc, _, calls = tree.run(where)
    assert (rc, calls) == (status, ["base make"])


def test_launcher_works_through_a_symlink(tree: Tree) -> None:
    tree.stub(tree.root / ".venv" / "bin" / "python", "venv", ready=0)
    link = tree.root.parent / "link"
    link.symlink_to(tree.root / "trispark")
    done = subprocess.run(
        [str(link)],
        env={**os.environ, "CALLS": str(tree.calls), "TRISPARK_PYTHON": ""},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 7
