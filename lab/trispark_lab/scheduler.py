"""Continuous batching with block drafts and exact verification, on rank 0.

A step is one forward over all ranks. It holds, for each running request whose prompt is done, k drafted tokens and the
k + 1 rows that verify them, and besides them chunks of prompts up to the chunk size, so that a long prompt never stalls
the others. A greedy request takes the longest prefix of the draft that equals the target's own choices, plus the
target's next token; a sampled one takes what rejection sampling accepts. Neither text nor distribution depends on the
draft, the block size, the cap or the batch.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .counters import DecodeLine, Totals
from .draft import SampledBlock
from .errors import EngineError
from .induction import VOTE, Context, CopyHead
from .requests import Request, TokenLogprob
from .sampling import LOGIT_UNIT, draw, stream, target_probabilities
from .steps import Segment
from .verification import accept_length, block_wise, token_wise
from .verify_cap import VerifyCap

IDLE_PING_S = 2.0
DELAYED_SLOTS = 8
"""From this many slots on, admission waits for more than one free slot unless --min-free-slots-delay is 1."""

Logits = npt.NDArray[np.float32]


class Runner(Protocol):
    """Runs steps on all ranks."""

    def forward(self, segments: Sequence[Segment]) -> Logits:
        """Logits of the wanted rows."""

    def ping(self) -> None:
        """Ask all ranks for a sign of life."""


class Draft(Protocol):
    """Proposes blocks."""

    def propose(self, anchor: int, count: int) -> list[int]:
        """`count` tokens after `anchor`."""

    def sample(self, anchor: int, temperature: float, uniforms: npt.NDArray[np.float64]) -> SampledBlock:
        """A token for each uniform number, and the distributions they come from."""

    def confidences(self, anchor: int, drafted: list[int]) -> list[float]:
        """Chance of each drafted token to survive, judged by the tokens before it."""


class QueueFull(Exception):
    """The queue holds as many requests as it may."""


class Unsupported(Exception):
    """The engine's configuration can not serve this request; the message says why."""


@dataclass(frozen=True)
class Limits:
    """Sizes from the launch arguments; `history` ids precede each segment. `min_free_slots`: 0 or 1, see the flag."""

    max_running: int
    chunk: int
    max_total_tokens: int
    block_size: int
    log_interval: int
    history: int
    eos: int
    pad: int
    max_queued: int = 1024
    min_free_slots: int = 0


@dataclass(frozen=True)
class Speculation:
    """Switches of drafting and verification. `logit_unit`: logits a nat."""

    draft_tau: float = 1.0
    block_verify: bool = False
    cap: VerifyCap = field(default_factory=VerifyCap)
    logit_unit: float = LOGIT_UNIT


@dataclass(frozen=True)
class StepDelay:
    """A planted harm: after each decode step rank 0, and so every rank, waits `share` of the step's own time.

    A share, not a time, so that it slows a fast and a slow host alike.
    """

    share: float = 0.0
    wait: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class _Block:
    """A request's part of a decode step. `live` drafts are really verified; `uniforms`: one for each live draft and
    one for the token after them; `proposal` and `uniforms` are None for a greedy request."""

    request: Request
    context: Context
    drafted: list[int]
    live: int
    segment: Segment
    proposal: npt.NDArray[np.float64] | None = None
    uniforms: npt.NDArray[np.float64] | None = None


