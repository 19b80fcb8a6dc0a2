"""A boot is valid only when every rank reports the whole way, and its measurement is complete."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from trispark.bench_check import bench_problem
from trispark.bench_plan import bench_input
from trispark.boot_outcome import _outcome, first_failure
from trispark.gate_result import GateResult
from trispark.measurement import Measured

NODES = ("spark0", "spark1", "spark2")
INPUT: dict[str, Any] = {
    "repetitions": 2,
    "max_tokens": 8,
    "warmup_tokens": 2,
    "concurrency": [1, 2],
    "workloads": {
        name: {"prompts": [text], "temperature": 0.0, "top_p": 1.0} for name, text in (("prose", "a"), ("code", "b"))
    },
    "contexts": {"short": ""},
    "mixed": [],
    "protocol": 2,
    "seed": 1,
    "thinking": False,
    "reasoning_effort": None,
}
PLAN: dict[str, Any] = {
    "nodes": {name: {"rank": rank} for rank, name in enumerate(NODES)},
    "purpose": "serve",
    "bench": {"rank": 1, "image": "bench@sha256:0", "input": INPUT},
}
GOOD_GATE = {"check_id": "canary.text", "rank": None, "ok": True, "expected": "42", "observed": "42", "remedy": ""}
FACT = {
    "watch": {"state": "ready", "seconds": 1.0},
    "observation": {"log": ""},
    "after_load": {"log": ""},
    "gates": {"gates": [GOOD_GATE]},
    "failure": {},
}
FACTS = {name: copy.deepcopy(FACT) for name in NODES}


def request(tag: str, index: int, **changes: Any) -> dict[str, Any]:
    figures = {"completion_tokens": 8, "ttft_s": 0.1, "total_s": 0.9, "text_sha": "a"}
    return {"tag": tag, "index": index, **figures, "error": None, **changes}


def window(tag: str, requests: int) -> dict[str, Any]:
    ends = [{"generation_tokens": 100, "finished_requests": 9, "verify_steps": 30}]
    ends.append({"generation_tokens": 100 + 8 * requests, "finished_requests": 9 + requests, "verify_steps": 40})
    return {"tag": tag, "identity": [{"startup_time": 3.5}] * 2, "metrics": ends, "wall_s": 1.0, "requests": requests}


OUTPUT: dict[str, Any] = {
    "requests": [
        *(request(f"c1-{workload}", index) for workload in ("prose", "code") for index in range(2)),
        *(request("c2", index) for index in range(4)),
    ],
    "waves": [{"tag": "c2", "wave": wave, "tokens": 16, "wall_s": 1.0, "errors": 0} for wave in range(2)],
    "protocol": 2,
    "server_info": [],
    "windows": [window("c1-prose", 2), window("c1-code", 2), window("c2", 4)],
}


def changed(node: str, **fields: Any) -> dict[str, Any]:
    facts = copy.deepcopy(FACTS)
    facts[node].update(fields)
    return facts


def outcome(facts: dict[str, Any], output: dict[str, Any] | None = OUTPUT, gates: Any = None) -> dict[str, Any]:
    results = [GateResult(**GOOD_GATE)] if gates is None else gates
    return _outcome(PLAN, results, first_failure(PLAN, facts), Measured(output, None))


def test_the_whole_way_on_all_ranks_is_valid_and_good() -> None:
    assert outcome(FACTS) == {"state": "valid", "reason": "all gates passed", "good": True}


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({name: FACT for name in NODES[:2]}, "TS-BOOT-NODE: spark2 did not report its engine as ready"),
        (changed("spark1", watch={}), "spark1 did not report its engine as ready"),
        (changed("spark1", observation=None), "spark1 did not report what it runs"),
        (changed("spark0", gates={}), "spark0 did not report judged gates"),
        (changed("spark2", after_load=None), "spark2 did not report what it runs after the measurement"),
        (changed("spark1", failure={"task": "Start", "result": {"msg": "no space"}}), "TS-BOOT-TASK: Start: no space"),
        (
            changed("spark1", failure={"task": "Start", "result": {"msg": "TS-X-Y: it", "check_id": "TS-X-Y"}}),
            "TS-X-Y: it",
        ),
    ],
    ids=["lost", "not-ready", "not-observed", "not-judged", "lost-under-load", "task", "named"],
)
def test_a_rank_that_does_not_report_all_of_it_is_never_valid(facts, reason) -> None:
    result = outcome(facts)
    assert result["state"] == "invalid"
    assert not result["good"]
    assert reason in result["reason"]


def test_without_gates_the_boot_has_failed() -> None:
    assert outcome(changed("spark1", watch={}), None, [])["state"] == "failed"


def test_a_rank_that_gave_up_for_another_is_not_the_cause() -> None:
    facts = changed("spark0", failure={"result": {"msg": "rank 2 lost", "check_id": "boot.ready", "by_peer": True}})
    facts["spark2"]["failure"] = {"result": {"msg": "rank 2 exited", "check_id": "boot.ready"}}
    failure = first_failure(PLAN, facts)
    assert failure is not None
    assert (failure.node, failure.line) == ("spark2", "rank 2 exited")


def test_a_rank_that_stopped_for_another_one_is_not_the_cause() -> None:
    facts = changed("spark2", failure={"result": {"msg": "TS-AGENT-EPOCH: old", "check_id": "TS-AGENT-EPOCH"}})
    for node in ("spark0", "spark1"):
        facts[node]["failure"] = {"result": {"msg": "boot.ranks: not every rank has been fenced; missing spark2"}}
    failure = first_failure(PLAN, facts)
    assert failure is not None
    assert (failure.node, failure.check_id) == ("spark2", "TS-AGENT-EPOCH")
    facts["spark2"]["failure"] = {}
    failure = first_failure(PLAN, facts)
    assert failure is not None
    assert (failure.check_id, failure.line.startswith("boot.ranks:")) == ("boot.ranks", True)


def without(output: dict[str, Any], part: str, index: int) -> dict[str, Any]:
    result = copy.deepcopy(output)
    del result[part][index]
    return result


def edited(index: int, **changes: Any) -> dict[str, Any]:
    result = copy.deepcopy(OUTPUT)
    result["requests"][index].update(changes)
    return result


def test_a_complete_measurement_has_no_problem() -> None:
    assert bench_problem(INPUT, OUTPUT) is None


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (None, "no result"),
        ({}, "no result"),
        (edited(0, error="HTTP 500: broken"), "c1-prose request 0 failed: HTTP 500"),
        (edited(5, completion_tokens=7), "c2 request 1 has 7 tokens, asked for were 8"),
        (edited(2, total_s=0.1), "no decode rate"),
        (without(OUTPUT, "requests", 0), "c1-prose has 1 requests, planned were 2"),
        (without(OUTPUT, "requests", -1), "c2 has 3 requests, planned were 4"),
        (without(OUTPUT, "waves", 0), "c2 has 1 waves, planned were 2"),
        (without(OUTPUT, "windows", 0), "c1-prose has no window"),
        ({**OUTPUT, "protocol": 1}, "by protocol 1, planned was 2"),
        ({**OUTPUT, "ended": "TS-BENCH-RUN: it"}, "ended early: TS-BENCH-RUN: it"),
        (
            {**OUTPUT, "windows": [*OUTPUT["windows"][:2], window("c2", 5)]},
            "c2: the server counted 5 requests, ours were 4",
        ),
    ],
    ids=[
        "none",
        "empty",
        "error",
        "short",
        "no-rate",
        "missing-c1",
        "missing-c2",
        "missing-wave",
        "missing-window",
        "protocol",
        "ended",
        "foreign",
    ],
)
def test_an_incomplete_measurement_makes_the_boot_invalid(output, problem) -> None:
    assert problem in (bench_problem(INPUT, output) or "")
    result = outcome(FACTS, output)
    assert (result["state"], result["good"]) == ("invalid", False)
    assert "TS-BENCH-INCOMPLETE" in result["reason"]


def test_other_prompts_are_another_input() -> None:
    other = copy.deepcopy(PLAN["bench"])
    other["input"]["workloads"]["code"]["prompts"] = ["c"]
    assert bench_input(other) != bench_input(PLAN["bench"])
    assert bench_input(PLAN["bench"]) == bench_input(copy.deepcopy(PLAN["bench"]))
