"""The summary of raw rows equals what a field campaign published about them (data/README.md), within rounding."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.benchstats import Spread, WaveSummary, spread, summarize
from trispark.errors import TrisparkError

DATA = Path(__file__).parent / "data"
ARMS = ("b1-packed-converged", "e3-k5", "f2-final-reuse")


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def output_of(arm: str) -> dict[str, Any]:
    """A campaign's files in the shape of the load client's output."""
    requests = [
        {
            **row,
            "index": int(row["index"]),
            "completion_tokens": int(row["completion_tokens"]),
            "prompt_tokens": int(row["prompt_tokens"]),
            "ttft_s": float(row["ttft_s"]),
            "total_s": float(row["total_s"]),
            "error": None,
        }
        for row in rows(f"{arm}.csv")
    ]
    waves = [
        {"tag": "c4", "wave": int(row["wave"]), "wall_s": float(row["wall_s"]), "tokens": int(row["tokens"])}
        for row in rows("waves.csv")
        if row["arm"] == arm
    ]
    return {"requests": requests, "waves": waves, "server_info": None}


@pytest.mark.parametrize("published", rows("summary.csv"), ids=lambda row: f"{row['arm']}-{row['tag']}")
def test_field_summary_is_reproduced(published: dict[str, str]) -> None:
    summary = summarize(output_of(published["arm"]))
    entry: Spread | None
    if published["tag"] == "c4":
        wave = summary.waves["c4"]
        entry, prefix = wave.agg_tps, "agg_tps"
        assert wave.per_stream_decode_tps_median == pytest.approx(
            float(published["per_stream_decode_median"]), rel=2e-4
        )
    else:
        tag = summary.tags[published["tag"]]
        entry, prefix = tag.decode_tps, "decode_tps"
        assert tag.e2e_tps_median == pytest.approx(float(published["e2e_tps_median"]), rel=2e-4)
        assert tag.ttft_s_median == pytest.approx(float(published["ttft_s_median"]), rel=1e-4)
        assert tag.distinct_outputs == int(published["distinct_outputs"])
    assert entry is not None
    assert entry.n == int(published["n"])
    for name in ("median", "min", "max"):
        assert getattr(entry, name) == pytest.approx(float(published[f"{prefix}_{name}"]), rel=2e-4)
    assert entry.stdev == pytest.approx(float(published[f"{prefix}_stdev"]), abs=4e-3)


def test_metrics_have_the_names_of_the_catalog() -> None:
    metrics = summarize(output_of("e3-k5")).metrics()
    assert {"c1-prose.decode_tps", "c1-code.decode_tps", "c4.agg_tps", "c1-prose.ttft_s"} <= set(metrics)


def request(tag: str = "c1-prose", **fields: Any) -> dict[str, Any]:
    base = {"tag": tag, "completion_tokens": 11, "ttft_s": 1.0, "total_s": 2.0, "text_sha": "a", "error": None}
    return {**base, **fields}


def test_failed_requests_are_counted_and_take_no_part() -> None:
    broken = request(completion_tokens=None, ttft_s=None, total_s=None, text_sha=None, error="HTTP 500")
    summary = summarize({"requests": [request(), broken], "waves": []})
    tag = summary.tags["c1-prose"]
    assert (tag.n, tag.errors, summary.errors) == (1, 1, 1)
    assert tag.decode_tps == Spread(1, 10.0, 10.0, 10.0, 0.0)


def test_nothing_but_failures_gives_no_figures() -> None:
    broken = request(completion_tokens=None, ttft_s=None, total_s=None, text_sha=None, error="x")
    summary = summarize({"requests": [broken], "waves": []})
    assert summary.tags["c1-prose"].decode_tps is None
    assert summary.metrics() == {}


def test_wave_with_a_failed_request_has_no_aggregate() -> None:
    waves = [
        {"tag": "c4", "wave": 0, "wall_s": 2.0, "tokens": 40, "errors": 0},
        {"tag": "c4", "wave": 1, "wall_s": 1.0, "tokens": 30, "errors": 1},
    ]
    assert summarize({"requests": [], "waves": waves}).waves["c4"] == WaveSummary(
        1, 0, Spread(1, 20.0, 20.0, 20.0, 0.0), None, None
    )


def counters(lookups: int, wait_s: float) -> dict[str, Any]:
    return {"engram": {"1": {"lookups": lookups, "hits": 0, "reads": lookups, "wait_s": wait_s}}}


def test_engram_wait_is_the_difference_of_a_phase() -> None:
    phases = [{"tag": "c1-prose", "before": counters(100, 0.5), "after": counters(300, 0.7)}]
    wait = summarize({"requests": [], "waves": [], "server_info": phases}).engram_wait["c1-prose"]["1"]
    assert (wait.lookups, wait.reads) == (200, 200)
    assert wait.wait_s == pytest.approx(0.2)
    assert wait.wait_us_per_lookup == pytest.approx(1000)
    measured = summarize({"requests": [], "waves": [], "server_info": phases}).measured()
    assert measured == {"c1-prose.engram_wait_us_per_lookup": pytest.approx(1000)}


def test_engram_wait_of_whole_answers() -> None:
    info = {side: {"internal_states": [counters(n, n / 100)]} for side, n in (("before", 0), ("after", 100))}
    assert summarize({"requests": [], "waves": [], "server_info": info}).engram_wait["all"]["1"].wait_s == 1.0


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"requests": [{}], "waves": []},
        {"requests": None, "waves": []},
        {"requests": [request(ttft_s=float("nan"))], "waves": []},
        {"requests": [], "waves": [{"tag": "c4"}]},
        {"requests": [], "waves": [], "server_info": [{"tag": "x", "before": counters(9, 9), "after": counters(1, 1)}]},
    ],
)
def test_other_shapes_are_refused(output: dict[str, Any]) -> None:
    with pytest.raises(TrisparkError) as caught:
        summarize(output)
    assert caught.value.id == "TS-BENCH-SHAPE"


@given(st.lists(st.floats(0.001, 1e6), min_size=1), st.randoms())
def test_spread_does_not_depend_on_the_order(values: list[float], random: Any) -> None:
    mixed = list(values)
    random.shuffle(mixed)
    first, second = spread(values), spread(mixed)
    assert first is not None
    assert second is not None
    assert first.min <= first.median <= first.max
    assert (first.n, first.median, first.min, first.max) == (second.n, second.median, second.min, second.max)
    assert first.stdev == pytest.approx(second.stdev)
