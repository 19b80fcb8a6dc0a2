"""Waits until the serving engine has no request any more, before production is stopped."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trispark.errors import TrisparkError

LOADS_PATH: Final = "/v1/loads"
METRICS_PATH: Final = "/metrics"
QUIET_LOOKS: Final = 2
"""So often in a row nothing may be running: between two requests of one conversation there is a gap, too."""
_RUNNING: Final = ("num_running_reqs", "num_reqs")
_WAITING: Final = ("num_waiting_reqs", "num_queue_reqs")
_METRIC: Final = re.compile(
    r"^sglang:(?:num_running_reqs|num_queue_reqs)(?:\{[^}]*\})? ([0-9.]+(?:e[+-]?[0-9]+)?)$", re.MULTILINE
)
Ask = Callable[[str], Mapping[str, Any]]
"""From a path to the agent's answer {"status", "body"}."""


@dataclass(frozen=True)
class Drained:
    """How long it took, and how many requests were seen at first."""

    seconds: float
    at_first: int


def requests_of(path: str, answer: Mapping[str, Any]) -> int | None:
    """Requests that run or wait, from one answer; None when it does not say."""
    if answer.get("status") != 200:
        return None
    body = answer.get("body")
    if path == METRICS_PATH:
        found = _METRIC.findall(body) if isinstance(body, str) else []
        return int(sum(float(number) for number in found)) if found else None
    loads = body.get("loads") if isinstance(body, Mapping) else body
    if not isinstance(loads, list) or not loads:
        return None
    total = 0
    for load in loads:
        running = _number(load, _RUNNING)
        if running is None:
            return None
        total += running + (_number(load, _WAITING) or 0)
    return total


def _number(load: object, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = load.get(name) if isinstance(load, Mapping) else None
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def drain(
    ask: Ask, deadline_s: float, interval_s: float, now: Callable[[], float], sleep: Callable[[float], None]
) -> Drained:
    """Ask until nothing runs or waits, twice in a row.

    Raises TS-DRAIN-BUSY at the deadline, TS-DRAIN-UNKNOWN when the engine does not tell.
    """
    began = now()
    quiet = 0
    first: int | None = None
    while True:
        count = next(
            (found for path in (LOADS_PATH, METRICS_PATH) if (found := requests_of(path, ask(path))) is not None), None
        )
        if count is None:
            raise TrisparkError(
                "TS-DRAIN-UNKNOWN",
                "the engine does not tell how many requests it serves",
                where=f"{LOADS_PATH} and {METRICS_PATH}",
                expected="the number of running requests",
                observed="neither answers with it",
                remedy="stop production by hand (playbooks/stop.yml), then start again",
            )
        first = count if first is None else first
        quiet = quiet + 1 if count == 0 else 0
        if quiet >= QUIET_LOOKS:
            return Drained(now() - began, first)
        if now() - began >= deadline_s:
            raise TrisparkError(
                "TS-DRAIN-BUSY",
                "production still serves requests, it was not stopped",
                where="the engine's head",
                expected=f"no request within {deadline_s:g} s",
                observed=f"{count} running or waiting",
                remedy="keep clients away, or allow more time (drain_s)",
            )
        sleep(interval_s)
