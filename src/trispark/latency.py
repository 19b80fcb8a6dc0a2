"""Gaps between the events of a stream, in two conventions, from the load client's rows.

gap     one value for each event that brings tokens, after the first: what a reader of the stream waits for.
token   the same gap shared by its tokens: an event of n tokens counts n times with a n-th of the gap. It needs the
        tokens of each event (continuous usage); without them there is none, and nothing is estimated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Percentiles:
    """Of `n` values, in seconds; linear between the values around a rank."""

    n: int
    p50: float
    p95: float
    p99: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value at `share` (0 to 1) of ascending values, linear between neighbours. There must be one at least."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Percentiles(len(ordered), *(percentile(ordered, share) for share in (0.5, 0.95, 0.99)))


def steps(request: Mapping[str, Any]) -> list[tuple[float, int | None]]:
    """(seconds since the event before, tokens it brought) of each event that brought some, but for the first.

    Tokens are None where the server does not tell them; then every event with text counts. Empty for a row without
    events (of an older client, or failed).
    """
    at_ns, kinds, tokens = request.get("at_ns") or (), request.get("kinds") or "", request.get("tokens")
    if tokens is None:
        times = [at for at, kind in zip(at_ns, kinds, strict=True) if kind != "-"]
        return [((later - earlier) / 1e9, None) for earlier, later in itertools.pairwise(times)]
    found: list[tuple[float, int | None]] = []
    last_ns: int | None = None
    count = 0
    for at, so_far in zip(at_ns, tokens, strict=True):
        if so_far > count:
            if last_ns is not None:
                found.append(((at - last_ns) / 1e9, so_far - count))
            last_ns, count = at, so_far
    return found


def gaps(requests: Iterable[Mapping[str, Any]]) -> list[float]:
    """Seconds between events, of all these requests."""
    return [gap for request in requests for gap, _ in steps(request)]


def token_gaps(requests: Iterable[Mapping[str, Any]]) -> list[float] | None:
    """Seconds a token, of all these requests; None when one of them does not tell the tokens of its events."""
    found: list[float] = []
    for request in requests:
        for gap, tokens in steps(request):
            if tokens is None:
                return None
            found += [gap / tokens] * tokens
    return found


def character_rate(request: Mapping[str, Any]) -> float | None:
    """An ESTIMATE of decode tokens a second for a server without usage: four characters a token. It decides nothing."""
    at_ns, kinds = request.get("at_ns") or (), request.get("kinds") or ""
    times = [at for at, kind in zip(at_ns, kinds, strict=True) if kind != "-"]
    characters = request.get("content_chars", 0) + request.get("reasoning_chars", 0)
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    return float(characters / 4 / ((times[-1] - times[0]) / 1e9))
