"""The three lab nodes over ssh, as any administrator looks at them: nothing of trispark's code is imported here."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import testinfra
import yaml
from testinfra.host import Host

ROOT = Path(__file__).resolve().parents[1]
SSH = ROOT / ".trispark" / "lab" / "ssh"
SPARKS: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "inventory" / "lab" / "hosts.yml").read_text())["sparks"][
    "hosts"
]
PINNED = f"-o StrictHostKeyChecking=yes -o UserKnownHostsFile={SSH / 'known_hosts'} -o GlobalKnownHostsFile=/dev/null"


@dataclass(frozen=True)
class Node:
    """One node: its place in the inventory, and `host`, which runs commands there with sudo."""

    name: str
    rank: int
    address: str
    port: int
    host: Host

    def engine(self) -> dict[str, Any]:
        """The engine's container as the node's Docker Engine describes it."""
        found: list[dict[str, Any]] = json.loads(self.host.check_output("docker inspect trispark-engine"))
        return found[0]

    def log(self) -> str:
        """Both streams of the engine's log."""
        return str(self.host.check_output("docker logs trispark-engine 2>&1"))

    def lines(self, path: str) -> list[dict[str, Any]]:
        """A file of JSON lines on the node."""
        return [json.loads(line) for line in self.host.file(path).content_string.splitlines()]


def reach(name: str, sockets: Path) -> Node:
    spark = SPARKS[name]
    host = testinfra.get_host(
        f"ssh://trispark@{spark['ansible_host']}:{spark['ansible_port']}",
        sudo=True,
        ssh_identity_file=str(SSH / "id_ed25519"),
        ssh_extra_args=f"{PINNED} -o IdentitiesOnly=yes -o IdentityAgent=none -o ConnectTimeout=10 "
        f"-o ControlMaster=auto -o ControlPersist=60 -o ControlPath={sockets / name}",
    )
    return Node(name, spark["node_rank"], spark["ansible_host"], spark["ansible_port"], host)


@pytest.fixture(scope="session")
def reached() -> Iterator[dict[str, Node]]:
    """All three by name, over one connection each; a socket's path must be short, so it is not below pytest's."""
    with tempfile.TemporaryDirectory(prefix="ts-") as directory:
        sockets = Path(directory)
        yield {name: reach(name, sockets) for name in SPARKS}
        for name in SPARKS:
            argv = ["ssh", "-o", f"ControlPath={sockets / name}", "-O", "exit", "trispark@closed"]
            subprocess.run(argv, capture_output=True, timeout=10, check=False)


@pytest.fixture
def nodes(reached: dict[str, Node]) -> list[Node]:
    """All three, by rank."""
    return sorted(reached.values(), key=lambda node: node.rank)


@pytest.fixture(params=sorted(SPARKS))
def node(request: pytest.FixtureRequest, reached: dict[str, Node]) -> Node:
    """Each one in turn."""
    return reached[request.param]
