"""One walk on a site: the lock, what is refused before anything starts, the child runs and what they are given."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from trispark import walk_child, walk_run
from trispark.errors import TrisparkError
from trispark.plan import Ground
from trispark.run_events import WALK_PREFIX, FailedEvent, RunEvents
from trispark.trial_begin import TrialAsked, TrialBegin, begin_trial
from trispark.walk import BootRequest, ChildEnd, WalkEnd, WalkInterrupted
from trispark.walk_child import Playbooks, child_arguments, child_end, node_statuses
from trispark.walk_journal import Journal
from trispark.walk_plan import kept_walk, plan_walk, walks_directory, was_begun
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


def test_a_status_run_that_says_nothing_calls_no_node_down() -> None:
    with pytest.raises(WalkInterrupted):
        node_statuses(result(ok=False, status="interrupted", rc=254))
    # What a signal leaves behind is no answer either.
    cut = {"status": {"nodes": {"spark0": {"reachable": False, "reason": "interrupted"}}}}
    with pytest.raises(WalkInterrupted):
        node_statuses(result(ok=False, status="interrupted", rc=254, published=cut))
    failed = result(ok=False, rc=2, failures=[FailedEvent("localhost", "Publish", "no space left on device")])
    for broken in (failed, result(published={"status": {"nodes": {}}})):
        with pytest.raises(TrisparkError) as caught:
            node_statuses(broken)
        assert caught.value.id == "TS-WALK-STATUS"
        assert all(caught.value.as_dict().values())
    with pytest.raises(TrisparkError, match="no space left on device"):
        node_statuses(failed)


def test_a_line_of_a_walk_is_shown_while_its_task_goes_on() -> None:
    notes: list[tuple[str, ...]] = []
    observer = SimpleNamespace(note=notes.append)
    events = RunEvents(observer)  # type: ignore[arg-type]
    events.add({"event": "verbose", "stdout": f"{WALK_PREFIX}slot 1/3 baseline: valid\r"})
    events.add({"event": "verbose", "stdout": "[WARNING]: something else"})
    assert notes == [("slot 1/3 baseline: valid",)]


def status(**changes: Any) -> dict[str, Any]:
    chain = {"record_head": None, "record_chain": "empty"}
    return {"epoch": 1, "baseline": None, "host_boot": "k:1", "problems": [], **chain, **changes}


def asked(root: Path, **changes: Any) -> Walk:
    given: dict[str, Any] = {
        "root": root, "site": "lab", "stage": "c", "feature": "wo_a", "value": "", "walk": WALK, "agreed": "",
        "refused": "", "statuses": {node: status() for node in NODES}, "deadline": None, "arguments": (),
        "check": False,
    }  # fmt: skip
    return Walk(**{**given, **changes})


@pytest.fixture
def root(project: Path, make_site: Callable[..., Path], tmp_path: Path) -> Path:
    """A project of its own whose lab site has images."""
    root = tmp_path / "root"
    shutil.copytree(project, root)
    (root / "inventory").mkdir()
    make_site().rename(root / "inventory" / "lab")
    return root


@pytest.fixture
def on_site(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Walks are not walked; what would be is collected."""
    walked: list[Any] = []

    class NoWalker(SimpleNamespace):
        def walk(self) -> WalkEnd:
            walked.append(self)
            return WalkEnd("complete", "", "b1", True, 3)

    monkeypatch.setattr(walk_run, "Walker", NoWalker)
    return walked


def test_a_walk_is_kept_before_it_is_walked_and_found_again(on_site: list[Any], root: Path) -> None:
    deadline = datetime(2026, 1, 3, tzinfo=UTC)
    end = run_walk(asked(root, deadline=deadline), print)
    assert (end.state, len(on_site)) == ("complete", 1)
    assert was_begun(root, "lab", WALK)
    assert (on_site[0].deadline, on_site[0].return_s) == (deadline, 60)
    measurement_s = 30 + ((5 + 1) * 64 + 16) * (2 + 4) / 5
    assert on_site[0].children.deadline_s == 60 + 3 * 15 + measurement_s + 3600
    run_walk(asked(root), print)
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
    on_site: list[Any], root: Path, changes: dict[str, Any], error_id: str
) -> None:
    with pytest.raises(TrisparkError) as caught:
        run_walk(asked(root, **changes), print)
    assert caught.value.id == error_id
    assert on_site == []
    assert not (root / ".trispark/lab/walks").exists()


PROMOTED = {
    "schema_version": 1, "settings": {"DSV41_IO_THREADS": 48}, "record": "t1", "record_hash": "0" * 64,
    "time": "2026-01-02T03:04:05Z",
}  # fmt: skip


def broken_catalog(root: Path) -> None:
    (root / "experiments/features.yml").write_text("features: {", encoding="utf-8")


def unavailable(root: Path) -> None:
    path = root / "experiments/features.yml"
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    data["features"]["wo_a"].setdefault("unavailable_on", {})["lab"] = "broken since this morning"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")


