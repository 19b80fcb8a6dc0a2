"""A fleet of three real agents in one process: files in memory, stand-ins for Docker, time, network and power.

A node can be out of reach (its engine goes on), be started again (its engine ends, its boot unit runs), and its agent
can die at any step of a verb, as tests/support/crash_points.py enumerates them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from trispark.agent_call import result_of_answer
from trispark_node import cli
from trispark_node.canonical import generation_id
from trispark_node.disk import Disk
from trispark_node.docker_client import Image
from trispark_node.http_request import Response
from trispark_node.layout import Layout
from trispark_node.node import Node


def _node_conftest() -> Any:
    """The stand-ins of the agent's own tests."""
    path = Path(__file__).resolve().parents[1] / "unit/node/conftest.py"
    spec = importlib.util.spec_from_file_location("trispark_node_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_CONFTEST = _node_conftest()
NAMES = ("spark0", "spark1", "spark2")
TAGS = ("one", "two", "three", "four")
IMAGE: str = _CONFTEST.IMAGE
TCP_HEADER: str = _CONFTEST.TCP_HEADER
PORTS = (20000, 20001, 20002, 20003)
READY = "http://127.0.0.1:8888/health"


class Killed(BaseException):
    """The agent's process ended at this step. No `except Exception` of the agent sees it."""


class Fuse:
    """Ends the agent at a step; None for never."""

    def __init__(self) -> None:
        self.left: int | None = None

    def __call__(self, *_what: object) -> None:
        if self.left is None:
            return
        if self.left == 0:
            self.left = None
            raise Killed
        self.left -= 1


class QuickDisk(Disk):
    """What is synced is in memory here; a step it is all the same."""

    def sync_directory(self, path: Path) -> None:
        self._before("sync-directory", path)

    def sync_file(self, descriptor: int, path: Path) -> None:
        self._before("fsync", path)


class FleetDocker(_CONFTEST.FakeDocker):  # type: ignore[misc]
    """It outlives the agent; an effect is a step before it, and one before its acknowledgement."""

    def __init__(self, fuse: Fuse) -> None:
        super().__init__()
        self.fuse = fuse

    def create(self, name: str, config: Mapping[str, Any]) -> str:
        self.fuse()
        container_id = str(super().create(name, config))
        self.fuse()
        return container_id

    def start(self, container_id: str) -> None:
        self.fuse()
        super().start(container_id)
        self.fuse()

    def signal(self, container_id: str, signal: str) -> None:
        self.fuse()
        super().signal(container_id, signal)
        self.fuse()

    def remove(self, container_id: str) -> None:
        self.fuse()
        super().remove(container_id)
        self.fuse()


class FleetClock:
    """The node's view of the fleet's one time; `started`: when the host was started."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.started = 0.0

    def now(self) -> str:
        minutes, seconds = divmod(int(self.fleet.time), 60)
        hours, minutes = divmod(minutes, 60)
        return f"2026-01-{2 + hours // 24:02d}T{hours % 24:02d}:{minutes:02d}:{seconds:02d}.000Z"

    def monotonic(self) -> float:
        return self.fleet.time

    def boottime(self) -> float:
        return self.fleet.time - self.started + 1.0

    def sleep(self, seconds: float) -> None:
        self.fleet.time += seconds


class EngineHttp:
    """An engine is healthy while it runs."""

    def __init__(self, docker: Any) -> None:
        self.docker = docker

    def call(self, method: str, url: str, body: bytes | None, timeout_s: float) -> Response:
        if url == READY and any(each.status == "running" for each in self.docker.containers.values()):
            return Response(200, "text/plain", b"")
        raise ConnectionRefusedError(111, "Connection refused")


class FleetNode:
    """One node: `node` is what its agent works with, `up` whether the controllers reach it."""

    def __init__(self, fleet: Fleet, rank: int) -> None:
        self.fleet, self.rank, self.name = fleet, rank, NAMES[rank]
        self.up = True
        self.starts = 0
        base = fleet.base / self.name
        self.root = base / "state"
        self.procfs = base / "proc"
        (self.procfs / "sys/kernel/random").mkdir(parents=True)
        (self.procfs / "1").mkdir()
        (self.procfs / "net").mkdir()
        (self.procfs / "net/tcp").write_text(TCP_HEADER)
        (self.procfs / "meminfo").write_text("MemTotal: 2000 kB\nMemAvailable: 1000 kB\n")
        (self.procfs / "1/stat").write_text(f"1 (in) S 0 {' '.join(map(str, range(5, 53)))}\n")
        self.fuse = Fuse()
        self.docker = FleetDocker(self.fuse)
        self.docker.images[IMAGE] = Image("sha256:" + "b" * 64, (IMAGE,), {"PATH": "/bin"})
        self.clock = FleetClock(fleet)
        self._start()

    def _start(self) -> None:
        self.starts += 1
        boot = f"0a0b0c0d-0000-4000-8000-{self.rank:06d}{self.starts:06d}\n"
        (self.procfs / "sys/kernel/random/boot_id").write_text(boot)

    def node(self) -> Node:
        """Anew for each call, as each call of an agent is a process."""
        return Node(
            Layout(self.root),
            disk=QuickDisk(self.fuse),
            clock=self.clock,
            http=EngineHttp(self.docker),
            connect=lambda: self.docker,
            procfs=self.procfs,
        )

    def answer(self, verb: str, request: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        return cli.answer(self.node(), verb, json.dumps(request))

    def result(self, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """As the task that calls the agent registers it."""
        self.fleet.calls += 1
        try:
            answer, code = self.answer(verb, request)
        except Killed:
            line = f"TS-AGENT-SILENT: the node agent gave no JSON answer to {verb}"
            return {"failed": True, "changed": False, "msg": line, "check_id": "TS-AGENT-SILENT"}
        finally:
            self.fuse.left = None
        return result_of_answer(verb, "trispark-node", code, answer)

    def engine_ends(self) -> None:
        for container in list(self.docker.containers.values()):
            if container.alive:
                self.docker.change(container.id, status="exited", exit_code=255)

    def starts_again(self) -> dict[str, Any]:
        """Power was lost; back, the boot unit runs once. Its answer."""
        self.engine_ends()
        self.clock.started = self.fleet.time
        self._start()
        answer, _code = self.answer("at-boot", {})
        return answer

    def running(self) -> list[Mapping[str, str]]:
        """Labels of our engines that are alive."""
        return [container.labels for container in self.docker.containers.values() if container.alive]


class Fleet:
    """Three nodes and one time. `calls`: of agents, for the figures."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.time = 1000.0
        self.calls = 0
        self.nodes = {name: FleetNode(self, rank) for rank, name in enumerate(NAMES)}

    def copied(self, base: Path) -> Fleet:
        """The same fleet with a disk and containers of its own."""
        other = Fleet(base)
        other.time = self.time
        for name, node in self.nodes.items():
            twin = other.nodes[name]
            shutil.copytree(node.root, twin.root, symlinks=True)
            for part in ("images", "containers", "logs", "configs", "events"):
                setattr(twin.docker, part, deepcopy(getattr(node.docker, part)))
        return other


def stage_requests(tag: str) -> dict[str, dict[str, Any]]:
    """{node: request of `stage`} of the smallest generation there is, the same id on all nodes."""
    bodies = {name: _container(tag, rank) for rank, name in enumerate(NAMES)}
    ranks = [
        {"rank": rank, "node": name, **{key: bodies[name][key] for key in ("env", "command", "mounts")}}
        for rank, name in enumerate(NAMES)
    ]
    resolved = {"schema_version": 1, "site": "lab", "image": IMAGE, "settings": {"tag": tag}, "ranks": ranks}
    generation = generation_id(resolved)
    return {
        name: {
            "generation": generation,
            "resolved": resolved,
            "spec": {
                "spec_version": 1,
                "generation": generation,
                "rank": rank,
                "world_size": len(NAMES),
                "rendezvous_ports": list(PORTS),
                "container": bodies[name],
                "ready": {"url": READY},
                "observe": {"packages": [], "version_command": ["v"]},
            },
            "files": {"engine.env": "A=1\n", "launch.args": "--tp 3\n"},
            "adapters": {},
        }
        for rank, name in enumerate(NAMES)
    }


def _container(tag: str, rank: int) -> dict[str, Any]:
    return {
        "name": "trispark-engine", "image": IMAGE, "command": ["run", "{rendezvous_port}", str(rank)],
        "env": {"TAG": tag}, "mounts": [], "network_mode": "host", "ipc_mode": None, "shm_size": None, "ulimits": [],
        "devices": [], "gpus": False, "privileged": False, "stop_timeout_s": 15,
    }  # fmt: skip


STAGES = {tag: stage_requests(tag) for tag in TAGS}
GENERATIONS = {tag: str(STAGES[tag][NAMES[0]]["generation"]) for tag in TAGS}


def site_request(rank: int) -> dict[str, Any]:
    return {
        "schema_version": 1, "site": "lab", "node": NAMES[rank], "rank": rank, "world_size": 3, "nodes": list(NAMES),
        "ports": [8888, *PORTS], "memory": {"source": "meminfo", "available_bytes": None}, "stop_deadline_s": 15.0,
        "lock_lease_s": 60.0, "keep_generations": 1, "keep_boots": 2, "images": [],
    }  # fmt: skip


def token_of_host(host: str, number: int) -> str:
    """A command's token as trispark.fleet_lock makes it, of a host of the model."""
    return f"{hashlib.sha256(host.encode()).hexdigest()[:16]}-{number}-{number}"
