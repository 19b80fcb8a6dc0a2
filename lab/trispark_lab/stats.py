"""Periodic counter lines: every DSV41_STATS_SECONDS when something happened, and once more at shutdown."""

import threading
from collections.abc import Callable

Source = Callable[[bool], list[str]]
"""Gives the lines of the period; called with True at shutdown, when a line is due even without news."""

_adapter_sources: list[Source] = []


def register(source: Source) -> None:
    """Add a source; adapters use this while the engine's modules are being imported."""
    if source not in _adapter_sources:
        _adapter_sources.append(source)


class PeriodicStats:
    """Prints the lines of its sources from a thread; `period` in seconds, 0 or less prints nothing."""

    def __init__(self, period: float, write: Callable[[str], None]) -> None:
        self._period = period
        self._write = write
        self._sources: list[Source] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="stats", daemon=True)

    def add(self, source: Source) -> None:
        """Add a source of this engine, printed before those of adapters."""
        self._sources.append(source)

    def start(self) -> None:
        """Begin the periods."""
        if self._period > 0:
            self._thread.start()

    def close(self) -> None:
        """End the periods and print the last lines; a second call does nothing."""
        if not self._stop.is_set() and self._period > 0:
            self._stop.set()
            self.flush(final=True)

    def flush(self, *, final: bool = False) -> None:
        """Print what is due now."""
        with self._lock:
            for source in (*self._sources, *_adapter_sources):
                for line in source(final):
                    self._write(line)

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            self.flush()
