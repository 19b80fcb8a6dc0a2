"""Engine logs: saved whole on the node, handed out in bounded pieces. Verb `save-log`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node.containers import ROLE_ENGINE, identity, own
from trispark_node.docker_client import Container
from trispark_node.errors import AgentError
from trispark_node.fields import NAME, Fields
from trispark_node.layout import STATE_DIRECTORY_MODE, STATE_FILE_MODE
from trispark_node.log_patterns import matching_lines, parse_patterns
from trispark_node.mutation import Plan
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.redaction import Redactor, TextRedactor
from trispark_node.regular_file import read_regular

TAIL_LINES = 40


def boot_of(container: Container) -> str:
    who = identity(container)
    return who.boot_id if who is not None and NAME.fullmatch(who.boot_id) else f"unknown-{container.id[:12]}"


@dataclass(frozen=True)
class LogRequest:
    """How much of a log is wanted: at most `log_bytes`, of the lines in which one of `patterns` is found; of all lines
    when there are no patterns."""

    log_bytes: int
    patterns: tuple[str, ...]

    @classmethod
    def parse(cls, fields: Fields) -> LogRequest:
        return cls(fields.integer("log_bytes", 2_000_000, high=64 * 2**20), parse_patterns(fields))


def view(pieces: Iterable[bytes], request: LogRequest, redactor: TextRedactor) -> dict[str, Any]:
    """{"log", "log_bytes_left_out", "log_size"}: what was asked for, how many bytes of that did not fit, and how many
    bytes the whole log has, all of which were searched."""
    read = _Counted(pieces)
    wanted = matching_lines(read, request.patterns, redactor) if request.patterns else read
    text, left_out = bounded(wanted, request.log_bytes)
    return {"log": redactor.text(text), "log_bytes_left_out": left_out, "log_size": read.size}


class _Counted:
    """Passes pieces on and counts their bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.size += len(piece)
            yield piece


def save(node: Node, container: Container) -> Path:
    """Write the container's whole log to its boot's directory, piece by piece, and put it in place when complete. What
    must not be shown of it lies beside it before, because the container that could tell will be gone.

    Raises TS-AGENT-LOG when the disk does not take it; the container is still there then, and with it the log.
    """
    return _keep(node, container, node.docker.log(container.id))


def _keep(node: Node, container: Container, pieces: Iterable[bytes]) -> Path:
    target = node.layout.boot_log(boot_of(container))
    temporary = target.with_name(f".{target.name}.new")
    disk = node.disk
    try:
        disk.make_directory(target.parent)
        for directory in (node.layout.boots, target.parent):  # also those that were there: logs may hold secrets
            directory.chmod(STATE_DIRECTORY_MODE)
        secrets = json.dumps({"secrets": Redactor(container.env, container.command).secrets})
        disk.replace(node.layout.boot_redaction(target.parent.name), secrets.encode("ascii") + b"\n")
        disk.remove_file(temporary)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, STATE_FILE_MODE)
        try:
            for piece in pieces:
                disk.write_all(descriptor, temporary, piece)
            disk.sync_file(descriptor, temporary)
        finally:
            os.close(descriptor)
        disk.rename(temporary, target)
    except OSError as error:
        with suppress(OSError):  # a part of it would take the room that is left
            temporary.unlink(missing_ok=True)
        raise AgentError(
            "TS-AGENT-LOG",
            "the engine's log cannot be saved; its container is kept",
            where=str(target),
            expected="the whole log on the disk",
            observed=error.strerror or str(error),
            remedy="make room or repair the file system, then stop again",
        ) from error
    return target


CUT_BYTES = 128 * 2**10
"""Of a log that a full disk does not take whole."""


def save_cut(node: Node, container: Container) -> Path:
    """Beginning and end of the log, for a rollback that must not wait for room on the disk. Raises TS-AGENT-LOG."""
    pieces = node.docker.log(container.id)
    text, _left_out = bounded(pieces, CUT_BYTES)
    return _keep(node, container, [text.encode("utf-8")])


def kept_redaction(node: Node, boot_id: str) -> TextRedactor:
    """Of a kept log. Raises TS-AGENT-LOG-REDACT when it cannot be read: then the log is not shown."""
    path = node.layout.boot_redaction(boot_id)
    try:
        return TextRedactor(Fields(parse_json(read_regular(path), any_text=True), str(path)).texts("secrets"))
    except (OSError, ValueError, AttributeError, AgentError) as error:
        raise AgentError(
            "TS-AGENT-LOG-REDACT",
            "what the kept log must not show cannot be read; the log is not handed out",
            where=str(path),
            expected='{"secrets": [...]}, written with the log',
            observed=(error.strerror or "")
            if isinstance(error, OSError)
            else "something else",  # not its text: secrets
            remedy="read the log on the node itself",
        ) from error


def tail(node: Node, container: Container, lines: int = TAIL_LINES) -> list[str]:
    """The last lines, without line ends."""
    text = b"".join(node.docker.log(container.id, tail=lines)).decode("utf-8", "replace")
    return text.splitlines()[-lines:]


def bounded(pieces: Iterable[bytes], limit: int) -> tuple[str, int]:
    """The log as text of at most about `limit` bytes and the number of bytes left out of its middle.

    The beginning holds what the engine said about itself at its start, the end what happened last: both are kept, cut
    at line ends, with a line in between that says so.
    """
    half = limit // 2
    head = bytearray()
    rest = bytearray()
    dropped = 0
    for piece in pieces:
        room = max(0, half - len(head))
        head += piece[:room]
        rest += piece[room:]
        if len(rest) > 2 * half + 65536:  # trimmed now and then, not at every piece
            dropped += len(rest) - half
            del rest[: len(rest) - half]
    if len(rest) > half:
        dropped += len(rest) - half
        del rest[: len(rest) - half]
    if not dropped:
        return bytes(head + rest).decode("utf-8", "replace"), 0
    head_end = head.rfind(b"\n") + 1
    rest_start = rest.find(b"\n") + 1
    dropped += len(head) - head_end + rest_start
    marker = f"[trispark: {dropped} bytes left out]\n".encode()
    return bytes(head[:head_end] + marker + rest[rest_start:]).decode("utf-8", "replace"), dropped


def last_line(lines: list[str]) -> str:
    """The last line that says something."""
    return next((line for line in reversed(lines) if line.strip()), "")


def describe(path: Path) -> dict[str, Any]:
    return {"log": str(path), "bytes": path.stat().st_size}


def plan_save_log(node: Node) -> Plan:
    """Save the running (or ended) engine's log without touching the engine."""
    containers = own(node.docker, ROLE_ENGINE)
    if not containers:
        raise AgentError(
            "TS-AGENT-ABSENT",
            "there is no engine whose log could be saved",
            where="containers labelled trispark.role=engine",
            expected="one container",
            observed="none",
            remedy="a stopped engine's log is in its boot's directory",
        )
    names = [boot_of(container) for container in containers]
    return Plan(
        lambda: {"logs": [describe(save(node, container)) for container in containers]},
        {"boots": names},
        {"boots": names},
    )
