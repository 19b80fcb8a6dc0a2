"""Whatever differs between the boots of a trial beside the one change is named, and the trial refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from trispark.catalog import Catalog
from trispark.drift import boot_drift, declared_names, require_no_drift
from trispark.errors import TrisparkError
from trispark.record_diff import PARTS, diff_lines, diff_records
from trispark.records import RecordCache
from trispark.resolve import Resolution, compare
from trispark.trial_outcome import TrialBoots, incomparable, record_trial
from trispark.walk_plan import TrialOfWalk, WalkPlan

Maker = Callable[..., dict[str, Any]]


def edited(record: Mapping[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    found = copy.deepcopy(dict(record))
    change(found)
    return found


def rank(record: dict[str, Any], number: int, part: str = "observed") -> dict[str, Any]:
    ranks: list[dict[str, Any]] = record[part]["ranks"]
    return ranks[number]


@pytest.fixture
def pair(boot_record: Maker) -> tuple[dict[str, Any], dict[str, Any]]:
    """A baseline boot and a candidate boot of the same trial, each with its own port and generation."""
    return boot_record(trial="t1"), boot_record("candidate", trial="t1")


@pytest.fixture
def declared(baseline: Resolution, candidate: Resolution) -> frozenset[str]:
    return declared_names(compare(baseline, candidate))


def test_the_change_that_is_tried_is_no_drift(
    pair: tuple[dict[str, Any], dict[str, Any]], declared: frozenset[str]
) -> None:
    assert boot_drift(*pair, declared) == ()
    assert {drift.name for drift in boot_drift(*pair)} == {
        "DSV41_WO_A_W8",
        *(f"DSV41_WO_A_W8 of rank {number}" for number in range(3)),
    }
    require_no_drift([("baseline", pair[0]), ("candidate", pair[1])], declared)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda r: rank(r, 1).update(container_id="other"), id="container"),
        pytest.param(lambda r: rank(r, 1).update(started_at="2026-01-01T09:00:00Z"), id="start"),
        pytest.param(lambda r: r.update(epoch=99, boot_id="b9"), id="boot"),
        pytest.param(lambda r: r["timings"]["phases"].update(total=9.0), id="times"),
        pytest.param(lambda r: [layer.update(lookups=9, reads=9) for layer in rank(r, 1)["engram"]], id="counters"),
        pytest.param(
            lambda r: rank(r, 1).update(command=[a.replace(":20002", ":20003") for a in rank(r, 1)["command"]]),
            id="port",
        ),
    ],
)
def test_what_belongs_to_a_boot_is_no_drift(
    pair: tuple[dict[str, Any], dict[str, Any]], declared: frozenset[str], change: Callable[[dict[str, Any]], object]
) -> None:
    assert boot_drift(pair[0], edited(pair[1], change), declared) == ()


def _other_command(record: dict[str, Any]) -> None:
    command = rank(record, 2)["command"]
    command[command.index("--context-length") + 1] = "1"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda r: r.update(site="other"), "site"),
        (lambda r: r["project"].update(commit="0" * 40), "project commit"),
        (lambda r: r["project"].update(dirty=True), "changed files in the project"),
        (lambda r: r["resolved"].update(image="x@sha256:" + "9" * 64), "image"),
        (lambda r: r["resolved"]["settings"].update(EP_SIZE=1), "EP_SIZE"),
        (lambda r: r["resolved"]["adapters"].update({"sitecustomize.py": "0" * 64}), "adapters/sitecustomize.py"),
        (lambda r: r["resolved"]["adapters"].pop("sitecustomize.py"), "adapters/sitecustomize.py"),
        (lambda r: rank(r, 1, "resolved").update(node="spark9"), "node of rank 1"),
        (lambda r: rank(r, 2, "resolved")["mounts"][0].update(source="/elsewhere"), "mounts of rank 2"),
        (lambda r: r["resolved"]["ranks"].pop(), "rank 2"),
        (lambda r: rank(r, 1).update(image_id="sha256:" + "9" * 64), "image id of rank 1"),
        (lambda r: rank(r, 0)["env"].update(NCCL_NET="Socket"), "NCCL_NET of rank 0"),
        (lambda r: rank(r, 0)["env_withheld"].append("LD_PRELOAD"), "LD_PRELOAD of rank 0"),
        (_other_command, "--context-length of rank 2"),
        (lambda r: rank(r, 2)["adapters"].update({"smuggled.py": "0" * 64}), "adapters/smuggled.py of rank 2"),
        (lambda r: rank(r, 0)["versions"].update(kernel="6.1.2"), "kernel of rank 0"),
        (lambda r: rank(r, 0)["versions"]["packages"].update(numpy="9"), "package numpy of rank 0"),
        (lambda r: rank(r, 1)["versions"]["kernel_packages"].clear(), "kernel package linux-image-amd64 of rank 1"),
        (lambda r: rank(r, 1)["engram"][0].update(packed=False), "Engram shard of layer 1 of rank 1"),
        (lambda r: rank(r, 1)["engram"][1].update(end_row=7), "Engram shard of layer 14 of rank 1"),
    ],
)
def test_every_undeclared_difference_is_refused_by_name(
    pair: tuple[dict[str, Any], dict[str, Any]],
    declared: frozenset[str],
    change: Callable[[dict[str, Any]], object],
    named: str,
) -> None:
    arms = [("baseline", pair[0]), ("candidate", edited(pair[1], change))]
    with pytest.raises(TrisparkError) as caught:
        require_no_drift(arms, declared)
    assert caught.value.id == "TS-TRIAL-DRIFT"
    assert caught.value.what.startswith(f"{named} is not the same")
    assert f"{named}: " in caught.value.observed
    assert pair[0]["boot_id"] in caught.value.where


def test_boots_of_the_plan_that_measured_the_same_can_be_compared(
    pair: tuple[dict[str, Any], dict[str, Any]],
    baseline: Resolution,
    candidate: Resolution,
    declared: frozenset[str],
) -> None:
    arms = [("baseline", baseline, pair[0]), ("candidate", candidate, pair[1])]
    assert incomparable(arms, declared) is None


def test_a_boot_of_another_generation_than_the_planned_one_is_not_compared(
    pair: tuple[dict[str, Any], dict[str, Any]],
    baseline: Resolution,
    candidate: Resolution,
    declared: frozenset[str],
) -> None:
    """Both boots ran the baseline: their difference would be noise under the candidate's name."""
    second = edited(pair[0], lambda record: record.update(boot_id="b2"))
    said = incomparable([("baseline", baseline, pair[0]), ("candidate", candidate, second)], declared)
    assert said is not None
    assert said.startswith("TS-TRIAL-ARM: a boot of the candidate did not run the planned configuration; where: b2; ")
    assert f"expected: {candidate.id}; observed: {baseline.id}" in said


