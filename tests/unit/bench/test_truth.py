"""The truth test itself: what the server sends is what the schedule says, and the judge finds every deviation.

Counts are exact on any machine; times only bound what a busy one may add.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from trispark_bench.sample import Sample, read_stream
from trispark_bench.sse import events
from trispark_bench.truth.clients import OURS, known_clients
from trispark_bench.truth.judge import Got, Sent, control, judge, share_of
from trispark_bench.truth.run import truth
from trispark_bench.truth.schedule import FAULTS, MODEL, Scenario, stream_of

SMALL = Scenario(events=20, spread=8, stall=7)


def sent(number: int = 0, fault: str | None = None, count: int = 3) -> Sent:
    at_ns = tuple(10_000_000 * (place + 1) for place in range(count))
    return Sent(number, 0, at_ns, tuple(range(1, 2 * count, 2)), "c" * count, fault, (5, 6), (1, 2))


def got(number: int | None = 0, **change: object) -> Got:
    plain = Got(number, 0.010, (0.010, 0.010), 5, (1, 3, 5), "ccc", 400.0 / 2)
    return replace(plain, **change)


@pytest.mark.parametrize("number", range(8))
def test_a_stream_holds_what_its_log_will_say(number: int) -> None:
    writes, tokens = stream_of(SMALL, number, continuous=True)
    body = b"".join(write.data for write in writes)
    sample = read_stream(Sample("t", "w", 0), *events([(0, body)]), 0, MODEL)
    assert sample.error is None
    text = [event for write in writes for event in write.events if event.kind != "-"]
    assert sample.completion_tokens == tokens == text[-1].tokens
    assert sample.kinds.replace("-", "") == "".join(event.kind for event in text)
    assert len(text) == SMALL.events + number
    assert [write.due_ns for write in writes] == sorted(write.due_ns for write in writes)
    assert sum(len(event.data) for write in writes for event in write.events) == len(body)


def test_streams_are_the_same_for_every_client_and_differ_from_each_other() -> None:
    first = [stream_of(SMALL, number, continuous=True) for number in range(4)]
    assert first == [stream_of(SMALL, number, continuous=True) for number in range(4)]
    assert len({json.dumps([write.due_ns for write in writes]) for writes, _ in first}) == 4


def test_the_hard_cases_are_there() -> None:
    writes, _ = stream_of(Scenario(), 1, continuous=False)
    assert any(len(write.events) > 1 for write in writes), "several events in a write"
    cut = [write for write in writes if not write.data.endswith(b"\n\n")]
    assert cut, "events in two writes"
    with pytest.raises(UnicodeDecodeError):
        b"".join(write.data for write in cut).decode()


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if not fault.startswith("http")])
def test_every_fault_is_refused(fault: str) -> None:
    writes, _ = stream_of(replace(SMALL, faults={"3": fault}), 3, continuous=True)
    sample = read_stream(Sample("t", "w", 0), *events([(0, b"".join(write.data for write in writes))]), 0, MODEL)
    assert sample.error is not None


def test_an_exact_client_has_no_error() -> None:
    errors = judge({0: sent()}, [got()])
    assert (errors.tokens_exact, errors.ttft_error_ms_p99, errors.itl_error_ms_max) == (True, 0.0, 0.0)
    assert errors.decode_tps_error_percent_max == pytest.approx(0.0)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": 6},
        {"tokens_so_far": (1, 4, 5)},
        {"kinds": "rcc"},
        {"number": 7},
        {"gaps_s": (0.01,)},
        {"error": "HTTP 500"},
    ],
)
def test_a_wrong_count_is_not_exact(change: dict[str, object]) -> None:
    assert judge({0: sent()}, [got(**change), got()]).tokens_exact is False


def test_errors_of_times_are_absolute_and_in_milliseconds() -> None:
    errors = judge({0: sent()}, [got(ttft_s=0.008, gaps_s=(0.011, 0.007))])
    assert errors.ttft_error_ms_p99 == pytest.approx(2)
    assert errors.itl_error_ms_max == pytest.approx(3)
    assert errors.itl_error_ms_p50 == pytest.approx(1)


def test_a_broken_answer_that_gave_figures_is_missed() -> None:
    answers = {0: sent(), 1: sent(1, "nan")}
    taken = judge(answers, [got(), got(1)])
    assert (taken.missed_faults, taken.tokens_exact) == (1, False)
    refused = judge(answers, [got(), got(None, error="NaN")])
    assert (refused.refused, refused.missed_faults, refused.tokens_exact) == (1, 0, True)


def test_without_numbers_an_answer_is_found_by_its_length() -> None:
    answers = {0: sent(), 1: sent(1, count=4)}
    errors = judge(answers, [got(None, gaps_s=(0.01, 0.01, 0.02), tokens=7, tokens_so_far=None, kinds=None)])
    assert (errors.unmatched, errors.tokens_exact, errors.gaps) == (0, True, 3)


def test_a_client_that_tells_no_tokens_is_not_called_exact() -> None:
    assert judge({0: sent()}, [got(tokens=None)]).tokens_exact is None


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_share(share: float, value: int) -> None:
    values = list(range(1, 101))
    random.Random(1).shuffle(values)
    assert share_of(values, share) == value
    assert share_of([], share) is None


def test_the_control_is_the_servers_own_lateness() -> None:
    machine = control([sent(), sent(1)])
    assert machine.late_ms_p99 == pytest.approx(6e-6)
    assert machine.events_per_second_per_stream == pytest.approx(100)


def run_truth(tmp_path: Path, widths: list[int], rounds: int, events: int) -> dict:
    lines: list[str] = []
    clients = [client for client in known_clients(tmp_path / "none") if client.name == OURS]
    return truth(clients, widths, rounds, tmp_path, lines.append, events)


def test_ours_against_the_server(tmp_path: Path) -> None:
    """Real processes over loopback. Half of the gaps are exact to a fraction of a millisecond on any machine."""
    found = run_truth(tmp_path, [4], 2, 40)
    assert found["tokens_exact"] is True
    assert found["faults_refused"] == found["faults_sent"] == len(FAULTS)
    cell = found["by_client"][OURS]["c4"]
    assert (cell["requests"], cell["unmatched"]) == (8, 0)
    assert cell["gaps"] > 300
    assert cell["itl_error_ms_p50"] < 2
    assert found["cpu_core_share"] < 0.5


@pytest.mark.slow
def test_ours_at_many_streams(tmp_path: Path) -> None:
    found = run_truth(tmp_path, [4, 64], 6, 120)
    assert found["tokens_exact"] is True
    assert found["by_client"][OURS]["c4"]["itl_error_ms_p50"] < 0.5
    assert found["by_client"][OURS]["c64"]["itl_error_ms_p50"] < 2
