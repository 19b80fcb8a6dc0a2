"""Typed readers of the engine's log lines. They search within a line, so no prefix matters; other lines are skipped."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

_ATTACH: Final = re.compile(
    r"Exact nvme Engram layer=(?P<layer>\d+) rank=(?P<rank>\d+) rows=\[(?P<first>\d+),(?P<end>\d+)\) "
    r"cache=(?P<cache>\d+(?:\.\d+)?)GiB .*\bpacked=(?P<packed>True|False)\b"
)
_STATS: Final = re.compile(
    r"(?<!nvme )Engram layer=(?P<layer>\d+) lookups=(?P<lookups>\d+) hit_rate=(?P<rate>\d+(?:\.\d+)?)% "
    r"reads=(?P<reads>\d+) .*\bpacked=(?P<packed>True|False)\b(?: hits=(?P<hits>\d+)\b)?"
)
_DECODE: Final = re.compile(
    r"Decode batch, #running-req: (?P<running>\d+),.*\baccept len: (?P<length>\d+(?:\.\d+)?), "
    r"accept rate: (?P<rate>\d+(?:\.\d+)?), (?:cap len: \d+(?:\.\d+)?, )?(?:block accept len: \d+(?:\.\d+)?, )?"
    r"cuda graph: (?P<graph>True|False), "
    r"gen throughput \(token/s\): (?P<tps>\d+(?:\.\d+)?)"
)
_DRAFT: Final = re.compile(
    r"Initialized DSpark draft runner\..*\bgamma=(?P<k>\d+), verify_num_draft_tokens=(?P<verify>\d+)\b"
)
_GRAPHS: Final = re.compile(r"Capture (?P<name>target|draft) verify CUDA graph begin\..*\bbs=\[(?P<sizes>[\d, ]*)\]")
_SERVER_ARGS: Final = re.compile(r"server_args=(?P<value>\{.*\})\s*$")
_STAMP: Final = re.compile(r"\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[ \]]")
READ: Final = tuple(each.pattern for each in (_ATTACH, _STATS, _DECODE, _DRAFT, _GRAPHS, _SERVER_ARGS))
"""Patterns of all lines that something here reads; an observation hands out no others but those of the evidence."""


@dataclass(frozen=True)
class Attach:
    """Start-up line of one layer: which rows the rank serves and whether from its packed file."""

    layer: int
    rank: int
    first_row: int
    end_row: int
    cache_gib: float
    packed: bool


@dataclass(frozen=True)
class Stats:
    """Counters of one layer since the line before: owned rows looked up, share found in the cache (%), disk reads.

    `hits` is the exact number behind the share, for engines that print it.
    """

    layer: int
    lookups: int
    hit_rate_percent: float
    reads: int
    packed: bool
    hits: int | None = None

    def expected_reads(self) -> tuple[int, int]:
        """Lowest and highest number of reads that one read a miss allows; the rate is printed with one decimal.

        With exact hits both are equal; hits that the printed share contradicts allow nothing: (0, -1).
        """
        if self.hits is not None:
            share = 100 * self.hits / self.lookups if self.lookups else 0.0
            if self.hits > self.lookups or abs(share - self.hit_rate_percent) > 0.0501:
                return 0, -1
            return self.lookups - self.hits, self.lookups - self.hits
        hits_low = self.lookups * max(self.hit_rate_percent - 0.05, 0.0) / 100
        hits_high = self.lookups * min(self.hit_rate_percent + 0.05, 100.0) / 100
        if self.hit_rate_percent == 0.0:
            hits_low = 0.0
        return int(self.lookups - hits_high), -int(-(self.lookups - hits_low) // 1)


@dataclass(frozen=True)
class Decode:
    """A "Decode batch" line of the head; throughput in tokens a second over all running requests."""

    running: int
    accept_length: float
    accept_rate: float
    cuda_graph: bool
    tokens_per_second: float

    @property
    def step_s(self) -> float | None:
        """Seconds a step, of what the line says: tokens of a step over tokens a second."""
        return self.accept_length * self.running / self.tokens_per_second if self.tokens_per_second > 0 else None


@dataclass(frozen=True)
class Interval:
    """A decode line, which tells of the time since the one before: from the second `since` to the second `stamp`.

    None where a line has no stamp, or the one before had another number of requests.
    """

    since: datetime | None
    stamp: datetime | None
    decode: Decode


@dataclass(frozen=True)
class DraftShape:
    """Block size (k) and verify rows a request (k + 1) as the engine reports them."""

    block_size: int
    verify_tokens: int


def attach_lines(log: str) -> list[Attach]:
    """Every attach line, in order."""
    return [
        Attach(
            int(m["layer"]), int(m["rank"]), int(m["first"]), int(m["end"]), float(m["cache"]), m["packed"] == "True"
        )
        for m in _matches(_ATTACH, log)
    ]


def stats_lines(log: str) -> list[Stats]:
    """Every lookup counter line, in order."""
    return [
        Stats(
            int(m["layer"]),
            int(m["lookups"]),
            float(m["rate"]),
            int(m["reads"]),
            m["packed"] == "True",
            int(m["hits"]) if m["hits"] is not None else None,
        )
        for m in _matches(_STATS, log)
    ]


def decode_lines(log: str) -> list[Decode]:
    """Every "Decode batch" line, in order."""
    return [_decode(m) for m in _matches(_DECODE, log)]


def decode_intervals(log: str) -> list[Interval]:
    """Every "Decode batch" line, in order. Stamps are taken as UTC."""
    found: list[Interval] = []
    for match in _matches(_DECODE, log):
        decode, stamp = _decode(match), _stamp(match.string[: match.start()])
        before = found[-1] if found and found[-1].decode.running == decode.running else None
        found.append(Interval(before.stamp if before is not None else None, stamp, decode))
    return found


def _stamp(prefix: str) -> datetime | None:
    match = _STAMP.search(prefix)
    if match is None:
        return None
    try:
        return datetime.strptime(match["stamp"], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def _decode(m: re.Match[str]) -> Decode:
    return Decode(int(m["running"]), float(m["length"]), float(m["rate"]), m["graph"] == "True", float(m["tps"]))


def draft_shape(log: str) -> DraftShape | None:
    """Block size from the draft runner's line; None when there is none or when two disagree."""
    shapes = {DraftShape(int(m["k"]), int(m["verify"])) for m in _matches(_DRAFT, log)}
    return shapes.pop() if len(shapes) == 1 else None


