"""Runs clients against a server each and says how far off they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trispark_bench.truth.clients import OURS, SOURCES, Client, ClientFailed, Load
from trispark_bench.truth.judge import Control, Errors, control, judge, read_log
from trispark_bench.truth.schedule import FAULTS, Scenario

STOP_S = 10.0
EVENTS = 120
MANY_STREAMS = 16
"""From so many on, a third of the rounds gives as many gaps."""
SPARE = 8
"""Requests that are prepared beyond those that a client is asked for."""
GOALS = {4: 0.5, 64: 2.0}
"""{streams: milliseconds at the 99th percentile}."""
CPU_GOAL = 0.05
"""Of a core, at four streams of 60 events a second."""


def truth(
    clients: Sequence[Client],
    widths: Sequence[int],
    rounds: int,
    folder: Path,
    say: Callable[[str], None],
    events: int = EVENTS,
) -> dict[str, Any]:
    """The whole test; see docs/measurement.md for the fields. `events`: at least so many in a stream.

    One client runs at a time, each against a server of its own with the same streams. Before that, broken answers are
    shown to our client. Raises ClientFailed when ours does not come to its end.
    """
    by_client: dict[str, Any] = {}
    faults = _with_faults(clients[0], folder)
    say(f"{OURS}: {faults.refused} of {len(FAULTS)} broken answers refused")
    for client in clients:
        version = client.version()
        if version is None:
            by_client[client.name] = {"version": None, "not_measured": "not installed"}
            say(f"{client.name}: not installed")
            continue
        results: dict[str, Any] = {}
        for width in widths:
            place = folder / f"{client.name}-c{width}"
            try:
                errors, machine, share = measure(client, width, _rounds(width, rounds), place, events)
            except ClientFailed as failure:
                if client.name == OURS:
                    raise
                results[f"c{width}"] = {"failed": str(failure)}
                say(f"{client.name} c{width}: {failure}")
                continue
            results[f"c{width}"] = {**asdict(errors), "cpu_core_share": share, "control": asdict(machine)}
            say(_line(client.name, width, errors, share, machine))
        by_client[client.name] = {"version": version, **results}
    return _summary(by_client, faults, widths)


def _rounds(width: int, rounds: int) -> int:
    return rounds if width < MANY_STREAMS else max(1, rounds // 3)


def measure(client: Client, width: int, rounds: int, folder: Path, events: int) -> tuple[Errors, Control, float]:
    """(errors, what the machine adds, share of a core) of one client."""
    folder.mkdir(parents=True, exist_ok=True)
    requests = client.unmeasured(width) + width * rounds
    scenario = Scenario(events=events, spread=requests, prepared=requests + SPARE)
    with serving(scenario, folder) as url:
        got, share = client.run(Load(url, width, rounds, folder))
    sent = read_log(folder / "sent.jsonl")
    errors = judge(sent, got)
    return errors, control(sent.values()), share


def _with_faults(client: Client, folder: Path) -> Errors:
    """Ours at four streams, with every kind of broken answer once, in rounds of whole and broken ones."""
    width, place = 4, folder / "faults"
    place.mkdir(parents=True, exist_ok=True)
    first = client.unmeasured(width)
    faults = {str(first + 2 * number): fault for number, fault in enumerate(FAULTS)}
    rounds = -(-2 * len(FAULTS) // width)
    requests = first + rounds * width
    scenario = Scenario(events=12, spread=requests, stall=5, prepared=requests, faults=faults)
    with serving(scenario, place) as url:
        got, _ = client.run(Load(url, width, rounds, place))
    return judge(read_log(place / "sent.jsonl"), got)


@contextmanager
def serving(scenario: Scenario, folder: Path) -> Iterator[str]:
    """The base URL of a server in a process of its own; its log is `folder`/sent.jsonl when it has ended."""
    given = folder / "scenario.json"
    given.write_text(json.dumps(scenario.as_json()), encoding="utf-8")
    argv = [sys.executable, "-m", "trispark_bench.truth.server", str(given), str(folder / "sent.jsonl")]
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise ClientFailed(f"the server of the truth test did not start: exit {process.wait(STOP_S)}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)
        process.stdout.close()


def _summary(by_client: dict[str, Any], faults: Errors, widths: Sequence[int]) -> dict[str, Any]:
    ours = by_client[OURS]
    first = ours[f"c{widths[0]}"]
    exact = faults.tokens_exact is True and not faults.missed_faults
    exact = exact and all(ours[f"c{width}"]["tokens_exact"] is True for width in widths)
    return {
        "tokens_exact": exact,
        "faults_refused": faults.refused,
        "faults_sent": len(FAULTS),
        "streams": widths[0],
        "ttft_error_ms_p99": first["ttft_error_ms_p99"],
        "itl_error_ms_p99": first["itl_error_ms_p99"],
        "cpu_core_share": first["cpu_core_share"],
        "events_per_second_per_stream": first["control"]["events_per_second_per_stream"],
        "events_per_second": first["control"]["events_per_second"],
        "goals_met": exact and first["cpu_core_share"] <= CPU_GOAL and all(_within(ours, width) for width in widths),
        "most_accurate": {f"c{width}": _most_accurate(by_client, width) for width in widths},
        "by_client": by_client,
    }


def _within(ours: dict[str, Any], width: int) -> bool:
    cell, goal = ours[f"c{width}"], GOALS.get(width)
    return goal is None or (cell["ttft_error_ms_p99"] <= goal and cell["itl_error_ms_p99"] <= goal)


def _most_accurate(by_client: dict[str, Any], width: int) -> dict[str, str | None]:
    """{metric: the client with the smallest error}."""
    found = {}
    for metric in ("ttft_error_ms_p99", "itl_error_ms_p99"):
        values = {
            name: value
            for name, entry in by_client.items()
            if (value := (entry.get(f"c{width}") or {}).get(metric)) is not None
        }
        found[metric] = min(values, key=lambda name: values[name]) if values else None
    return found


def _line(name: str, width: int, errors: Errors, share: float, machine: Control) -> str:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    tokens = {True: "exact", False: "WRONG", None: "not told"}[errors.tokens_exact]
    return (
        f"{name} c{width}: tokens {tokens}, "
        f"TTFT error p99 {shown(errors.ttft_error_ms_p99)} ms, ITL error p99 {shown(errors.itl_error_ms_p99)} ms "
        f"({errors.gaps} gaps, {errors.unmatched} answers not matched), {share * 100:.1f} % of a core; "
        f"the server's own writes were {machine.late_ms_p99:.2f} ms late at p99"
    )
