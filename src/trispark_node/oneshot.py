"""Verb `oneshot`: a container that does one thing, for instance the load client, and is gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node import epoch, generations, logs
from trispark_node.canonical import canonical_json
from trispark_node.containers import (
    ROLE_BENCH,
    Identity,
    base_config,
    base_host_config,
    isolated_host_config,
    own,
    refuse_foreign,
)
from trispark_node.docker_client import Container, MountPoint
from trispark_node.errors import AgentError, request_error
from trispark_node.fields import NAME, Fields
from trispark_node.image_name import IMAGE
from trispark_node.layout import SHARED_FILE_MODE
from trispark_node.lock import held
from trispark_node.mutation import Mode
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.redaction import Redactor
from trispark_node.regular_file import read_regular

POLL_S = 0.2
KILL_WAIT_S = 10.0
BENCH_NAME = "trispark-bench"
MAX_OUTPUT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class OneshotRequest:
    image: str
    command: tuple[str, ...]
    input: Mapping[str, Any]
    deadline_s: float
    name: str
    isolated: bool = False

    @classmethod
    def parse(cls, fields: Fields) -> OneshotRequest:
        role = fields.text("role", ROLE_BENCH)
        if role != ROLE_BENCH:
            raise request_error("role is no one-shot role", where="request.role", expected=ROLE_BENCH, observed=role)
        return cls(
            image=fields.text("image", pattern=IMAGE),
            command=fields.texts("command"),
            input=fields.mapping("input", {}),
            deadline_s=fields.seconds("deadline_s"),
            name=fields.text("name", BENCH_NAME, pattern=NAME),
            isolated=fields.boolean("isolated", False),
        )


def oneshot(node: Node, request: OneshotRequest, mode: Mode) -> dict[str, Any]:
    """Run the container to its end or its deadline; nothing of it stays.

    It holds a lock of its own name, and that of the disks: a load test must not keep anyone from stopping the engine,
    and nothing may pack or hash shards beside it.
    """
    if mode.check:
        _refuse(node, request)
        return {"changed": False, "exit_code": None, "output": None, "log_tail": []}
    node.disk.make_directory(node.layout.run)
    with (
        held(node.layout.lock(request.name), node.clock, mode.lock_wait_s, "oneshot") as note,
        held(node.layout.lock("disk"), node.clock, mode.lock_wait_s, f"oneshot {request.name}") as note_disk,
    ):
        _refuse(node, request)
        note()
        note_disk()
        with node.journal.step("oneshot", {"image": request.image, "name": request.name}):
            remove_leftovers(node, request.name)
            return {"changed": False, **_run(node, request)}


def _run(node: Node, request: OneshotRequest) -> dict[str, Any]:
    work = node.layout.run / f"{request.name}.work"
    node.disk.make_directory(work)
    try:
        node.disk.write_new(work / "input.json", canonical_json(request.input), SHARED_FILE_MODE)
        container_id = _create(node, request, work)
        try:
            node.docker.start(container_id)
            ended = _wait(node, request, container_id)
            redactor = Redactor(ended.env, ended.command)
            lines = [redactor.text(line) for line in logs.tail(node, ended)]
        finally:
            _take_away(node, container_id)
        if ended.alive:
            raise _too_late(request, lines, _rows(work / "raw.jsonl"))
        output = _output(work)
        answer: dict[str, Any] = {"exit_code": ended.exit_code, "output": output, "log_tail": lines}
        return answer if output is not None else {**answer, "rows": _rows(work / "raw.jsonl")}
    finally:
        node.disk.remove_tree(work)


def _refuse(node: Node, request: OneshotRequest) -> None:
    refuse_foreign(node.docker, request.name, ROLE_BENCH)
    if node.docker.image(request.image) is None:
        raise AgentError(
            "TS-AGENT-IMAGE",
            "the image is not on this node",
            where=request.image,
            expected="the image by its digest",
            observed="absent",
            remedy="bring it: ./trispark play images, or on the node trispark-node image-ensure",
        )


def remove_leftovers(node: Node, name: str) -> None:
    """Nobody holds the lock of this name but us: what is here belongs to a one-shot whose agent was killed."""
    for container in own(node.docker, ROLE_BENCH):
        if container.name == name:
            _take_away(node, container.id)
    node.disk.remove_tree(node.layout.run / f"{name}.work")


def _create(node: Node, request: OneshotRequest, work: Path) -> str:
    generation = generations.current(node) or ""
    who = Identity(ROLE_BENCH, generation, "", epoch.read(node).number, 0)
    config = base_config(request.image, request.command, {}, who.labels())
    mounts = (MountPoint(str(work), "/work", False),)
    config["HostConfig"] = isolated_host_config(mounts) if request.isolated else base_host_config("host", mounts)
    return node.docker.create(request.name, config)


def _wait(node: Node, request: OneshotRequest, container_id: str) -> Container:
    deadline = node.clock.monotonic() + request.deadline_s
    while True:
        container = node.docker.container(container_id)
        if container is None:
            raise AgentError(
                "TS-AGENT-ABSENT",
                "the one-shot's container was removed while it ran",
                where=f"container {request.name}",
                expected="the container until its end",
                observed="no such container",
                remedy="find out who removed it",
            )
        if not container.alive or node.clock.monotonic() >= deadline:
            return container
        node.clock.sleep(POLL_S)


def _too_late(request: OneshotRequest, lines: list[str], rows: list[Any]) -> AgentError:
    return AgentError(
        "TS-AGENT-DEADLINE",
        "the one-shot did not end in time; it was killed and removed",
        where=f"container {request.name}",
        expected=f"its end within {request.deadline_s:g} s",
        observed=f"still running, last line: {logs.last_line(lines) or 'none'}",
        remedy="see whether the engine answers, or allow more time",
        extra={"log_tail": lines, "rows": rows},
    )


def _output(work: Path) -> Any:
    """The parsed output; None when the container left none."""
    path = work / "output.json"
    try:
        size = path.lstat().st_size
        if size > MAX_OUTPUT_BYTES:
            raise ValueError(f"{size} bytes, more than {MAX_OUTPUT_BYTES}")
        # What ran in the container may have put a link there; followed here, it would read files of the node.
        return parse_json(read_regular(path, os.O_NOFOLLOW), any_text=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise AgentError(
            "TS-AGENT-OUTPUT",
            "the one-shot's output cannot be read",
            where=str(path),
            expected="one JSON value",
            observed=str(error),
            remedy="see the program that wrote it",
            extra={"rows": _rows(work / "raw.jsonl")},
        ) from error


def _rows(path: Path) -> list[Any]:
    """What a program without an output had written of it until then: the whole lines of its raw file, each one JSON
    value. Lines beyond the bound and what is no JSON are left out."""
    try:
        if path.lstat().st_size > MAX_OUTPUT_BYTES:
            return []
        whole, _, _ = read_regular(path, os.O_NOFOLLOW).rpartition(b"\n")
    except (OSError, ValueError):
        return []
    rows = []
    for line in whole.split(b"\n"):
        try:
            rows.append(parse_json(line, any_text=True))
        except ValueError:
            break
    return rows


def _take_away(node: Node, container_id: str) -> None:
    node.docker.signal(container_id, "SIGKILL")
    deadline = node.clock.monotonic() + KILL_WAIT_S
    container = node.docker.container(container_id)
    while container is not None and container.alive and node.clock.monotonic() < deadline:
        node.clock.sleep(POLL_S)
        container = node.docker.container(container_id)
    node.docker.remove(container_id)
