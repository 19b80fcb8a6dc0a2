"""Verb `support`: what a report on a fault needs of this node, in bounded size and without what a log must not show."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trispark_node import PROTOCOL, VERSION, host, logs
from trispark_node.containers import ROLE_BENCH, ROLE_ENGINE, own
from trispark_node.docker_client import Container
from trispark_node.errors import AgentError
from trispark_node.fields import Fields
from trispark_node.node import Node
from trispark_node.redaction import Redactor
from trispark_node.status import status

STATE_FILES = (
    "epoch",
    "site.json",
    "fleet-lock.json",
    "rollback.json",
    "baseline.json",
    "share.json",
    "engram-job.json",
)
"""Small files of the root that are handed out as they are; none holds a secret of an engine."""
STATE_FILE_BYTES = 65536
LISTED = 2000
"""Files named at most: a listing says how full a node is, not what an engine cached."""
UNLISTED = ("engine-cache", "engine-state", "run")
"""Directories of which the size alone is of use."""


@dataclass(frozen=True)
class SupportRequest:
    """`boots`: of how many of the newest boots the log's beginning and end are wanted; `log_bytes` of each."""

    boots: int
    log_bytes: int
    journal_lines: int

    @classmethod
    def parse(cls, fields: Fields) -> SupportRequest:
        return cls(
            fields.integer("boots", 3, high=20),
            fields.integer("log_bytes", 131072, high=2**20),
            fields.integer("journal_lines", 200, high=5000),
        )


def support(node: Node, request: SupportRequest) -> dict[str, Any]:
    """Reads only. A part that cannot be read is named under `unread` and does not hide the rest."""
    unread: dict[str, str] = {}
    answer: dict[str, Any] = {
        "agent": {"version": VERSION, "protocol": PROTOCOL, "python": platform.python_version()},
        "unread": unread,
    }
    parts: dict[str, Callable[[], Any]] = {
        "host": lambda: host.host(node, host.HostRequest((str(node.layout.root),))),
        "status": lambda: status(node),
        "journal": lambda: _journal(node, request.journal_lines),
        "containers": lambda: _containers(node),
        "running": lambda: _running(node, request),
        "boots": lambda: _boots(node, request, unread),
        "state": lambda: _state(node, unread),
        "files": lambda: _files(node.layout.root),
    }
    for part, read in parts.items():
        try:
            answer[part] = read()
        except AgentError as error:
            unread[part] = str(error)
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            unread[part] = " ".join(f"{type(error).__name__}: {error}".split())
    return answer


def _journal(node: Node, lines: int) -> dict[str, Any]:
    history = node.journal.read()
    entries = [{**asdict(entry), "detail": dict(entry.detail)} for entry in history.entries[-lines:]]
    return {"entries": entries, "total": len(history.entries), "damaged_lines": list(history.damaged_lines)}


def _containers(node: Node) -> list[dict[str, Any]]:
    """Ours alone: another one's name is nobody's business."""
    return [
        {
            "name": each.name,
            "id": each.id,
            "status": each.status,
            "exit_code": each.exit_code,
            "started_at": each.started_at,
            "image": each.image_ref,
            "labels": dict(each.labels),
        }
        for each in [*own(node.docker, ROLE_ENGINE), *own(node.docker, ROLE_BENCH)]
    ]


def _running(node: Node, request: SupportRequest) -> dict[str, str]:
    """{boot: log} of engines whose container is there, also an ended one."""

    def text(container: Container) -> str:
        redactor = Redactor(container.env, container.command)
        return redactor.text(logs.bounded(node.docker.log(container.id), request.log_bytes)[0])

    return {logs.boot_of(each): text(each) for each in own(node.docker, ROLE_ENGINE)}


def _boots(node: Node, request: SupportRequest, unread: dict[str, str]) -> dict[str, str]:
    """{boot: kept log}, the newest boots by the time of their logs. One whose secrets are not known is left out."""
    kept = sorted(node.layout.boots.glob("*/engine.log"), key=lambda path: path.stat().st_mtime)
    found: dict[str, str] = {}
    for path in kept[len(kept) - request.boots :] if request.boots < len(kept) else kept:
        boot = path.parent.name
        try:
            redactor = logs.kept_redaction(node, boot)
            with path.open("rb") as file:
                text, _ = logs.bounded(iter(lambda: file.read(1 << 20), b""), request.log_bytes)
            found[boot] = redactor.text(text)
        except AgentError as error:
            unread[f"boots/{boot}"] = str(error)
    return found


def _state(node: Node, unread: dict[str, str]) -> dict[str, str]:
    found = {}
    for name in STATE_FILES:
        path = node.layout.root / name
        try:
            with path.open("rb") as file:
                found[name] = file.read(STATE_FILE_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            unread[name] = error.strerror or str(error)
    return found


def _files(root: Path) -> dict[str, Any]:
    """Sizes and times of what lies below the root."""
    listed: list[dict[str, Any]] = []
    totals: dict[str, int] = {}
    for base, directories, names in os.walk(root):
        directories.sort()
        for name in sorted(names):
            path = Path(base) / name
            try:
                about = path.lstat()
            except OSError:
                continue
            relative = path.relative_to(root)
            totals[relative.parts[0]] = totals.get(relative.parts[0], 0) + about.st_size
            if relative.parts[0] not in UNLISTED and len(listed) < LISTED:
                entry = {"path": str(relative), "bytes": about.st_size, "mtime": int(about.st_mtime)}
                listed.append({**entry, "mode": oct(about.st_mode & 0o7777)})
    return {"bytes": totals, "listed": listed}
