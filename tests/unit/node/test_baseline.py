"""The promoted baseline of a node: written whole or not at all, only with its record, and always undone."""

from __future__ import annotations

import pytest

from trispark_node import baseline
from trispark_node.fields import Fields
from trispark_node.mutation import Mode, mutate

SETTINGS = {"DSV41_WO_A_W8": 1, "DSV41_CACHE_GIB": 0.25, "OFFLOAD_MODE": "nvme"}


def record(bench, record_id):
    head = bench.ask("record-head")["head"]
    previous = {"seq": head["seq"], "hash": head["hash"]} if head else None
    body = {"id": record_id, "seq": previous["seq"] + 1 if previous else 1, "previous": previous}
    return bench.ask("record-append", record=body, previous=previous)["head"]


def promoted(head, **changes):
    return {
        "schema_version": 1,
        "settings": SETTINGS,
        "record": head["id"],
        "record_hash": head["hash"],
        "time": "2026-01-02T03:04:05Z",
        **changes,
    }


def test_a_promotion_is_shown_by_status_and_undone(bench):
    assert bench.ask("baseline-show")["baseline"] is None
    first, second = record(bench, "t1"), record(bench, "t2")
    assert bench.ask("baseline-set", baseline=promoted(first), replaces="shipped")["changed"]
    before = bench.tree()
    assert not bench.ask("baseline-set", baseline=promoted(first), replaces="shipped")["changed"]
    assert bench.tree() == before
    assert bench.ask("status")["baseline"] == bench.ask("baseline-show")["baseline"] == promoted(first)
    checked = bench.ask("baseline-set", baseline=promoted(second), replaces="t1", check=True)
    assert checked["diff"] == {"before": "baseline t1\n", "after": "baseline t2\n"}
    assert bench.tree() == before
    assert bench.ask("baseline-set", baseline=promoted(second), replaces="t1")["changed"]
    assert bench.ask("baseline-set")["changed"]
    assert bench.ask("status")["baseline"] is None
    assert not bench.ask("baseline-set")["changed"]


def test_a_baseline_that_changed_meanwhile_is_not_replaced(bench):
    first, second = record(bench, "t1"), record(bench, "t2")
    bench.ask("baseline-set", baseline=promoted(first))
    error = bench.refused("baseline-set", baseline=promoted(second), replaces="shipped")
    assert (error["id"], error["expected"], error["observed"]) == ("TS-AGENT-BASELINE", "shipped", "t1")


@pytest.mark.parametrize(
    ("changes", "error_id"),
    [
        ({"record": "t9"}, "TS-AGENT-BASELINE"),
        ({"record_hash": "0" * 64}, "TS-AGENT-BASELINE"),
        ({"record_hash": "0"}, "TS-AGENT-REQUEST"),
        ({"record": "../t1"}, "TS-AGENT-REQUEST"),
        ({"schema_version": 2}, "TS-AGENT-REQUEST"),
        ({"settings": {"lower": 1}}, "TS-AGENT-REQUEST"),
        ({"settings": {"A_KEY": [1]}}, "TS-AGENT-REQUEST"),
        ({"settings": {"A_KEY": None}}, "TS-AGENT-REQUEST"),
        ({"more": 1}, "TS-AGENT-REQUEST"),
    ],
)
def test_a_promotion_without_its_record_or_of_another_shape_is_refused(bench, changes, error_id):
    head = record(bench, "t1")
    assert bench.refused("baseline-set", baseline=promoted(head, **changes))["id"] == error_id
    assert bench.ask("baseline-show")["baseline"] is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"{", b'{"schema_version":1}', b"\xff"])
def test_a_damaged_file_is_a_problem_and_going_back_mends_it(bench, content):
    head = record(bench, "t1")
    bench.node.layout.baseline.write_bytes(content)
    (problem,) = bench.ask("status")["problems"]
    assert problem.startswith("TS-AGENT-DAMAGED")
    assert bench.refused("baseline-set", baseline=promoted(head))["id"] == "TS-AGENT-DAMAGED"
    assert bench.ask("baseline-set")["changed"]
    assert bench.ask("status")["problems"] == []


def test_promotion_killed_at_every_step(bench, crashes):
    old, new = promoted(record(bench, "t1")), promoted(record(bench, "t2"))
    request = baseline.SetRequest.parse(Fields({"baseline": new, "replaces": "t1"}, "request"))

    def operation(disk):
        node = bench.with_disk(disk)
        mutate(node, "baseline-set", Mode(False, 0), lambda: baseline.plan_set(node, request))

    for point in crashes(operation, lambda: bench.ask("baseline-set", baseline=old)):
        assert bench.ask("status")["baseline"] in (old, new), point


def test_the_hosts_identity_changes_with_its_kernel_and_with_process_1(bench):
    first = bench.ask("status")["host_boot"]
    assert first == "0a0b0c0d-0000-4000-8000-000000000001:22"
    stat = bench.procfs / "1/stat"
    stat.write_text(stat.read_text().replace(" 22 ", " 2200 "))
    second = bench.ask("status")["host_boot"]
    (bench.procfs / "sys/kernel/random/boot_id").write_text("another\n")
    assert len({first, second, bench.ask("status")["host_boot"]}) == 3
    (bench.procfs / "1/stat").unlink()
    status = bench.ask("status")
    assert status["host_boot"] is None
    assert "1/stat" in status["problems"][0]
