"""What a boot's measurements say: per tag for single streams, per wave for concurrent ones. Committed tokens only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.latency import Percentiles, character_rate, gaps, percentiles, token_gaps

ONE_STREAM: Final = ("decode_tps", "ttft_s")
STREAMS: Final = ("agg_tps", "per_stream_decode_tps", "ttft_s")
GAPS: Final = ("itl_gap_p95_s", "itl_token_p95_s")
ENGRAM_WAIT: Final = "engram_wait_us_per_lookup"
"""Figures of a tag with one stream, of one with several, and of both; the engine's wait for Engram rows."""


@dataclass(frozen=True)
class Spread:
    """Median, extremes and population standard deviation of `n` values."""

    n: int
    median: float
    min: float
    max: float
    stdev: float


@dataclass(frozen=True)
class TagSummary:
    """Single-stream requests of one tag; rates in tokens a second, times in seconds. None: no request succeeded.

    `itl_gap` and `itl_token`: trispark.latency. `character_tps`: an estimate for servers without usage, which decides
    nothing.
    """

    n: int
    errors: int
    decode_tps: Spread | None
    e2e_tps_median: float | None
    ttft_s_median: float | None
    distinct_outputs: int
    itl_gap: Percentiles | None = None
    itl_token: Percentiles | None = None
    character_tps: float | None = None


@dataclass(frozen=True)
class WaveSummary:
    """Waves of concurrent requests of one tag; the aggregate is completion tokens over the wall time of the wave."""

    n: int
    errors: int
    agg_tps: Spread | None
    per_stream_decode_tps_median: float | None
    ttft_s_median: float | None
    itl_gap: Percentiles | None = None
    itl_token: Percentiles | None = None


@dataclass(frozen=True)
class EngramWait:
    """Rank 0's row lookups within one phase: seconds waited, rows looked up, microseconds a row."""

    wait_s: float
    lookups: int
    reads: int
    wait_us_per_lookup: float | None


@dataclass(frozen=True)
class BenchSummary:
    """All of it. `engram_wait` is {phase tag: {layer: EngramWait}}."""

    tags: dict[str, TagSummary]
    waves: dict[str, WaveSummary]
    engram_wait: dict[str, dict[str, EngramWait]] = field(default_factory=dict)
    errors: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    def metrics(self) -> dict[str, float]:
        """{metric name: value} as features name them: `c1-prose.decode_tps`, `c4.agg_tps`, `c4.itl_gap_p95_s`."""
        values: dict[str, float | None] = {}
        for tag, summary in self.tags.items():
            values[f"{tag}.decode_tps"] = summary.decode_tps.median if summary.decode_tps else None
            values[f"{tag}.ttft_s"] = summary.ttft_s_median
        for tag, wave in self.waves.items():
            values[f"{tag}.agg_tps"] = wave.agg_tps.median if wave.agg_tps else None
            values[f"{tag}.per_stream_decode_tps"] = wave.per_stream_decode_tps_median
            values[f"{tag}.ttft_s"] = wave.ttft_s_median
        every: dict[str, TagSummary | WaveSummary] = {**self.tags, **self.waves}
        for tag, each in every.items():
            values[f"{tag}.itl_gap_p95_s"] = each.itl_gap.p95 if each.itl_gap else None
            values[f"{tag}.itl_token_p95_s"] = each.itl_token.p95 if each.itl_token else None
        return {name: value for name, value in sorted(values.items()) if value is not None}

    def measured(self) -> dict[str, float]:
        """`metrics`, and what a feature may need before its trial: `c1-prose.engram_wait_us_per_lookup`, of the layer
        that waited longest."""
        waits = {
            f"{tag}.{ENGRAM_WAIT}": max(known)
            for tag, layers in self.engram_wait.items()
            if (known := [wait.wait_us_per_lookup for wait in layers.values() if wait.wait_us_per_lookup is not None])
        }
        return {**self.metrics(), **dict(sorted(waits.items()))}


def metric_names(tag: str, streams: int) -> list[str]:
    """The names under which a tag's figures appear in `BenchSummary.metrics`."""
    return [f"{tag}.{name}" for name in (*(ONE_STREAM if streams == 1 else STREAMS), *GAPS)]


