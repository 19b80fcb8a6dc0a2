"""Time as a dependency, so that tests need neither sleeps nor the time of day."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    def now(self) -> str:
        """UTC as ISO 8601 with milliseconds."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""

    def boottime(self) -> float:
        """Seconds since the host's start, whatever the time of day is set to."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> str:
        return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
