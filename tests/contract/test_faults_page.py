"""The page of faults is made of results, and every fault that was asked for has a row that passed."""

from __future__ import annotations

import json

import pytest
from fault_page import PAGE, RESULTS, at_a_word, page

ASKED_FOR = {
    "node killed", "node paused", "SSH refused", "SSH hanging", "one edge of the triangle cut", "controller SIGKILL",
    "controller SIGTERM", "controller SIGINT", "Docker Engine stopped", "stop hanging", "image missing",
    "wrong digest on one node", "registry down", "disk full on shards", "disk full on records",
    "disk full on generation store", "read-only file system", "permission denied", "truncated shard", "swapped shard",
    "changed shard", "env drift by hand", "stale container with our name and no label", "port in use",
    "foreign process", "clock wrong by an hour", "OOM kill", "rank exits after ready", "engine hangs in start",
    "log without end", "two operators", "dead lock holder", "journal cut in the middle of a line", "interrupted prune",
    "node rebooted in the middle of an activation",
}  # fmt: skip


def test_the_page_is_made_of_the_results() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == page(results), "run: python tests/support/fault_page.py"


@pytest.mark.parametrize(
    ("observed", "shown"),
    [
        ("killed after 4 s; serves again", "killed after 4 s; serves again"),
        (f"FAILED: {'word ' * 19}where; mended: it serves", f"FAILED: {'word ' * 19}...; mended: it serves"),
        (f"FAILED: {'word ' * 17}where; its engine is stopped", f"FAILED: {'word ' * 17}...; its engine is stopped"),
        (f"FAILED: {'word ' * 19}wher", f"FAILED: {'word ' * 19}wher"),
    ],
    ids=["short", "cut at 100", "cut at 90", "99 letters"],
)
def test_what_was_cut_ends_with_a_word(observed: str, shown: str) -> None:
    assert at_a_word(observed) == shown


def test_every_fault_has_a_row_and_every_row_passed() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert {row["fault"] for row in results["default"]} >= ASKED_FOR
    assert {row["phase"] for row in results["further"]} >= {"boot", "serving", "trial", "rollback"}
    rows = [*results["default"], *results["further"]]
    assert [row["fault"] for row in rows if not row["passed"]] == []
    assert all(row["observed"] and row["promised"] and row["injected"] for row in rows)
