"""Continuous batching with block drafts and exact verification, on rank 0.

A step is either a prefill (chunks of prompts, up to the chunk size in all) or, when no prompt waits, a decode: for each
running request k drafted tokens and k + 1 rows to verify, in one batch over all ranks. Accepted is the longest prefix
of the draft that equals the target's own choices, plus the target's next token, so the text never depends on the draft.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .requests import Request
from .steps import Segment

IDLE_PING_S = 2.0


class Runner(Protocol):
    """Runs steps on all ranks."""

    def forward(self, segments: Sequence[Segment]) -> npt.NDArray[np.float32]:
        """Logits of the wanted rows."""

    def ping(self) -> None:
        """Ask all ranks for a sign of life."""


class Draft(Protocol):
    """Proposes blocks."""

    def propose(self, anchor: int, count: int) -> list[int]:
        """`count` tokens after `anchor`."""


@dataclass(frozen=True)
class Limits:
    """Sizes from the launch arguments; `history` ids precede each segment."""

    max_running: int
    chunk: int
    max_total_tokens: int
    block_size: int
    log_interval: int
    history: int
    eos: int
    pad: int


@dataclass
class Totals:
    """Counters since the start. `accepted` counts drafts and bonus tokens that verification accepted."""

    forward_steps: int = 0
    verify_count: int = 0
    accepted: int = 0
    step_wall_s: float = 0.0

    def accept_length(self) -> float:
        """Accepted tokens a request and decode step, over the life of the engine."""
        return self.accepted / self.verify_count if self.verify_count else 0.0


class Scheduler:
    """Owns all running requests. `submit`, `cancel` and `stop` may be called from any thread, the rest from one."""

    def __init__(self, limits: Limits, runner: Runner, draft: Draft, log: Callable[[str], None]) -> None:
        self.limits = limits
        self.totals = Totals()
        self._runner = runner
        self._draft = draft
        self._log = log
        self._wake = threading.Condition()
        self._queue: deque[Request] = deque()
        self._running: list[Request] = []
        self._stopping = False
        self._line = _DecodeLine()

    def submit(self, request: Request) -> None:
        """Queue a request; a stopping engine aborts it."""
        with self._wake:
            stopping = self._stopping
            if not stopping:
                self._queue.append(request)
                self._wake.notify()
        if stopping:
            request.emit([], "abort")

    def cancel(self, request: Request) -> None:
        """Forget a request at the next step; its tokens go nowhere."""
        request.cancelled = True

    def stop(self) -> None:
        """End `run` after the current step."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def run(self, idle_ping_s: float = IDLE_PING_S) -> None:
        """Serve until `stop`, then abort what is left. Failures of a step pass, after the same abort."""
        try:
            while not self._stopping:
                if self.step():
                    continue
                with self._wake:
                    idle = not self._queue and not self._stopping
                    notified = self._wake.wait(idle_ping_s) if idle else True
                if not notified:
                    self._runner.ping()
        finally:
            self.abort_all()

    def drain(self) -> None:
        """Step until nothing is left (warm-up)."""
        while self.step():
            pass

    def abort_all(self) -> None:
        """Tell every request that it ends here."""
        with self._wake:
            self._stopping = True
            left = [*self._running, *self._queue]
            self._queue.clear()
        self._running.clear()
        for request in left:
            request.emit([], "abort")

    def step(self) -> bool:
        """One step; False when there is nothing to do."""
        self._admit()
        waiting = [request for request in self._running if request.computed < len(request.prompt)]
        if not self._running:
            return False
        begin = time.perf_counter()
        if waiting:
            self._prefill(waiting, begin)
        else:
            self._decode(self._running)
        self.totals.forward_steps += 1
        self.totals.step_wall_s += time.perf_counter() - begin
        return True

    def _admit(self) -> None:
        self._running = [request for request in self._running if not request.cancelled]
        reserved = sum(request.reserved for request in self._running)
        with self._wake:
            while self._queue and len(self._running) < self.limits.max_running:
                head = self._queue[0]
                if not head.cancelled and reserved + head.reserved > self.limits.max_total_tokens:
                    break
                self._queue.popleft()
                if not head.cancelled:
                    reserved += head.reserved
                    self._running.append(head)

    def _prefill(self, waiting: list[Request], begin: float) -> None:
        budget = self.limits.chunk
        segments: list[Segment] = []
        chosen: list[Request] = []
        running = len(self._running) - len(waiting)
        for request in waiting:
            if budget == 0:
                break
            count = min(budget, len(request.prompt) - request.computed)
            end = request.computed + count
            history = request.last(self.limits.history, request.computed, self.limits.pad)
            ends = end == len(request.prompt)
            segments.append(Segment(history, request.prompt[request.computed : end], 1 if ends else 0))
            request.computed = end
            budget -= count
            chosen.append(request)
        choices = self._runner.forward(segments).argmax(axis=1).tolist()
        for request, segment in zip(chosen, segments, strict=True):
            if segment.logit_rows:
                self._commit(request, [choices.pop(0)])
        tokens = sum(len(segment.tokens) for segment in segments)
        pending = sum(len(request.prompt) - request.computed for request in waiting)
        self._log(
            f"Prefill batch, #new-seq: {len(segments)}, #new-token: {tokens}, #cached-token: 0, "
            f"full token usage: {self._usage():.2f}, swa token usage: 0.00, #running-req: {running}, "
            f"#queue-req: {len(self._queue)}, #pending-token: {pending}, cuda graph: False, "
            f"input throughput (token/s): {tokens / (time.perf_counter() - begin):.2f}"
        )

    def _decode(self, running: list[Request]) -> None:
        count = self.limits.block_size
        drafts = [self._draft.propose(request.output[-1], count) for request in running]
        segments = []
        for request, draft in zip(running, drafts, strict=True):
            end = len(request.prompt) + len(request.output) - 1
            history = request.last(self.limits.history, end, self.limits.pad)
            segments.append(Segment(history, (request.output[-1], *draft), count + 1))
        choices = self._runner.forward(segments).argmax(axis=1).reshape(len(running), count + 1).tolist()
        accepted = committed = 0
        for request, draft, chosen in zip(list(running), drafts, choices, strict=True):
            correct = accept_length(draft, chosen)
            accepted += correct + 1
            before = len(request.output)
            self._commit(request, chosen[: correct + 1])
            committed += len(request.output) - before
        self.totals.verify_count += len(drafts)
        self.totals.accepted += accepted
        self._line.add(len(drafts), accepted, committed)
        if self._line.steps >= self.limits.log_interval:
            held = sum(request.held for request in self._running)
            self._log(self._line.take(len(drafts), held, self._usage(), count, len(self._queue)))

    def _commit(self, request: Request, tokens: list[int]) -> None:
        if request.cancelled:
            return
        if request.commit(tokens, self.limits.eos) is not None:
            self._running.remove(request)

    def _usage(self) -> float:
        return sum(request.held for request in self._running) / self.limits.max_total_tokens


