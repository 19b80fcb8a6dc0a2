""".venv and its stamp: when it is complete, when it is made again, and what a failure says."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_machine import ScriptedMachine

from trispark.errors import TrisparkError
from trispark.host import environment as environment_module
from trispark.host.environment import LOCK_WAIT_S, PIP_DEADLINE_S, STAMP, Environment, create_venv, pip_install
from trispark.host.machine import LocalMachine, Outcome


class Pip:
    """Stands for pip: notes the locks it was given and ends as told."""

    def __init__(self, rc: int = 0, stderr: str = "", act: Callable[[], None] = lambda: None) -> None:
        self.rc, self.stderr, self.act = rc, stderr, act
        self.locks: list[str] = []

    def __call__(self, python: Path, lock: Path) -> Outcome:
        self.locks.append(lock.name)
        self.act()
        return Outcome(self.rc, "", self.stderr)


def fake_venv(directory: Path) -> None:
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "python").touch()
    (directory / "lib" / "python3.11" / "site-packages").mkdir(parents=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "requirements").mkdir()
    for kind in ("run", "test"):
        for line in ("py311", "py312"):
            (tmp_path / "requirements" / f"{kind}-{line}.txt").write_text(f"{kind} {line}\n")
    return tmp_path


def environment(root: Path, pip: Pip, machine: ScriptedMachine | None = None, *, venv: bool = True) -> Environment:
    said: list[str] = []
    return Environment(
        root,
        said.append,
        machine or ScriptedMachine(),
        install=pip,
        create=fake_venv,
        venv_module=lambda: venv,
    )


LINE = "py311" if sys.version_info < (3, 12) else "py312"


def test_made_once_then_ready(root: Path) -> None:
    pip = Pip()
    subject = environment(root, pip)
    assert not subject.ready()
    assert subject.make()
    assert subject.ready()
    assert not subject.make()
    assert pip.locks == [f"run-{LINE}.txt"]
    paths = (root / ".venv/lib/python3.11/site-packages/trispark.pth").read_text().splitlines()
    assert paths == [str(root / "src"), str(root / "lab")]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda root: (root / "requirements" / f"run-{LINE}.txt").write_text("new\n"), id="lock-changed"),
        pytest.param(lambda root: (root / ".venv" / STAMP).unlink(), id="killed-before-the-stamp"),
        pytest.param(lambda root: (root / ".venv" / STAMP).write_text("{"), id="stamp-torn"),
        pytest.param(lambda root: (root / ".venv" / STAMP).write_text('{"x": 1}'), id="stamp-of-another-version"),
        pytest.param(lambda root: (root / ".venv/bin/python").unlink(), id="interpreter-gone"),
    ],
)
def test_made_again(root: Path, spoil: Callable[[Path], None]) -> None:
    pip = Pip()
    environment(root, pip).make()
    (root / ".venv" / "left-over").touch()
    spoil(root)
    assert not environment(root, pip).ready()
    assert environment(root, pip).make()
    assert environment(root, pip).ready()
    assert not (root / ".venv" / "left-over").exists()


@pytest.mark.parametrize("field", ["root", "python", "base", "run"])
def test_stamp_of_another_root_or_python_is_not_ready(root: Path, field: str) -> None:
    subject = environment(root, Pip())
    subject.make()
    stamp = subject.stamp()
    assert stamp is not None
    (root / ".venv" / STAMP).write_text(json.dumps(vars(replace(stamp, **{field: "other"}))))
    assert not subject.ready()


def test_failed_install_leaves_no_stamp_and_says_pips_error(root: Path) -> None:
    pip = Pip(1, "WARNING: x\nERROR: no matching distribution\nhint: y\n")
    with pytest.raises(TrisparkError, match="no matching distribution") as failed:
        environment(root, pip).make()
    assert failed.value.id == "TS-SETUP-PACKAGES"
    assert "\n" not in str(failed.value)
    assert not environment(root, Pip()).ready()


def test_killed_install_is_an_interrupt(root: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        environment(root, Pip(-2)).make()
    assert not environment(root, Pip()).ready()


def test_test_tools_are_added_to_the_same_environment(root: Path) -> None:
    pip = Pip()
    subject = environment(root, pip)
    assert subject.make_test()
    assert not subject.make_test()
    assert subject.ready()
    assert pip.locks == [f"run-{LINE}.txt", f"test-{LINE}.txt"]
    (root / "requirements" / f"test-{LINE}.txt").write_text("new\n")
    assert subject.ready()
    assert subject.make_test()
    assert pip.locks[2:] == [f"test-{LINE}.txt"]


def test_killed_addition_of_test_tools_makes_all_again(root: Path) -> None:
    environment(root, Pip()).make()
    with pytest.raises(KeyboardInterrupt):
        environment(root, Pip(-9)).make_test()
    assert not environment(root, Pip()).ready()
    pip = Pip()
    environment(root, pip).make_test()
    assert pip.locks == [f"run-{LINE}.txt", f"test-{LINE}.txt"]


def test_setup_holds_the_lock_while_it_installs(root: Path) -> None:
    refused: list[bool] = []

    def try_lock() -> None:
        with (root / ".trispark" / "setup.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                refused.append(False)
            except BlockingIOError:
                refused.append(True)

    environment(root, Pip(act=try_lock)).make()
    assert refused == [True]
    try_lock()
    assert refused == [True, False]


def test_setup_that_does_not_end_is_waited_for_no_longer_than_told(root: Path) -> None:
    (root / ".trispark").mkdir()
    pip, machine = Pip(), ScriptedMachine()
    with (root / ".trispark" / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711\n")
        lock.flush()
        with pytest.raises(TrisparkError, match="held by process 4711") as refused:
            environment(root, pip, machine).make()
    assert refused.value.id == "TS-SETUP-LOCKED"
    assert LOCK_WAIT_S <= machine.clock < LOCK_WAIT_S + 1
    assert pip.locks == []


class TimedMachine(LocalMachine):
    """Runs nothing: every command runs past its time."""

    deadlines: list[float]

    def run(self, argv, *, timeout_s=60, env=None, ask=False):  # type: ignore[no-untyped-def]
        self.deadlines.append(timeout_s)
        return Outcome(124, "", f"{Path(argv[0]).name} did not end within {timeout_s:.0f} s")


def test_pip_and_venv_have_deadlines_that_are_one_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TimedMachine.deadlines = []
    monkeypatch.setattr(environment_module, "LocalMachine", TimedMachine)
    with pytest.raises(TrisparkError, match=r"TS-SETUP-VENV: .*did not end within 120 s"):
        create_venv(root / ".venv")
    subject = Environment(root, lambda _: None, ScriptedMachine(), install=pip_install, create=fake_venv)
    with pytest.raises(TrisparkError, match=r"TS-SETUP-PACKAGES: .*did not end within 900 s") as failed:
        subject.make()
    assert "\n" not in str(failed.value)
    assert TimedMachine.deadlines == [120, PIP_DEADLINE_S]


def test_state_directory_is_private_even_where_it_was_not(root: Path) -> None:
    (root / ".trispark").mkdir()
    (root / ".trispark").chmod(0o755)
    environment(root, Pip()).make()
    assert (root / ".trispark").stat().st_mode & 0o777 == 0o700


def test_missing_venv_module_is_installed_on_debian(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    machine = ScriptedMachine(programs={"apt-get"}, files={"/etc/os-release": "ID=debian\n"})
    environment(root, Pip(), machine, venv=False).make()
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    assert [call for call in machine.commands if call.startswith("apt-get") and package in call]


@pytest.mark.parametrize(
    ("prefix", "release"),
    [
        pytest.param("/usr", "ID=fedora\n", id="another-system"),
        pytest.param("/opt/python", "ID=debian\n", id="python-of-ones-own"),
    ],
)
def test_missing_venv_module_elsewhere_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, release: str
) -> None:
    monkeypatch.setattr(sys, "base_prefix", prefix)
    machine = ScriptedMachine(programs={"apt-get"}, files={"/etc/os-release": release})
    with pytest.raises(TrisparkError) as refused:
        environment(root, Pip(), machine, venv=False).make()
    assert refused.value.id == "TS-SETUP-VENVMODULE"
    assert machine.commands == []
    assert not (root / ".venv").exists()


def test_a_file_in_the_place_of_a_directory_is_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = root / ".trispark"
    place.write_text("")
    assert environment_module.main(["make", str(root)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trispark: TS-SETUP-FILES: ")
    assert str(place) in line
    assert place.read_text() == "", "it is not ours to remove"
