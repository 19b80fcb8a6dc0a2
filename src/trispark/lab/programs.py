"""Programs that the lab runs on this machine: found or installed (``trispark.host``), each with a deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trispark.errors import TrisparkError
from trispark.host import LocalMachine, Machine, Outcome, Say, ensure_packages
from trispark.host.root import run_as_root

PACKAGES: Final[Mapping[str, str]] = {"ssh": "openssh-client", "ssh-keygen": "openssh-client"}
"""Program -> Debian package."""
BOOTSTRAP_PACKAGES: Final[Mapping[str, str]] = {"mmdebstrap": "mmdebstrap"}

TAIL_LINES: Final = 3


def ensure_programs(packages: Mapping[str, str], say: Say, machine: Machine | None = None) -> None:
    """Install the packages of the programs that are not there. Raises what ``ensure_packages`` raises."""
    machine = machine or LocalMachine()
    missing = sorted({package for program, package in packages.items() if machine.which(program) is None})
    if missing:
        ensure_packages(missing, say, machine)


def run(
    argv: Sequence[str],
    error_id: str,
    what: str,
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    root_for: str = "",
    machine: Machine | None = None,
) -> None:
    """Run a program quietly; a failure, or the end of its time, is one line with the end of its output.

    ``root_for`` runs it as root and completes the sentence "root is needed to ..." of the refusal (TS-HOST-SUDO).
    """
    machine = machine or LocalMachine()
    if root_for:
        done = run_as_root(machine, argv, why=root_for, timeout_s=timeout_s, env=env)
    else:
        done = machine.run(argv, timeout_s=timeout_s, env=env)
    if done.rc != 0:
        raise TrisparkError(
            error_id,
            what,
            where=" ".join(argv)[:200],
            expected=f"exit status 0 within {timeout_s:.0f} s",
            observed=f"{done.rc}: {_tail(done)}",
            remedy="mend the cause, then run it again; what was complete is kept",
        )


def _tail(done: Outcome) -> str:
    lines = [line.strip() for line in (done.stdout + "\n" + done.stderr).splitlines() if line.strip()]
    return " | ".join(lines[-TAIL_LINES:]) or "no output"
