"""A rank other than 0: runs what rank 0 broadcasts until its goodbye."""

import signal
import sys
import time
from types import FrameType

from . import steps
from .config import EngineConfig
from .errors import EngineError
from .health import HealthServer
from .logs import EngineLog
from .rank import STEP_DEADLINE_S, start_rank
from .scheduler import IDLE_PING_S
from .switches import Order, exchange

GOODBYE_DEADLINE_S = 10.0
EXIT_TERMINATED = 143


class _Termination:
    """SIGTERM: at once while not connected, later a wait for rank 0's goodbye with a deadline."""

    def __init__(self) -> None:
        self.connected = False
        self.since: float | None = None
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.connected:
            sys.exit(EXIT_TERMINATED)
        if self.since is None:
            self.since = time.monotonic()

    def overdue(self) -> bool:
        return self.since is not None and time.monotonic() - self.since >= GOODBYE_DEADLINE_S


def run_worker(engine: EngineConfig, log: EngineLog) -> int:
    """Serve until goodbye (0), or until its deadline after SIGTERM (143). Failures of a step pass."""
    termination = _Termination()
    health = HealthServer(engine.host, engine.port)

    def connected() -> None:
        termination.connected = True

    rank = start_rank(engine, log, connected)
    log.rank_line(f"Health endpoint on port {health.port} (rank {engine.rank})")
    history = rank.model_config.max_ngram - 1
    try:
        while True:
            received = rank.collective.next_broadcast(
                "rank 0's next step", 2 * IDLE_PING_S + STEP_DEADLINE_S, termination.overdue
            )
            if received is None:
                log.rank_line(f"no goodbye of rank 0 within {GOODBYE_DEADLINE_S:g} s of SIGTERM, ending")
                return EXIT_TERMINATED
            operation, payload = received
            if operation == steps.FORWARD:
                steps.run_forward(rank.model, payload, history)
            elif operation == steps.PING:
                rank.collective.barrier("idle ping")
            elif operation == steps.SWITCH:
                exchange(rank.switches, rank.collective, Order.decode(payload))
            elif operation == steps.WARMED:
                health.ready.set()
            elif operation == steps.GOODBYE:
                log.rank_line("rank 0 said goodbye, ending")
                return 0
            else:
                raise EngineError(
                    "TS-ENGINE-STEP",
                    "unknown operation of rank 0",
                    where=f"rank {engine.rank}",
                    expected="0..4",
                    observed=str(operation),
                    remedy="run the same engine on all ranks",
                )
    except EngineError:
        if termination.since is not None:
            log.rank_line("rank 0 ended without goodbye after SIGTERM")
            return EXIT_TERMINATED
        raise
    finally:
        health.ready.clear()
        rank.stats.close()
        rank.collective.close()
