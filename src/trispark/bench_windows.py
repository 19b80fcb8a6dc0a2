"""Whether each window of a measurement was the engine's and ours alone, by the server's own counters.

A window lies between two moments without a running request. What the server counted in it must be what the client got:
a difference is traffic of somebody else, or a server that was replaced. What a server does not tell is "not checked",
which is said and is no pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trispark.benchstats import decode_seconds, unreadable

COUNTED: Final = ("generation_tokens", "finished_requests", "verify_steps")
"""Counters that a window is judged by, by the names of trispark_bench.counters and of the lab engine."""

ONE_PROCESS: Final = "startup_time"
"""What /server_info says of one process alone; version, model and a fixed seed are those of the next one as well."""
WINDOW: Final = {"step_s": "step_s", "accept_length": "tokens_per_step"}
"""{figure of a window that is a metric: field of its WindowCheck}."""


@dataclass(frozen=True)
class WindowCheck:
    """One window. Counts are what the server counted in it, None where it does not tell.

    tokens_per_step  (tokens - requests) / verify calls: what a step committed to a request, its first token left out
    truncated_tokens what the last steps accepted beyond the end of their requests; they are in no other figure
    step_s           seconds a step, from the streams' own times and the server's verify calls
    problem          the first reason why the window does not count
    not_checked      what the server did not tell
    """

    tag: str
    tokens: int | None
    requests: int | None
    verify_calls: int | None
    tokens_per_step: float | None
    truncated_tokens: int | None
    step_s: float | None
    probes: int
    problem: str | None
    not_checked: tuple[str, ...]


def check_windows(output: Mapping[str, Any], probe_interval_s: float | None = None) -> list[WindowCheck]:
    """Each window of the client's output, in the order of measuring. Raises TS-BENCH-SHAPE.

    probe_interval_s  how often a health check of ours asks an idle engine for one token, None for never; such requests
                      are counted, not foreign.
    """
    try:
        return _checks(output, probe_interval_s)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise unreadable(error) from None


def _checks(output: Mapping[str, Any], probe_interval_s: float | None) -> list[WindowCheck]:
    phases = {phase["tag"]: phase for phase in output.get("server_info") or ()}
    identity = None
    checks = []
    for window in output.get("windows") or ():
        tag = str(window["tag"])
        rows = [row for row in output["requests"] if row["tag"] in (tag, f"{tag}-prefill")]
        checks.append(_Window(window, phases.get(tag, {}), rows, probe_interval_s).check(identity))
        identity = window["identity"][1]
    return checks


def window_metrics(checks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """{`c1-prose.step_s`: seconds, `c1-prose.accept_length`: committed tokens a step} of recorded WindowChecks.

    Of windows that count and whose steps the server told; another one has no such metric.
    """
    found: dict[str, float] = {}
    for check in checks:
        for name, field in WINDOW.items():
            value = check.get(field)
            if check.get("problem") is None and value is not None and math.isfinite(value) and value > 0:
                found[f"{check['tag']}.{name}"] = float(value)
    return dict(sorted(found.items()))


class _Window:
    def __init__(
        self,
        window: Mapping[str, Any],
        phase: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]],
        probe_interval_s: float | None,
    ) -> None:
        self._window = window
        self._rows = rows
        self._probe_interval_s = probe_interval_s
        self._sides = [
            {**(phase.get(side) or {}), **(metrics or {})}
            for side, metrics in zip(("before", "after"), window["metrics"], strict=True)
        ]

    def check(self, known: Mapping[str, Any] | None) -> WindowCheck:
        """`known`: who answered in the window before."""
        tokens, requests, calls = (self._grown(name) for name in COUNTED)
        probes, foreign = self._foreign(tokens, requests)
        problem = self._replaced(known) or self._fell() or self._busy() or foreign
        ours = sum(int(row["completion_tokens"] or 0) for row in self._rows)
        decoded = ours - len(self._rows)
        whole = problem is None and calls is not None and calls > 0 and not any(row["error"] for row in self._rows)
        seconds = [decode_seconds(row) for row in self._rows]
        return WindowCheck(
            tag=str(self._window["tag"]),
            tokens=tokens,
            requests=requests,
            verify_calls=calls,
            tokens_per_step=decoded / calls if whole and calls else None,
            truncated_tokens=self._truncated(calls, decoded) if whole else None,
            step_s=math.fsum(each for each in seconds if each) / calls if whole and calls and all(seconds) else None,
            probes=probes,
            problem=problem,
            not_checked=tuple(
                name
                for name, value in (
                    ("identity", min(side.get(ONE_PROCESS) is not None for side in self._window["identity"]) or None),
                    *zip(COUNTED, (tokens, requests, calls), strict=True),
                )
                if value is None
            ),
        )

    def _grown(self, name: str) -> int | None:
        before, after = (side.get(name) for side in self._sides)
        return None if before is None or after is None else round(after - before)

    def _replaced(self, known: Mapping[str, Any] | None) -> str | None:
        before, after = self._window["identity"]
        for earlier, later in ((before if known is None else known, before), (before, after)):
            for name in sorted({*earlier, *later}):
                if earlier.get(name) != later.get(name):
                    return f"another engine answered: its {name} was {earlier.get(name)}, then {later.get(name)}"
        return None

    def _fell(self) -> str | None:
        for name in COUNTED:
            grown = self._grown(name)
            if grown is not None and grown < 0:
                return f"the server's {name} fell by {-grown}: it was restarted"
        return None

    def _busy(self) -> str | None:
        for side, when in zip(self._sides, ("before", "after"), strict=True):
            left = round(side.get("running") or 0) + round(side.get("queued") or 0)
            if left:
                return f"{left} requests of others ran or waited {when} the window"
        return None

    def _foreign(self, tokens: int | None, requests: int | None) -> tuple[int, str | None]:
        """(probes of our own, what is foreign). A failed request may have left tokens that nobody told us of."""
        if any(row["error"] for row in self._rows):
            return 0, None
        ours = sum(int(row["completion_tokens"]) for row in self._rows)
        more_tokens = 0 if tokens is None else tokens - ours
        more_requests = 0 if requests is None else requests - len(self._rows)
        interval = self._probe_interval_s
        most = 0 if interval is None else math.floor(self._window["wall_s"] / interval) + 1
        if 0 < more_tokens <= most and more_requests in (0, more_tokens):
            return more_tokens, None
        if more_requests:
            return 0, f"the server counted {requests} requests, ours were {len(self._rows)}: foreign traffic"
        if more_tokens:
            return (
                0,
                f"the server counted {tokens} tokens, ours were {ours}: foreign traffic, or tokens got lost",
            )
        return 0, None

    def _truncated(self, calls: int | None, decoded: int) -> int | None:
        """Of the requests' own details where the server gives them, else of its lifetime average."""
        details = [(row.get("verify_steps"), row.get("correct_drafts")) for row in self._rows]
        known = [int(steps) + int(drafts) for steps, drafts in details if steps is not None and drafts is not None]
        if known and len(known) == len(details):
            return sum(known) - decoded
        accepted: list[float] = []
        for side in self._sides:
            length, count = side.get("avg_spec_accept_length"), side.get("verify_steps")
            if length is None or count is None:
                return None
            accepted.append(float(length * count))
        return round(accepted[1] - accepted[0]) - decoded


def windows_problem(checks: Sequence[WindowCheck]) -> str | None:
    """The first reason why the measurement does not count."""
    return next((f"{check.tag}: {check.problem}" for check in checks if check.problem is not None), None)
