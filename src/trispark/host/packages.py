"""Debian packages of the controller machine: what is missing is installed, and said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trispark.errors import TrisparkError
from trispark.host.machine import LocalMachine, Machine, Outcome, Say, say_on_stderr
from trispark.host.root import run_as_root

LOCK_WAIT_S = 300
INSTALL_S = 900

_APT_ENV = {
    "DEBIAN_FRONTEND": "noninteractive",
    "NEEDRESTART_SUSPEND": "1",
    # Where no systemd runs, a package's start script would start its service with settings that are not ours.
    "RUNLEVEL": "1",
}


def is_debian_family(machine: Machine) -> bool:
    """True for Debian, Ubuntu and what says that it is like them, with apt-get there."""
    if machine.which("apt-get") is None:
        return False
    family = set()
    for line in machine.read_text(Path("/etc/os-release")).splitlines():
        name, _, value = line.partition("=")
        if name in ("ID", "ID_LIKE"):
            family.update(value.strip().strip('"').split())
    return bool(family & {"debian", "ubuntu"})


def missing_packages(machine: Machine, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that dpkg does not show as installed, in the given order."""
    absent = []
    for name in names:
        state = machine.run(["dpkg-query", "--show", "--showformat=${db:Status-Status}", name])
        if state.rc != 0 or state.stdout.strip() != "installed":
            absent.append(name)
    return absent


def _held_by_another(outcome: Outcome) -> bool:
    return outcome.rc != 0 and any(
        words in outcome.stderr for words in ("Could not get lock", "Unable to acquire", "Unable to lock")
    )


class PackageInstaller:
    """apt-get with a deadline for the lock that another apt holds."""

    def __init__(self, machine: Machine, say: Say) -> None:
        self._machine = machine
        self._say = say

    def _apt(self, *arguments: str, why: str) -> Outcome:
        argv = ["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={LOCK_WAIT_S}", "-o", "Acquire::Retries=2", *arguments]
        deadline = self._machine.now() + LOCK_WAIT_S
        said = False
        while True:
            outcome = run_as_root(self._machine, argv, why=why, timeout_s=INSTALL_S, env=_APT_ENV)
            if not _held_by_another(outcome) or self._machine.now() >= deadline:
                return outcome
            if not said:
                self._say(f"another package manager is running: waiting up to {LOCK_WAIT_S} s")
                said = True
            self._machine.pause(3)

    def install(self, names: Sequence[str]) -> None:
        """Install ``names``; the lists are updated only when those at hand do not do. Raises TS-HOST-PACKAGES."""
        why = f"install {' '.join(names)}"
        install = ("install", "--yes", "--no-install-recommends", *names)
        if self._apt(*install, why=why).rc == 0:
            return
        update = self._apt("update", why=why)
        outcome = self._apt(*install, why=why)
        if outcome.rc != 0:
            raise TrisparkError(
                id="TS-HOST-PACKAGES",
                what=f"apt-get could not {why}",
                where="this machine",
                expected="reachable package sources",
                observed=(update if update.rc != 0 else outcome).last_line,
                remedy=f"check the network and the sources, then: apt-get update && apt-get install {' '.join(names)}",
            )


def ensure_packages(names: Sequence[str], say: Say = say_on_stderr, machine: Machine | None = None) -> bool:
    """Install those of ``names`` that are missing; returns whether something was installed.

    Raises TS-HOST-APT on a machine that is not of the Debian family, TS-HOST-SUDO, TS-HOST-PACKAGES.
    """
    machine = machine or LocalMachine()
    if not is_debian_family(machine):
        raise TrisparkError(
            id="TS-HOST-APT",
            what=f"{' '.join(names)} cannot be installed by trispark",
            where="this machine",
            expected="Debian or a relative with apt-get",
            observed="another system",
            remedy=f"install {' '.join(names)} with this system's package manager and try again",
        )
    absent = missing_packages(machine, names)
    if not absent:
        return False
    by = "" if machine.user()[0] == 0 else " (with sudo)"
    say(f"installing {' '.join(absent)}{by}")
    PackageInstaller(machine, say).install(absent)
    return True
