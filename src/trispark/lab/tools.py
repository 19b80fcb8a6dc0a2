"""Programs that the lab needs on this machine, and running them as root where needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from trispark.errors import TrisparkError

Say = Callable[[str], None]

PACKAGES: Final[Mapping[str, str]] = {"ssh": "openssh-client", "ssh-keygen": "openssh-client"}
"""Program -> Debian package."""
BOOTSTRAP_PACKAGES: Final[Mapping[str, str]] = {"mmdebstrap": "mmdebstrap"}

TAIL_LINES: Final = 3


def ensure_programs(packages: Mapping[str, str], say: Say) -> None:
    """Install the packages of missing programs with apt where there is apt; TS-LAB-TOOL otherwise."""
    missing = sorted({package for program, package in packages.items() if _find(program) is None})
    if not missing:
        return
    if _find("apt-get") is None:
        raise TrisparkError(
            "TS-LAB-TOOL",
            "programs that the lab needs are missing and this is no Debian-family machine",
            expected=", ".join(sorted(packages)),
            remedy=f"install {', '.join(missing)} with your package manager",
        )
    say(f"installing {', '.join(missing)} with apt-get")
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    as_root(["apt-get", "update", "-qq"], "TS-LAB-TOOL", environment)
    as_root(["apt-get", "install", "-qq", "--yes", "--no-install-recommends", *missing], "TS-LAB-TOOL", environment)


def as_root(command: Sequence[str], error_id: str, environment: Mapping[str, str] | None = None) -> None:
    """Run `command` as root, through `sudo -n` where this user is not; its last lines become the error."""
    assignments = [f"{name}={value}" for name, value in (environment or {}).items()]
    full = ["env", *assignments, *command]
    if os.geteuid() != 0:
        if _find("sudo") is None:
            raise TrisparkError(
                error_id,
                f"{command[0]} needs root and there is no sudo",
                remedy="run as root, or install sudo and give this user the right",
            )
        full = ["sudo", "-n", *full]
    run(full, error_id, f"{command[0]} failed")


def run(
    command: Sequence[str],
    error_id: str,
    what: str,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a program quietly; a failure is one line with the end of its output."""
    done = subprocess.run(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **environment} if environment else None,
        cwd=cwd,
        check=False,
    )
    if done.returncode != 0:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        raise TrisparkError(
            error_id,
            what,
            where=" ".join(command)[:200],
            expected="exit status 0",
            observed=f"{done.returncode}: {' | '.join(lines[-TAIL_LINES:]) or 'no output'}",
            remedy="mend the cause, then run it again; what was complete is kept",
        )


def _find(program: str) -> str | None:
    """Like `which`, with the sbin directories that an ordinary user's PATH may lack."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
