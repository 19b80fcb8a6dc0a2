"""The controller machine as the host preparation sees it: commands, files, clock. Tests give a scripted one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Say = Callable[[str], None]
"""Prints one line for the person at the terminal."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended. ``rc`` is 127 when it was not found and 124 when it ran past its time."""

    rc: int
    stdout: str = ""
    stderr: str = ""

    @property
    def last_line(self) -> str:
        """The last line that says anything; what a one-line error quotes."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit status {self.rc}"


class Machine(Protocol):
    """What host preparation needs of a machine; nothing else in this package starts a command or waits."""

    def run(
        self, argv: Sequence[str], *, timeout_s: float = 60, env: Mapping[str, str] | None = None, ask: bool = False
    ) -> Outcome:
        """Run to the end. ``ask`` leaves the terminal to the command, so that sudo can ask for a password."""

    def which(self, name: str) -> str | None: ...

    def read_text(self, path: Path) -> str:
        """The text of a file, or an empty string where it cannot be read."""

    def write_text(self, path: Path, text: str) -> None: ...

    def exists(self, path: Path) -> bool: ...

    def free_bytes(self, path: Path) -> int:
        """Free bytes of the file system that holds ``path`` or its nearest existing parent."""

    def user(self) -> tuple[int, str]:
        """Effective user: id and name."""

    def environ(self, name: str) -> str: ...

    def interactive(self) -> bool:
        """Is there a terminal at which a password can be typed?"""

    def now(self) -> float:
        """Monotonic seconds."""

    def pause(self, seconds: float) -> None: ...


KILL_WAIT_S = 5.0
"""How long the output of a killed command is waited for: a child of it that took another group may hold it open."""


class LocalMachine:
    """This machine. Commands run with umask 022: what they write is not ours alone."""

    def run(
        self, argv: Sequence[str], *, timeout_s: float = 60, env: Mapping[str, str] | None = None, ask: bool = False
    ) -> Outcome:
        stdin = None if ask else subprocess.DEVNULL
        stderr = None if ask else subprocess.PIPE
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **(env or {})},
                text=True,
                errors="replace",
                umask=0o022,
                # A group of its own, so that a deadline ends its children too. What may ask needs the terminal's group.
                process_group=None if ask else 0,
            )
        except (FileNotFoundError, PermissionError) as error:
            return Outcome(127, "", str(error))
        try:
            stdout, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process, group=not ask)
            return Outcome(124, "", f"{argv[0]} did not end within {timeout_s:.0f} s")
        except BaseException:
            _kill(process, group=not ask)
            raise
        return Outcome(process.returncode, stdout, errors or "")

    def which(self, name: str) -> str | None:
        # An ordinary user's PATH has no sbin on Debian, where dockerd and iptables live.
        path = os.environ.get("PATH", os.defpath)
        return shutil.which(name, path=f"{path}:/usr/local/sbin:/usr/sbin:/sbin")

    def read_text(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def write_text(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def exists(self, path: Path) -> bool:
        return path.exists()

    def free_bytes(self, path: Path) -> int:
        where = path.absolute()
        while not where.exists():
            where = where.parent
        return shutil.disk_usage(where).free

    def user(self) -> tuple[int, str]:
        import pwd

        uid = os.geteuid()
        try:
            return uid, pwd.getpwuid(uid).pw_name
        except KeyError:
            return uid, str(uid)

    def environ(self, name: str) -> str:
        return os.environ.get(name, "")

    def interactive(self) -> bool:
        return sys.stdin is not None and sys.stdin.isatty()

    def now(self) -> float:
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


def _kill(process: subprocess.Popen[str], *, group: bool) -> None:
    """End a command and its children; what sudo runs for an ordinary user cannot be killed and is left to itself."""
    try:
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.communicate(timeout=KILL_WAIT_S)
    except (ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def say_on_stderr(line: str) -> None:
    """The default ``Say``: standard output stays free for results."""
    print(line, file=sys.stderr, flush=True)
