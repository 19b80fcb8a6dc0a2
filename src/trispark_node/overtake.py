"""A rollback does not wait for a verb of the agent that hangs: it ends that verb's process and does its own work.

Only verbs that leave nothing behind which a rollback or `recover` cannot go on from are ended, and only the process
that holds the node's lock, as the kernel says. A stop may wait minutes for an engine; whoever rolls back will not.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trispark_node import processes
from trispark_node.clock import Clock

OVERTAKES = frozenset({"rollback"})
OVERTAKEN = frozenset({"stop", "recover", "at-boot", "prune", "save-log", "backup"})
TERM_S = 1.0
"""How long a process may take to end after TERM, before KILL."""
_PROGRAM = ("trispark-node", "trispark_node")


class Overtake:
    """To be called while the lock at `path` is another process's; each call ends its holder a little more."""

    def __init__(self, procfs: Path, path: Path, clock: Clock) -> None:
        self._procfs = procfs
        self._path = path
        self._clock = clock
        self._told: dict[int, float] = {}
        self.ended: list[str] = []
        """`VERB, pid N` of each process that was told to end."""

    def __call__(self) -> None:
        for pid in self._holders():
            with suppress(OSError):  # it has just ended
                self._end(pid)

    def _end(self, pid: int) -> None:
        process = os.pidfd_open(pid)  # from here on the number is no other process's
        try:
            verb = self._verb(pid)
            if verb not in OVERTAKEN or not self._holds(pid):
                return
            now = self._clock.monotonic()
            if pid not in self._told:
                self._told[pid] = now
                self.ended.append(f"{verb}, pid {pid}")
                signal.pidfd_send_signal(process, signal.SIGTERM)
            elif now - self._told[pid] >= TERM_S:
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)

    def _holders(self) -> Iterator[int]:
        noted, _ = self._note()
        if noted is not None and self._holds(noted):  # else its name is of one that was killed
            return iter((noted,))
        return (pid for pid in processes.all_pids(self._procfs) if pid != os.getpid() and self._holds(pid))

    def _holds(self, pid: int) -> bool:
        """Whether the process has the lock's file open and the kernel's lock on it."""
        directory = self._procfs / str(pid)
        try:
            wanted = self._path.stat()
            for entry in (directory / "fd").iterdir():
                with suppress(OSError):
                    seen = entry.stat()
                    if (seen.st_dev, seen.st_ino) == (wanted.st_dev, wanted.st_ino):
                        return "FLOCK" in (directory / "fdinfo" / entry.name).read_text(encoding="ascii")
        except OSError:
            pass
        return False

    def _verb(self, pid: int) -> str:
        """As the holder wrote it into the lock's file; where the disk took no name, by its command line."""
        noted, verb = self._note()
        if noted == pid:
            return verb
        try:
            words = (self._procfs / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            return ""
        places = [place for place, word in enumerate(words[:-1]) if Path(word).name in _PROGRAM]
        return words[places[0] + 1] if places else ""

    def _note(self) -> tuple[int | None, str]:
        try:
            value = json.loads(self._path.read_bytes())
            return int(value["pid"]), str(value["verb"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None, ""
