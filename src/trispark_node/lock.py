"""One changing verb at a time. The kernel drops a flock with its process, so a lock is never stale."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trispark_node.clock import Clock
from trispark_node.errors import AgentError
from trispark_node.layout import STATE_FILE_MODE

POLL_S = 0.05


@contextmanager
def held(
    path: Path, clock: Clock, wait_s: float, verb: str, overtake: Callable[[], None] | None = None
) -> Iterator[Callable[[], None]]:
    """Hold the lock file for the body, or raise TS-AGENT-LOCKED after `wait_s`. `overtake` is called while it waits.

    Yields a function that writes the holder into the file, for the message that others get. It is called only before
    an effect, so that a verb which finds nothing to do changes no byte on the node.
    """
    descriptor = _opened(path)
    try:
        deadline = clock.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.monotonic() >= deadline:
                    raise _locked(path, wait_s, os.pread(descriptor, 4096, 0)) from None
                if overtake is not None:
                    overtake()
                clock.sleep(POLL_S)
        noted = False

        def note() -> None:
            nonlocal noted
            noted = True
            owner = json.dumps({"verb": verb, "pid": os.getpid(), "since": clock.now()}).encode()
            with suppress(OSError):  # a full or read-only disk: the lock holds without the name
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, owner, 0)

        try:
            yield note
        finally:
            if noted:
                with suppress(OSError):
                    os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    """The kernel locks what is open for reading as well, and an engine is stopped on a read-only disk, too."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, STATE_FILE_MODE)
    except OSError as error:
        if error.errno != errno.EROFS or not path.exists():
            raise
        return os.open(path, os.O_RDONLY | flags)


def is_held(path: Path) -> bool:
    """Whether some process holds the lock at this moment; the file is looked at only."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _locked(path: Path, wait_s: float, content: bytes) -> AgentError:
    try:
        owner = json.loads(content)
        holder = f"held by {owner['verb']}, pid {owner['pid']}, since {owner['since']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        holder = "held by a process that has not written its name"
    return AgentError(
        "TS-AGENT-LOCKED",
        "another changing verb is at work on this node",
        where=str(path),
        expected=f"the lock within {wait_s:g} s",
        observed=holder,
        remedy="wait until it has ended, then repeat; the lock goes away with its process",
    )
