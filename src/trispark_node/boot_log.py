"""Verb `boot-log`: the kept log of a boot whose container may be gone, redacted like that of a running one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node import logs
from trispark_node.errors import AgentError
from trispark_node.fields import NAME, Fields
from trispark_node.node import Node

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class BootLogRequest:
    boot_id: str
    view: logs.LogRequest

    @classmethod
    def parse(cls, fields: Fields) -> BootLogRequest:
        return cls(fields.text("boot_id", pattern=NAME), logs.LogRequest.parse(fields))


def boot_log(node: Node, request: BootLogRequest) -> dict[str, Any]:
    """Raises TS-AGENT-LOG-MISSING, and TS-AGENT-LOG-REDACT when it is not known what the log must not show."""
    path = node.layout.boot_log(request.boot_id)
    if not path.is_file():
        raise AgentError(
            "TS-AGENT-LOG-MISSING",
            "no log of this boot is kept on this node",
            where=str(path),
            expected=f"the log of boot {request.boot_id}",
            observed=f"logs kept: {', '.join(_kept(node)) or 'none'}",
            remedy="a running engine's log is read with observe; save-log and stop keep it",
        )
    redactor = logs.kept_redaction(node, request.boot_id)
    return {
        "boot_id": request.boot_id,
        "bytes": path.stat().st_size,
        **logs.view(_pieces(path), request.view, redactor),
    }


def _kept(node: Node) -> list[str]:
    return sorted(path.parent.name for path in node.layout.boots.glob("*/engine.log"))


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