def accept_length(draft: Sequence[int], chosen: Sequence[int]) -> int:
    """How many drafted tokens equal the target's choices before the first difference."""
    for index, token in enumerate(draft):
        if token != chosen[index]:
            return index
    return len(draft)


class _DecodeLine:
    """What happened since the last decode line."""

    def __init__(self) -> None:
        self.steps = 0
        self._verified = self._accepted = self._committed = 0
        self._since = time.perf_counter()

    def add(self, verified: int, accepted: int, committed: int) -> None:
        self.steps += 1
        self._verified += verified
        self._accepted += accepted
        self._committed += committed

    def take(self, running: int, held: int, usage: float, block_size: int, queued: int) -> str:
        now = time.perf_counter()
        length = self._accepted / self._verified
        rate = (self._accepted - self._verified) / (self._verified * block_size)
        line = (
            f"Decode batch, #running-req: {running}, #full token: {held}, full token usage: {usage:.2f}, "
            f"#swa token: 0, swa token usage: 0.00, accept len: {length:.2f}, accept rate: {rate:.2f}, "
            f"cuda graph: True, gen throughput (token/s): {self._committed / (now - self._since):.2f}, "
            f"#queue-req: {queued}"
        )
        self.steps = self._verified = self._accepted = self._committed = 0
        self._since = now
        return line
