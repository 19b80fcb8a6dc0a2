"""A worker does what it knows of rank 0's operations, and ends at any other one by name."""

import io
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from trispark_lab import steps, worker
from trispark_lab.errors import EngineError
from trispark_lab.logs import EngineLog


class Ended:
    """Of a health server: whether it was ended."""

    def __init__(self, _host: str, _port: int) -> None:
        self.port = 0
        self.ready = SimpleNamespace(set=lambda: None, clear=lambda: None)
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Put back what a worker sets for its process."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def run(monkeypatch: pytest.MonkeyPatch, *received: tuple[int, bytes]) -> tuple[int, str]:
    """The exit status and the log of rank 1, which gets these operations."""
    left, barriers = list(received), []
    collective = SimpleNamespace(
        next_broadcast=lambda *_arguments: left.pop(0), barrier=barriers.append, close=lambda: None
    )
    rank = SimpleNamespace(
        collective=collective,
        model=None,
        switches=None,
        model_config=SimpleNamespace(max_ngram=3),
        stats=SimpleNamespace(close=lambda: None),
    )
    monkeypatch.setattr(worker, "start_rank", lambda *_arguments: rank)
    monkeypatch.setattr(worker, "HealthServer", Ended)
    log = io.StringIO()
    engine: Any = SimpleNamespace(rank=1, host="127.0.0.1", port=0)
    status = worker.run_worker(engine, EngineLog(1, 1, log))
    assert not left, "every operation was taken"
    return status, log.getvalue()


def test_it_ends_by_rank_0s_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    status, log = run(monkeypatch, (steps.PING, b""), (steps.WARMED, b""), (steps.GOODBYE, b""))
    assert status == 0
    assert "rank 0 said goodbye" in log


@pytest.mark.parametrize("operation", [5, 255])
def test_an_operation_of_another_engine_ends_it_by_name(monkeypatch: pytest.MonkeyPatch, operation: int) -> None:
    with pytest.raises(EngineError) as refused:
        run(monkeypatch, (operation, b""), (steps.GOODBYE, b""))
    assert (refused.value.error_id, refused.value.observed) == ("TS-ENGINE-STEP", str(operation))
