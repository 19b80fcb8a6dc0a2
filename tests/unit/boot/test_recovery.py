"""What a controller that died left, as the nodes tell it, and what ends it."""

from __future__ import annotations

from typing import Any

import pytest

from trispark.errors import TrisparkError
from trispark.recovery import Incomplete, judge, orphan_facts, require_complete

BOOT = "b20260102T030405Z-a1b2"
NODES = ("spark0", "spark1", "spark2")
GONE = {"unreachable": True, "msg": "No route to host"}


def node(engine: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "answer": {
            "ok": True,
            "engine": engine,
            "pending": [],
            "rollback": None,
            "epoch": 6,
            "record_chain": "ok",
            **changes,
        }
    }


def engine(boot: str = BOOT, record: str | None = None, state: str = "running", epoch: int = 7) -> dict[str, Any]:
    return {"boot_id": boot, "generation": "g1", "epoch": epoch, "state": state, "record": record}


def fleet(*nodes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"spark{rank}": state for rank, state in enumerate(nodes)}


ROLLBACK = {"target": "g1", "epoch": 6, "since": "2026-01-02T03:04:05Z", "missing": ["spark2"]}


@pytest.mark.parametrize(
    ("results", "outcomes", "expected"),
    [
        (fleet(*[node()] * 3), {}, {}),
        (fleet(*[node(engine(record="valid"))] * 3), {}, {}),
        (fleet(*[node(engine())] * 3), {BOOT: "valid"}, {}),
        (fleet(*[node(engine())] * 3), {}, {"orphans": [BOOT], "stop": True}),
        (fleet(node(), node(engine(state="created")), node()), {}, {"orphans": [BOOT], "stop": True}),
        (fleet(node(engine(record="valid")), node(engine()), node()), {}, {}),
        (fleet(*[node(engine(record="invalid"))] * 3), {}, {"stop": True}),
        (fleet(*[node(engine())] * 3), {BOOT: "failed"}, {"stop": True}),
        (fleet(*[node(engine(record="failed", state="exited"))] * 3), {}, {}),
        (fleet(*[node(engine("hand-1"))] * 3), {}, {"by_hand": ["hand-1"]}),
        (fleet(node(pending=[{"verb": "stop"}]), node(), node()), {}, {"agents": ["spark0"]}),
        (fleet(*[node(rollback=ROLLBACK)] * 3), {}, {"completes": "g1"}),
        (fleet(node(rollback=ROLLBACK), node(rollback=ROLLBACK), GONE), {}, {"waits": ("spark2",)}),
        (fleet(node(rollback=ROLLBACK), node(), node()), {}, {"completes": "g1"}),
        (fleet(*[node(engine(), rollback=ROLLBACK)] * 3), {}, {"orphans": [BOOT], "stop": True, "completes": "g1"}),
        (fleet(*[node(engine(record="valid"), rollback=ROLLBACK)] * 3), {}, {"clear": ["spark0", "spark1", "spark2"]}),
        (
            fleet(node(engine(), rollback=ROLLBACK), node(engine()), node(engine())),
            {BOOT: "valid"},
            {"clear": ["spark0"]},
        ),
        (fleet(*[node(engine("hand-1"), rollback=ROLLBACK)] * 3), {}, {"clear": list(NODES), "by_hand": ["hand-1"]}),
        (fleet(node(rollback=ROLLBACK), node(epoch=7), node()), {}, {"clear": ["spark0"]}),
        (fleet(node(rollback=ROLLBACK), node(epoch=7), GONE), {}, {"clear": ["spark0"]}),
        (fleet(*[node(rollback={**ROLLBACK, "missing": []})] * 3), {}, {"failed": "g1"}),
        (fleet(*[node(engine(), record_chain="damaged")] * 3), {}, {"untold": [BOOT]}),
        (
            fleet(*[node({key: value for key, value in engine().items() if key != "record"})] * 3),
            {},
            {"untold": [BOOT]},
        ),
        (fleet(node(engine()), node(engine()), GONE), {}, {"orphans": [BOOT], "stop": True}),
        ({}, {}, {}),
    ],
)
def test_what_was_left(results, outcomes, expected) -> None:
    found = judge(results, outcomes)
    assert [each.boot_id for each in found.orphans] == expected.get("orphans", [])
    assert found.stop is expected.get("stop", False)
    assert list(found.agents) == expected.get("agents", [])
    assert list(found.by_hand) == expected.get("by_hand", [])
    assert found.completes == expected.get("completes", "")
    assert list(found.clear) == expected.get("clear", [])
    assert list(found.untold) == expected.get("untold", [])
    failed = found.incomplete.target if found.incomplete and not found.incomplete.waited else ""
    assert failed == expected.get("failed", "")
    waits = expected.get("waits", ())
    assert (found.incomplete.still_missing if found.incomplete else ()) == waits
    assert bool(found.lines()) is bool(expected)
    if waits:
        with pytest.raises(TrisparkError) as caught:
            require_complete(found)
        assert (caught.value.id, caught.value.where) == ("TS-RECOVER-NODE", "spark2")
    else:
        require_complete(found)


def test_a_node_that_is_down_alone_hinders_nobody_here() -> None:
    """The verb that follows says what it needs of the nodes itself."""
    require_complete(judge(fleet(node(), node(), GONE), {}))


def test_the_newest_rollback_counts() -> None:
    older = {**ROLLBACK, "target": "g9", "epoch": 5}
    found = judge(fleet(node(rollback=older), node(rollback=ROLLBACK), node()), {})
    assert found.incomplete == Incomplete("g1", 6, ROLLBACK["since"], ("spark2",), ())


def test_the_facts_of_an_orphan_name_the_reason_on_every_node() -> None:
    (orphan,) = judge(fleet(node(), node(engine()), node(engine())), {}).orphans
    assert orphan.nodes == ("spark1", "spark2")
    facts = orphan_facts(orphan, ["spark0", "spark1", "spark2"])
    assert set(facts) == {"spark0", "spark1", "spark2"}
    assert all(each["failure"]["result"]["msg"].startswith("TS-RECOVER-BOOT: ") for each in facts.values())
