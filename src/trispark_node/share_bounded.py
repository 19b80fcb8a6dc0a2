"""Work on a network file system, which may never answer: in a process of its own, with a bound.

A process that waits in the kernel for a dead server cannot be told to stop, and whoever waits for it, or for the end of
a pipe that it holds, waits as long. So nothing here does either: after the bound it is sent SIGKILL and left to itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from trispark_node.errors import AgentError

POLL_S = 0.01
LAST_BYTES = 2000
"""How much of a program's output is kept, from its end."""
_NAMED = ("id", "what", "where", "expected", "observed", "remedy", "extra", "status")


class Late(Exception):
    """The bound passed. `seconds` is the bound."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"no answer within {seconds:g} s")


@dataclass(frozen=True)
class Ended:
    """A program that came to its end: its status and the end of what it printed, on one line."""

    status: int
    said: str


def call(work: Callable[[], Any], deadline_s: float) -> Any:
    """What `work` returns (JSON values only), from a child process. An OSError of it is raised here with its number and
    its file, a refusal of the agent's as it is; Late when it does not end in time; RuntimeError for anything else."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        _child(work, writable)
    os.close(writable)
    try:
        answer = _read(readable, time.monotonic() + deadline_s)
    finally:
        os.close(readable)
        _abandon(child)
    if answer is None:
        raise Late(deadline_s)
    return _value(answer)


def _child(work: Callable[[], Any], writable: int) -> NoReturn:
    try:
        # Whoever reads the agent's output waits until nobody holds it any more: a child that hangs must not.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        held = os.dup2(writable, 3) if writable != 3 else 3
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        try:
            answer: dict[str, Any] = {"value": work()}
        except OSError as error:
            answer = {"errno": error.errno, "strerror": error.strerror, "filename": os.fsdecode(error.filename or "")}
        except AgentError as error:
            answer = {"refused": {name: getattr(error, name) for name in _NAMED}}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        data = memoryview(json.dumps(answer).encode("utf-8"))
        while data:
            data = data[os.write(held, data) :]
    finally:
        os._exit(0)


def _read(readable: int, deadline: float) -> bytes | None:
    """All of it; None when the deadline passes before its end."""
    pieces: list[bytes] = []
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([readable], [], [], left)[0]:
            return None
        piece = os.read(readable, 2**20)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _abandon(child: int) -> None:
    """Kill it and take its status if it has one already; never wait for it."""
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    for _ in range(5):  # an ordinary process is gone by then, and leaves no zombie
        with suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG) == (0, 0):
                time.sleep(POLL_S)
                continue
        return


def _value(answer: bytes) -> Any:
    found: dict[str, Any] = json.loads(answer) if answer else {"failed": "the child process ended without an answer"}
    if "value" in found:
        return found["value"]
    if "refused" in found:
        refused = dict(found["refused"])
        raise AgentError(refused.pop("id"), refused.pop("what"), **refused)
    if "errno" in found:
        raise OSError(found["errno"], found["strerror"], found["filename"])
    raise RuntimeError(found["failed"])


def command(argv: Sequence[str], deadline_s: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a program of the node. Raises FileNotFoundError when it is not installed, Late when it does not end."""
    with tempfile.TemporaryFile() as output:  # no pipe: a mount helper may leave a daemon that keeps it open
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", **(environment or {})},
        )
        deadline = time.monotonic() + deadline_s
        while process.poll() is None:
            if time.monotonic() >= deadline:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                _abandon(process.pid)
                process.returncode = -signal.SIGKILL  # it may live on in the kernel; nobody waits for it
                raise Late(deadline_s)
            time.sleep(POLL_S)
        output.seek(max(0, output.seek(0, os.SEEK_END) - LAST_BYTES))
        said = output.read().decode("utf-8", "replace")
    return Ended(process.returncode, " ".join(said.split()))
