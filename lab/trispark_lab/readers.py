"""Process-wide reader threads for row reads; both layers share them, one job at a time."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

Share = Callable[[int, int], None]
"""Does the items start, start + step, ... of a job: share(start, step)."""


class ReaderPool:
    """`threads` readers in all, the caller of `run` among them; threads start when first wanted."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._jobs: SimpleQueue[tuple[Share, int, int, SimpleQueue[BaseException | None]]] = SimpleQueue()
        self._started = 0
        self._lock = threading.Lock()

    def run(self, share: Share, workers: int) -> None:
        """Run share(0, n) .. share(n - 1, n) with n = min(workers, threads). The first exception passes."""
        count = max(1, min(workers, self.threads))
        with self._lock:
            while self._started < count - 1:
                self._started += 1
                threading.Thread(target=self._serve, name=f"engram-io-{self._started}", daemon=True).start()
            done: SimpleQueue[BaseException | None] = SimpleQueue()
            for start in range(1, count):
                self._jobs.put((share, start, count, done))
            outcomes = [_attempt(share, 0, count)]
            outcomes.extend(done.get() for _ in range(1, count))
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    def _serve(self) -> None:
        while True:
            share, start, step, done = self._jobs.get()
            done.put(_attempt(share, start, step))


def _attempt(share: Share, start: int, step: int) -> BaseException | None:
    try:
        share(start, step)
    except BaseException as error:  # raised again in the caller of run
        return error
    return None
