"""Ends the process when a lookup inside a graph failed: replays pass no place where Python could raise it.

The failed lookup gave NaN for rows, never old or zero ones. Field 2.7: an error at run time ends the engine.
"""

import os
import threading
from collections.abc import Callable
from typing import Final, Protocol

from trispark_hooks import evidence

PERIOD_S: Final = 0.2
EXIT_FAILED: Final = 70


class Failing(Protocol):
    """A lookup that can fail where nobody is called."""

    @property
    def failure(self) -> BaseException | None: ...


class Watch:
    """Looks at the jobs that graphs may hold, from one daemon thread that starts with the first of them."""

    def __init__(
        self,
        period_s: float = PERIOD_S,
        say: evidence.Write = evidence.write,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._period_s = period_s
        self._say = say
        self._end = end
        self._jobs: dict[int, Failing] = {}
        self._thread: threading.Thread | None = None

    def follow(self, job: Failing) -> None:
        """From now on `job` is looked at."""
        self._jobs[id(job)] = job
        if self._thread is None and self._period_s > 0:
            self._thread = threading.Thread(target=self._run, name="engram-watch", daemon=True)
            self._thread.start()

    def look(self) -> bool:
        """Whether a job failed; then the process has been told to end."""
        for job in tuple(self._jobs.values()):
            try:
                failure = job.failure
            except Exception as error:  # an error that cannot be read is one all the same
                failure = error
            if failure is not None:
                try:
                    self._say(f"Engram retrieval failed: {failure}")
                finally:  # a log that takes nothing more must not keep an engine alive that serves NaN
                    self._end(EXIT_FAILED)
                return True
        return False

    def _run(self) -> None:
        stop = threading.Event()
        while not stop.wait(self._period_s):
            if self.look():
                return


WATCH: Final = Watch()
