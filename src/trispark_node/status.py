"""Verb `status`: what is true on this node now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trispark_node import ENGINE_NAME, baseline, engine, epoch, generations, good, host, records, rollback, watching
from trispark_node.containers import ROLE_BENCH, ROLE_ENGINE, identity
from trispark_node.docker_client import Container
from trispark_node.errors import AgentError
from trispark_node.node import Node
from trispark_node.oneshot import BENCH_NAME
from trispark_node.running import spec_of


def status(node: Node) -> dict[str, Any]:
    """Reads only. A damaged part is named under `problems` and does not hide the rest; a damaged generation, which
    stands in nobody's way but a rollback's, under `damaged`."""
    problems: list[str] = []
    answer: dict[str, Any] = {
        "current": None,
        "generations": [],
        "damaged": {},
        "unstartable": {},
        "good": [],
        "epoch": 0,
        "engine": None,
        "foreign": [],
        "pending": [],
        "rollback": None,
        "baseline": None,
        "host_boot": None,
        "record_head": None,
        "record_chain": "damaged",
        "problems": problems,
    }
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "journal": lambda: _journal(node, problems),
        "generations": lambda: _generations(node),
        "good": lambda: _good(node, problems),
        "current": lambda: _current(node, problems),
        "epoch": lambda: {"epoch": epoch.read(node).number},
        "engine": lambda: {"engine": _engine(node)},
        "foreign": lambda: {"foreign": _foreign(node)},
        "rollback": lambda: rollback.show(node),
        "baseline": lambda: baseline.show(node),
        "host": lambda: {"host_boot": host.boot_identity(node)},
        "records": lambda: _records(node),
    }
    for part, read in parts.items():
        try:
            answer.update(read())
        except AgentError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{part}: {error.filename or 'a file'} cannot be read: {error.strerror or error}")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            # What damaged data raises where no reader expected it; a defect of another kind still ends the verb.
            problems.append(" ".join(f"{part}: not readable: {type(error).__name__}: {error}".split()))
    return answer


def _damaged(path: Path, lines: tuple[int, ...]) -> list[str]:
    return [f"{path.stem}: lines {', '.join(map(str, lines))} of {path} cannot be read"] if lines else []


def _journal(node: Node, problems: list[str]) -> dict[str, Any]:
    history = node.journal.read()
    problems += _damaged(node.layout.journal, history.damaged_lines)
    pending = [
        {"seq": entry.seq, "time": entry.time, "verb": entry.verb, "detail": dict(entry.detail)}
        for entry in history.pending()
    ]
    return {"pending": pending}


def _generations(node: Node) -> dict[str, Any]:
    return {
        "generations": generations.staged(node),
        "damaged": generations.damaged(node),
        "unstartable": engine.unstartable(node),
    }


def _good(node: Node, problems: list[str]) -> dict[str, Any]:
    found = good.read(node)
    problems += _damaged(node.layout.good, found.damaged_lines)
    return {"good": [asdict(mark) for mark in found.marks]}


def _current(node: Node, problems: list[str]) -> dict[str, Any]:
    generation = generations.current(node)
    if generation is not None and not node.layout.generation(generation).is_dir():
        problems.append(f"current: {node.layout.current} leads to generation {generation}, which is not on this node")
    return {"current": generation}


def _records(node: Node) -> dict[str, Any]:
    """Of the whole chain: a head behind which a record is damaged proves nothing."""
    found = records.chain(node)
    return {"record_head": found[-1].head() if found else None, "record_chain": "ok" if found else "empty"}


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
        url = spec_of(node, container).ready_url
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