@pytest.mark.parametrize("change", [{"repetitions": 99}, {"max_tokens": 1}, {"workloads": {"prose": ["f" * 64]}}])
def test_boots_that_measured_other_work_are_not_compared(
    pair: tuple[dict[str, Any], dict[str, Any]],
    baseline: Resolution,
    candidate: Resolution,
    declared: frozenset[str],
    change: dict[str, Any],
) -> None:
    second = edited(pair[1], lambda record: record["bench"]["input"].update(change))
    said = incomparable([("baseline", baseline, pair[0]), ("candidate", candidate, second)], declared)
    assert said is not None
    assert said.startswith("TS-TRIAL-INPUT: the boots of the trial did not measure the same work; where: ")
    assert f"{pair[0]['boot_id']}" in said
    assert "observed: 2 different inputs" in said


def test_between_boots_of_one_arm_nothing_is_declared(boot_record: Maker, declared: frozenset[str]) -> None:
    first = boot_record(trial="t1")
    again = edited(boot_record(trial="t1"), lambda r: r["resolved"]["settings"].update(DSV41_WO_A_W8=1))
    with pytest.raises(TrisparkError) as caught:
        require_no_drift([("baseline", first), ("baseline", again)], declared)
    assert caught.value.what.startswith("DSV41_WO_A_W8 is not the same")


