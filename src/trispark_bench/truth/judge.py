"""A client's figures against what the server sent.

The time of an event is the one right before the write that completes it. A time to first token counts from the moment
at which the server had the whole request. So an error holds the way over loopback, the scheduling of both processes,
and the client; `Control` says how much of it is the machine's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from trispark_bench.truth.schedule import WARM_UP


@dataclass(frozen=True)
class Sent:
    """One answer as it was sent. `at_ns` and `tokens` (so far) of each event with text; `kinds` a letter each."""

    number: int
    received_ns: int
    at_ns: tuple[int, ...]
    tokens: tuple[int, ...]
    kinds: str
    fault: str | None
    late_ns: tuple[int, ...]
    write_ns: tuple[int, ...]

    @property
    def ttft_s(self) -> float:
        """From the request's last byte to the first text."""
        return (self.at_ns[0] - self.received_ns) / 1e9

    @property
    def gaps_s(self) -> list[float]:
        """Between events with text."""
        return [(later - earlier) / 1e9 for earlier, later in pairwise(self.at_ns)]

    @property
    def decode_tps(self) -> float:
        """Tokens after the first event over the time after it."""
        return (self.tokens[-1] - self.tokens[0]) / ((self.at_ns[-1] - self.at_ns[0]) / 1e9)


@dataclass(frozen=True)
class Got:
    """One answer as a client saw it; None where the client does not tell.

    `number`: of the request, else it is found by the number of its events. `tokens_so_far` of each event with text.
    """

    number: int | None
    ttft_s: float | None
    gaps_s: tuple[float, ...] | None
    tokens: int | None
    tokens_so_far: tuple[int, ...] | None = None
    kinds: str | None = None
    decode_tps: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Errors:
    """Of one client. Errors in milliseconds are absolute ones at the 99th percentile; `itl_exact` is the same at each
    gap of the stream. `tokens_exact`: every count is the server's, and just the broken answers were refused; None where
    the client tells no counts."""

    requests: int
    unmatched: int
    gaps: int
    tokens_exact: bool | None
    refused: int
    missed_faults: int
    ttft_error_ms_p50: float | None
    ttft_error_ms_p99: float | None
    itl_error_ms_p50: float | None
    itl_error_ms_p99: float | None
    itl_error_ms_max: float | None
    decode_tps_error_percent_max: float | None


@dataclass(frozen=True)
class Control:
    """What the machine adds without any client: how late the server's own writes were, and how long a write took."""

    late_ms_p50: float
    late_ms_p99: float
    write_ms_p50: float
    write_ms_p99: float
    events_per_second: float
    events_per_second_per_stream: float


def read_log(path: Path) -> dict[int, Sent]:
    """{number: answer} of the server's log."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["number"]: _sent(row) for row in rows if row["number"] != WARM_UP}


def _sent(row: Mapping[str, Any]) -> Sent:
    events = [(write[1], tokens, kind) for write in row["writes"] for tokens, kind, _ in write[3] if kind != "-"]
    return Sent(
        number=row["number"],
        received_ns=row["received_ns"],
        at_ns=tuple(at for at, _, _ in events),
        tokens=tuple(tokens for _, tokens, _ in events),
        kinds="".join(kind for _, _, kind in events),
        fault=row["fault"],
        late_ns=tuple(write[1] - write[0] for write in row["writes"]),
        write_ns=tuple(write[2] - write[1] for write in row["writes"]),
    )


def judge(sent: Mapping[int, Sent], got: Sequence[Got]) -> Errors:
    """Every answer that the client tells of, against the one that it is of."""
    by_length = {len(each.at_ns): each for each in sent.values() if each.fault is None}
    broken = sum(each.fault is not None for each in sent.values())
    ttft: list[float] = []
    gaps: list[float] = []
    rates: list[float] = []
    exact: list[bool] = []
    unmatched = refused = 0
    for each in got:
        if each.error is not None:
            refused += 1
            continue
        match = sent.get(each.number) if each.number is not None else by_length.get(len(each.gaps_s or ()) + 1)
        if match is None or match.fault is not None:
            unmatched += match is None
            continue
        if each.tokens is not None:
            exact.append(_same_tokens(match, each))
        if each.ttft_s is not None:
            ttft.append(abs(each.ttft_s - match.ttft_s) * 1e3)
        if each.gaps_s is not None and len(each.gaps_s) == len(match.gaps_s):
            gaps += [abs(mine - true) * 1e3 for mine, true in zip(each.gaps_s, match.gaps_s, strict=True)]
        elif each.gaps_s is not None:
            unmatched += 1
        if each.decode_tps is not None:
            rates.append(abs(each.decode_tps / match.decode_tps - 1) * 100)
    return Errors(
        requests=len(got),
        unmatched=unmatched,
        gaps=len(gaps),
        tokens_exact=all(exact) and not unmatched and refused == broken if exact else None,
        refused=refused,
        missed_faults=max(0, broken - refused),
        ttft_error_ms_p50=share_of(ttft, 0.5),
        ttft_error_ms_p99=share_of(ttft, 0.99),
        itl_error_ms_p50=share_of(gaps, 0.5),
        itl_error_ms_p99=share_of(gaps, 0.99),
        itl_error_ms_max=max(gaps, default=None),
        decode_tps_error_percent_max=max(rates, default=None),
    )


def _same_tokens(sent: Sent, got: Got) -> bool:
    counts = got.tokens_so_far is None or got.tokens_so_far == sent.tokens
    kinds = got.kinds is None or got.kinds == sent.kinds
    return got.tokens == sent.tokens[-1] and counts and kinds


def control(sent: Iterable[Sent]) -> Control:
    """Over all answers."""
    answers = [each for each in sent if each.at_ns]
    late = [ns / 1e6 for each in answers for ns in each.late_ns]
    writes = [ns / 1e6 for each in answers for ns in each.write_ns]
    times = [at for each in answers for at in each.at_ns]
    rates = [1e9 * (len(at) - 1) / (at[-1] - at[0]) for at in (each.at_ns for each in answers) if len(at) > 1]
    seconds = (max(times) - min(times)) / 1e9 if len(times) > 1 else math.inf
    return Control(
        late_ms_p50=share_of(late, 0.5) or 0.0,
        late_ms_p99=share_of(late, 0.99) or 0.0,
        write_ms_p50=share_of(writes, 0.5) or 0.0,
        write_ms_p99=share_of(writes, 0.99) or 0.0,
        events_per_second=len(times) / seconds,
        events_per_second_per_stream=sum(rates) / len(rates) if rates else 0.0,
    )


def share_of(values: Iterable[float], share: float) -> float | None:
    """The smallest value that at least `share` of all do not exceed; None without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
