"""A measurement of what runs: judged as that of a boot, kept whole whatever came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from trispark.boot_plan import Moment
from trispark.running_bench import judge_bench, keep_bench

MOMENT = Moment(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "a1b2")
NODES = {f"spark{rank}": {"rank": rank, "spec": {"container": {}}} for rank in range(3)}
STATUSES = {name: {"engine": {"boot_id": "b1"}} for name in NODES}
INPUT: dict[str, Any] = {
    "protocol": 2, "repetitions": 2, "max_tokens": 8, "warmup_tokens": 2, "seed": 1, "concurrency": [1],
    "workloads": {"prose": {"prompts": ["a"], "temperature": 0.0, "top_p": 1.0}}, "contexts": {"short": ""},
    "mixed": [], "thinking": False, "reasoning_effort": None,
}  # fmt: skip
PLAN: dict[str, Any] = {
    "generation": "g1",
    "nodes": NODES,
    "bench": {"rank": 1, "image": "registry:5000/bench@sha256:0", "input": INPUT},
}


def row(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "tag": "c1-prose", "index": index, "completion_tokens": 8, "ttft_s": 0.1, "total_s": 0.8, "text_sha": "x",
        "error": None, "sent_ns": 10**9 * index, **changes,
    }  # fmt: skip


def output(**changes: Any) -> dict[str, Any]:
    identity = {"engine_id": "e1"}
    window = {
        "tag": "c1-prose", "identity": [identity, identity], "metrics": [{}, {}], "wall_s": 1.6, "width": 1,
        "began": "2026-01-02T03:04:05Z", "began_ns": 0,
    }  # fmt: skip
    return {
        "protocol": 2, "requests": [row(0), row(1)], "waves": [], "server_info": [], "windows": [window], **changes,
    }  # fmt: skip


def facts(answer: Mapping[str, Any] | None, **changes: Any) -> dict[str, dict[str, Any]]:
    seen = {"observation": {"log": ""}, "after_load": {"log": ""}, "gates": {"gates": [{"ok": True}]}}
    found = {name: {**seen, "bench": {}, "failure": {}} for name in NODES}
    found["spark1"]["bench"] = dict(answer or {})
    found["spark2"] |= changes
    return found


def test_a_complete_measurement_has_its_metrics_and_says_what_was_not_checked() -> None:
    found = judge_bench("lab", PLAN, facts({"output": output()}), STATUSES, MOMENT)
    assert found.failure_line == ""
    assert found.document["outcome"] == {"state": "valid", "reason": "complete"}
    assert found.document["metrics"]["c1-prose.decode_tps"] == pytest.approx(7 / 0.7)
    assert found.document["boots"] == ["b1"]
    assert any(line.startswith("not checked, the server does not tell it: ") for line in found.lines)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "the load client gave no result"),
        ({"output": output(requests=[row(0)])}, "c1-prose has 1 requests, planned were 2"),
        ({"output": output(requests=[row(0), row(1, error="HTTP 500")])}, "c1-prose request 1 failed: HTTP 500"),
        ({"rows": [row(0)], "exit_code": 137, "log_tail": ["killed"]}, "the measurement ended early: killed"),
    ],
)
def test_what_is_incomplete_is_kept_without_metrics(answer: Mapping[str, Any] | None, said: str) -> None:
    found = judge_bench("lab", PLAN, facts(answer), STATUSES, MOMENT)
    assert said in found.failure_line
    assert found.document["metrics"] == {}
    rows = [] if answer is None else answer.get("rows") or answer["output"]["requests"]
    assert (found.document["bench"] or {}).get("requests", []) == rows, "nothing that was measured is lost"


def test_a_rank_that_was_lost_under_load_is_named() -> None:
    found = judge_bench("lab", PLAN, facts({"output": output()}, after_load=None), STATUSES, MOMENT)
    assert found.failure_line.startswith("TS-BOOT-NODE: spark2 did not report")


def test_prompts_are_kept_as_hashes_and_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    found = judge_bench("lab", PLAN, facts({"output": output()}), STATUSES, MOMENT)
    path = keep_bench(tmp_path, found, MOMENT)
    assert path == tmp_path / ".trispark/lab/bench/20260102T030405Z-a1b2.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["bench"]["input"]["workloads"]["prose"] != ["a"]
    assert [each.name for each in path.parent.iterdir()] == [path.name]
