"""One walk on a site: the lock, what is refused before anything starts, the child runs and what they are given."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trispark import walk_child, walk_run
from trispark.errors import TrisparkError
from trispark.plan import Ground
from trispark.run_events import WALK_PREFIX, FailedEvent, RunEvents
from trispark.walk import BootRequest, ChildEnd, WalkEnd
from trispark.walk_child import Playbooks, child_arguments, child_end, node_statuses
from trispark.walk_journal import Journal
from trispark.walk_plan import plan_walk, walks_directory, was_begun
from trispark.walk_run import Walk, run_walk

WALK = "t20260102T030405Z-a1b2"
NODES = ("spark0", "spark1", "spark2")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, []),
        ({"remote_user": "operator", "forks": 12}, ["--user", "operator", "--forks", "12"]),
        ({"extra_vars": ("feature=wo_a", "@more.yml")}, ["--extra-vars", "feature=wo_a", "--extra-vars", "@more.yml"]),
        ({"vault_ids": ["prod@file"]}, ["--vault-id", "prod@file"]),
        ({"become_password_file": "/run/secret"}, ["--become-password-file", "/run/secret"]),
        ({"private_key_file": None, "check": True, "inventory": ["x"]}, []),
    ],
)
def test_a_child_gets_the_options_that_it_needs(options: dict[str, Any], words: list[str]) -> None:
    assert child_arguments(options) == words


def test_options_that_are_the_defaults_are_left_out() -> None:
    assert child_arguments({"forks": 6, "timeout": 10}, {"forks": 6, "timeout": 10}) == []


@pytest.mark.parametrize("name", ["ask_pass", "become_ask_pass", "ask_vault_pass"])
def test_a_password_that_is_typed_cannot_be_handed_on(name: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        child_arguments({name: True})
    assert caught.value.id == "TS-WALK-PROMPT"


@pytest.fixture
def ground(project: Path, site: Any, catalog: Any) -> Ground:
    return Ground(project, site, catalog, {}, None, site.require_engine_image())


def result(**changes: Any) -> Any:
    empty: dict[str, Any] = {"published": {}, "failures": [], "status": "successful", "rc": 0, "seconds": 1.5}
    return SimpleNamespace(**{**empty, "ok": True, "playbook": "boot", **changes})


def test_the_boots_of_a_walk_are_told_their_place_and_generation(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def run(root: Path, name: str, **options: Any) -> Any:
        assert options["deadline_s"] == 5000
        calls.append((name, {"site": options["site"], "arguments": options["arguments"], **options["extra"]}))
        return result()

    monkeypatch.setattr(walk_child, "run_playbook", run)
    walk = plan_walk(ground, WALK, "c", "wo_a")
    children = Playbooks(tmp_path, walk, ["--forks", "3"], 5000)
    children.boot(BootRequest(1, "candidate", "trial", None, "g1", measure=True))
    children.boot(BootRequest(2, "baseline", "restore", None, "g0", measure=False))
    children.boot(BootRequest(2, "baseline", "rollback", None, "g0", measure=False))
    common = {"site": "lab", "arguments": ["--forks", "3"]}
    assert calls[0] == (
        "boot",
        {
            **common, "boot_arm": "candidate", "boot_purpose": "trial", "boot_stage": "c", "boot_trial": WALK,
            "boot_slot": "1", "boot_generation": "g1", "boot_bench": "true", "boot_check": "false", "feature": "wo_a",
            "value": "",
        },
    )  # fmt: skip
    assert calls[1][1]["boot_purpose"] == "restore"
    assert calls[1][1]["boot_bench"] == "false"
    assert calls[2] == ("rollback", {**common, "rollback_to": "g0"})


def test_how_a_child_ended() -> None:
    assert child_end(result()) == ChildEnd(True, False, (), 1.5)
    failed = [FailedEvent("spark1", "Start", "TS-AGENT-EPOCH: x"), FailedEvent("spark0", "Start", "unlucky")]
    assert child_end(result(ok=False, failures=failed)).lines == ("spark1: TS-AGENT-EPOCH: x",)
    assert child_end(result(ok=False, rc=4)).lines == ("TS-PLAY-FAILED: boot ended with 4",)
    assert child_end(result(ok=False, status="interrupted", rc=254)).interrupted
    nodes = {"spark0": {"reachable": True, "host_boot": "k:1"}, "spark1": {"reachable": False, "reason": "x"}}
    found = node_statuses(result(published={"status": {"nodes": nodes}}))
    assert found["spark0"] == nodes["spark0"]
    assert found["spark1"] is None


def test_a_line_of_a_walk_is_shown_while_its_task_goes_on() -> None:
    notes: list[tuple[str, ...]] = []
    observer = SimpleNamespace(note=notes.append)
    events = RunEvents(observer)  # type: ignore[arg-type]
    events.add({"event": "verbose", "stdout": f"{WALK_PREFIX}slot 1/3 baseline: valid\r"})
    events.add({"event": "verbose", "stdout": "[WARNING]: something else"})
    assert notes == [("slot 1/3 baseline: valid",)]


def status(**changes: Any) -> dict[str, Any]:
    return {"epoch": 1, "baseline": None, "host_boot": "k:1", "record_head": None, "problems": [], **changes}


def asked(root: Path, **changes: Any) -> Walk:
    given: dict[str, Any] = {
        "root": root, "site": "lab", "stage": "c", "feature": "wo_a", "value": "", "walk": WALK, "agreed": "",
        "statuses": {node: status() for node in NODES}, "deadline": None, "arguments": (), "check": False,
    }  # fmt: skip
    return Walk(**{**given, **changes})


@pytest.fixture
def on_site(ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A project whose walks are not walked; what would be is collected."""
    walked: list[Any] = []
    monkeypatch.setattr(walk_run.Ground, "load", classmethod(lambda _cls, _root, _site: ground))

    class NoWalker(SimpleNamespace):
        def walk(self) -> WalkEnd:
            walked.append(self)
            return WalkEnd("complete", "", "b1", 3)

    monkeypatch.setattr(walk_run, "Walker", NoWalker)
    return walked