def graph_sizes(log: str) -> list[int] | None:
    """Batch sizes captured for target verification; None when the engine captures no graphs."""
    for match in _matches(_GRAPHS, log):
        if match["name"] == "target":
            return [int(size) for size in match["sizes"].replace(" ", "").split(",") if size]
    return None


def server_args(log: str) -> dict[str, Any] | None:
    """The arguments that the engine reports about itself (last such line); None when there is none or it is cut."""
    found: dict[str, Any] | None = None
    for match in _matches(_SERVER_ARGS, log):
        try:
            value = ast.literal_eval(match["value"])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, dict):
            found = value
    return found


def total_lookups(log: str) -> dict[int, int]:
    """{layer: lookups of all counter lines}."""
    totals: dict[int, int] = {}
    for line in stats_lines(log):
        totals[line.layer] = totals.get(line.layer, 0) + line.lookups
    return totals


def total_reads(log: str) -> dict[int, int]:
    """{layer: reads of all counter lines}."""
    totals: dict[int, int] = {}
    for line in stats_lines(log):
        totals[line.layer] = totals.get(line.layer, 0) + line.reads
    return totals


def packed_states(log: str) -> list[tuple[int, bool]]:
    """(layer, packed) of every attach and counter line."""
    return [(line.layer, line.packed) for line in attach_lines(log)] + [
        (line.layer, line.packed) for line in stats_lines(log)
    ]


def lines_matching(pattern: str, log: str) -> list[str]:
    """The lines in which `pattern` is found."""
    compiled = re.compile(pattern)
    return [line for line in log.split("\n") if compiled.search(line)]


def _matches(pattern: re.Pattern[str], log: str) -> Iterator[re.Match[str]]:
    for line in log.split("\n"):
        match = pattern.search(line)
        if match is not None:
            yield match
