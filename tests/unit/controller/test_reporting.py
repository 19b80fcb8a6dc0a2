"""What a playbook says at the end of a trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trispark.records import RecordCache
from trispark.reporting import RecordedTrial, record_path, trials

MIB = 1024 * 1024
OUTCOME = {"verdict": "REJECT", "reason": "slower", "differences": {}, "restored": "g1"}
REQUESTED = {"stage": "d", "feature": "wo_a_drop", "value": None}


def holding(engine: int, free: int) -> Callable[[dict[str, dict[str, Any]]], None]:
    """Rank 2 was asked by an agent that says nothing of memory."""

    def change(seen: dict[str, dict[str, Any]]) -> None:
        for node in ("spark0", "spark1"):
            seen[node]["memory"] = {
                "resident_bytes": engine * MIB,
                "memory_available_bytes": free * MIB,
                "memory_total_bytes": 121 * 1024 * MIB,
            }

    return change


def test_a_trial_says_what_memory_each_rank_held_in_both_arms(boot_record: Callable[..., dict[str, Any]]) -> None:
    boots = [boot_record(change=holding(900, 4000)), boot_record("candidate", change=holding(260, 4640))]
    assert boots[0]["observed"]["ranks"][2]["memory"] is None
    record = {"site": "lab", "requested": REQUESTED, "outcome": OUTCOME}
    lines = trials("t1", [RecordedTrial(record, "path", boots, ["a", "b"])], "", restored=True).lines
    assert [line for line in lines if "memory" in line] == [
        "rank 0 memory: engine 900 -> 260 MiB, node free 4000 -> 4640 MiB",
        "rank 1 memory: engine 900 -> 260 MiB, node free 4000 -> 4640 MiB",
    ]
    only = trials("t1", [RecordedTrial(record, "path", boots[:1], ["a"])], "", restored=True).lines
    assert not [line for line in only if "memory" in line]


def test_a_record_is_named_below_the_project_also_where_its_state_lies_on_another_disk(
    boot_record: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    root, disk = tmp_path / "project", tmp_path / "disk"
    root.mkdir()
    disk.mkdir()
    (root / ".trispark").symlink_to(disk)
    cache = RecordCache(root / ".trispark" / "lab" / "records")
    record = boot_record()
    cache.add(record)
    path = record_path(cache, record, root)
    assert path.startswith(".trispark/lab/records/000001-")
    assert (root / path).is_file()


def test_a_decided_trial_shows_intervals_mechanism_and_what_was_not_checked() -> None:
    interval = {"ratio": 1.031, "low": 1.018, "high": 1.044, "covers": 0.95}
    none = {"ratio": 1.03, "low": None, "high": None, "covers": None}
    metric = {"metric": "c4.agg_tps", "role": "primary", "state": "better", "welch": interval, "paired": interval}
    mechanism = [{"metric": "c1-prose.engram_wait_us_per_lookup", "moved": moved} for moved in (True, False, None)]
    detail = {"metrics": [{**metric, "hodges_lehmann": none}], "mechanism": mechanism}
    outcome = {**OUTCOME, "code": "GAIN", "detail": detail, "unchecked": ["clocks", "power"]}
    record = {"site": "lab", "requested": REQUESTED, "outcome": outcome}
    report = trials("t1", [RecordedTrial(record, "path", [], [])], "", restored=True)
    interval_shown = "+3.10 % [+1.80, +4.40] at 95.0 %"
    assert report.lines[1:6] == [
        f"c4.agg_tps (primary): better: welch {interval_shown}; paired {interval_shown}; "
        "hodges_lehmann +3.00 %, no interval",
        "mechanism c1-prose.engram_wait_us_per_lookup: moved as declared",
        "mechanism c1-prose.engram_wait_us_per_lookup: did not move as declared",
        "mechanism c1-prose.engram_wait_us_per_lookup: was not measured",
        "not checked: clocks, power",
    ]
    assert report.published["trial"]["code"] == "GAIN"


def test_arms_that_cannot_be_compared_are_a_failure_of_the_playbook() -> None:
    reason = "TS-VERDICT-CORPUS: boots that were measured with different prompts cannot be compared; where: a, b"
    record = {"site": "lab", "requested": REQUESTED, "outcome": {**OUTCOME, "reason": reason}}
    assert trials("t1", [RecordedTrial(record, "path", [], [])], "", restored=True).failure_line == reason
