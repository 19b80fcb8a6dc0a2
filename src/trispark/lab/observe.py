"""Reads what the Engine has of the lab; changes nothing."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import docker.errors

from trispark.errors import TrisparkError
from trispark.lab.desired import Container, Desired, Published
from trispark.lab.engine_api import EngineApi, Json, run_inside
from trispark.lab.layout import LABEL_LAB
from trispark.lab.state import Observed

READY_COMMAND: Final = ("/usr/local/sbin/lab-ready",)
POLL_S: Final = 0.25


def observe(client: EngineApi, names: frozenset[str]) -> Observed:
    """Containers with our label or one of `names` in full, labelled networks in full, and all networks and volumes."""
    containers: list[Json] = []
    for summary in client.containers(all=True):
        called = {name.lstrip("/") for name in summary.get("Names") or []}
        if (summary.get("Labels") or {}).get(LABEL_LAB) == "1" or called & names:
            try:
                containers.append(client.inspect_container(summary["Id"]))
            except docker.errors.NotFound:
                continue  # gone since the list was made
    networks = []
    for network in client.networks():
        if (network.get("Labels") or {}).get(LABEL_LAB) == "1":
            try:
                networks.append(client.inspect_network(network["Id"]))
            except docker.errors.NotFound:
                continue
        else:
            networks.append(network)
    return Observed(tuple(containers), tuple(networks), tuple(client.volumes().get("Volumes") or ()))


def busy_ports(desired: Desired, names: tuple[str, ...], running: frozenset[str]) -> list[TrisparkError]:
    """TS-LAB-PORT for each port in use of the containers `names`; those in `running` hold theirs rightly."""
    return [
        _port_error(container, port)
        for container in desired.containers
        if container.name in names and container.name not in running
        for port in container.published
        if _in_use(port)
    ]


def engine_versions(client: EngineApi, nodes: tuple[str, ...]) -> dict[str, str]:
    """Node -> version of its engine, empty where sshd or the engine does not answer; all nodes at once."""

    def ask(node: str) -> str:
        status, output = run_inside(client, node, READY_COMMAND)
        return output if status == 0 else ""

    with ThreadPoolExecutor(max_workers=max(1, len(nodes))) as pool:
        return dict(zip(nodes, pool.map(ask, nodes), strict=True))


def wait_ready(
    client: EngineApi,
    nodes: tuple[str, ...],
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, str]:
    """Wait until sshd and the engine of each node answer; TS-LAB-NODE names the first that does not, with its log."""
    end = clock() + deadline_s
    found: dict[str, str] = {}
    while True:
        missing = tuple(node for node in nodes if not found.get(node))
        found.update(engine_versions(client, missing))
        late = [node for node in nodes if not found.get(node)]
        if not late:
            return found
        dead = [node for node in late if client.inspect_container(node)["State"]["Status"] != "running"]
        if dead or clock() >= end:
            raise _node_error(client, (dead or late)[0], deadline_s, ended=bool(dead))
        sleep(POLL_S)


def _in_use(port: Published) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((port.address, port.port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _port_error(container: Container, port: Published) -> TrisparkError:
    return TrisparkError(
        "TS-LAB-PORT",
        "a port of the lab is in use by something else",
        where=f"{port.address}:{port.port}",
        expected=f"free, for {container.name}",
        observed="address in use",
        remedy=f"see who listens (ss -ltnp 'sport = :{port.port}') and stop it",
    )


def _node_error(client: EngineApi, node: str, deadline_s: float, *, ended: bool) -> TrisparkError:
    last = client.logs(node, tail=3).decode("utf-8", "replace").split("\n")
    return TrisparkError(
        "TS-LAB-NODE",
        "a lab node ended while it started" if ended else "a lab node did not become ready",
        where=node,
        expected=f"sshd and its Docker Engine answer within {deadline_s:g} s",
        observed="last log lines: " + " | ".join(line.strip() for line in last if line.strip()),
        remedy=f"docker logs {node}; then ./trispark lab up again, it repairs",
    )