def test_a_walk_is_kept_before_it_is_walked_and_found_again(on_site: list[Any], tmp_path: Path) -> None:
    deadline = datetime(2026, 1, 3, tzinfo=UTC)
    end = run_walk(asked(tmp_path, deadline=deadline), print)
    assert (end.state, len(on_site)) == ("complete", 1)
    assert was_begun(tmp_path, "lab", WALK)
    assert (on_site[0].deadline, on_site[0].return_s) == (deadline, 60)
    measurement_s = 30 + (5 + 2) * 64 * (2 + 4) / 5
    assert on_site[0].children.deadline_s == 60 + 3 * 15 + measurement_s + 3600
    run_walk(asked(tmp_path), print)
    assert on_site[1].plan == on_site[0].plan


@pytest.mark.parametrize(
    ("changes", "error_id"),
    [
        ({"agreed": "p0123456789abcdef"}, "TS-PLAN-CHANGED"),
        ({"statuses": {node: status() for node in NODES[:2]}}, "TS-PREFLIGHT-NODE"),
        ({"statuses": {node: status(problems=["journal: damaged"]) for node in NODES}}, "TS-PREFLIGHT-STATE"),
        ({"feature": "no_such"}, "TS-FEATURE-UNKNOWN"),
        ({"stage": "d"}, "TS-FEATURE-STAGE"),
        ({"walk": "../x"}, "TS-WALK-ID"),
    ],
)
def test_what_is_refused_is_refused_before_anything_is_kept(
    on_site: list[Any], tmp_path: Path, changes: dict[str, Any], error_id: str
) -> None:
    with pytest.raises(TrisparkError) as caught:
        run_walk(asked(tmp_path, **changes), print)
    assert caught.value.id == error_id
    assert on_site == []
    assert not (tmp_path / ".trispark/lab/walks").exists()


def test_a_plan_that_changed_ends_what_was_begun_and_refuses_what_was_not(
    on_site: list[Any], ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_walk(asked(tmp_path), print)
    first = on_site[0].plan
    promoted = replace(ground, promoted={"DSV41_IO_THREADS": 48}, promoted_by={"record": "t1", "record_hash": "0" * 64})
    monkeypatch.setattr(walk_run.Ground, "load", classmethod(lambda _cls, _root, _site: promoted))
    with pytest.raises(TrisparkError) as caught:
        run_walk(asked(tmp_path), print)
    assert (caught.value.id, len(on_site)) == ("TS-PLAN-CHANGED", 1)
    journal = Journal(walks_directory(tmp_path, "lab") / WALK)
    journal.write("slot_started", "t", slot=0)
    run_walk(asked(tmp_path), print)
    assert on_site[1].plan == first, "with the plan that it was begun with"
    assert str(journal.read().stopped).startswith("TS-PLAN-CHANGED")


def test_one_walk_at_a_time(on_site: list[Any], tmp_path: Path) -> None:
    run_walk(asked(tmp_path), print)
    with (tmp_path / ".trispark/lab/walk.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TrisparkError) as caught:
            run_walk(asked(tmp_path), print)
    assert caught.value.id == "TS-WALK-BUSY"


def test_check_mode_says_the_boots_and_keeps_nothing(on_site: list[Any], tmp_path: Path) -> None:
    lines: list[str] = []
    end = run_walk(asked(tmp_path, check=True), lines.append)
    assert (end.state, on_site) == ("paused", [])
    places = ["slot 1/4 wo_a", "slot 2/4 baseline", "slot 3/4 wo_a", "slot 4/4 baseline"]
    assert [line.split(":")[0] for line in lines] == places
    assert not (tmp_path / ".trispark/lab/walks").exists()
