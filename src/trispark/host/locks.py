"""Locks between processes of one checkout: an flock that names its holder and is waited for no longer than told.

The kernel drops the lock of a process that was killed, so nothing has to be cleaned up.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from trispark.errors import TrisparkError
from trispark.host.machine import LocalMachine, Machine, Say

POLL_S = 0.2


@contextmanager
def alone(
    path: Path, *, error_id: str, doing: str, wait_s: float, say: Say, machine: Machine | None = None
) -> Iterator[None]:
    """Hold the lock file ``path`` inside; ``doing`` names what it guards, as in "another DOING is running".

    Raises ``error_id`` with the holder's process id (where it is known) when the lock is not free within ``wait_s``.
    """
    machine = machine or LocalMachine()
    # Not "w": that would erase the holder's process id.
    with path.open("a+", encoding="utf-8") as lock:
        if not _taken(lock):
            say(f"another {doing} of this checkout is running ({_holder(lock)}): waiting up to {wait_s:.0f} s for it")
            deadline = machine.now() + wait_s
            while not _taken(lock):
                if machine.now() >= deadline:
                    raise TrisparkError(
                        id=error_id,
                        what=f"another {doing} of this checkout is still running",
                        where=str(path),
                        expected=f"its end within {wait_s:.0f} s",
                        observed=f"the lock is held by {_holder(lock)}",
                        remedy="wait for it or end it, then try again",
                    )
                machine.pause(POLL_S)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)


def _taken(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(lock: TextIO) -> str:
    lock.seek(0)
    text = lock.read().strip()
    return f"process {text}" if text.isdigit() else "a process that has not said its id"
