"""Verb `wait`, and the engine's health as the agent sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trispark_node import logs
from trispark_node.containers import ROLE_ENGINE, own
from trispark_node.docker_client import Container
from trispark_node.fields import Fields
from trispark_node.node import Node
from trispark_node.redaction import Redactor
from trispark_node.running import spec_of

POLL_S = 0.2
HEALTH_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class WaitRequest:
    timeout_s: float

    @classmethod
    def parse(cls, fields: Fields) -> WaitRequest:
        return cls(fields.seconds("timeout_s", 10, high=3600))


def engine(node: Node) -> Container | None:
    """Our engine container; a running one before one that has ended."""
    found = sorted(own(node.docker, ROLE_ENGINE), key=lambda container: not container.alive)
    return found[0] if found else None


def health(node: Node, url: str) -> str:
    """`ready` (200), `not_ready` (any other answer) or `unreachable`."""
    try:
        status = node.http.call("GET", url, None, HEALTH_TIMEOUT_S).status
    except OSError:
        return "unreachable"
    return "ready" if status == 200 else "not_ready"


def wait(node: Node, request: WaitRequest) -> dict[str, Any]:
    """Returns at once when there is nothing to wait for: the engine is ready, has ended or is not there."""
    deadline = node.clock.monotonic() + request.timeout_s
    url = ""
    while True:
        container = engine(node)
        if container is None:
            return {"state": "absent", "exit_code": None, "last_log": "", "log_tail": []}
        url = url or spec_of(node, container).ready_url
        if not container.alive and container.status != "created":
            return _answer(node, container, "exited")
        if health(node, url) == "ready":
            # Asked again: another process may answer on the port of an engine that has died.
            after = node.docker.container(container.id)
            if after is not None and after.status == "running":
                return _answer(node, after, "ready")
        if node.clock.monotonic() >= deadline:
            return _answer(node, container, "starting")
        node.clock.sleep(POLL_S)


def _answer(node: Node, container: Container, state: str) -> dict[str, Any]:
    redactor = Redactor(container.env, container.command)
    lines = [redactor.text(line) for line in logs.tail(node, container)]
    return {
        "state": state,
        "exit_code": container.exit_code,
        "last_log": logs.last_line(lines) or container.error,
        "log_tail": lines,
    }
