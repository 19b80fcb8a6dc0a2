"""Log lines in the engine's shape: `[2026-09-11 23:34:02 TP0 EP0] text`."""

import sys
import threading
import time
from typing import TextIO


class EngineLog:
    """Line writer of one rank; safe from several threads, flushed at each line."""

    def __init__(self, rank: int, ep_size: int, stream: TextIO | None = None) -> None:
        self._tag = f" TP{rank}" + (f" EP{rank}" if ep_size > 1 else "")
        self._stream = stream if stream is not None else sys.stdout
        self._lock = threading.Lock()

    def rank_line(self, text: str) -> None:
        """A line of this rank."""
        self.bare(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{self._tag}] {text}")

    def head_line(self, text: str) -> None:
        """A line of the head's front end, with the time alone."""
        self.bare(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}")

    def bare(self, text: str) -> None:
        """A line without prefix, as the launcher inside the container prints it."""
        with self._lock:
            self._stream.write(text + "\n")
            self._stream.flush()


_current: EngineLog | None = None


def set_current(log: EngineLog) -> None:
    """Name the log of this process, for `announce`."""
    global _current
    _current = log


def announce(text: str) -> None:
    """A line of this rank from code that is handed no log (adapters)."""
    if _current is not None:
        _current.rank_line(text)
    else:
        print(text, flush=True)
