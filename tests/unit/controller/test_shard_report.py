"""What the nodes said of their shards, for a person and for a program."""

from __future__ import annotations

from typing import Any

import pytest

from trispark.shard_report import BOOT_AGAIN, STOP_IT, report, shard_lines, size

FILE = {
    "file": "engram-l1-r1of3.bin",
    "layer": 1,
    "layout": "even",
    "first_row": 16,
    "end_row": 33,
    "state": "ok",
    "observed": "equal",
    "action": "none",
    "bytes": 33_792_546_880,
    "checked": "sampled",
}
OTHER = {"file": "engram-l1-r0of2.bin", "kind": "shard", "bytes": 50_690_555_920, "age_days": 12.5}
NETWORK = {"fstype": "nfs4", "source": "head:/", "mounted_at": "/srv/models", "reads_bytes": 33_792_542_784}


def answer(**more: Any) -> dict[str, Any]:
    return {"files": [FILE], "others": [], "network": None, **more}


@pytest.mark.parametrize(
    ("state", "action", "check", "tail"),
    [
        ("ok", "none", False, "ok"),
        ("missing", "packed", False, "missing, packed"),
        ("missing", "packed", True, "missing, would be packed"),
        ("no_manifest", "adopted", False, "no_manifest, adopted"),
        ("wrong_size", "repaired", True, "wrong_size, would be repaired"),
    ],
)
def test_a_line_says_what_was_found_and_done(state: str, action: str, check: bool, tail: str) -> None:
    found = answer(files=[{**FILE, "state": state, "action": action}])
    assert shard_lines(found, "b", check) == [f"b engram-l1-r1of3.bin: rows [16,33) {tail}"]


def test_old_shards_and_the_network_are_said() -> None:
    lines = shard_lines(answer(others=[OTHER], network=NETWORK), "b")
    assert lines[1:] == [
        "b engram-l1-r0of2.bin: shard of none of this rank's shards, 50.69 GB, 12.5 days old; it stays",
        "b the checkpoint is read over the network: nfs4 from head:/, 33.79 GB for these shards",
    ]
    assert len(shard_lines(answer(network={**NETWORK, "reads_bytes": 0}), "b")) == 1


def test_what_check_mode_left_out_is_said_and_published() -> None:
    found = answer(skipped_level="deep")
    said = "b check mode: level deep was not run, the files were looked at at the quick level"
    assert shard_lines(found, "b")[-1] == said
    whole = report({"b": {"changed": False, "answer": {"ok": True, **found}}})
    assert whole["lines"][-1] == said
    assert whole["published"]["shards"]["b"]["skipped_level"] == "deep"


def test_a_report_has_every_node_also_those_that_refused_or_said_nothing() -> None:
    wrong = answer(files=[{**FILE, "state": "wrong_size", "observed": "7 bytes, not 8"}])
    results = {
        "a": {"changed": False, "answer": {"ok": True, **answer()}},
        "b": {"failed": True, "answer": {"ok": False, "error": {"id": "TS-ENGRAM-SIZE"}, **wrong}},
        "c": {"unreachable": True},
        "d": {},
    }
    found = report(results)
    assert found["lines"] == [
        "a engram-l1-r1of3.bin: rows [16,33) ok, 33.79 GB, even layout, sampled",
        "b engram-l1-r1of3.bin: rows [16,33) wrong_size: 7 bytes, not 8",
        "c said nothing of its shards",
        "d said nothing of its shards",
    ]
    assert found["published"]["shards"]["b"]["files"][0]["state"] == "wrong_size"
    assert found["published"]["shards"]["c"] is None


@pytest.mark.parametrize(
    ("action", "check", "last"),
    [
        ("repaired", False, f"b {BOOT_AGAIN}: e1"),
        ("repaired", True, f"b e1 {STOP_IT}"),
        ("none", False, f"b e1 {STOP_IT}"),
    ],
)
def test_the_last_line_is_of_the_engine_that_has_a_wrong_file_open(action: str, check: bool, last: str) -> None:
    found = answer(files=[{**FILE, "state": "wrong_content", "action": action}], serving=["e1"])
    lines = shard_lines(found, "b", check)
    assert lines[-1] == last
    assert shard_lines({**found, "serving": []}, "b", check) == lines[:-1]
    assert "./trispark play" in last


def test_what_may_be_served_is_in_the_report_of_a_refusal() -> None:
    wrong = answer(files=[{**FILE, "state": "wrong_content"}], serving=["e1"])
    found = report({"b": {"failed": True, "answer": {"ok": False, "error": {"id": "TS-ENGRAM-CONTENT"}, **wrong}}})
    assert found["lines"][-1] == f"b e1 {STOP_IT}"
    assert found["published"]["shards"]["b"]["serving"] == ["e1"]


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (4096, "4.10 kB"), (10**9, "1.00 GB")])
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text
