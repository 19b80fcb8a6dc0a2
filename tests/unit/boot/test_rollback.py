"""Which generation a rollback goes to."""

from __future__ import annotations

import pytest

from trispark.errors import TrisparkError
from trispark.rollback import choose


def node(current, held, good):
    return {
        "current": current,
        "generations": held,
        "good": [{"generation": g, "boot_id": "b", "time": ""} for g in good],
    }


def fleet(*nodes):
    return {f"spark{rank}": state for rank, state in enumerate(nodes)}


@pytest.mark.parametrize(
    ("statuses", "to", "baseline", "expected"),
    [
        (fleet(*[node("g2", ["g1", "g2"], ["g1"])] * 3), "", "g1", "g1"),
        (fleet(*[node("g1", ["g1", "g2"], ["g2", "g1"])] * 3), "", "g9", "g1"),
        (fleet(*[node("g1", ["g1", "g2"], ["g2", "g1"])] * 3), "previous", "g9", "g2"),
        (fleet(*[node("g1", ["g1", "g2"], ["g1"])] * 3), "g2", None, "g2"),
        (fleet(*[node("g2", ["g1", "g2"], [])] * 3), "", "g1", "g1"),
        (fleet(node("g2", ["g1", "g2"], ["g1", "g2"]), *[node("g2", ["g1", "g2"], ["g1"])] * 2), "", "g1", "g1"),
        (fleet(node("g2", ["g1", "g2"], ["g1", "g2"]), *[node("g2", ["g1"], ["g1", "g2"])] * 2), "", "g1", "g1"),
        (fleet(*[node("g1", ["g1", "g2"], ["g1", "g2", "g1"])] * 3), "", None, "g1"),
    ],
    ids=["last-good", "current-again", "previous", "by-id", "baseline", "good-on-all", "held-by-all", "marked-again"],
)
def test_target(statuses, to, baseline, expected) -> None:
    assert choose(statuses, to, baseline).generation == expected


@pytest.mark.parametrize(
    ("statuses", "to", "baseline"),
    [
        (fleet(*[node("g1", ["g1"], ["g1"])] * 3), "g7", "g1"),
        (fleet(*[node("g1", ["g1"], ["g1"])] * 3), "previous", "g1"),
        (fleet(*[node("g1", ["g1"], [])] * 3), "", None),
        (fleet(*[node("g1", ["g1"], [])] * 3), "", "g5"),
    ],
    ids=["not-held", "no-previous", "nothing", "baseline-not-held"],
)
def test_no_target_is_a_named_refusal(statuses, to, baseline) -> None:
    with pytest.raises(TrisparkError) as caught:
        choose(statuses, to, baseline)
    assert caught.value.id == "TS-ROLLBACK-TARGET"


@pytest.mark.parametrize("statuses", [{}, {**fleet(*[node("g1", ["g1"], ["g1"])] * 2), "spark2": None}])
def test_a_silent_node_is_named(statuses) -> None:
    with pytest.raises(TrisparkError) as caught:
        choose(statuses, "", "g1")
    assert caught.value.id == "TS-ROLLBACK-NODE"
    assert caught.value.where == ("spark2" if statuses else "all nodes")
