"""The names of metrics: what the real client measures is what catalog, plan and pages may name, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from bench_server import answer, run

from trispark.bench_windows import check_windows
from trispark.benchstats import metric_names, summarize
from trispark.catalog import load_catalog
from trispark.catalog_model import MEASURED, METRIC, Feature
from trispark.trial_metrics import measured_of
from trispark.workloads import read_corpora

ROOT = Path(__file__).resolve().parents[3]
WORKLOADS = sorted(read_corpora(ROOT).prompts)
MIXED = (1, 4)


def boot() -> dict[str, Any]:
    """The measurement of a boot with every workload, context and kind of cell, as its record holds it."""
    counted = {"tokens": 0, "requests": 0}

    async def counting(request: web.Request) -> web.StreamResponse:
        counted["tokens"] += (await request.json())["max_tokens"]
        counted["requests"] += 1
        return await answer(request)

    async def info(_: web.Request) -> web.Response:
        tokens, requests = counted["tokens"], counted["requests"]
        layer = {"lookups": tokens, "reads": tokens, "wait_s": tokens / 1e6}
        counters = {"generation_tokens": tokens, "finished_requests": requests, "verify_steps": tokens - requests}
        return web.json_response({"version": "1", "internal_states": [{**counters, "engram": {"1": layer}}]})

    change = {
        "repetitions": 1,
        "concurrency": [1, 4],
        "workloads": {name: {"prompts": ["a"], "temperature": 0, "top_p": 1} for name in WORKLOADS},
        "contexts": {"short": "", "long": "before "},
        "mixed": [{"width": width, "prompt": "long", "max_tokens": 4} for width in MIXED],
    }
    output = run(counting, info=info, change=change).as_json()
    for row in output["requests"]:
        row["total_s"] = row["ttft_s"] + 1  # the server answers at once: all events of an answer may come in one read
    return {**output, "checks": [asdict(check) for check in check_windows(output)]}


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return boot()


@pytest.fixture(scope="module")
def names(recorded: dict[str, Any]) -> set[str]:
    return set(measured_of(recorded))


def named_by(feature: Feature) -> Iterator[str]:
    yield from (*feature.primaries, *feature.guards, *feature.margins)
    yield from (each.metric for each in feature.moves)
    if feature.needs is not None:
        yield feature.needs.metric


def test_the_measurement_is_whole(recorded: dict[str, Any], names: set[str]) -> None:
    assert [check["problem"] for check in recorded["checks"] if check["problem"]] == []
    assert len(names) > 100


def test_what_is_measured_may_be_named_and_nothing_else(recorded: dict[str, Any], names: set[str]) -> None:
    assert [name for name in sorted(names) if MEASURED.fullmatch(name) is None] == []
    figures = {name.partition(".")[2] for name in names}
    tags = {name.partition(".")[0] for name in names}
    possible = {f"{tag}.{figure}" for tag in tags for figure in (*figures, "itl_p95_s", "ttft_p95_s")}
    assert {name for name in possible if MEASURED.fullmatch(name)} == names
    assert {name for name in possible if METRIC.fullmatch(name)} == set(summarize(recorded).metrics())


@pytest.mark.parametrize(
    "name", ["c4.itl_p95_s", "c4.decode_tps", "c1-prose.agg_tps", "c1.ttft_s", "c0.agg_tps", "prose.ttft_s"]
)
def test_a_name_of_nothing_is_refused(name: str) -> None:
    assert MEASURED.fullmatch(name) is None


def test_a_plan_says_the_names_under_which_a_cell_is_recorded(recorded: dict[str, Any]) -> None:
    planned = {name for window in recorded["windows"] for name in metric_names(window["tag"], window["width"])}
    planned |= {name for width in MIXED for name in metric_names(f"mixed-c{width}-prefill", 1)}
    assert planned == set(summarize(recorded).metrics())


def test_the_catalog_names_what_a_boot_records(names: set[str]) -> None:
    features = load_catalog(ROOT).features
    named = {metric: name for name, feature in features.items() for metric in named_by(feature)}
    assert {metric: of for metric, of in named.items() if metric not in names} == {}
    assert len(named) > 8


def test_the_pages_name_what_a_boot_records(names: set[str]) -> None:
    shown = re.compile(r"`((?:mixed-)?c[0-9]+(?:-[a-z0-9_]+)*\.[a-z0-9_]+)`")
    found = {
        name: page.name
        for page in sorted((ROOT / "docs").glob("*.md"))
        for name in shown.findall(page.read_text(encoding="utf-8"))
    }
    assert found, "the pages name some"
    assert {name: page for name, page in found.items() if name not in names} == {}
