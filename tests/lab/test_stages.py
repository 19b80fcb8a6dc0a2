"""Stages on the lab: a sweep against one baseline, a killed controller, a plan that changed; judged from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.lab

WAIT_S = 420
"""For the candidate's start: the baseline's boot and, where kernels tune anew, uncounted boots come before it."""


def records_of(lab: Any, name: str = "spark0") -> list[dict[str, Any]]:
    script = "for f in /var/lib/trispark/records/*.json; do cat $f; done"
    return [json.loads(line) for line in lab.node(name, "sh", "-c", script).decode().splitlines()]


def walks(lab: Any) -> set[str]:
    return {path.parent.name for path in (lab.root / ".trispark/lab/walks").glob("t*/plan.json")}


def ours(lab: Any) -> set[int]:
    """Processes of this checkout that run one of its playbooks."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            any(word.startswith(f"{lab.root}/playbooks/".encode()) for word in words)
            or b"playbooks/stage_c.yml" in words
        ):
            found.add(int(path.parent.name))
    return found


def awaited(lab: Any, what: str, seen: Callable[[], object], process: Any, within_s: float = WAIT_S) -> None:
    until = time.monotonic() + within_s * lab.patience
    while not seen():
        assert time.monotonic() < until, f"{what} did not happen within {within_s} s"
        assert process is None or process.poll() is None, f"the playbook ended before {what}"
        time.sleep(0.2)


def label(lab: Any, name: str) -> str | None:
    state = lab.inspect(name)
    return None if state is None else str(state["Config"]["Labels"]["trispark.generation"])


def kept_slots(lab: Any, walk: str) -> list[dict[str, Any]]:
    slots: list[dict[str, Any]] = json.loads((lab.root / ".trispark/lab/walks" / walk / "plan.json").read_text())[
        "slots"
    ]
    return slots


