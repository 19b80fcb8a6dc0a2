"""Programs of the lab: installed by the host's own installer, run with a deadline, failed in one line."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_machine import ScriptedMachine

from trispark.errors import TrisparkError
from trispark.host import Outcome
from trispark.lab import bases, inputs, keys, prepare, programs
from trispark.lab.files import make_directory
from trispark.lab.layout import Paths, load_layout
from trispark.lab.programs import ensure_programs, run

REPO = Path(__file__).resolve().parents[3]
DEBIAN = {"/etc/os-release": "ID=debian\n"}
LATE = Outcome(124, "half of it\n", "x did not end within 7 s")


def test_missing_programs_are_installed_by_the_hosts_installer_which_waits_for_another_apt() -> None:
    locked = Outcome(100, "", "E: Could not get lock /var/lib/apt/lists/lock")
    answers = [locked, Outcome(0)]
    machine = ScriptedMachine(
        programs={"apt-get", "ssh"},
        files=DEBIAN,
        answers={
            "dpkg-query": Outcome(1, "", "no packages found"),
            "apt-get": lambda _: answers.pop(0),
        },
    )
    said: list[str] = []
    ensure_programs({"ssh": "openssh-client", "mmdebstrap": "mmdebstrap"}, said.append, machine)
    assert answers == []
    assert machine.clock > 0
    assert said[0] == "installing mmdebstrap"
    assert all("openssh-client" not in command for command in machine.commands)


def test_programs_that_are_there_cost_no_question() -> None:
    machine = ScriptedMachine(programs={"ssh"})
    ensure_programs({"ssh": "openssh-client"}, print, machine)
    assert machine.commands == []


def test_missing_program_elsewhere_is_refused() -> None:
    with pytest.raises(TrisparkError, match=r"TS-HOST-APT.*mmdebstrap"):
        ensure_programs({"mmdebstrap": "mmdebstrap"}, print, ScriptedMachine())


def test_end_of_a_programs_time_is_one_line() -> None:
    machine = ScriptedMachine(answers={"x": LATE})
    with pytest.raises(TrisparkError) as failed:
        run(["x", "y"], "TS-TEST-LATE", "x failed", timeout_s=7, machine=machine)
    assert str(failed.value).startswith("TS-TEST-LATE: x failed; where: x y; expected: exit status 0 within 7 s")
    assert "half of it | x did not end within 7 s" in failed.value.observed


def test_root_is_asked_for_as_the_host_does() -> None:
    machine = ScriptedMachine(uid=1000, programs={"sudo"}, answers={"sudo -n true": Outcome(1)}, terminal=True)
    run(["x"], "TS-TEST-ROOT", "x failed", timeout_s=7, root_for="do x", env={"A": "b"}, machine=machine)
    assert machine.commands[-1] == "sudo env A=b x"
    machine.terminal = False
    with pytest.raises(TrisparkError, match="TS-HOST-SUDO: root is needed to do x"):
        run(["x"], "TS-TEST-ROOT", "x failed", timeout_s=7, root_for="do x", machine=machine)


class Late:
    """Stands for ``run``: every program runs past its time, which is noted."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float]] = []

    def __call__(self, argv: list[str], error_id: str, what: str, *, timeout_s: float, **_: Any) -> None:
        self.seen.append((error_id, timeout_s))
        raise TrisparkError(error_id, what, "here", "its end", "none", "wait")


