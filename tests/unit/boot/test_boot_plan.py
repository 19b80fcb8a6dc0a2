"""What a plan takes from the nodes' answers."""

from __future__ import annotations

import copy
from datetime import UTC, datetime

import pytest

from trispark.boot_plan import Moment, is_serving, next_epoch, plan_stored, table_rows
from trispark.errors import TrisparkError

ENGINE = {"state": "running", "health": "ready", "generation": "g1", "boot_id": "b1", "epoch": 3}
SERVING = {f"spark{rank}": {"current": "g1", "epoch": 3, "engine": dict(ENGINE)} for rank in range(3)}


def changed(node, **fields):
    statuses = copy.deepcopy(SERVING)
    statuses[node]["engine"].update(fields)
    return statuses


def without(node, key):
    statuses = copy.deepcopy(SERVING)
    statuses[node][key] = None
    return statuses


@pytest.mark.parametrize(
    ("statuses", "generation", "expected"),
    [
        (SERVING, "g1", True),
        (SERVING, "g2", False),
        (changed("spark2", state="exited"), "g1", False),
        (changed("spark1", health="starting"), "g1", False),
        (changed("spark1", boot_id="b0"), "g1", False),
        (changed("spark0", generation="g0"), "g1", False),
        (without("spark2", "engine"), "g1", False),
        (without("spark2", "current"), "g1", False),
        ({"spark0": SERVING["spark0"]}, "g1", False),
        ({}, "g1", False),
    ],
    ids=["all", "other", "exited", "starting", "two-boots", "odd", "no-engine", "no-current", "one-node", "none"],
)
def test_only_one_healthy_boot_on_all_ranks_is_serving(statuses, generation, expected) -> None:
    assert is_serving(statuses, generation, 3) == expected


@pytest.mark.parametrize(("epochs", "expected"), [([], 1), ([0, 0, 0], 1), ([4, 7, 2], 8), ([None, 1, 0], 2)])
def test_the_epoch_is_above_what_any_node_has_seen(epochs, expected) -> None:
    assert next_epoch({str(i): {"epoch": epoch} for i, epoch in enumerate(epochs)}) == expected


def test_an_engine_counts_where_its_nodes_epoch_file_is_damaged() -> None:
    statuses = {"spark0": {"epoch": 2, "engine": None}, "spark1": {"epoch": 0, "engine": {"epoch": 7}}}
    assert next_epoch(statuses) == 8


def test_boot_ids_sort_by_time() -> None:
    first = Moment(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "ffff")
    second = Moment(datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC), "0000")
    assert first.boot_id == "b20260102T030405Z-ffff" < second.boot_id
    assert first.utc == "2026-01-02T03:04:05Z"


PLAN = {"nodes": {"a": {"rank": 0}, "c": {"rank": 2}, "b": {"rank": 1}}, "layers": [1, 14]}
FILES = {"files": [{"layer": 1, "end_row": 300}, {"layer": 14, "end_row": 400}]}


def test_the_last_ranks_end_row_is_the_size_of_the_table() -> None:
    assert table_rows(PLAN, {"a": {"files": []}, "c": FILES}) == {1: 300, 14: 400}


@pytest.mark.parametrize(
    "shards", [{}, {"a": FILES}, {"c": {"files": FILES["files"][:1]}}], ids=["none", "wrong", "one"]
)
def test_unknown_sizes_are_refused(shards) -> None:
    with pytest.raises(TrisparkError) as caught:
        table_rows(PLAN, shards)
    assert caught.value.id == "TS-GATE-SHARDS"


def currents(*generations: str | None):
    return {f"spark{rank}": {"current": generation} for rank, generation in enumerate(generations)}


@pytest.mark.parametrize(
    ("statuses", "error_id", "words"),
    [
        (currents(None, None, None), "TS-VERIFY-NONE", "play site"),
        (currents("g1", "", "g1"), "TS-VERIFY-NONE", "where: spark1; "),
        ({}, "TS-VERIFY-NONE", "all nodes"),
        (currents("g1", "g1", "g2"), "TS-VERIFY-DIFFERS", "spark2 g2; do: ./trispark play rollback"),
    ],
    ids=["none", "one-without", "no-node", "two"],
)
def test_what_cannot_be_verified_is_said_in_the_words_of_a_look(statuses, error_id, words) -> None:
    """Before anything stored is looked at: a node without a current generation has shown none."""
    stored = {node: None for node in statuses}
    with pytest.raises(TrisparkError) as caught:
        plan_stored(purpose="verify", stored=stored, statuses=statuses, moment=Moment.current())
    assert caught.value.id == error_id
    assert words in str(caught.value)
    assert "rollback_to" not in str(caught.value)


def test_copies_that_differ_under_one_id_name_the_verb_that_helps() -> None:
    stored = {f"spark{rank}": {"generation": "g1", "resolved": {"rank": rank}} for rank in range(2)}
    with pytest.raises(TrisparkError) as caught:
        plan_stored(purpose="verify", stored=stored, statuses=currents("g1", "g1"), moment=Moment.current())
    assert caught.value.id == "TS-ROLLBACK-DIFFERS"
    assert "where: g1; " in str(caught.value)
    assert "./trispark play rollback -e rollback_to=ID" in str(caught.value)