def summarize(output: Mapping[str, Any]) -> BenchSummary:
    """The summary of the load client's output. Raises TS-BENCH-SHAPE for what is not such an output.

    Requests with an error are counted and take no part in the figures. A wave with a failed request has no aggregate.
    """
    try:
        requests: Sequence[Mapping[str, Any]] = output["requests"]
        waves: Sequence[Mapping[str, Any]] = output["waves"]
        wave_tags = {str(wave.get("tag", "c4")) for wave in waves}
        tags = sorted({str(request["tag"]) for request in requests} - wave_tags)
        return BenchSummary(
            tags={tag: _tag_summary(_of(requests, tag)) for tag in tags},
            waves={tag: _wave_summary(_of(waves, tag), _of(requests, tag)) for tag in sorted(wave_tags)},
            engram_wait=_engram_wait(output.get("server_info")),
            errors=sum(1 for request in requests if request.get("error")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unreadable(error) from None


def unreadable(error: Exception) -> TrisparkError:
    """TS-BENCH-SHAPE: what was handed in is not the load client's output."""
    return TrisparkError(
        "TS-BENCH-SHAPE",
        "the measurements cannot be read",
        where="output of the load client",
        expected="requests, waves and server_info",
        observed=f"{type(error).__name__}: {error}",
        remedy="see what the engine's /server_info and its answers lack, read the kept logs, then boot again",
    )


def spread(values: Sequence[float]) -> Spread | None:
    """Order statistics of the values; None without any. Raises ValueError for a value that is not finite."""
    if not values:
        return None
    if not all(math.isfinite(value) for value in values):
        raise ValueError("a measured value is not finite")
    return Spread(len(values), statistics.median(values), min(values), max(values), statistics.pstdev(values))


def decode_seconds(request: Mapping[str, Any]) -> float | None:
    """From the first event with text to the last token; None when nothing came after the first event."""
    ttft_s, total_s = request["ttft_s"], request["total_s"]
    if ttft_s is None or total_s is None or total_s <= ttft_s:
        return None
    return float(total_s - ttft_s)


def decode_tps(request: Mapping[str, Any]) -> float | None:
    """Tokens after the first event over the time after it; None when nothing came after it.

    The first event has one token where the server does not say how many it has.
    """
    tokens, seconds = request["completion_tokens"], decode_seconds(request)
    first = request.get("first_tokens") or 1
    if tokens is None or seconds is None or tokens <= first:
        return None
    return float((tokens - first) / seconds)


def _of(rows: Sequence[Mapping[str, Any]], tag: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if str(row.get("tag", "c4")) == tag]


def _good(requests: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [request for request in requests if not request.get("error")]


def _tag_summary(requests: Sequence[Mapping[str, Any]]) -> TagSummary:
    good = _good(requests)
    return TagSummary(
        n=len(good),
        errors=len(requests) - len(good),
        decode_tps=spread([rate for request in good if (rate := decode_tps(request)) is not None]),
        e2e_tps_median=_median([request["completion_tokens"] / request["total_s"] for request in good]),
        ttft_s_median=_median([request["ttft_s"] for request in good]),
        distinct_outputs=len({request["text_sha"] for request in good}),
        **_latency(good),
        character_tps=_median([rate for row in requests if (rate := character_rate(row)) is not None]),
    )


def _wave_summary(waves: Sequence[Mapping[str, Any]], requests: Sequence[Mapping[str, Any]]) -> WaveSummary:
    good = _good(requests)
    whole = [wave for wave in waves if not wave.get("errors")]
    return WaveSummary(
        n=len(whole),
        errors=len(requests) - len(good),
        agg_tps=spread([wave["tokens"] / wave["wall_s"] for wave in whole]),
        per_stream_decode_tps_median=_median([rate for r in good if (rate := decode_tps(r)) is not None]),
        ttft_s_median=_median([request["ttft_s"] for request in good]),
        **_latency(good),
    )


def _latency(good: Sequence[Mapping[str, Any]]) -> dict[str, Percentiles | None]:
    return {"itl_gap": percentiles(gaps(good)), "itl_token": percentiles(token_gaps(good) or ())}


def _median(values: Sequence[float]) -> float | None:
    return float(statistics.median(values)) if values else None


def _engram_wait(server_info: Any) -> dict[str, dict[str, EngramWait]]:
    """Differences of rank 0's counters over each phase.

    Accepts the list of phases [{"tag", "before", "after"}] with the engine's internal state, or one such pair of whole
    /server_info answers, which then counts as the phase "all". An engine without the counters gives nothing.
    """
    if server_info is None:
        return {}
    phases = [{"tag": "all", **server_info}] if isinstance(server_info, Mapping) else server_info
    result: dict[str, dict[str, EngramWait]] = {}
    for phase in phases:
        before, after = (_engram_counters(phase[side]) for side in ("before", "after"))
        layers = {layer: _wait_between(before.get(layer, {}), after[layer]) for layer in sorted(after, key=int)}
        if layers:
            result[str(phase["tag"])] = layers
    return result


def _engram_counters(info: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    state = (info.get("internal_states") or [{}])[0] if "internal_states" in info else info
    counters: Mapping[str, Mapping[str, Any]] = state.get("engram") or {}
    return {str(layer): values for layer, values in counters.items()}


def _wait_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> EngramWait:
    def grown(name: str) -> float:
        delta = float(after[name]) - float(before.get(name, 0))
        if delta < 0:
            raise ValueError(f"the counter {name} went backwards")
        return delta

    lookups = int(grown("lookups"))
    wait_s = grown("wait_s")
    return EngramWait(wait_s, lookups, int(grown("reads")), wait_s / lookups * 1e6 if lookups else None)
