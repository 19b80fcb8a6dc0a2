"""Verb `status`: what is true on this node now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from trispark_node import ENGINE_NAME, epoch, generations, good, records, watching
from trispark_node.containers import ROLE_BENCH, ROLE_ENGINE, identity
from trispark_node.docker_client import Container
from trispark_node.errors import AgentError
from trispark_node.node import Node
from trispark_node.oneshot import BENCH_NAME


def status(node: Node) -> dict[str, Any]:
    """Reads only. A damaged part is named under `problems` and does not hide the rest."""
    problems: list[str] = []
    history = node.journal.read()
    if history.damaged_lines:
        problems.append(f"journal: lines {', '.join(map(str, history.damaged_lines))} cannot be read")
    answer: dict[str, Any] = {
        "current": None,
        "generations": generations.staged(node),
        "good": [asdict(mark) for mark in good.read(node)],
        "epoch": 0,
        "engine": None,
        "foreign": [],
        "pending": [
            {"seq": entry.seq, "time": entry.time, "verb": entry.verb, "detail": dict(entry.detail)}
            for entry in history.pending()
        ],
        "record_head": None,
        "problems": problems,
    }
    parts: dict[str, Callable[[], Any]] = {
        "current": lambda: generations.current(node),
        "epoch": lambda: epoch.read(node).number,
        "engine": lambda: _engine(node),
        "foreign": lambda: _foreign(node),
        "record_head": lambda: records.record_head(node)["head"],
    }
    for key, read in parts.items():
        try:
            answer[key] = read()
        except AgentError as error:
            problems.append(str(error))
    return answer


def _engine(node: Node) -> dict[str, Any] | None:
    container = watching.engine(node)
    if container is None:
        return None
    who = identity(container)
    return {
        "name": container.name,
        "state": container.status,
        "health": _health(node, container),
        "generation": who.generation if who else None,
        "boot_id": who.boot_id if who else None,
        "epoch": who.epoch if who else None,
        "rank": who.rank if who else None,
        "image": container.image_ref,
        "started_at": container.started_at,
        "exit_code": container.exit_code,
    }


def _health(node: Node, container: Container) -> str | None:
    if container.status != "running":
        return None
    try:
        url = watching.spec_of(node, container).ready_url
    except AgentError:
        return None
    return watching.health(node, url)


def _foreign(node: Node) -> list[str]:
    """Names of ours that someone else's containers have."""
    found = []
    for name, role in ((ENGINE_NAME, ROLE_ENGINE), (BENCH_NAME, ROLE_BENCH)):
        container = node.docker.container(name)
        if container is not None:
            who = identity(container)
            if who is None or who.role != role:
                found.append(name)
    return found
