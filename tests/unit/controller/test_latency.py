"""Gaps in the two conventions, and the percentiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.benchstats import decode_tps, summarize
from trispark.latency import character_rate, gaps, percentiles, steps, token_gaps


def row(at_ms: list[int], tokens: list[int] | None, kinds: str) -> dict[str, Any]:
    return {"at_ns": [at * 10**6 for at in at_ms], "tokens": tokens, "kinds": kinds}


def test_an_event_of_three_tokens_is_one_gap_or_three() -> None:
    request = row([10, 20, 50, 60], [1, 2, 5, 5], "ccc-")
    assert gaps([request]) == pytest.approx([0.010, 0.030])
    assert token_gaps([request]) == pytest.approx([0.010, 0.010, 0.010, 0.010])


def test_tokens_that_come_without_text_count_when_they_come() -> None:
    assert steps(row([10, 20, 50], [1, 4, 6], "c-c")) == [(0.010, 3), (0.030, 2)]


def test_text_without_tokens_is_no_step() -> None:
    """A rest of a character that was held back."""
    assert steps(row([10, 20, 50], [1, 4, 4], "ccc")) == [(0.010, 3)]


def test_several_events_of_one_read_have_no_time_between_them() -> None:
    assert steps(row([10, 10, 30], [1, 3, 4], "ccc")) == [(0.0, 2), (0.020, 1)]


def test_without_the_tokens_of_each_event_there_is_no_gap_a_token() -> None:
    request = row([10, 20, 50, 60], None, "c-cc")
    assert gaps([request]) == pytest.approx([0.040, 0.010])
    assert token_gaps([request]) is None
    assert token_gaps([row([1, 2], [1, 2], "cc"), request]) is None


def test_a_row_of_an_older_client_has_none() -> None:
    assert steps({"ttft_s": 0.1}) == []
    assert character_rate({"ttft_s": 0.1}) is None


def test_the_estimate_by_characters_is_four_a_token() -> None:
    request = {**row([0, 500, 1000], None, "crc"), "content_chars": 60, "reasoning_chars": 20}
    assert character_rate(request) == pytest.approx(20)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=50))
def test_percentiles_are_those_of_numpy(values: list[float]) -> None:
    found = percentiles(values)
    assert found is not None
    assert (found.p50, found.p95, found.p99) == pytest.approx(tuple(np.percentile(values, [50, 95, 99])))


def test_no_values_no_percentiles() -> None:
    assert percentiles([]) is None


def test_the_first_events_tokens_are_no_part_of_the_decode_rate() -> None:
    request = {"completion_tokens": 13, "ttft_s": 1.0, "total_s": 3.0}
    assert decode_tps(request) == pytest.approx(6)
    assert decode_tps({**request, "first_tokens": 5}) == pytest.approx(4)
    assert decode_tps({**request, "first_tokens": 13}) is None


def test_both_conventions_are_metrics() -> None:
    figures = {"completion_tokens": 5, "ttft_s": 0.01, "total_s": 0.05, "text_sha": "a", "error": None}
    request = {"tag": "c1-prose", "index": 0, **row([10, 20, 50], [1, 2, 5], "ccc"), **figures}
    values = summarize({"requests": [request], "waves": []}).metrics()
    assert values["c1-prose.itl_gap_p95_s"] == pytest.approx(0.029)
    assert values["c1-prose.itl_token_p95_s"] == pytest.approx(0.010)
    without = summarize({"requests": [{**request, "tokens": None}], "waves": []}).metrics()
    assert "c1-prose.itl_token_p95_s" not in without