class Scheduler:
    """Owns all running requests. `submit`, `cancel` and `stop` may be called from any thread, the rest from one."""

    def __init__(
        self,
        limits: Limits,
        runner: Runner,
        draft: Draft,
        log: Callable[[str], None],
        speculation: Speculation | None = None,
        copy_head: CopyHead | None = None,
        delay: StepDelay | None = None,
        between: Callable[[], object] = lambda: None,
    ) -> None:
        self.limits = limits
        self.speculation = speculation if speculation is not None else Speculation()
        self.totals = Totals()
        self._runner = runner
        self._draft = draft
        self._log = log
        self._copy_head = copy_head
        self._between = between
        self._orders: deque[tuple[Callable[[], object], Future[object]]] = deque()
        self._wake = threading.Condition()
        self._queue: deque[Request] = deque()
        self._running: dict[Request, Context] = {}
        self._stopping = False
        self._confidence_seen = False
        self._delay = delay if delay is not None else StepDelay()
        self._delay_seen = False
        self.line = DecodeLine(limits.block_size, self.speculation.cap.armed)

    def submit(self, request: Request) -> None:
        """Queue a request; a stopping engine aborts it. Unsupported or QueueFull when it can not be taken."""
        cap = self.speculation.cap
        if not request.sampling.greedy and cap.by_confidence and not self.speculation.block_verify:
            raise Unsupported(
                f"TS-ENGINE-SAMPLED-CAP: sampled decoding with DSV41_VERIFY_CAP={cap.spec} needs DSV41_BLOCK_VERIFY=1; "
                "send temperature 0 or start the engine with block verification"
            )
        with self._wake:
            stopping = self._stopping
            if not stopping:
                full = len(self._queue) >= self.limits.max_queued
                if full and sum(not queued.cancelled for queued in self._queue) >= self.limits.max_queued:
                    raise QueueFull
                self._queue.append(request)
                self._wake.notify()
        if stopping:
            request.emit([], "abort")

    def at_boundary(self, order: Callable[[], object]) -> Future[object]:
        """Run `order` between two steps, in the thread of the steps, whatever runs or waits then.

        A failure of the ranks ends the engine as one in a step does; any other exception is the future's alone.
        """
        found: Future[object] = Future()
        with self._wake:
            if not self._stopping:
                self._orders.append((order, found))
                self._wake.notify()
                return found
        found.cancel()
        return found

    def cancel(self, request: Request) -> None:
        """Forget a request at the next step; its tokens go nowhere."""
        request.cancelled = True

    def load(self) -> dict[str, int]:
        """Requests and tokens at this moment; may be called from any thread."""
        running = list(self._running)
        return {
            "num_running_reqs": len(running),
            "num_waiting_reqs": sum(not request.cancelled for request in list(self._queue)),
            "num_used_tokens": sum(request.held for request in running),
        }

    def stop(self) -> None:
        """End `run` after the current step."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def run(self, idle_ping_s: float = IDLE_PING_S) -> None:
        """Serve until `stop`, then abort what is left. Failures of a step pass, after the same abort."""
        try:
            while not self._stopping:
                self._boundary()
                if self.step():
                    continue
                with self._wake:
                    idle = not self._queue and not self._orders and not self._stopping
                    notified = self._wake.wait(idle_ping_s) if idle else True
                if not notified:
                    self._runner.ping()
        finally:
            self.abort_all()

    def _boundary(self) -> None:
        """What is to be done between two steps."""
        while self._orders:
            order, found = self._orders.popleft()
            if not found.set_running_or_notify_cancel():
                continue
            try:
                found.set_result(order())
            except EngineError as error:  # the ranks are no longer together
                found.set_exception(error)
                raise
            except Exception as error:
                found.set_exception(error)
        self._between()

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
            orders = [found for _, found in self._orders]
            self._orders.clear()
        self._running.clear()
        for found in orders:
            found.cancel()
        for request in left:
            request.emit([], "abort")

    def step(self) -> bool:
        """One step; False when there is nothing to do."""
        self._admit()
        if not self._running:
            return False
        begin = time.perf_counter()
        blocks = [
            self._block(request, context)
            for request, context in self._running.items()
            if request.computed == len(request.prompt)
        ]
        chunks = self._chunks()
        logits = self._runner.forward([block.segment for block in blocks] + [segment for _, segment in chunks])
        self.totals.forward_steps += 1
        self.totals.mixed_steps += bool(blocks and chunks)
        rows = self.limits.block_size + 1
        if blocks:
            self._finish_blocks(blocks, logits)
        if chunks:
            self._finish_chunks(chunks, logits[len(blocks) * rows :], len(blocks), begin)
        if blocks:
            self._hold_up(time.perf_counter() - begin)
        self.totals.step_wall_s += time.perf_counter() - begin
        return True

    def _hold_up(self, step_s: float) -> None:
        if not self._delay.share:
            return
        self._delay.wait(step_s * self._delay.share)
        if not self._delay_seen:
            self._delay_seen = True
            self._log("[lab_step_delay] a decode step was held up")

    def _admit(self) -> None:
        self._running = {request: context for request, context in self._running.items() if not request.cancelled}
        reserved = sum(request.reserved for request in self._running)
        slots = self.limits.max_running
        needed = 1
        if slots >= DELAYED_SLOTS and self.limits.min_free_slots == 0:
            needed = slots // 4  # a prefill for one slot would hold up all others
        with self._wake:
            if slots - len(self._running) < needed:
                return
            while self._queue and len(self._running) < slots:
                head = self._queue[0]
                if not head.cancelled and reserved + head.reserved > self.limits.max_total_tokens:
                    break
                self._queue.popleft()
                if not head.cancelled:
                    reserved += head.reserved
                    self._running[head] = Context(head.prompt, head.reserved + self.limits.block_size)

    def _block(self, request: Request, context: Context) -> _Block:
        """Draft a block after the last committed token."""
        count = self.limits.block_size
        anchor = request.output[-1]
        proposal = uniforms = None
        if request.sampling.greedy:
            drafted = self._draft.propose(anchor, count)
        else:
            numbers = stream(request.sampling.seed, len(request.output)).random(2 * count + 1)
            temperature = request.sampling.temperature * self.speculation.draft_tau
            sampled = self._draft.sample(anchor, temperature, numbers[:count])
            drafted, proposal = sampled.tokens, sampled.proposal
            self.totals.proposals += count
        cap = self.speculation.cap
        live = count
        if cap.by_confidence:
            live = cap.live(self._draft.confidences(anchor, drafted))
            if not self._confidence_seen:
                self._confidence_seen = True
                self._log("[verify_cap] confidence present")
        elif cap.armed:
            live = min(cap.fixed, count)
        if proposal is not None:
            uniforms = np.append(numbers[count : count + live], numbers[-1])
        end = context.length - 1
        context.lay(drafted, context.length)
        history = context.before(end, self.limits.history, self.limits.pad)
        segment = Segment(history, (anchor, *drafted), count + 1, live + 1)
        return _Block(request, context, drafted, live, segment, proposal, uniforms)

    def _finish_blocks(self, blocks: list[_Block], logits: Logits) -> None:
        count = self.limits.block_size
        rows = [logits[at * (count + 1) : at * (count + 1) + block.live + 1] for at, block in enumerate(blocks)]
        verified = [self._verify(block, part) for block, part in zip(blocks, rows, strict=True)]
        accepted = sum(len(tokens) for tokens in verified)
        live = sum(block.live + 1 for block in blocks)
        self.totals.verify_count += len(blocks)
        self.totals.accepted += accepted
        self.totals.live += live
        self.totals.remapped += len(blocks) * (count + 1) - live
        committed = 0
        for block, tokens, part in zip(blocks, verified, rows, strict=True):
            block.request.counts.add(count, block.live, len(tokens) - 1)
            committed += self._commit(block.request, block.context, tokens, part)
        self.line.add(len(blocks), accepted, committed, live)
        if self.line.steps >= self.limits.log_interval:
            held = sum(request.held for request in self._running)
            self._log(self.line.take(len(blocks), held, self._usage(), len(self._queue)))

    def _verify(self, block: _Block, rows: Logits) -> list[int]:
        """Tokens that the step commits: accepted drafts and one of the target's own."""
        drafted = block.drafted[: block.live]
        for position, row in enumerate(rows):
            self._copy(block.context, block.context.length + position, row)
        if block.proposal is None or block.uniforms is None:
            choices = [int(choice) for choice in rows.argmax(axis=1)]
            correct = accept_length(drafted, choices)
            return choices[: correct + 1]
        target = target_probabilities(rows, block.request.sampling, self.speculation.logit_unit)
        verify = block_wise if self.speculation.block_verify else token_wise
        self.totals.joint += self.speculation.block_verify
        verdict = verify(target, block.proposal[: block.live], drafted, block.uniforms)
        return [*drafted[: verdict.accepted], verdict.token]

    def _copy(self, context: Context, length: int, row: Logits) -> None:
        """Add the vote of the first `length` tokens to their row of logits."""
        voted = self._copy_head.vote(context, length) if self._copy_head is not None else None
        if voted is not None:
            row[voted] += VOTE

    def _chunks(self) -> list[tuple[Request, Segment]]:
        """Parts of waiting prompts up to the chunk size, first come first served."""
        budget = self.limits.chunk
        chunks: list[tuple[Request, Segment]] = []
        for request, context in self._running.items():
            count = min(budget, len(request.prompt) - request.computed)
            if count == 0:
                continue
            end = request.computed + count
            history = context.before(request.computed, self.limits.history, self.limits.pad)
            ends = end == len(request.prompt)
            chunks.append((request, Segment(history, request.prompt[request.computed : end], 1 if ends else 0)))
            budget -= count
        return chunks

    def _finish_chunks(self, chunks: list[tuple[Request, Segment]], logits: Logits, running: int, begin: float) -> None:
        tokens = sum(len(segment.tokens) for _, segment in chunks)
        self.totals.prompt_tokens += tokens
        row = 0
        for request, segment in chunks:
            request.computed += len(segment.tokens)
            if segment.logit_rows:
                self._first(request, self._running[request], logits[row : row + 1])
                row += 1
        pending = sum(len(request.prompt) - request.computed for request in self._running)
        self._log(
            f"Prefill batch, #new-seq: {len(chunks)}, #new-token: {tokens}, #cached-token: 0, "
            f"full token usage: {self._usage():.2f}, swa token usage: 0.00, #running-req: {running}, "
            f"#queue-req: {len(self._queue)}, #pending-token: {pending}, cuda graph: False, "
            f"input throughput (token/s): {tokens / (time.perf_counter() - begin):.2f}"
        )

    def _first(self, request: Request, context: Context, row: Logits) -> None:
        """Choose the token after the prompt."""
        self._copy(context, context.length, row[0])
        if request.sampling.greedy:
            token = int(row[0].argmax())
        else:
            target = target_probabilities(row, request.sampling, self.speculation.logit_unit)
            token = draw(target[0], float(stream(request.sampling.seed, 0).random()))
        self._commit(request, context, [token], row)

    def _commit(self, request: Request, context: Context, tokens: list[int], rows: Logits) -> int:
        """Give a request its tokens (those that still belong to it); how many it took."""
        if request.cancelled:
            return 0
        if request.top_logprobs is not None:
            request.logprobs += self._logprobs(tokens, rows, request.top_logprobs)
        now = time.perf_counter()
        context.lay(tokens, context.length)
        taken, reason = request.commit(tokens, self.limits.eos)
        context.length += len(taken)
        if request.last_token is None:
            self.totals.first_token_s.observe(now - request.submitted)
        else:
            self.totals.between_tokens_s.observe((now - request.last_token) / len(taken), len(taken))
        request.last_token = now
        self.totals.generated_tokens += len(taken)
        if reason is not None:
            del self._running[request]
            self.totals.finished_requests += 1
            self.totals.request_s.observe(now - request.submitted)
        request.emit(taken, reason)  # last: whoever hears of it finds everything counted
        return len(taken)

    def _logprobs(self, tokens: list[int], rows: Logits, top: int) -> list[TokenLogprob]:
        scores = rows[: len(tokens)].astype(np.float64) / self.speculation.logit_unit
        peak = scores.max(axis=1, keepdims=True)
        table = scores - peak - np.log(np.exp(scores - peak).sum(axis=1, keepdims=True))
        order = np.argsort(-table, axis=1, kind="stable")[:, :top]
        return [
            TokenLogprob(token, float(line[token]), tuple((int(other), float(line[other])) for other in best))
            for token, line, best in zip(tokens, table, order, strict=True)
        ]

    def _usage(self) -> float:
        return sum(request.held for request in self._running) / self.limits.max_total_tokens
