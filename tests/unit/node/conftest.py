"""A node in a temporary directory: fake Docker Engine, fake clock, fake HTTP, and real files."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from trispark_node import cli
from trispark_node.disk import Disk
from trispark_node.docker_client import Container, Executed, Image, MountPoint, Storage, split_env
from trispark_node.errors import AgentError
from trispark_node.http_request import Response
from trispark_node.layout import Layout
from trispark_node.node import Node

IMAGE = "registry:5000/trispark/lab-engine@sha256:" + "a" * 64
CRASHED = 99
TCP_HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
SITE_REQUEST = {
    "schema_version": 1,
    "site": "lab",
    "node": "spark1",
    "rank": 1,
    "world_size": 3,
    "nodes": ["spark0", "spark1", "spark2"],
    "ports": [8888, 20000, 20001, 20002, 20003],
    "memory": {"source": "meminfo", "available_bytes": None},
    "stop_deadline_s": 15.0,
    "lock_lease_s": 60.0,
    "keep_generations": 10,
    "keep_boots": 50,
    "images": [],
}
"""What the controller tells a lab node."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "docker: needs a Docker Engine on this machine")


class FakeClock:
    """Time passes by sleeping only. `on_sleep` is called with the time after each sleep."""

    def __init__(self) -> None:
        self.time = 100.0
        self.on_sleep: list[Callable[[float], None]] = []

    def now(self) -> str:
        return "2026-01-02T03:04:05.000Z"

    def monotonic(self) -> float:
        return self.time

    def boottime(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        for call in self.on_sleep:
            call(self.time)


class FakeHttp:
    """`answers`: status by URL; an absent URL refuses the connection."""

    def __init__(self) -> None:
        self.answers: dict[str, Response] = {}
        self.calls: list[tuple[str, str, bytes | None, float]] = []

    def call(self, method: str, url: str, body: bytes | None, timeout_s: float) -> Response:
        self.calls.append((method, url, body, timeout_s))
        if url not in self.answers:
            raise ConnectionRefusedError(111, "Connection refused")
        return self.answers[url]


class FakeReader:
    """Registries that serve `answers`, {URL: body}, to whoever asks; the others are not there."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.asked: list[str] = []

    def get(self, url: str, accept: str, timeout_s: float) -> bytes:
        self.asked.append(url)
        if url not in self.answers:
            raise ConnectionRefusedError(111, "Connection refused")
        return self.answers[url]


@dataclass
class FakeDocker:
    """Containers and images in memory; `events` lists the effects in order."""

    images: dict[str, Image] = field(default_factory=dict)
    registry: dict[str, Image] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    logs: dict[str, bytes] = field(default_factory=dict)
    executed: dict[str, Executed] = field(default_factory=dict)
    configs: list[Mapping[str, Any]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    exits_on: tuple[str, ...] = ("SIGTERM", "SIGKILL")
    start_error: str = ""
    image_error: str = ""
    on_start: Callable[[str], None] | None = None
    pull_errors: list[str] = field(default_factory=list)
    """What the next pulls fail with, one after the other."""
    layers: list[tuple[str, ...]] = field(default_factory=list)
    free_bytes: int = 2**40

    def platform(self) -> str:
        return "linux/arm64"

    def storage(self) -> Storage:
        return Storage("/var/lib/docker", self.free_bytes, tuple(self.layers))

    def server(self) -> dict[str, str]:
        return {"version": "20.10.24", "storage_driver": "overlay2"}

    def container(self, name_or_id: str) -> Container | None:
        for container in self.containers.values():
            if name_or_id in (container.id, container.name):
                return container
        return None

    def labelled(self, labels: Mapping[str, str]) -> list[Container]:
        return [c for c in self.containers.values() if labels.items() <= c.labels.items()]

    def create(self, name: str, config: Mapping[str, Any]) -> str:
        assert self.container(name) is None, "name conflict"
        container_id = hashlib.sha256(f"{name}{len(self.configs)}".encode()).hexdigest()
        self.configs.append(config)
        mounts = tuple(MountPoint(m["Source"], m["Target"], m["ReadOnly"]) for m in config["HostConfig"]["Mounts"])
        image_env = dict(self.images[config["Image"]].env)
        self.containers[container_id] = Container(
            container_id, name, "created", None, "", None, config["Image"], self.images[config["Image"]].id,
            {**image_env, **split_env(config["Env"])}, tuple(config["Cmd"]), config["Labels"], mounts,
        )  # fmt: skip
        self.logs.setdefault(container_id, b"")
        self.events.append(f"create {name}")
        return container_id

    def start(self, container_id: str) -> None:
        if self.start_error:
            raise AgentError("TS-AGENT-DOCKER", "x", where="x", expected="x", observed=self.start_error, remedy="x")
        self.change(container_id, status="running", started_at="2026-01-02T03:04:05Z")
        self.events.append(f"start {self.containers[container_id].name}")
        if self.on_start:
            self.on_start(container_id)

    def signal(self, container_id: str, signal: str) -> None:
        container = self.containers.get(container_id)
        if container is None or not container.alive:
            return
        self.events.append(f"{signal} {container.name}")
        if signal in self.exits_on and container.status != "paused":
            self.change(container_id, status="exited", exit_code=0 if signal == "SIGTERM" else 137)

    def unpause(self, container_id: str) -> None:
        self.events.append(f"unpause {self.containers[container_id].name}")
        self.change(container_id, status="running")

    def remove(self, container_id: str) -> None:
        found = self.containers.pop(container_id, None)
        if found is not None:  # as the Engine's client: one that is gone is no error
            self.events.append(f"remove {found.name}")

    def log(self, container_id: str, tail: int | None = None) -> Iterator[bytes]:
        data = self.logs[container_id]
        self.events.append("log" if tail is None else "tail")
        yield from (data if tail is None else b"".join(data.splitlines(keepends=True)[-tail:])).splitlines(True)

    def execute(self, container_id: str, argv: Sequence[str]) -> Executed:
        return self.executed[" ".join(argv[:1])]

    def image(self, reference: str) -> Image | None:
        found = [image for name, image in self.images.items() if reference in (name, image.id)]
        return found[0] if found else None

    def pull(self, repository: str, digest: str) -> None:
        reference = f"{repository}@{digest}"
        self.events.append(f"pull {reference}")
        if self.pull_errors:
            observed = self.pull_errors.pop(0)
            raise AgentError("TS-AGENT-DOCKER", "x", where="x", expected="x", observed=observed, remedy="x")
        self.images[reference] = self.registry[reference]

    def remove_image(self, reference: str) -> None:
        if self.image_error:
            raise AgentError("TS-AGENT-DOCKER", "x", where="x", expected="x", observed=self.image_error, remedy="x")
        if self.images.pop(reference, None) is not None:
            self.events.append(f"remove-image {reference}")

    def all_ids(self) -> list[str]:
        return list(self.containers)

    def change(self, container_id: str, **values: Any) -> None:
        self.containers[container_id] = replace(self.containers[container_id], **values)

    def add(self, name: str, status: str = "running", labels: Mapping[str, str] | None = None, log: bytes = b"") -> str:
        container_id = hashlib.sha256(name.encode()).hexdigest()
        exit_code = 1 if status == "exited" else None
        self.containers[container_id] = Container(
            container_id, name, status, exit_code, "", None, "busybox", "sha256:0", {}, (), dict(labels or {}), ()
        )
        self.logs[container_id] = log
        return container_id


class Bench:
    """The node under test and how to ask it."""

    def __init__(self, root: Path) -> None:
        self.docker = FakeDocker()
        self.docker.images[IMAGE] = Image("sha256:" + "b" * 64, (IMAGE,), {"PATH": "/bin", "FROM_IMAGE": "1"})
        self.clock = FakeClock()
        self.http = FakeHttp()
        self.registry = FakeReader()
        procfs = root / "proc"
        procfs.mkdir(parents=True)
        (procfs / "meminfo").write_text("MemTotal:  2000 kB\nMemFree: 10 kB\nMemAvailable:   1000 kB\n")
        (procfs / "sys/kernel/random").mkdir(parents=True)
        (procfs / "sys/kernel/random/boot_id").write_text("0a0b0c0d-0000-4000-8000-000000000001\n")
        (procfs / "1").mkdir()
        (procfs / "1/stat").write_text("1 (in) it) S 0 " + " ".join(str(number) for number in range(5, 53)) + "\n")
        (procfs / "net").mkdir()
        (procfs / "net/tcp").write_text(TCP_HEADER)
        self.procfs = procfs
        self.cgroups = root / "cgroup"
        self.node = Node(
            Layout(root / "state"),
            clock=self.clock,
            http=self.http,
            registry=self.registry,
            connect=lambda: self.docker,
            procfs=procfs,
            cgroups=self.cgroups,
        )
        self.root = self.node.layout.root

    def process_of_agent(self) -> Node:
        """Anew for each call, as each call of an agent is a process."""
        return replace(self.node)

    def ask(self, verb: str, **request: Any) -> dict[str, Any]:
        """The answer of a request that must succeed."""
        answer, code = cli.answer(self.process_of_agent(), verb, json.dumps(request))
        assert answer["ok"], answer
        assert code == 0
        return answer

    def refused(self, verb: str, **request: Any) -> dict[str, Any]:
        """The error of a request that must fail."""
        answer, code = cli.answer(self.process_of_agent(), verb, json.dumps(request))
        assert not answer["ok"], answer
        assert code in (1, 2)
        assert all("\n" not in value for value in answer["error"].values())
        return answer["error"]

    def process(self, pid: int, command: str = "python3 -m engine", container_id: str = "") -> Path:
        """A process in the fake /proc; in the control group of the container, if one is given."""
        directory = self.procfs / str(pid)
        (directory / "fd").mkdir(parents=True)
        group = f"/docker/{container_id}" if container_id else "/user.slice"
        (directory / "cgroup").write_text(f"5:memory:{group}\n0::{group}\n")
        (directory / "cmdline").write_bytes("".join(f"{word}\0" for word in command.split()).encode())
        (directory / "comm").write_text("worker\n")
        return directory

    def container_root(self, container_id: str, pid: int = 70) -> Path:
        """A process of the container, whose root directory holds the adapters of its generation; that directory."""
        generation = self.docker.containers[container_id].labels["trispark.generation"]
        directory = self.process(pid, container_id=container_id)
        root = directory / "root"
        staged = self.node.layout.generation(generation) / "adapters"
        shutil.copytree(staged, root / "opt/trispark/adapters")
        return root

    def listen(self, port: int, *pids: int, table: str = "tcp", state: str = "0A") -> None:
        """A socket of the fake node, held by `pids`."""
        path = self.procfs / "net" / table
        inode = 1000 * port + len(pids)
        before = path.read_text() if path.exists() else TCP_HEADER
        address = "00000000" if table == "tcp" else "0" * 32
        path.write_text(
            f"{before}   0: {address}:{port:04X} {address}:0000 {state} 00000000:00000000 00:00000000 00000000"
            f"     0        0 {inode} 1 0000000000000000 100 0 0 10 0\n"
        )
        for pid in pids:
            (self.procfs / str(pid) / "fd" / str(inode)).symlink_to(f"socket:[{inode}]")

    def know_site(self, **values: Any) -> dict[str, Any]:
        """Tell the node of its site; the request."""
        request = {**SITE_REQUEST, **values}
        self.ask("site-set", **request)
        return request

    def with_disk(self, disk: Disk) -> Node:
        return replace(self.node, disk=disk)

    def tree(self) -> dict[str, str]:
        """Every file below the root by content, links by target: what `changed: false` must leave equal."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if path.is_symlink():
                found[name] = f"-> {path.readlink()}"
            elif path.is_file():
                found[name] = path.read_text(errors="replace")
        return found


def canonical_id(resolved: Mapping[str, Any]) -> str:
    """Written from the contract, not with the agent's own code."""
    text = json.dumps(resolved, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "g" + hashlib.sha256(text.encode()).hexdigest()[:16]


def make_stage_request(tag: str = "one", mounts: Sequence[Mapping[str, Any]] = (), **container: Any) -> dict[str, Any]:
    adapters = {"trispark_wo_a/__init__.py": f"TAG = {tag!r}\n", "sitecustomize.py": "import trispark_wo_a\n"}
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in adapters.items()}
    mounted = [*mounts, {"source": "{generation}/adapters", "target": "/opt/trispark/adapters", "read_only": True}]
    body = {
        "name": "trispark-engine",
        "image": IMAGE,
        "command": ["python3", "-m", "trispark_lab", "--dist-init-addr", "10.77.0.10:{rendezvous_port}"],
        "env": {"DSPARK_BLOCK_SIZE": "3", "RENDEZVOUS": "{rendezvous_port}", "TAG": tag, "X_API_KEY": "sekret-key"},
        "mounts": mounted,
        "network_mode": "host",
        "ipc_mode": None,
        "shm_size": None,
        "ulimits": [],
        "devices": [],
        "gpus": False,
        "privileged": False,
        "stop_timeout_s": 15,
        **container,
    }
    rank = {"rank": 1, "node": "spark1", **{key: body[key] for key in ("env", "command", "mounts")}}
    resolved = {
        "schema_version": 1, "site": "lab", "engine": "lab", "image": body["image"], "settings": {"tag": tag, "ü": 1.5},
        "adapters": hashes, "ranks": [rank],
    }  # fmt: skip
    spec = {
        "spec_version": 1,
        "generation": canonical_id(resolved),
        "rank": 1,
        "world_size": 3,
        "rendezvous_ports": [20000, 20001, 20002, 20003],
        "container": body,
        "ready": {"url": "http://127.0.0.1:8888/health"},
        "observe": {"packages": ["numpy"], "version_command": ["engine-version"]},
    }
    return {
        "generation": canonical_id(resolved),
        "resolved": resolved,
        "spec": spec,
        "files": {"engine.env": "DSPARK_BLOCK_SIZE=3\n", "launch.args": "--tp 3\n"},
        "adapters": adapters,
    }


def crash_at(step: int, operation: Callable[[Disk], Any], torn: bool = False) -> bool:
    """Run `operation` in a child that dies without any clean-up before its step number `step`; with `torn`, in the
    middle of its write number `step`. True when it died there, False when it came to its end before."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            operation(_TearingDisk(step) if torn else _CrashingDisk(step))
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, CRASHED), "the operation failed in the child"
    return status == CRASHED


class _CrashingDisk(Disk):
    def __init__(self, step: int) -> None:
        self._left = step
        super().__init__(self._count)

    def _count(self, step: str, path: Path) -> None:
        if self._left == 0:
            os._exit(CRASHED)
        self._left -= 1


class _TearingDisk(Disk):
    def __init__(self, step: int) -> None:
        self._left = step
        super().__init__()

    def write_all(self, descriptor: int, path: Path, data: Any) -> None:
        if self._left == 0:
            os.write(descriptor, memoryview(data)[: len(data) // 2])
            os._exit(CRASHED)
        self._left -= 1
        super().write_all(descriptor, path, data)


def every_crash(operation: Callable[[Disk], Any], reset: Callable[[], Any]) -> Iterator[str]:
    """Die at every single step in turn, each time from the state that `reset` makes; yields after each death."""
    for torn in (False, True):
        step = 0
        reset()
        while crash_at(step, operation, torn):
            yield f"step {step}, torn {torn}"
            step += 1
            reset()
        assert step > (1 if torn else 5), "too few steps: the operation had nothing to do"


class Checkpoint:
    """Layers in safetensors files, another tensor between weight and scale, written from the format's description."""

    def __init__(self, directory: Path, rows: Mapping[int, int]) -> None:
        self.directory = directory
        self.rows = dict(rows)
        self.weight: dict[int, bytes] = {}
        self.scale: dict[int, bytes] = {}
        directory.mkdir()
        source = random.Random(7)
        for layer, count in rows.items():
            self.weight[layer] = source.randbytes(count * 256)
            self.scale[layer] = source.randbytes(count * 8)
            name = f"layers.{layer}.engram.embed."
            self.write(
                f"model-{layer:05d}.safetensors",
                [
                    (name + "weight", "F8_E4M3", [count, 256], self.weight[layer]),
                    (f"layers.{layer}.engram.q_weight", "F32", [3], bytes(12)),
                    (name + "scale", "F8_E8M0", [count, 8], self.scale[layer]),
                ],
            )

    def write(self, name: str, tensors: Sequence[tuple[str, str, list[int], bytes]]) -> Path:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for tensor, dtype, shape, data in tensors:
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
            offset += len(data)
        text = json.dumps(header).encode()
        path = self.directory / name
        path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(item[3] for item in tensors))
        return path

    def shard(self, layer: int, rank: int, tp: int = 3) -> bytes:
        """The reference: row by row, byte by byte, as the format says."""
        total = self.rows[layer]
        first, end = total * rank // tp, total * (rank + 1) // tp
        parts = [number.to_bytes(8, "little") for number in (0x31344E4531565344, layer, first, end, total, 264)]
        parts.append(bytes(4096 - 48))
        for row in range(first, end):
            parts.append(self.weight[layer][row * 256 : row * 256 + 256])
            parts.append(self.scale[layer][row * 8 : row * 8 + 8])
        return b"".join(parts)


