"""Log lines are read by their shape, whatever stands before them. Field lines are in data/ (see its README)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark import logparse

FIELD_LOG = (Path(__file__).parent / "data" / "engine-log.txt").read_text(encoding="utf-8")
READERS = (
    logparse.attach_lines,
    logparse.stats_lines,
    logparse.decode_lines,
    logparse.draft_shape,
    logparse.graph_sizes,
    logparse.server_args,
)
counts = st.integers(0, 10**9)
prefixes = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=30)


def test_field_log_attach() -> None:
    assert logparse.attach_lines(FIELD_LOG) == [
        logparse.Attach(1, 0, 0, 128002056, 0.0, True),
        logparse.Attach(14, 0, 0, 128005560, 0.0, True),
    ]


def test_field_log_counters() -> None:
    lines = logparse.stats_lines(FIELD_LOG)
    assert lines[:2] == [logparse.Stats(1, 6040, 0.0, 6040, True), logparse.Stats(14, 5992, 0.0, 5992, True)]
    assert logparse.total_lookups(FIELD_LOG) == {1: 6040 + 39185 + 112, 14: 5992 + 39232 + 112}
    assert logparse.total_reads(FIELD_LOG) == logparse.total_lookups(FIELD_LOG)


def test_field_log_decode() -> None:
    (line,) = logparse.decode_lines(FIELD_LOG)
    assert line == logparse.Decode(1, 3.08, 0.41, True, 3.12)


def test_field_log_shape() -> None:
    assert logparse.draft_shape(FIELD_LOG) == logparse.DraftShape(5, 6)
    assert logparse.graph_sizes(FIELD_LOG) == [1, 2, 3, 4]
    arguments = logparse.server_args(FIELD_LOG)
    assert arguments is not None
    assert (arguments["tp_size"], arguments["ep_size"], arguments["max_running_requests"]) == (3, 3, 4)


def test_a_log_of_the_lines_that_are_read_says_the_same() -> None:
    """The node hands out no others."""
    kept = [line for line in FIELD_LOG.split("\n") if any(re.search(pattern, line) for pattern in logparse.READ)]
    short = "\n".join(kept)
    assert len(short) < len(FIELD_LOG)
    for read in READERS:
        assert read(short) == read(FIELD_LOG)


@given(prefix=prefixes, rank=st.integers(0, 2), first=counts, end=counts, packed=st.booleans())
def test_attach_with_any_prefix(prefix: str, rank: int, first: int, end: int, packed: bool) -> None:
    line = (
        f"{prefix}Exact nvme Engram layer=14 rank={rank} rows=[{first},{end}) cache=0.5GiB (9 slots, 16-way, 0.1% of "
        f"owned rows) scales=0.0GiB io_threads=96 packed={packed}"
    )
    assert logparse.attach_lines(line) == [logparse.Attach(14, rank, first, end, 0.5, packed)]
    assert logparse.stats_lines(line) == []


@given(prefix=prefixes, lookups=counts, reads=counts, tenths=st.integers(0, 1000), packed=st.booleans())
def test_counters_with_any_prefix(prefix: str, lookups: int, reads: int, tenths: int, packed: bool) -> None:
    line = (
        f"{prefix} Engram layer=1 lookups={lookups} hit_rate={tenths / 10:.1f}% reads={reads} cache=0.0GiB(4-way) "
        f"scales=0.0GiB threads=96 packed={packed}"
    )
    assert logparse.stats_lines(line) == [logparse.Stats(1, lookups, tenths / 10, reads, packed)]
    assert logparse.attach_lines(line) == []


@given(lookups=st.integers(1, 10**7), data=st.data())
def test_reads_of_a_cache_lie_in_the_expected_range(lookups: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, lookups))
    stats = logparse.Stats(1, lookups, round(hits / lookups * 100, 1), lookups - hits, True)
    low, high = stats.expected_reads()
    assert low <= lookups - hits <= high
    assert high - low <= lookups * 0.0011 + 2


@given(st.text())
def test_any_text_is_read_without_error(text: str) -> None:
    for read in (logparse.attach_lines, logparse.stats_lines, logparse.decode_lines):
        assert read(text) == []
    assert logparse.draft_shape(text) is None


@pytest.mark.parametrize("value", ["{'a': __import__('os')}", "{'a': 1", "{1, 2}", "{" * 300 + "}" * 300])
def test_server_args_are_data_only(value: str) -> None:
    assert logparse.server_args(f"server_args={value}") is None


def test_draft_shapes_that_disagree_are_unknown() -> None:
    line = "Initialized DSpark draft runner. gamma={k}, verify_num_draft_tokens={v}, x\n"
    assert logparse.draft_shape(line.format(k=3, v=4) + line.format(k=5, v=6)) is None


@pytest.mark.parametrize(
    ("lookups", "rate", "reads", "hits", "expected"),
    [
        (10_000, "12.5", 8749, 1251, (8749, 8749)),
        (10_000, "12.5", 8750, 1251, (8749, 8749)),  # one read too many is seen, which the percentage would hide
        (10_000, "12.5", 8740, 1260, (0, -1)),  # hits and share contradict each other
        (3, "33.3", 2, 1, (2, 2)),
        (0, "0.0", 0, 0, (0, 0)),
        (2, "0.0", 0, 3, (0, -1)),
    ],
)
def test_exact_hits_allow_one_number_of_reads(
    lookups: int, rate: str, reads: int, hits: int, expected: tuple[int, int]
) -> None:
    line = (
        f"[2026-09-25 10:00:00 TP0 EP0] Engram layer=1 lookups={lookups} hit_rate={rate}% reads={reads} "
        f"cache=0.25GiB(4-way) scales=0.0GiB threads=96 packed=True hits={hits}"
    )
    (stats,) = logparse.stats_lines(line)
    assert (stats.hits, stats.packed) == (hits, True)
    assert stats.expected_reads() == expected
