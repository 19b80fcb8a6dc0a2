"""Verb `status`: the engine's container, what else of ours lies beside it, and how it differs from what was staged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trispark_node import ENGINE_NAME, engine_drift, generations, processes
from trispark_node.containers import ROLE_BENCH, ROLE_ENGINE, identity, own
from trispark_node.docker_client import Container
from trispark_node.errors import AgentError
from trispark_node.http_request import HttpClient
from trispark_node.node import Node
from trispark_node.oneshot import BENCH_NAME
from trispark_node.spec import Spec

HEALTH_S = 1.0
"""For the engine's own word on its health: from this node, and it says nothing else meanwhile."""


def engine_part(node: Node) -> dict[str, Any]:
    """{"engine", "others", "foreign", "drift"}; JSON values alone, because a child process hands them over.

    `engine` is null when there is none, else with `id`, `name`, `state` (the Engine's word), `health` (ready,
    not_ready, unreachable; null when it does not run or its spec is not readable), `generation`, `boot_id`, `epoch`,
    `rank`, `image`, `started_at`, `exit_code` and `resident_bytes`. `others`: our further engines, `foreign`: names of
    ours that containers of someone else have. Raises TS-AGENT-DOCKER.
    """
    found = sorted(own(node.docker, ROLE_ENGINE), key=lambda container: not container.alive)
    answer: dict[str, Any] = {"engine": None, "others": [], "foreign": _foreign(node), "drift": []}
    if not found:
        return answer
    container = found[0]
    spec, drift = _spec(node, container)
    answer["engine"] = _facts(node, container, spec)
    answer["others"] = [_short(other) for other in found[1:]]
    if spec is not None:
        image = node.docker.image(container.image_id)
        drift += engine_drift.differences(node, container, spec, image)
    answer["drift"] = drift
    return answer


def _spec(node: Node, container: Container) -> tuple[Spec | None, list[dict[str, str]]]:
    """What the container was started from; that it cannot be read any more is itself a difference."""
    who = identity(container)
    generation = who.generation if who else ""
    try:
        return generations.load_spec(node, generation), []
    except AgentError as error:
        wanted = "the spec that the engine was started from"
        return None, [engine_drift.item(f"generation {generation or 'without a name'}", wanted, error.observed)]


def _facts(node: Node, container: Container, spec: Spec | None) -> dict[str, Any]:
    who = identity(container)
    running = container.status == "running"
    pids = processes.of_container(node.procfs, container.id) if container.alive else []
    return {
        "id": container.id,
        "name": container.name,
        "state": container.status,
        "health": health(node.http, spec.ready_url) if running and spec is not None else None,
        "generation": who.generation if who else None,
        "boot_id": who.boot_id if who else None,
        "epoch": who.epoch if who else None,
        "rank": who.rank if who else None,
        "image": container.image_ref,
        "started_at": container.started_at,
        "exit_code": container.exit_code,
        "resident_bytes": processes.resident_bytes(node.procfs, pids) if container.alive else None,
    }


def _short(container: Container) -> dict[str, Any]:
    who = identity(container)
    return {
        "name": container.name,
        "state": container.status,
        "boot_id": who.boot_id if who else None,
        "epoch": who.epoch if who else None,
    }


def health(http: HttpClient, url: str) -> str:
    """`ready` (200), `not_ready` (any other answer) or `unreachable`."""
    try:
        status = http.call("GET", url, None, HEALTH_S).status
    except OSError:
        return "unreachable"
    return "ready" if status == 200 else "not_ready"


def _foreign(node: Node) -> list[str]:
    found = []
    for name, role in ((ENGINE_NAME, ROLE_ENGINE), (BENCH_NAME, ROLE_BENCH)):
        container = node.docker.container(name)
        if container is not None:
            who = identity(container)
            if who is None or who.role != role:
                found.append(name)
    return found


def against_the_node(
    engine: Mapping[str, Any] | None, current: str | None, fenced: int, damaged: Mapping[str, str]
) -> Iterable[dict[str, str]]:
    """How a running engine differs from this node's current generation, its fence and the files of its generation."""
    if engine is None or engine.get("state") not in ("running", "paused", "restarting"):
        return
    running = str(engine.get("generation"))
    if current is not None and running != current:
        yield engine_drift.item("generation", current, running)
    if engine.get("epoch") != fenced:
        yield engine_drift.item("epoch", str(fenced), str(engine.get("epoch")))
    if running in damaged:
        yield engine_drift.item(f"files of generation {running}", "as they were staged", damaged[running])
