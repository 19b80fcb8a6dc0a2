"""Whatever a measurement looks like, the boot is recorded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from trispark.boot_outcome import record_boot
from trispark.catalog import Catalog
from trispark.gate_result import GateResult
from trispark.project import ProjectState
from trispark.reporting import stage_a
from trispark.resolve import Resolution
from trispark.trial_metrics import boot_metrics

INPUT: dict[str, Any] = {
    "repetitions": 1,
    "max_tokens": 8,
    "warmup_tokens": 2,
    "concurrency": [1],
    "workloads": {name: {"prompts": [text], "temperature": 0.0, "top_p": 1.0} for name, text in (("prose", "a"),)},
    "contexts": {"short": ""},
    "mixed": [],
    "protocol": 2,
    "seed": 1,
    "thinking": False,
    "reasoning_effort": None,
}
REQUEST = {
    "tag": "c1-prose",
    "sent_ns": 0,
    "index": 0,
    "completion_tokens": 8,
    "ttft_s": 0.1,
    "total_s": 0.9,
    "text_sha": "a",
}
COUNTERS = {"engram": {"1": {"lookups": 9, "reads": 9, "wait_s": 0.1}}}
WITHOUT_WAIT = {"engram": {"1": {"lookups": 9, "reads": 9}}}
OUTPUT: dict[str, Any] = {
    "requests": [{**REQUEST, "error": None}],
    "waves": [],
    "server_info": [{"tag": "c1-prose", "before": {}, "after": COUNTERS}],
    "protocol": 2,
    "windows": [
        {
            "tag": "c1-prose",
            "identity": [{}, {}],
            "metrics": [None, None],
            "wall_s": 1.0,
            "width": 1,
            "began_ns": 0,
            "began": "2026-01-01T00:00:00Z",
        }
    ],
}


@pytest.fixture
def recorded(
    baseline: Resolution, catalog: Catalog, healthy: Callable[..., dict[str, dict[str, Any]]]
) -> Callable[[Any], dict[str, Any]]:
    """The record of a boot whose load client wrote this."""

    def make(output: Any, **answer: Any) -> dict[str, Any]:
        seen = healthy(baseline)
        gate = GateResult("canary.text", None, True, "42", "42")
        facts = {
            node: {
                "watch": {"state": "ready", "seconds": 1.0},
                "observation": seen[node],
                "after_load": seen[node],
                "gates": {"gates": [gate.as_dict()]},
                "bench": {"output": output, **answer} if node == "spark1" else {},
            }
            for node in seen
        }
        plan = {
            "boot_id": "b1",
            "epoch": 1,
            "started": 0.0,
            "time": "2026-01-01T00:00:00Z",
            "purpose": "serve",
            "requested": {"stage": "a", "arm": "baseline", "purpose": "serve"},
            "resolved": baseline.resolved,
            "nodes": {node: {"rank": rank} for rank, node in baseline.nodes.items()},
            "bench": {"rank": 1, "image": "bench@sha256:0", "input": INPUT},
        }
        project = ProjectState("1", None, True)
        return record_boot(project, "lab", catalog.allowlist, plan, facts, None, datetime(2026, 1, 1, tzinfo=UTC))

    return make


def test_a_measured_boot_is_valid(recorded: Callable[[Any], dict[str, Any]]) -> None:
    record = recorded(OUTPUT)
    assert (record["outcome"]["state"], record["outcome"]["good"]) == ("valid", True)
    assert record["bench"]["summary"]["tags"]["c1-prose"]["n"] == 1


def test_rows_of_a_client_whose_output_found_no_room_are_recorded(recorded: Callable[..., dict[str, Any]]) -> None:
    rows = [{**REQUEST, "error": None}]
    record = recorded(None, rows=rows, exit_code=1, log_tail=["TS-BENCH-DISK: the results cannot be written"])
    assert record["outcome"]["state"] == "invalid"
    assert "TS-BENCH-DISK" in record["outcome"]["reason"]
    assert record["bench"]["requests"] == rows
    assert record["bench"]["ended"].startswith("TS-BENCH-DISK")


def changed(**parts: Any) -> dict[str, Any]:
    return {**copy.deepcopy(OUTPUT), **parts}


@pytest.mark.parametrize(
    ("output", "kept"),
    [
        (changed(server_info=[{"tag": "c1-prose", "before": {}, "after": WITHOUT_WAIT}]), True),
        (changed(server_info=[{"tag": "c1-prose"}]), True),
        (changed(requests=[{**REQUEST, "ttft_s": "soon"}]), True),
        (changed(requests=[{}]), True),
        (changed(requests=[{**REQUEST, "ttft_s": float("nan")}]), False),
        (changed(requests=None), False),
        (changed(server_info="none"), False),
        (changed(windows=[{"tag": "c1-prose"}]), True),
        (changed(windows=["c1-prose"]), False),
        ({"x": 1}, False),
        ([1], False),
        ("text", False),
    ],
    ids=str,
)
def test_a_measurement_that_cannot_be_read_makes_an_invalid_boot_not_a_lost_record(
    recorded: Callable[[Any], dict[str, Any]], output: Any, kept: bool
) -> None:
    record = recorded(output)
    assert (record["outcome"]["state"], record["outcome"]["good"]) == ("invalid", False)
    assert record["outcome"]["reason"].startswith("TS-BENCH-SHAPE: ")
    assert "; do: " in record["outcome"]["reason"]
    assert (record["bench"] is not None) == kept
    assert not kept or record["bench"]["summary"] == {}
    assert stage_a(record, "x").published["stage_a"]["c1_tok_s"] is None
    assert boot_metrics(record).metrics == {}
