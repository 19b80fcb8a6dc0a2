"""What the scheduler counts, and the decode line that it prints of it."""

import time
from dataclasses import dataclass, field

from .metrics import Histogram

FIRST_TOKEN_BUCKETS = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
BETWEEN_TOKENS_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
REQUEST_BUCKETS = (0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)


@dataclass
class Totals:
    """Counters since the start. `accepted` counts drafts and bonus tokens that verification accepted, `live` the rows
    that were really verified (anchor and drafts), `remapped` those that became copies of the anchor; `proposals` are
    drafts that were drawn for sampled requests, `joint` sampled blocks that were accepted jointly."""

    forward_steps: int = 0
    verify_count: int = 0
    accepted: int = 0
    live: int = 0
    remapped: int = 0
    proposals: int = 0
    joint: int = 0
    step_wall_s: float = 0.0
    mixed_steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished_requests: int = 0
    first_token_s: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BUCKETS))
    between_tokens_s: Histogram = field(default_factory=lambda: Histogram(BETWEEN_TOKENS_BUCKETS))
    request_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_BUCKETS))

    def accept_length(self) -> float:
        """Accepted tokens a request and decode step, over the life of the engine."""
        return self.accepted / self.verify_count if self.verify_count else 0.0

    def cap_length(self) -> float:
        """Verified rows a request and decode step, over the life of the engine."""
        return self.live / self.verify_count if self.verify_count else 0.0


@dataclass(frozen=True)
class Interval:
    """What the last decode line said."""

    accept_length: float = 0.0
    accept_rate: float = 0.0
    cap_length: float = 0.0
    throughput: float = 0.0


class DecodeLine:
    """What happened since the last decode line."""

    def __init__(self, block_size: int, capped: bool) -> None:
        self.steps = 0
        self.last = Interval()
        self._block_size = block_size
        self._capped = capped
        self._verified = self._accepted = self._committed = self._live = 0
        self._since = time.perf_counter()

    def add(self, verified: int, accepted: int, committed: int, live: int) -> None:
        """Count one decode step of `verified` requests."""
        self.steps += 1
        self._verified += verified
        self._accepted += accepted
        self._committed += committed
        self._live += live

    def take(self, running: int, held: int, usage: float, queued: int) -> str:
        """The line; the next one begins here."""
        now = time.perf_counter()
        self.last = Interval(
            self._accepted / self._verified,
            (self._accepted - self._verified) / (self._verified * self._block_size),
            self._live / self._verified,
            self._committed / (now - self._since),
        )
        cap = f"cap len: {self.last.cap_length:.2f}, " if self._capped else ""
        line = (
            f"Decode batch, #running-req: {running}, #full token: {held}, full token usage: {usage:.2f}, "
            f"#swa token: 0, swa token usage: 0.00, accept len: {self.last.accept_length:.2f}, "
            f"accept rate: {self.last.accept_rate:.2f}, {cap}"
            f"cuda graph: True, gen throughput (token/s): {self.last.throughput:.2f}, #queue-req: {queued}"
        )
        self.steps = self._verified = self._accepted = self._committed = self._live = 0
        self._since = now
        return line


class SampledLines:
    """Stats source of the head: that sampled requests really met the draft temperature and block verification."""

    def __init__(self, totals: Totals, draft_tau: float, block_verify: bool) -> None:
        self._totals = totals
        self._armed = {"[draft_tau] sampled proposals": draft_tau != 1, "[block_verify] sampled blocks": block_verify}
        self._seen = (0, 0)

    def __call__(self, final: bool) -> list[str]:
        now = (self._totals.proposals, self._totals.joint)
        delta = [count - seen for count, seen in zip(now, self._seen, strict=True)]
        self._seen = now
        pairs = zip(self._armed.items(), delta, strict=True)
        return [f"{name}={count}" for (name, armed), count in pairs if armed and (count or final)]