def test_what_a_declared_image_brings_with_it_is_declared(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    def change(record: dict[str, Any]) -> None:
        record["resolved"].update(image="x@sha256:" + "9" * 64)
        for seen in record["observed"]["ranks"]:
            seen.update(image_id="sha256:" + "9" * 64, image_digests=["x@sha256:" + "9" * 64])
            seen["versions"]["packages"].update(numpy="9")

    other = edited(pair[0], change)
    assert boot_drift(pair[0], other, {"image"}) == ()
    assert boot_drift(pair[0], edited(other, lambda r: rank(r, 0)["versions"].update(kernel="9")), {"image"})


def test_a_rank_that_was_not_seen_is_compared_by_its_plan_alone(
    pair: tuple[dict[str, Any], dict[str, Any]], declared: frozenset[str]
) -> None:
    def lose(record: dict[str, Any]) -> None:
        record["observed"]["ranks"][1] = {"rank": 1, "node": "spark1", "seen": False}

    assert boot_drift(pair[0], edited(pair[1], lose), declared) == ()


def trial(
    project: Path, catalog: Catalog, cache: RecordCache, records: list[dict[str, Any]], walk: WalkPlan
) -> dict[str, Any]:
    for record in records:
        cache.add(record)
    return record_trial(
        project,
        catalog.allowlist,
        walk,
        TrialBoots(walk.trials[0], (records[0],), (records[1],), None),
        cache,
        restored_boot=records[0]["id"],
        began="2026-01-01T00:00:00Z",
        previous=cache.head(),
        now=datetime(2026, 1, 2, tzinfo=UTC),
    )


@pytest.fixture
def walk(baseline: Resolution, candidate: Resolution) -> WalkPlan:
    one = TrialOfWalk("t1", "p1", None, "wo_a", (), baseline.id, candidate.id)
    resolved = {side.id: side.resolved for side in (baseline, candidate)}
    return WalkPlan("t1", "lab", "c", "wo_a", None, baseline.id, None, (), (one,), resolved)


def test_a_trial_is_recorded_when_only_the_change_differs(
    project: Path,
    catalog: Catalog,
    pair: tuple[dict[str, Any], dict[str, Any]],
    walk: WalkPlan,
    tmp_path: Path,
) -> None:
    record = trial(project, catalog, RecordCache(tmp_path), list(pair), walk)
    assert record["kind"] == "trial"
    assert [boot["arm"] for boot in record["boots"]] == ["baseline", "candidate"]
    assert not record["outcome"]["reason"].startswith("TS-")


@pytest.mark.parametrize(
    ("boot", "named"),
    [
        ({"commit": "0" * 40}, "project commit"),
        ({"change": lambda seen: seen["spark2"]["versions"]["kernel"].update(release="9")}, "kernel of rank 2"),
        ({"change": lambda seen: seen["spark1"]["env"].update(NCCL_NET="Socket")}, "NCCL_NET of rank 1"),
    ],
)
def test_a_trial_with_a_smuggled_change_decides_nothing_and_names_it(
    project: Path,
    catalog: Catalog,
    boot_record: Maker,
    walk: WalkPlan,
    tmp_path: Path,
    boot: dict[str, Any],
    named: str,
) -> None:
    records = [boot_record(trial="t1"), boot_record("candidate", trial="t1", **boot)]
    outcome = trial(project, catalog, RecordCache(tmp_path), records, walk)["outcome"]
    assert outcome["verdict"] == "INCONCLUSIVE"
    assert outcome["reason"].startswith(f"TS-TRIAL-DRIFT: {named} is not")
    assert outcome["differences"] == {}


def test_two_boots_are_compared_in_words(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    differences = diff_records(*pair)
    assert list(differences) == ["requested", "resolved", "observed"]
    assert diff_lines(differences) == [
        "requested:",
        "  arm: baseline and candidate",
        "  feature: nothing and wo_a",
        "resolved:",
        "  DSV41_WO_A_W8 of ranks 0, 1, 2: 0 and 1",
        "observed:",
        "  DSV41_WO_A_W8 of ranks 0, 1, 2: 0 and 1",
    ]


def test_the_same_boot_twice_has_no_difference(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert diff_records(pair[0], pair[0]) == {}
    assert diff_lines({}) == ["no difference in what was asked for, resolved and observed"]


def test_overrides_and_outcome_are_differences_too(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    def change(record: dict[str, Any]) -> None:
        record["requested"]["overrides"] = {"EP_SIZE": "1"}
        record["outcome"].update(state="invalid", reason="a gate failed")

    lines = diff_lines(diff_records(pair[0], edited(pair[0], change)))
    assert "  override EP_SIZE: nothing and 1" in lines
    assert "  state: valid and invalid" in lines


def test_trials_are_compared_by_arms_and_change(
    project: Path,
    catalog: Catalog,
    pair: tuple[dict[str, Any], dict[str, Any]],
    walk: WalkPlan,
    tmp_path: Path,
) -> None:
    first = trial(project, catalog, RecordCache(tmp_path), list(pair), walk)

    def change(record: dict[str, Any]) -> None:
        record["resolved"].update(candidate="g" + "0" * 16, changed={"EP_SIZE": {"baseline": 3, "candidate": 1}})
        record["project"]["commit"] = "1" * 40

    second = edited(first, change)
    differences = diff_records(first, second)
    assert set(differences) <= set(PARTS)
    lines = diff_lines(differences)
    assert "  change of DSV41_WO_A_W8: 0 to 1 and nothing" in lines
    assert "  change of EP_SIZE: nothing and 3 to 1" in lines
    assert any(line.startswith("  generation of the candidate: ") for line in lines)
    with pytest.raises(TrisparkError) as caught:
        diff_records(first, pair[0])
    assert caught.value.id == "TS-RECORD-KIND"


def test_declared_names_are_those_of_the_plan(baseline: Resolution, candidate: Resolution) -> None:
    other = replace(candidate, resolved={**candidate.resolved, "image": "x@sha256:" + "1" * 64})
    assert "image" in declared_names(compare(baseline, other))
