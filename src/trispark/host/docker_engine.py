"""Docker Engine of the controller machine: asked, installed, started.

Nothing permanent is done for an ordinary user: where trispark itself installed or started the engine, the user is made
the owner of its socket, which lasts until the engine starts again; elsewhere the user is told which group to join.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from trispark.errors import TrisparkError
from trispark.host.machine import LocalMachine, Machine, Outcome, Say, say_on_stderr
from trispark.host.packages import ensure_packages, is_debian_family
from trispark.host.root import has_silent_sudo, run_as_root

START_DEADLINE_S = 60
SOCKET = Path("/var/run/docker.sock")
PID_FILE = Path("/var/run/docker.pid")


@dataclass
class EngineState:
    """What trispark did for Docker Engine on this machine; kept in ``.trispark/host/docker.json``."""

    installed: bool = False
    started_pid: int | None = None

    @property
    def ours(self) -> bool:
        return self.installed or self.started_pid is not None


class DockerEngine:
    """Brings Docker Engine to "answers this user"."""

    def __init__(self, repo: Path, say: Say, machine: Machine, also: Sequence[str] = ()) -> None:
        self._also = list(also)
        self._say = say
        self._machine = machine
        self._directory = repo / ".trispark" / "host"
        self._log = self._directory / "dockerd.log"
        self._state_file = self._directory / "docker.json"
        self._state = self._load()

    def _load(self) -> EngineState:
        try:
            found = json.loads(self._machine.read_text(self._state_file))
            return EngineState(installed=bool(found["installed"]), started_pid=found["started_pid"])
        except (ValueError, KeyError, TypeError):
            return EngineState()

    def _save(self) -> None:
        self._machine.write_text(self._state_file, json.dumps(asdict(self._state)) + "\n")

    def ask(self) -> Outcome:
        """Does an engine answer this user? `docker version`, since `docker info` of some clients hides the reason."""
        return self._machine.run(["docker", "version", "--format", "{{.Server.Version}}"], timeout_s=20)

    def ensure(self) -> str:
        """Return the engine's version, installing and starting it where it does not answer.

        Raises TS-DOCKER-HOST, TS-DOCKER-PERMISSION, TS-DOCKER-MISSING, TS-DOCKER-START, and what apt and sudo raise.
        """
        answer = self.ask()
        if answer.rc == 0:
            return answer.stdout.strip()
        if self._denied(answer):
            return self._open_socket()
        self._refuse_other_host(answer)
        if self._machine.which("dockerd") is None or self._machine.which("docker") is None:
            self._install()
        answer = self.ask()
        if answer.rc != 0 and not self._denied(answer):
            answer = self._start()
        return self._open_socket() if self._denied(answer) else answer.stdout.strip()

    @staticmethod
    def _denied(answer: Outcome) -> bool:
        return answer.rc != 0 and "permission denied" in (answer.stderr + answer.stdout).lower()

    def _refuse_other_host(self, answer: Outcome) -> None:
        host = self._machine.environ("DOCKER_HOST")
        if host:
            raise TrisparkError(
                id="TS-DOCKER-HOST",
                what="the Docker Engine that DOCKER_HOST names does not answer",
                where=host,
                expected="an engine",
                observed=answer.last_line,
                remedy="start that engine, or unset DOCKER_HOST so that the one of this machine is used",
            )

    def _install(self) -> None:
        if not is_debian_family(self._machine):
            raise TrisparkError(
                id="TS-DOCKER-MISSING",
                what="no Docker Engine answers, and trispark installs it only on the Debian family",
                where="this machine",
                expected="`docker version` to succeed",
                observed="no dockerd",
                remedy="install and start Docker Engine, then try again",
            )
        self._say("Docker Engine does not answer and is not installed")
        if ensure_packages(["docker.io", *self._also], self._say, self._machine):
            self._state.installed = True
            self._save()

    def _systemd(self) -> bool:
        return self._machine.read_text(Path("/proc/1/comm")).strip() == "systemd"

    def _start(self) -> Outcome:
        if self._systemd():
            self._say("starting Docker Engine: systemctl start docker")
            started = run_as_root(self._machine, ["systemctl", "start", "docker"], why="start Docker Engine")
            if started.rc != 0:
                raise self._not_started(started.last_line, "systemctl status docker")
            return self._wait(remedy="journalctl -u docker")
        answer = self._start_detached(path_prefix="")
        if answer.rc != 0 and not self._denied(answer) and self._iptables_failed():
            # Kernels without nf_tables: the same engine with the legacy iptables first on its own PATH.
            legacy = self._legacy_iptables()
            if legacy:
                self._say("dockerd cannot use nf_tables here: trying iptables-legacy")
                answer = self._start_detached(path_prefix=legacy)
        if answer.rc != 0 and not self._denied(answer):
            raise self._not_started(self._log_error() or answer.last_line, f"see {self._log}")
        return answer

    def _start_detached(self, path_prefix: str) -> Outcome:
        self._say(f"starting Docker Engine: dockerd, log {self._log}")
        self._machine.write_text(self._log, "")
        daemon = self._machine.which("dockerd") or "dockerd"
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        # setsid takes it out of this terminal's and sudo's session: it lives on when they end.
        script = 'PATH="$1" setsid "$2" >>"$3" 2>&1 </dev/null &'
        argv = ["sh", "-c", script, "start-dockerd", f"{path_prefix}{path}", daemon, str(self._log)]
        started = run_as_root(self._machine, argv, why="start dockerd")
        if started.rc != 0:
            raise self._not_started(started.last_line, f"see {self._log}")
        answer = self._wait_detached()
        pid = self._machine.read_text(PID_FILE).strip()
        if (answer.rc == 0 or self._denied(answer)) and pid.isdigit():
            self._state.started_pid = int(pid)
            self._save()
        return answer

    def _wait_detached(self) -> Outcome:
        deadline = self._machine.now() + START_DEADLINE_S
        while True:
            answer = self.ask()
            ended = "failed to start daemon" in self._machine.read_text(self._log)
            if answer.rc == 0 or self._denied(answer) or ended or self._machine.now() >= deadline:
                return answer
            self._machine.pause(0.25)

    def _wait(self, remedy: str) -> Outcome:
        deadline = self._machine.now() + START_DEADLINE_S
        while True:
            answer = self.ask()
            if answer.rc == 0 or self._denied(answer):
                return answer
            if self._machine.now() >= deadline:
                raise self._not_started(answer.last_line, remedy)
            self._machine.pause(0.25)

    def _log_error(self) -> str:
        lines = [line.strip() for line in self._machine.read_text(self._log).splitlines() if line.strip()]
        failed = [line for line in lines if "failed to start daemon" in line]
        return (failed or lines or [""])[-1]

    def _iptables_failed(self) -> bool:
        error = self._log_error().lower()
        return "iptables" in error or "nf_tables" in error

    def _legacy_iptables(self) -> str:
        """A PATH prefix in which iptables is iptables-legacy, or nothing where that is not installed."""
        directory = self._directory / "iptables-legacy"
        made = False
        for name in ("iptables", "ip6tables"):
            legacy = self._machine.which(f"{name}-legacy")
            if legacy:
                self._machine.run(["mkdir", "-p", str(directory)])
                self._machine.run(["ln", "-sfn", legacy, str(directory / name)])
                made = True
        return f"{directory}:" if made else ""

    def _open_socket(self) -> str:
        """Make the user the owner of the socket of an engine that trispark brought here."""
        name = self._machine.user()[1]
        if self._state.ours and has_silent_sudo(self._machine):
            run_as_root(self._machine, ["chown", name, str(SOCKET)], why="open Docker's socket")
            answer = self.ask()
            if answer.rc == 0:
                self._say(f"Docker's socket belongs to {name} until the engine starts again")
                return answer.stdout.strip()
        raise TrisparkError(
            id="TS-DOCKER-PERMISSION",
            what=f"Docker Engine runs, but user {name} may not use it",
            where=str(SOCKET),
            expected="a user of Docker's socket",
            observed="permission denied",
            remedy=f"sudo usermod -aG docker {name}, then log in again",
        )

    def _not_started(self, observed: str, remedy: str) -> TrisparkError:
        return TrisparkError(
            id="TS-DOCKER-START",
            what="Docker Engine did not start",
            where="this machine",
            expected=f"`docker version` to succeed within {START_DEADLINE_S} s",
            observed=observed,
            remedy=remedy,
        )


def ensure_docker(
    repo: Path, say: Say = say_on_stderr, machine: Machine | None = None, also: Sequence[str] = ()
) -> str:
    """Make Docker Engine answer this user; returns its version. See :meth:`DockerEngine.ensure` for the errors.

    ``also`` names packages that are installed in the same call of apt where the engine has to be installed.
    """
    return DockerEngine(repo, say, machine or LocalMachine(), also).ensure()
