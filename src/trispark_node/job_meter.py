"""How far a job is: the work on single files added up, with its speed and the time left."""

from __future__ import annotations

import time
from contextlib import suppress

from trispark_node.job_state import JobFile


class Meter:
    """A shard_check.Watch that keeps the sum in the job's file."""

    def __init__(self, file: JobFile, job: str, total: int) -> None:
        self._file = file
        self._job = job
        self._total = total
        self._before = 0
        self._current = ("", "")
        self._last = 0
        self._began = time.monotonic()

    def __call__(self, name: str, phase: str, done: int, _all: int) -> None:
        if (name, phase) != self._current:
            self._before += self._last
            self._current = (name, phase)
        self._last = done
        sum_done = self._before + done
        seconds = time.monotonic() - self._began
        rate = sum_done / seconds if seconds > 0 else 0.0
        left = max(self._total - sum_done, 0) / rate if rate else None
        with suppress(OSError):  # a full disk: the work itself says so
            self._file.progress(
                self._job,
                file=name,
                phase=phase,
                done_bytes=sum_done,
                total_bytes=max(self._total, sum_done),
                mib_s=round(rate / 2**20, 1),
                left_s=None if left is None else round(left, 1),
            )
