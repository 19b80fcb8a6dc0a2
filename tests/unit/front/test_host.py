"""Preparation of the controller machine, on scripted machines: which commands run, what is said, what is refused."""

from __future__ import annotations

import json
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from scripted_machine import ScriptedMachine

from trispark.errors import TrisparkError
from trispark.host import Outcome, alone, ensure_disk, ensure_docker, ensure_packages
from trispark.host.machine import LocalMachine

REPO = Path("/checkout")
STATE = "/checkout/.trispark/host/docker.json"
LOG = "/checkout/.trispark/host/dockerd.log"
DEBIAN = {"/etc/os-release": 'PRETTY_NAME="Debian"\nID=debian\n'}
UBUNTU = {"/etc/os-release": 'ID=ubuntu\nID_LIKE="debian"\n'}
FEDORA = {"/etc/os-release": "ID=fedora\n"}
ASK = "docker version"
DEAD = Outcome(1, "\n", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
DENIED = Outcome(1, "\n", "permission denied while trying to connect to the Docker daemon socket")
ALIVE = Outcome(0, "20.10.24\n")
ABSENT = Outcome(1, "", "no packages found")


def installs(machine: ScriptedMachine) -> list[str]:
    return [command for command in machine.commands if "apt-get" in command and " install " in command]


def comes_alive(answer: Outcome = ALIVE, pid: str = "77") -> object:
    """The daemon's start: from now on the question is answered."""

    def start(machine: ScriptedMachine) -> Outcome:
        machine.answers[ASK] = answer
        machine.files["/var/run/docker.pid"] = pid
        return Outcome(0)

    return start


def test_engine_that_answers_is_left_alone() -> None:
    machine = ScriptedMachine(answers={ASK: ALIVE})
    assert ensure_docker(REPO, pytest.fail, machine) == "20.10.24"
    assert len(machine.commands) == 1
    assert STATE not in machine.files


@pytest.mark.parametrize("files", [DEBIAN, UBUNTU], ids=["debian", "ubuntu"])
def test_root_without_engine_installs_and_starts_it_detached(files: dict[str, str]) -> None:
    # The client alone is there, as on machines that talk to engines elsewhere.
    machine = ScriptedMachine(
        programs={"apt-get", "docker"},
        files=files,
        answers={ASK: DEAD, "dpkg-query": ABSENT, "sh -c": comes_alive()},
    )
    said: list[str] = []
    assert ensure_docker(REPO, said.append, machine, also=["openssh-client"]) == "20.10.24"
    assert len(installs(machine)) == 1
    assert installs(machine)[0].endswith("docker.io openssh-client")
    assert "setsid" in next(command for command in machine.commands if command.startswith("sh -c"))
    assert json.loads(machine.files[STATE]) == {"installed": True, "started_pid": 77}
    assert any("installing docker.io" in line for line in said)
    assert any("starting Docker Engine" in line for line in said)


def test_package_scripts_may_not_start_the_engine_their_way() -> None:
    machine = ScriptedMachine(programs={"apt-get"}, files=DEBIAN, answers={"dpkg-query": ABSENT})
    ensure_packages(["docker.io"], lambda _: None, machine)
    environment = machine.environments[machine.commands.index(installs(machine)[0])]
    assert environment is not None
    assert environment["DEBIAN_FRONTEND"] == "noninteractive"
    assert environment["RUNLEVEL"] == "1"


def test_installed_engine_is_started_by_systemd_where_that_is_pid_1() -> None:
    machine = ScriptedMachine(
        programs={"docker", "dockerd"},
        files={"/proc/1/comm": "systemd\n"},
        answers={ASK: DEAD, "systemctl start docker": comes_alive()},
    )
    assert ensure_docker(REPO, lambda _: None, machine) == "20.10.24"
    assert installs(machine) == []
    assert not [command for command in machine.commands if command.startswith("sh -c")]
    assert STATE not in machine.files


def test_ordinary_user_gets_the_socket_of_an_engine_that_we_started() -> None:
    def open_socket(machine: ScriptedMachine) -> Outcome:
        machine.answers[ASK] = ALIVE
        return Outcome(0)

    machine = ScriptedMachine(
        uid=1000,
        programs={"docker", "dockerd", "sudo"},
        answers={
            ASK: DEAD,
            "sudo -n sh -c": comes_alive(DENIED),
            "sudo -n chown dev /var/run/docker.sock": open_socket,
        },
    )
    assert ensure_docker(REPO, lambda _: None, machine) == "20.10.24"
    assert json.loads(machine.files[STATE])["started_pid"] == 77


@pytest.mark.parametrize(
    ("state", "sudo"),
    [
        pytest.param({}, True, id="engine-of-someone-else"),
        pytest.param({STATE: '{"installed": true, "started_pid": null}'}, False, id="ours-but-no-sudo"),
        pytest.param({STATE: "{"}, True, id="state-file-torn"),
    ],
)
def test_socket_that_is_not_ours_to_open_is_refused(state: dict[str, str], sudo: bool) -> None:
    machine = ScriptedMachine(uid=1000, programs={"docker", "sudo"} if sudo else {"docker"}, files=state)
    machine.answers[ASK] = DENIED
    with pytest.raises(TrisparkError, match="usermod -aG docker dev") as refused:
        ensure_docker(REPO, pytest.fail, machine)
    assert refused.value.id == "TS-DOCKER-PERMISSION"
    assert not [command for command in machine.commands if "chown" in command or "apt-get" in command]


def test_engine_that_does_not_start_is_named_with_the_logs_error() -> None:
    def fails(machine: ScriptedMachine) -> Outcome:
        machine.files[LOG] = "starting up\nfailed to start daemon: no space left on device\n"
        return Outcome(0)

    machine = ScriptedMachine(programs={"docker", "dockerd"}, answers={ASK: DEAD, "sh -c": fails})
    with pytest.raises(TrisparkError, match="no space left on device") as failed:
        ensure_docker(REPO, lambda _: None, machine)
    assert failed.value.id == "TS-DOCKER-START"
    assert machine.clock == 0


def test_engine_of_systemd_that_never_answers_ends_at_the_deadline() -> None:
    def wait(machine: ScriptedMachine) -> Outcome:
        assert machine.clock < 600, "no end"
        return DEAD

    files = {"/proc/1/comm": "systemd\n"}
    machine = ScriptedMachine(programs={"docker", "dockerd"}, files=files, answers={ASK: wait})
    with pytest.raises(TrisparkError, match="journalctl -u docker") as failed:
        ensure_docker(REPO, lambda _: None, machine)
    assert failed.value.id == "TS-DOCKER-START"
    assert 60 <= machine.clock < 61
    assert "systemctl start docker" in machine.commands


def test_engine_that_never_answers_ends_at_the_deadline() -> None:
    machine = ScriptedMachine(programs={"docker", "dockerd"}, answers={ASK: DEAD})
    with pytest.raises(TrisparkError) as failed:
        ensure_docker(REPO, lambda _: None, machine)
    assert failed.value.id == "TS-DOCKER-START"
    assert 60 <= machine.clock < 61


def test_kernel_without_nf_tables_gets_the_legacy_iptables() -> None:
    def start(machine: ScriptedMachine) -> Outcome:
        if "/iptables-legacy:" in machine.commands[-1]:
            machine.answers[ASK] = ALIVE
            return Outcome(0)
        machine.files[LOG] = "failed to start daemon: iptables failed: Could not fetch rule set (nf_tables)\n"
        return Outcome(0)

    machine = ScriptedMachine(programs={"docker", "dockerd", "iptables-legacy"}, answers={ASK: DEAD, "sh -c": start})
    assert ensure_docker(REPO, lambda _: None, machine) == "20.10.24"
    assert not [command for command in machine.commands if "update-alternatives" in command]


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        pytest.param(ScriptedMachine(files=FEDORA, answers={ASK: DEAD}), "TS-DOCKER-MISSING", id="no-apt"),
        pytest.param(
            ScriptedMachine(environ={"DOCKER_HOST": "tcp://x"}, answers={ASK: DEAD}), "TS-DOCKER-HOST", id="named-host"
        ),
        pytest.param(
            ScriptedMachine(uid=1000, programs={"apt-get"}, files=DEBIAN, answers={ASK: DEAD, "dpkg-query": ABSENT}),
            "TS-HOST-SUDO",
            id="user-without-sudo",
        ),
        pytest.param(
            ScriptedMachine(
                uid=1000,
                programs={"apt-get", "sudo"},
                files=DEBIAN,
                answers={ASK: DEAD, "dpkg-query": ABSENT, "sudo -n true": Outcome(1)},
            ),
            "TS-HOST-SUDO",
            id="sudo-would-ask-and-nobody-is-there",
        ),
        pytest.param(
            ScriptedMachine(
                programs={"apt-get"},
                files=DEBIAN,
                answers={ASK: DEAD, "dpkg-query": ABSENT, "apt-get": Outcome(100, "", "E: could not resolve host")},
            ),
            "TS-HOST-PACKAGES",
            id="no-network",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(machine: ScriptedMachine, expected: str) -> None:
    with pytest.raises(TrisparkError) as refused:
        ensure_docker(REPO, lambda _: None, machine)
    assert refused.value.id == expected
    assert "\n" not in str(refused.value)
    if expected != "TS-HOST-PACKAGES":
        assert installs(machine) == []
    assert STATE not in machine.files


def test_sudo_may_ask_at_a_terminal() -> None:
    machine = ScriptedMachine(
        uid=1000,
        programs={"apt-get", "sudo"},
        files=DEBIAN,
        terminal=True,
        answers={"dpkg-query": ABSENT, "sudo -n true": Outcome(1)},
    )
    assert ensure_packages(["git"], lambda _: None, machine)
    assert installs(machine)[0].startswith("sudo env DEBIAN_FRONTEND=noninteractive ")


def test_lists_are_updated_only_when_the_install_fails_without() -> None:
    tries = iter([Outcome(100, "", "E: Unable to locate package git"), Outcome(0)])
    machine = ScriptedMachine(programs={"apt-get"}, files=DEBIAN, answers={"dpkg-query": ABSENT})
    install = "apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=2 install"
    machine.answers[install] = lambda _: next(tries)
    assert ensure_packages(["git"], lambda _: None, machine)
    verbs = [command.split("Acquire::Retries=2 ")[1].split()[0] for command in machine.commands if "apt-get" in command]
    assert verbs == ["install", "update", "install"]


def test_lock_of_another_apt_is_waited_for_with_a_deadline() -> None:
    held = Outcome(100, "", "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1")
    machine = ScriptedMachine(
        programs={"apt-get"},
        files=DEBIAN,
        answers={"dpkg-query": ABSENT, "apt-get": lambda m: held if m.clock < 30 else Outcome(0)},
    )
    said: list[str] = []
    assert ensure_packages(["git"], said.append, machine)
    assert 30 <= machine.clock < 40
    assert len([line for line in said if "another package manager" in line]) == 1


def test_installed_packages_are_not_installed_again() -> None:
    machine = ScriptedMachine(
        programs={"apt-get"}, files=DEBIAN, answers={"dpkg-query": Outcome(0, "installed"), "apt-get": Outcome(1)}
    )
    assert not ensure_packages(["git", "sudo"], pytest.fail, machine)


def test_packages_on_another_system_are_refused() -> None:
    with pytest.raises(TrisparkError) as refused:
        ensure_packages(["git"], pytest.fail, ScriptedMachine(files=FEDORA))
    assert refused.value.id == "TS-HOST-APT"


@pytest.mark.parametrize(("free", "ok"), [(10**9, True), (10**9 - 1, False)])
def test_disk(free: int, ok: bool) -> None:
    machine = ScriptedMachine(free=free)
    if ok:
        ensure_disk(Path("/x"), 10**9, machine)
        return
    with pytest.raises(TrisparkError, match=r"1\.0 GB free") as refused:
        ensure_disk(Path("/x"), 10**9, machine)
    assert refused.value.id == "TS-HOST-DISK"


def test_deadline_ends_a_command_and_what_it_started(tmp_path: Path) -> None:
    child = tmp_path / "child"
    # The child holds the output open: a kill of the command alone would wait for it.
    script = f"sleep 600 & echo $! >{child}; wait"
    outcome = LocalMachine().run(["sh", "-c", script], timeout_s=1)
    assert outcome == Outcome(124, "", "sh did not end within 1 s")
    state = Path("/proc") / child.read_text().strip() / "stat"
    deadline = time.monotonic() + 30  # a killed process ends when it is next scheduled
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] not in ("Z", "X"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_programs_write_for_everyone_whatever_our_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        LocalMachine().run(["touch", str(tmp_path / "file")])
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_lock_notes_its_holder_and_is_free_again(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    said: list[str] = []

    def lock(machine: ScriptedMachine, wait_s: float = 10) -> AbstractContextManager[None]:
        return alone(path, error_id="TS-TEST-LOCKED", doing="thing", wait_s=wait_s, say=said.append, machine=machine)

    machine = ScriptedMachine()
    with lock(ScriptedMachine()):
        assert path.read_text() == f"{os.getpid()}\n"
        with pytest.raises(TrisparkError) as refused, lock(machine):
            pass
        assert path.read_text() == f"{os.getpid()}\n"
    assert refused.value.id == "TS-TEST-LOCKED"
    assert f"process {os.getpid()}" in refused.value.observed
    assert 10 <= machine.clock < 11
    assert said == [f"another thing of this checkout is running (process {os.getpid()}): waiting up to 10 s for it"]
    with lock(ScriptedMachine(), wait_s=0):
        assert len(said) == 1


def test_local_machine_tells_how_a_command_ended(tmp_path: Path) -> None:
    machine = LocalMachine()
    assert machine.run(["sh", "-c", "echo out; echo err >&2; exit 3"]) == Outcome(3, "out\n", "err\n")
    assert machine.run(["/nowhere/at-all"]).rc == 127
    assert machine.run(["sleep", "60"], timeout_s=0.05).rc == 124
    assert machine.run(["sh", "-c", 'printf "$NAME"'], env={"NAME": "value"}).stdout == "value"
    assert machine.free_bytes(tmp_path / "not" / "there") > 0
    assert machine.read_text(tmp_path / "none") == ""