ROOM_BYTES = 2**30
"""Free at least: several tests at once, with tables of some MB each; a container's shared memory has 64 MB."""


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: hundreds of fsyncs cost nothing there. Mostly noexec."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or shutil.disk_usage(shared).free < ROOM_BYTES:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="trispark-test-", dir=shared) as directory:
        yield Path(directory)


@pytest.fixture
def bench(quick_path: Path) -> Bench:
    return Bench(quick_path)


@pytest.fixture
def make_bench() -> Callable[[Path], Bench]:
    return Bench


@pytest.fixture
def stage_request() -> Callable[..., dict[str, Any]]:
    return make_stage_request


@pytest.fixture
def active(bench: Bench) -> dict[str, Any]:
    """A staged and active generation, fenced at epoch 5 for boot b1: what `start` needs."""
    request = make_stage_request()
    bench.ask("stage", **request)
    bench.ask("activate", generation=request["generation"])
    bench.ask("fence", epoch=5, boot_id="b1")
    return request


@pytest.fixture
def crashes() -> Callable[..., Iterator[str]]:
    return every_crash


@pytest.fixture
def checkpoint(quick_path: Path) -> Checkpoint:
    return Checkpoint(quick_path / "checkpoint", {1: 50, 14: 61})


@pytest.fixture
def make_checkpoint() -> Callable[[Path, Mapping[int, int]], Checkpoint]:
    return Checkpoint


@pytest.fixture
def engine_labels() -> Callable[..., dict[str, str]]:
    def labels(boot: str = "b0", generation: str = "g0000000000000000", epoch: int = 1) -> dict[str, str]:
        return {
            "trispark": "1", "trispark.role": "engine", "trispark.generation": generation, "trispark.boot": boot,
            "trispark.epoch": str(epoch), "trispark.rank": "1",
        }  # fmt: skip

    return labels