def killed_in_the_candidate(lab: Any, command: list[str]) -> str:
    """Start it and end it with -9 while the engines of the last boot of its plan start, the measured candidate; nothing
    of it may stay. Returns the id of the trial."""
    known = walks(lab)
    process = subprocess.Popen(
        command, cwd=lab.root, env=lab.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        awaited(lab, "the begin of the walk", lambda: walks(lab) - known, process)
        (walk,) = walks(lab) - known
        last = kept_slots(lab, walk)[-1]

        def in_the_last_boot() -> bool:
            done = [record["requested"]["slot"] for record in records_of(lab) if record["requested"]["trial"] == walk]
            return len(done) == last["slot"] and label(lab, "spark1") == last["generation"]

        awaited(lab, "the candidate's start", in_the_last_boot, process)
        assert len(ours(lab)) > 1, "the boot is a child run of its own"
        os.kill(process.pid, signal.SIGKILL)
        awaited(lab, "the end of all its processes", lambda: not ours(lab), None, 15)
    finally:
        process.kill()
        process.wait()
    return walk


@pytest.mark.slow
def test_a_stage_whose_controller_was_killed_goes_on_at_the_exact_boot(serving: Any) -> None:
    baseline = label(serving, "spark0")
    before = records_of(serving)
    walk = killed_in_the_candidate(serving, serving.command("stage_c", feature="wo_a"))
    slots = kept_slots(serving, walk)
    last = slots[-1]["slot"]
    after = [record for record in records_of(serving) if record["requested"].get("trial") == walk]
    assert [record["requested"]["slot"] for record in after] == list(range(last)), "no half of the one that was killed"

    played = serving.play("stage_c", resume=walk)
    assert played.rc == 0, played.output[-4000:]
    assert played.output.count("done before") == last
    records = records_of(serving)
    assert records[: len(before)] == before
    boots = [each for each in records if each["kind"] == "boot" and each["requested"].get("trial") == walk]
    assert [boot["requested"]["slot"] for boot in boots] == list(range(last + 2))
    assert [boot["requested"]["purpose"] for boot in boots] == ["trial"] * (last + 1) + ["restore"]
    trial = records[-1]
    assert (trial["kind"], trial["id"]) == ("trial", walk)
    counted = [boots[slot["slot"]]["boot_id"] for slot in slots if slot["counted"]]
    assert [boot["boot_id"] for boot in trial["boots"]] == counted
    assert trial["outcome"]["restored"] == baseline
    lines = (serving.root / ".trispark/lab/walks" / walk / "journal.jsonl").read_text().splitlines()
    begun = [entry["slot"] for entry in map(json.loads, lines) if entry["event"] == "slot_started"]
    assert begun == [*range(last + 1), last, last + 1], "the boot that left no record was begun once more"
    for name in serving.nodes:
        assert label(serving, name) == baseline
        assert records_of(serving, name) == records

    engines = {name: serving.inspect(name)["Id"] for name in serving.nodes}
    again = serving.play("stage_c", resume=walk)
    assert again.rc == 0, again.output[-4000:]
    assert records_of(serving) == records
    assert {name: serving.inspect(name)["Id"] for name in serving.nodes} == engines, "what has ended boots nothing more"


@pytest.mark.parametrize(
    ("extra", "error"),
    [
        ({"feature": "wo_a", "plan": "p0123456789abcdef"}, "TS-PLAN-CHANGED"),
        ({"resume": "t20260102T030405Z-a1b2"}, "TS-WALK-UNKNOWN"),
        ({"feature": "wo_a", "deadline": "2026-01-02T03:04:05+00:00"}, None),
    ],
)
def test_what_must_not_begin_touches_no_engine(serving: Any, extra: dict[str, str], error: str | None) -> None:
    engines = {name: serving.inspect(name)["Id"] for name in serving.nodes}
    count = len(records_of(serving))
    played = serving.play("stage_c", **extra)
    assert (played.rc == 0) is (error is None), played.output[-3000:]
    assert (error or "is paused") in played.output
    assert {name: serving.inspect(name)["Id"] for name in serving.nodes} == engines
    assert len(records_of(serving)) == count


@pytest.mark.slow
def test_a_sweep_gives_each_value_its_verdict_against_one_baseline(serving: Any) -> None:
    baseline = label(serving, "spark0")
    known = walks(serving)
    played = serving.play("stage_b", timeout_s=900, feature="block_size")
    assert played.rc == 0, played.output[-4000:]
    (walk,) = walks(serving) - known
    records = records_of(serving)
    trials = [record for record in records if record["kind"] == "trial" and record["requested"]["trial"] == walk]
    boots = [record for record in records if record["kind"] == "boot" and record["requested"]["trial"] == walk]
    values = [trial["requested"]["value"] for trial in trials]
    assert values == [value for value in ("2", "4", "5") if value in values]
    assert len(values) >= 2
    assert [boot["requested"]["slot"] for boot in boots] == list(range(len(boots))), "every boot once, in order"
    measured = [boot for boot in boots if boot["bench"] is not None]
    assert len(measured) == len(values) + 1
    shared = measured[0]["boot_id"]
    for trial, boot in zip(trials, measured[1:], strict=True):
        assert [each["boot_id"] for each in trial["boots"]] == [shared, boot["boot_id"]]
        assert boot["observed"]["engine"]["block_size"] == int(trial["requested"]["value"])
        assert trial["resolved"]["changed"]["DSPARK_BLOCK_SIZE"]["candidate"] == int(trial["requested"]["value"])
        assert trial["outcome"]["verdict"] == "INCONCLUSIVE"
        assert trial["outcome"]["restored"] == baseline
    assert {label(serving, name) for name in serving.nodes} == {baseline}


@pytest.mark.slow
def test_a_node_that_is_started_anew_in_the_candidates_boot_ends_the_trial(serving: Any) -> None:
    """The boot took the node down: it is not tried again, also by a controller that comes later."""
    baseline = label(serving, "spark0")
    walk = killed_in_the_candidate(serving, serving.command("stage_c", feature="wo_a"))
    subprocess.run(["docker", "restart", "--time", "1", "spark2"], check=True, capture_output=True)
    ready = ["docker", "exec", "spark2", "lab-ready"]
    awaited(
        serving,
        "the node's return",
        lambda: subprocess.run(ready, check=False, capture_output=True).returncode == 0,
        None,
    )
    serving.play("lab_up")
    played = serving.play("stage_c", resume=walk)
    assert played.rc != 0
    assert "took spark2 down; it is never tried again" in " ".join(played.output.split())
    trial = records_of(serving)[-1]
    assert (trial["id"], trial["outcome"]["verdict"]) == (walk, "INCONCLUSIVE")
    assert "took spark2 down" in trial["outcome"]["reason"]
    assert trial["outcome"]["restored"] == baseline
    begun = [boot["arm"] for boot in trial["boots"]]
    assert begun == ["baseline"]
    assert {label(serving, name) for name in serving.nodes} == {baseline}
