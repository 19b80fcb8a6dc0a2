"""How a command becomes root's: as it is for root, through sudo for an ordinary user, else a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trispark.errors import TrisparkError
from trispark.host.machine import Machine, Outcome


def has_silent_sudo(machine: Machine) -> bool:
    """True where sudo answers without asking."""
    return machine.which("sudo") is not None and machine.run(["sudo", "-n", "true"], timeout_s=10).rc == 0


def run_as_root(
    machine: Machine, argv: Sequence[str], *, why: str, timeout_s: float = 60, env: Mapping[str, str] | None = None
) -> Outcome:
    """Run ``argv`` as root. ``why`` completes the sentence "root is needed to ..." of the refusal.

    Raises TS-HOST-SUDO where the user is not root and sudo is absent, or would ask and nobody can answer.
    """
    if machine.user()[0] == 0:
        return machine.run(argv, timeout_s=timeout_s, env=env)
    settings = [f"{name}={value}" for name, value in (env or {}).items()]
    command = ["env", *settings, *argv] if settings else list(argv)
    if has_silent_sudo(machine):
        return machine.run(["sudo", "-n", *command], timeout_s=timeout_s)
    if machine.which("sudo") is not None and machine.interactive():
        return machine.run(["sudo", *command], timeout_s=timeout_s, ask=True)
    raise TrisparkError(
        id="TS-HOST-SUDO",
        what=f"root is needed to {why}",
        where="this machine",
        expected="root, or a user with sudo",
        observed=f"user {machine.user()[1]} without a sudo that answers",
        remedy=f"run as root: {' '.join(argv)}",
    )
