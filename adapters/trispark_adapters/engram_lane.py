"""Where a lookup that was started ahead runs: on a stream of its own, or on a CPU in a thread of its own."""

import threading
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from engram_store import StoreError
from trispark_adapters import engram_staging as staging


class Lane(Protocol):
    """Runs the lookups of one layer, one after the other."""

    def fork(self, staged: "staging.Staged", ids: Any) -> Any:
        """Start; `ids` are valid once the current stream got here. Returns a ticket."""

    def join(self, ticket: Any) -> None:
        """What follows on the current stream sees the rows. Raises StoreError where the lookup failed, except in a
        capture, where `engram_watch` looks after it."""

    def leave(self, ticket: Any) -> None:
        """Nobody wants the rows; what follows on the current stream still comes after the lookup, whose memory it may
        use, and a graph has no open branch."""


class StreamLane:
    """A CUDA stream. In a capture fork and join are edges of the graph, the lookup is a host node."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def fork(self, staged: "staging.Staged", ids: Any) -> Any:
        captured = staging.capturing(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        if not captured:
            ids.record_stream(self._stream)  # nobody may come for it, and then the memory is given to others
        try:
            with torch.cuda.stream(self._stream):
                staging.start(staged, ids)
                done = torch.cuda.Event()
                done.record(self._stream)
        except BaseException:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)  # a graph with an open branch is invalid
            raise
        return staged, done, captured

    def join(self, ticket: Any) -> None:
        staged, done, captured = ticket
        torch.cuda.current_stream(self._device).wait_event(done)
        if not captured:
            # The rows are waited for either way; known here, a failed lookup is made again synchronously.
            done.synchronize()
            failure = staged.job.failure
            if failure is not None:
                staged.job.forget()
                raise failure

    def leave(self, ticket: Any) -> None:
        _, done, _ = ticket
        torch.cuda.current_stream(self._device).wait_event(done)


@dataclass
class _Read:
    staged: "staging.Staged"
    ids: Any
    done: threading.Event
    error: BaseException | None = None


class ThreadLane:
    """A thread a lookup, for tensors in host memory."""

    def __init__(self) -> None:
        self._last: threading.Thread | None = None

    def fork(self, staged: "staging.Staged", ids: Any) -> Any:
        read = _Read(staged, ids, threading.Event())
        thread = threading.Thread(target=self._run, args=(read, self._last), name="engram-lane", daemon=True)
        self._last = thread
        thread.start()
        return read

    def join(self, ticket: Any) -> None:
        read: _Read = ticket
        read.done.wait()
        if read.error is not None:
            raise read.error

    def leave(self, ticket: Any) -> None:
        read: _Read = ticket
        read.done.wait()

    @staticmethod
    def _run(read: _Read, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # lookups of a layer share buffers
        try:
            staging.start(read.staged, read.ids)
        except StoreError as error:
            read.staged.job.forget()
            read.error = error
        except BaseException as error:
            read.error = error
        finally:
            read.done.set()


def lane_of(device: Any) -> Lane:
    """A new lane for tensors of `device`."""
    return StreamLane(device) if device.type == "cuda" else ThreadLane()
