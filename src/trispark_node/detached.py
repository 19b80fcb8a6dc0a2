"""A process that outlives the call and the connection it was begun from."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

_PIPE = 3
Say = Callable[[dict[str, Any]], None]


def spawn(work: Callable[[Say], None], deadline_s: float) -> dict[str, Any] | None:
    """Run `work` in a process of a session of its own, without terminal, input or output; the first thing it says.

    None when it ends, or the deadline passes, before it has said anything; then what runs is ended.
    """
    readable, writable = os.pipe()
    first = os.fork()
    if first == 0:
        _between(work, writable)
    os.close(writable)
    try:
        os.waitpid(first, 0)
        line = _first_line(readable, time.monotonic() + deadline_s)
    finally:
        os.close(readable)
    if not line.endswith(b"\n"):
        return None
    said: dict[str, Any] = json.loads(line)
    return said


def _between(work: Callable[[Say], None], writable: int) -> NoReturn:
    """The process that leads the session has its child adopted by process 1, and is no zombie of anybody."""
    try:
        os.setsid()
        if os.fork() == 0:
            _detach(writable)
            work(_say)
    finally:
        os._exit(0)


def _detach(writable: int) -> None:
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.dup2(writable, _PIPE)
    os.closerange(_PIPE + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_inheritable(_PIPE, False)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


def _say(values: dict[str, Any]) -> None:
    """The first call reaches whoever began the process; later ones reach nobody."""
    try:
        os.write(_PIPE, json.dumps(values).encode("utf-8") + b"\n")
    except OSError:  # nobody waits any more: whoever asked was told that nothing began
        os._exit(1)
    os.close(_PIPE)
    os.dup2(0, _PIPE)


def _first_line(readable: int, deadline: float) -> bytes:
    content = b""
    while not content.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([readable], [], [], left)[0]:
            return b""
        piece = os.read(readable, 65536)
        if not piece:
            return content
        content += piece
    return content