def other_arms(root: Path) -> None:
    (root / "adapters/sitecustomize.py").write_text("# edited\n", encoding="utf-8")


def nothing(root: Path) -> None:
    """The tree stays; the nodes hold another promoted baseline."""


@pytest.mark.parametrize(
    ("edit", "promoted", "error_id"),
    [
        (nothing, PROMOTED, "TS-PLAN-CHANGED"),
        (other_arms, None, "TS-PLAN-CHANGED"),
        (unavailable, None, "TS-FEATURE-UNAVAILABLE"),
        (broken_catalog, None, "TS-YAML-SYNTAX"),
    ],
)
def test_a_plan_that_changed_or_is_refused_ends_what_was_begun_and_refuses_what_was_not(
    on_site: list[Any], root: Path, edit: Callable[[Path], None], promoted: Any, error_id: str
) -> None:
    run_walk(asked(root), print)
    first = on_site[0].plan
    edit(root)
    now = {node: status(baseline=promoted) for node in NODES}
    with pytest.raises(TrisparkError) as caught:
        run_walk(asked(root, statuses=now), print)
    assert (caught.value.id, len(on_site)) == (error_id, 1)
    journal = Journal(walks_directory(root, "lab") / WALK)
    journal.write("slot_started", "t", slot=0)
    lines: list[str] = []
    run_walk(asked(root, statuses=now, check=True), lines.append)
    assert (len(on_site), journal.read().stopped) == (1, None)
    assert f"would end: {error_id}" in lines[0]
    assert lines[-1].endswith(f"{first.site_baseline} would be restored")
    run_walk(asked(root, statuses=now), print)
    assert on_site[1].plan == first, "with the plan that it was begun with"
    assert str(journal.read().stopped).startswith(error_id)
    # Once it has ended there is nothing to bring back, and the refusal is said again.
    journal.write("ended", "t", restored=True)
    with pytest.raises(TrisparkError):
        run_walk(asked(root, statuses=now), print)


def test_what_the_plan_was_refused_for_ends_a_begun_walk_whatever_the_tree_says_by_now(
    on_site: list[Any], root: Path
) -> None:
    run_walk(asked(root), print)
    journal = Journal(walks_directory(root, "lab") / WALK)
    journal.write("slot_started", "t", slot=0)
    run_walk(asked(root, refused="TS-CATALOG-REFERENCE: x"), print)
    assert journal.read().stopped == "TS-CATALOG-REFERENCE: x"


def test_a_site_that_cannot_be_read_is_where_bringing_back_ends(on_site: list[Any], root: Path) -> None:
    run_walk(asked(root), print)
    Journal(walks_directory(root, "lab") / WALK).write("slot_started", "t", slot=0)
    (root / "inventory/lab/hosts.yml").unlink()
    with pytest.raises(TrisparkError) as caught:
        run_walk(asked(root), print)
    assert (caught.value.id, len(on_site)) == ("TS-SITE-MISSING", 1)


# -- what a stage's playbook decides first


NOW = datetime(2026, 1, 2, 22, 0, tzinfo=UTC)
NEW = "t20260102T220000Z-cafe"


def begun(root: Path, *events: dict[str, Any]) -> Journal:
    """The trial of wo_a, begun, with these lines in its journal."""
    run_walk(asked(root), print)
    journal = Journal(walks_directory(root, "lab") / WALK)
    for event in events:
        journal.write(time="t", **event)
    return journal


def begin(root: Path, **given: Any) -> TrialBegin:
    return begin_trial(TrialAsked(root, "lab", "c", **given), NOW, NEW)


STARTED = {"event": "slot_started", "slot": 0}


def test_a_new_trial_boots_and_drains(on_site: list[Any], root: Path) -> None:
    found = begin(root, feature="wo_a", drain="600", deadline="2026-01-03T06:00+01:00")
    assert (found.walk, found.resumed, found.refused, found.boots) == (NEW, False, "", True)
    assert (found.drain_s, found.deadline) == (600.0, datetime(2026, 1, 3, 5, tzinfo=UTC))
    assert begin(root, feature="wo_a", trial=WALK).walk == WALK
    assert begin(root, feature="wo_a").drain_s == 0


@pytest.mark.parametrize(
    ("events", "boots"),
    [
        ([], True),
        ([STARTED], True),
        ([STARTED, STARTED], False),
        ([STARTED, {"event": "node_down", "slot": 0}], False),
        ([STARTED, {"event": "stopped", "reason": "x"}], False),
        ([STARTED, {"event": "ended"}], False),
        ([STARTED, {"event": "slot_unrecorded", "slot": 0}, {"event": "slot_unrecorded", "slot": 0}], False),
    ],
)
def test_production_is_drained_for_a_boot_and_not_for_the_way_back(
    on_site: list[Any], root: Path, events: list[dict[str, Any]], boots: bool
) -> None:
    begun(root, *events)
    for given in ({"resume": WALK}, {"trial": WALK, "feature": "wo_a"}):
        found = begin(root, drain="600", **given)
        assert (found.walk, found.resumed, found.boots, found.drain_s) == (WALK, True, boots, 600.0 * boots)
    # A campaign resumes outside of its window with the deadline of now: no boot fits.
    assert begin(root, resume=WALK, drain="600", deadline=NOW.isoformat()).drain_s == 0


