"""What apt's lists on this machine say of system packages. They are asked, never refreshed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trispark.host.machine import LocalMachine, Machine

APT_S: Final = 60.0
RELEASE: Final = Path("/etc/os-release")
PLAIN: Final = {"LC_ALL": "C"}


@dataclass(frozen=True)
class Package:
    """A version that the suite would install. `size` in bytes."""

    version: str
    sha256: str
    size: int


class SystemPackages:
    """Of this machine's own suite alone: no other lists are here."""

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or LocalMachine()

    def package(self, name: str, suite: str, architecture: str) -> Package | None:
        """None where the lists of that suite and architecture are not here, or do not have it."""
        if not self._has(suite):
            return None
        wanted = name if architecture == "any" else f"{name}:{architecture}"
        done = self._machine.run(["apt-cache", "show", "--no-all-versions", wanted], timeout_s=APT_S, env=PLAIN)
        fields = dict(re.findall(r"^(Version|SHA256|Size): (\S+)$", done.stdout, re.MULTILINE))
        if done.rc != 0 or set(fields) != {"Version", "SHA256", "Size"}:
            return None
        return Package(fields["Version"], fields["SHA256"], int(fields["Size"]))

    def versions(self, names: Sequence[str], suite: str, architecture: str) -> dict[str, str] | None:
        """{package: version that would be installed}, without those that the lists do not have."""
        if not self._has(suite) or self._architecture() != architecture:
            return None
        done = self._machine.run(["apt-cache", "policy", *names], timeout_s=APT_S, env=PLAIN)
        found = re.findall(r"^(\S+):\n(?:  .*\n)*?  Candidate: (\S+)$", done.stdout, re.MULTILINE)
        versions = {name: version for name, version in found if version != "(none)"}
        return versions if done.rc == 0 and versions else None

    def _has(self, suite: str) -> bool:
        text = self._machine.read_text(RELEASE)
        return re.search(rf'^VERSION_CODENAME="?{re.escape(suite)}"?$', text, re.MULTILINE) is not None

    def _architecture(self) -> str:
        return self._machine.run(["dpkg", "--print-architecture"], timeout_s=APT_S, env=PLAIN).stdout.strip()
