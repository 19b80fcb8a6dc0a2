"""What the server counts and who it is, read between windows, never within one."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from trispark_bench.wire import Target, WireError, fetch

_SAMPLE = re.compile(r"^(?:sglang:)?(\w+)(?:\{[^}]*\})? (\S+)(?: -?\d+)?$")
METRICS = {
    "generation_tokens": "generation_tokens_total",
    "prompt_tokens": "prompt_tokens_total",
    "finished_requests": "num_requests_total",
    "verify_steps": "spec_verify_calls_total",
    "running": "num_running_reqs",
    "queued": "num_queue_reqs",
}
"""{our name: the engine's}, where /metrics is served."""
IDENTITY = ("version", "model_path", "served_model_name", "startup_time", "random_seed", "dist_init_addr", "status")
"""Of /server_info: what stays the same as long as one process serves, and some of it is that process's alone."""


class CountersError(RuntimeError):
    """The server did not tell its counters."""


class Counters:
    """Reads one server. `metrics` falls to False at the first answer that says they are not served."""

    def __init__(self, target: Target, silence_s: float) -> None:
        self._target = target
        self._silence_s = silence_s
        self._metrics = True

    async def read(self) -> dict[str, Any]:
        """{"state": internal state of /server_info, "identity": {...}, "metrics": {...} or None}.

        Raises CountersError and Silence.
        """
        info = await self._server_info()
        states = info.get("internal_states")
        state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
        identity = {name: info[name] for name in IDENTITY if name in info}
        return {"state": state, "identity": identity, "metrics": await self._read_metrics()}

    async def _server_info(self) -> dict[str, Any]:
        try:
            status, body = await fetch(self._target, "/server_info", self._silence_s)
        except WireError as error:
            raise CountersError(f"/server_info: {error}") from None
        if status != 200:
            raise CountersError(f"/server_info: HTTP {status}: {body[:200].decode(errors='replace')}")
        try:
            info = json.loads(body, parse_constant=_no_number, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            raise CountersError(f"/server_info is not JSON: {error}") from None
        if not isinstance(info, dict):
            raise CountersError("/server_info is no object")
        return info

    async def _read_metrics(self) -> dict[str, float] | None:
        if not self._metrics:
            return None
        try:
            status, body = await fetch(self._target, "/metrics", self._silence_s)
        except WireError as error:
            raise CountersError(f"/metrics: {error}") from None
        if status != 200:
            self._metrics = False
            return None
        return parse_metrics(body.decode(errors="replace"))


def _no_number(_literal: str) -> None:
    """NaN and Infinity are no JSON, though servers write them; our own output must not hold them."""


def _finite(text: str) -> float | None:
    """1e999 is JSON, and no number of ours either."""
    value = float(text)
    return value if math.isfinite(value) else None


def parse_metrics(text: str) -> dict[str, float]:
    """{our name: sum over the labels} of the families in METRICS that are there."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is not None:
            try:
                value = float(match[2])
            except ValueError:
                continue
            if math.isfinite(value):
                sums[match[1]] = sums.get(match[1], 0.0) + value
    return {ours: sums[theirs] for ours, theirs in METRICS.items() if math.isfinite(sums.get(theirs, math.nan))}
