"""Which generation a rollback goes to."""

from __future__ import annotations

import pytest

from trispark.errors import TrisparkError
from trispark.rollback import choose, plan_lines


def node(current, held, good, damaged=None):
    return {
        "current": current,
        "generations": held,
        "damaged": damaged or {},
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


GOOD = ["g1", "g2", "g3"]
BROKEN = fleet(
    node("g4", [*GOOD, "g4"], GOOD),
    node("g4", [*GOOD, "g4"], GOOD, {"g3": "changed: launch.args"}),
    node("g4", [*GOOD, "g4"], GOOD),
)


@pytest.mark.parametrize("to", ["", "previous"])
def test_a_damaged_good_generation_is_passed_over_and_named(to) -> None:
    target = choose(BROKEN, to, "g9")
    assert target.generation == "g2"
    assert "passed over: g3, damaged on spark1 (changed: launch.args)" in target.reason


def test_a_good_generation_that_a_node_lacks_is_passed_over_and_named() -> None:
    lacking = {**BROKEN, "spark1": node("g4", ["g1", "g2"], GOOD)}
    target = choose(lacking, "", None)
    assert target.generation == "g2"
    assert "passed over: g3, not on spark1" in target.reason


def test_without_a_whole_good_one_the_baseline_is_next() -> None:
    damaged = dict.fromkeys(GOOD, "missing: SHA256SUMS")
    target = choose(fleet(*[node("g4", [*GOOD, "g4"], GOOD, damaged)] * 3), "", "g4")
    assert target.generation == "g4"
    assert all(f"{name}, damaged on spark0" in target.reason for name in GOOD)


def test_what_is_damaged_is_refused_by_its_id_and_the_next_good_one_named() -> None:
    with pytest.raises(TrisparkError) as caught:
        choose(BROKEN, "g3", "g9")
    assert (caught.value.id, caught.value.observed) == (
        "TS-ROLLBACK-TARGET",
        "g3, damaged on spark1 (changed: launch.args)",
    )
    assert "--to g2" in caught.value.remedy


def test_nothing_whole_says_what_is_wrong_where() -> None:
    damaged = dict.fromkeys([*GOOD, "g4"], "missing: SHA256SUMS")
    with pytest.raises(TrisparkError) as caught:
        choose(fleet(node("g4", [*GOOD, "g4"], GOOD, damaged), *[node("g4", [*GOOD, "g4"], GOOD)] * 2), "", "g4")
    assert "g1, damaged on spark0" in caught.value.observed
    assert "the baseline g4, damaged on spark0" in caught.value.observed
    assert "not every node" in caught.value.what


@pytest.mark.parametrize(
    ("statuses", "where"), [({}, "all nodes"), (dict.fromkeys(("spark0", "spark1")), "spark0, spark1")]
)
def test_without_any_answer_nothing_is_touched(statuses, where) -> None:
    with pytest.raises(TrisparkError) as caught:
        choose(statuses, "", "g1", {"spark1": "Connection refused"})
    assert (caught.value.id, caught.value.where) == ("TS-ROLLBACK-NODE", where)
    assert not statuses or "spark1: Connection refused" in caught.value.observed


def test_a_silent_node_is_no_obstacle_and_is_named() -> None:
    two = fleet(*[node("g2", ["g1", "g2"], ["g1"])] * 2)
    target = choose({**two, "spark2": None}, "", None, {"spark2": "No route to host"})
    assert (target.generation, dict(target.missing)) == ("g1", {"spark2": "No route to host"})
    lines = plan_lines(target, {**two, "spark2": None}, 4.0, 20.0)
    assert len(lines) == 2
    assert lines[1].endswith("ends DEGRADED, nothing serves: missing spark2 (No route to host)")


def test_what_could_not_be_started_is_passed_over_like_what_is_damaged() -> None:
    lacking = {**node("g4", [*GOOD, "g4"], GOOD), "unstartable": {"g3": "the image x@sha256:1 is not on this node"}}
    statuses = {**fleet(*[node("g4", [*GOOD, "g4"], GOOD)] * 3), "spark2": lacking}
    target = choose(statuses, "good", None)
    assert target.generation == "g2"
    assert "g3, cannot start on spark2 (the image x@sha256:1 is not on this node)" in target.reason


LONG = "g0123456789abcdef"
OTHER = "g0123999999abcdef"


@pytest.mark.parametrize(
    ("to", "expected"),
    [(LONG, LONG), ("g01234", LONG), ("g0123999", OTHER), ("baseline", "g1"), ("good", OTHER), ("previous", OTHER)],
)
def test_what_a_person_may_type(to, expected) -> None:
    statuses = fleet(*[node(LONG, ["g1", LONG, OTHER], [OTHER])] * 3)
    assert choose(statuses, to, "g1").generation == expected


@pytest.mark.parametrize(("to", "baseline"), [("g0123", "g1"), ("g0", "g1"), ("latest", "g1"), ("baseline", None)])
def test_what_is_meant_by_nobody_or_by_two_is_refused(to, baseline) -> None:
    statuses = fleet(*[node(LONG, ["g1", LONG, OTHER], [OTHER])] * 3)
    with pytest.raises(TrisparkError) as caught:
        choose(statuses, to, baseline)
    assert caught.value.id == "TS-ROLLBACK-TARGET"


@pytest.mark.parametrize(
    ("engines", "boot_s", "second"),
    [
        (3, 20.4, "stops the engine of spark0, spark1, spark2 within 4 s a step; then boots it on all ranks, gates and "
         "canary, about 20 s"),
        (1, None, "stops the engine of spark0 within 4 s a step; then boots it on all ranks, gates and canary"),
        (0, None, "no engine has to be stopped; then boots it on all ranks, gates and canary"),
    ],
)  # fmt: skip
def test_two_lines_say_what_will_happen(engines, boot_s, second) -> None:
    state = node("g2", ["g1", "g2"], ["g1"])
    statuses = fleet(*[{**state, "engine": {"state": "running"} if rank < engines else None} for rank in range(3)])
    target = choose(statuses, "", None)
    assert plan_lines(target, statuses, 4.0, boot_s) == ["from g2 to g1: the last good generation", second]


@pytest.mark.parametrize(("to", "held"), [("baseline", ["g1"]), ("", [])])
def test_why_the_baseline_is_not_known_is_said_where_it_would_be_the_target(to, held) -> None:
    statuses = fleet(*[node("g1", ["g1"], held)] * 3)
    with pytest.raises(TrisparkError) as caught:
        choose(statuses, to, None, None, "TS-SITE-SCHEMA: hosts.yml cannot be read")
    assert caught.value.id == "TS-ROLLBACK-TARGET"
    assert "TS-SITE-SCHEMA: hosts.yml cannot be read" in caught.value.observed