def test_every_program_of_the_preparation_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Late()
    for module in (bases, inputs, keys):
        monkeypatch.setattr(module, "run", late)
    monkeypatch.setattr(bases, "ensure_programs", lambda *_: None)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "engine.txt").touch()
    (tmp_path / "lab" / "trispark_lab").mkdir(parents=True)
    (tmp_path / "lab" / "trispark_lab" / "make_checkpoint.py").touch()
    paths, recipes = Paths(tmp_path), bases.load_recipes(REPO, "x86_64")
    calls = (
        lambda: inputs.ensure_site_packages(paths, "x86_64", lambda _: None),
        lambda: inputs.ensure_checkpoint(paths, lambda _: None),
        lambda: keys.ensure_keys(paths.ssh, load_layout(REPO)),
        lambda: bases._bootstrap(REPO, {name: tmp_path / f"{name}.tar" for name in recipes}, recipes, lambda _: None),
    )
    for call in calls:
        with pytest.raises(TrisparkError):
            call()
    assert [error_id for error_id, _ in late.seen] == [
        "TS-LAB-PACKAGES",
        "TS-LAB-CHECKPOINT",
        "TS-LAB-KEYS",
        "TS-LAB-BOOTSTRAP",
    ]
    assert all(0 < seconds <= 1200 for _, seconds in late.seen)


NO_NETWORK = {
    "pip": "ERROR: Could not find a version that satisfies the requirement aiohttp (from versions: none)",
    "mmdebstrap": "E: Failed to fetch http://mirror.invalid/debian Temporary failure resolving 'mirror.invalid'",
}


@pytest.mark.parametrize(("program", "error_id"), [("pip", "TS-LAB-PACKAGES"), ("mmdebstrap", "TS-LAB-BOOTSTRAP")])
def test_without_network_the_preparation_is_one_line_and_nothing_passes_for_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, error_id: str
) -> None:
    failing = Outcome(1, "", NO_NETWORK[program])
    answers = {"mmdebstrap": failing, f"{sys.executable} -m pip": failing}
    machine = ScriptedMachine(programs={"mmdebstrap"}, answers=answers)
    monkeypatch.setattr(programs, "LocalMachine", lambda: machine)
    paths, recipes = Paths(tmp_path), bases.load_recipes(REPO, "x86_64")
    before = paths.cache / "site-packages-of-before"
    before.mkdir(parents=True)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "engine.txt").touch()
    prepare_one = {
        "pip": lambda: inputs.ensure_site_packages(paths, "x86_64", lambda _: None),
        "mmdebstrap": lambda: bases._bootstrap(
            REPO, {name: paths.cache / f"{name}.tar" for name in recipes}, recipes, lambda _: None
        ),
    }
    with pytest.raises(TrisparkError) as failed:
        prepare_one[program]()
    assert failed.value.id == error_id
    assert NO_NETWORK[program] in str(failed.value)
    assert "\n" not in str(failed.value)
    assert all((failed.value.what, failed.value.where, failed.value.expected, failed.value.remedy))
    assert [path for path in paths.cache.iterdir() if path.suffix != ".partial"] == [before]


def test_second_preparation_is_waited_for_no_longer_than_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "LOCK_WAIT_S", 0)
    monkeypatch.setattr(prepare, "load_layout", lambda _: load_layout(REPO))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    cache = Paths(tmp_path).cache
    cache.mkdir(parents=True)
    cache.chmod(0o755)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711\n")
        lock.flush()
        with pytest.raises(TrisparkError, match=r"TS-LAB-BUSY: .*process 4711"):
            prepare.prepare(tmp_path, lambda _: None, object())  # type: ignore[arg-type]
    for directory in (tmp_path / ".trispark", cache, cache / "registry"):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_what_containers_read_is_readable_whatever_the_umask(tmp_path: Path) -> None:
    def fill(partial: Path) -> None:
        (partial / "sub").mkdir()
        (partial / "sub" / "weights").write_text("x")
        (partial / "link").symlink_to("nowhere")

    before = os.umask(0o077)
    try:
        make_directory(tmp_path / "checkpoint", fill)
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o555 for path in (tmp_path / "checkpoint", tmp_path / "checkpoint" / "sub")]
    assert modes == [0o555, 0o555]
    assert (tmp_path / "checkpoint" / "sub" / "weights").stat().st_mode & 0o777 == 0o644