@pytest.mark.parametrize(
    ("edit", "error_id"),
    [
        (other_arms, "TS-PLAN-CHANGED"),
        (unavailable, "TS-FEATURE-UNAVAILABLE"),
        (broken_catalog, "TS-YAML-SYNTAX"),
    ],
)
def test_a_begun_trial_that_cannot_be_planned_is_brought_back(
    on_site: list[Any], root: Path, edit: Callable[[Path], None], error_id: str
) -> None:
    journal = begun(root)
    edit(root)
    with pytest.raises(TrisparkError) as caught:
        begin(root, resume=WALK)
    assert caught.value.id == error_id, "nothing of it was begun"
    journal.write("slot_started", "t", slot=0)
    found = begin(root, resume=WALK, drain="600")
    assert found.refused.startswith(error_id)
    assert (found.boots, found.drain_s) == (False, 0)
    assert "brought back" in found.lines[0]
    run_walk(asked(root, refused=found.refused), print)
    assert on_site[-1].plan == kept_walk(root, "lab", WALK)


@pytest.mark.parametrize(
    ("given", "error_id"),
    [
        ({"deadline": "tomorrow"}, "TS-TIME-FORMAT"),
        ({"deadline": "0001-01-01T00:00+14:00"}, "TS-TIME-FORMAT"),
        ({"deadline": "2026-01-03T06:00"}, "TS-TIME-ZONE"),
        ({"drain": "ten"}, "TS-DRAIN-SECONDS"),
        ({"drain": "-1"}, "TS-DRAIN-SECONDS"),
        ({"drain": "nan"}, "TS-DRAIN-SECONDS"),
        ({"drain": "inf"}, "TS-DRAIN-SECONDS"),
        ({"resume": "t20260101T000000Z-ffff"}, "TS-WALK-UNKNOWN"),
        ({"boots": "3"}, "TS-PLAN-BOOTS"),
        ({"boots": "six"}, "TS-PLAN-BOOTS"),
    ],
)
def test_what_is_written_wrongly_is_said_before_a_node_is_asked(
    root: Path, given: dict[str, str], error_id: str
) -> None:
    with pytest.raises(TrisparkError) as caught:
        begin(root, **{"feature": "wo_a", **given})
    assert caught.value.id == error_id
    assert all(caught.value.as_dict().values())


def test_a_trial_has_the_boots_that_were_asked_for_and_keeps_them(on_site: list[Any], root: Path) -> None:
    assert "13 boots" in begin(root, feature="wo_a", boots="6").lines[1], "one of them tunes"
    run_walk(asked(root, boots="4"), print)
    assert kept_walk(root, "lab", WALK).boots == 4
    for given in ({}, {"boots": "4"}):
        assert "9 boots" in begin(root, resume=WALK, **given).lines[1]
    with pytest.raises(TrisparkError) as caught:
        begin(root, resume=WALK, boots="6")
    assert (caught.value.id, caught.value.expected, caught.value.observed) == ("TS-WALK-OTHER", "boots 4", "6")


def test_a_deadline_without_a_zone_is_local_time_of_the_site(on_site: list[Any], root: Path) -> None:
    path = root / "inventory/lab/group_vars/all/site.yml"
    window = "site_unattended_window: {begin: '22:00', back_by: '07:00', time_zone: Europe/Berlin}\n"
    path.write_text(path.read_text(encoding="utf-8") + window, encoding="utf-8")
    for text in ("2026-07-01T06:00", "2026-07-01 06:00:00", "2026-07-01T04:00Z"):
        assert begin(root, feature="wo_a", deadline=text).deadline == datetime(2026, 7, 1, 4, tzinfo=UTC)
    begun(root, STARTED)
    broken_catalog(root)
    assert begin(root, resume=WALK, deadline="2026-07-01T06:00").deadline == datetime(2026, 7, 1, 4, tzinfo=UTC)


def test_one_walk_at_a_time(on_site: list[Any], root: Path) -> None:
    run_walk(asked(root), print)
    with (root / ".trispark/lab/walk.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TrisparkError) as caught:
            run_walk(asked(root), print)
    assert caught.value.id == "TS-WALK-BUSY"


def test_check_mode_says_the_boots_and_keeps_nothing(on_site: list[Any], root: Path) -> None:
    lines: list[str] = []
    end = run_walk(asked(root, check=True), lines.append)
    assert (end.state, on_site) == ("paused", [])
    places = ["slot 1/4 wo_a", "slot 2/4 baseline", "slot 3/4 wo_a", "slot 4/4 baseline"]
    assert [line.split(":")[0] for line in lines] == places
    assert not (root / ".trispark/lab/walks").exists()
