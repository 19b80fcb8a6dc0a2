"""The fleet lock of a node: who may go on, who is told what, and what is left of a command that ended badly."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trispark_node import cli, fleet_lock
from trispark_node import fleet_lock_file as file
from trispark_node.disk import Disk
from trispark_node.fleet_owner import Owner
from trispark_node.mutation import Mode, Plan, mutate


def owner(name: str, **more: Any) -> dict[str, Any]:
    return {"token": name, "host": f"host-{name}", "pid": 4711, "user": f"user-{name}", "reason": "boot", **more}


ANA, BEN = owner("ana"), owner("ben", reason="rollback")


def of(request: dict[str, Any]) -> Owner:
    return Owner(**request)


def holder_of(bench) -> str | None:
    found = bench.ask("lock-show")["holder"]
    return found["token"] if found else None


@pytest.fixture
def anas(bench):
    """The lock is Ana's, taken this moment."""
    assert bench.ask("lock-take", owner=ANA) == {"ok": True, "changed": True, "broke": None}
    return bench


def reboot(bench, started_s: float, boot: str = "2") -> None:
    """The host starts anew; its time since then begins again."""
    (bench.procfs / "sys/kernel/random/boot_id").write_text(f"0a0b0c0d-0000-4000-8000-00000000000{boot}\n")
    ticks = int(started_s * os.sysconf("SC_CLK_TCK"))
    (bench.procfs / "1/stat").write_text("1 (init) S " + "0 " * 18 + f"{ticks} 0 0\n")


def damage(bench, content: bytes = b'{"schema_version":1,"hol', hold: bool = False) -> None:
    bench.node.layout.fleet_lock.write_bytes(content)
    if hold:
        bench.node.layout.fleet_hold.write_bytes(b"\0" * 512)


# -- who is admitted ---------------------------------------------------------------------------------------------------


def test_a_free_lock_is_taken_and_the_same_command_goes_on(anas):
    assert anas.ask("fence", epoch=1, owner=ANA)["changed"]
    before = anas.node.layout.fleet_lock.read_bytes()
    assert anas.ask("lock-take", owner={**ANA, "pid": 5, "reason": "another name"})["changed"] is False
    assert anas.node.layout.fleet_lock.read_bytes() == before


def test_a_changing_call_takes_a_free_lock_itself(bench):
    bench.ask("fence", epoch=1, owner=ANA)
    assert holder_of(bench) == "ana"


def test_another_command_is_told_who_since_when_for_how_long_and_what_to_do(anas):
    anas.clock.time += 12
    error = anas.refused("fence", epoch=1, owner=BEN)
    assert error["id"] == "TS-LOCK-HELD"
    for part in ("boot of user-ana on host-ana", "pid 4711", "since 2026-01-02T03:04:05.000Z", "lease ends in 48 s"):
        assert part in error["observed"]
    assert "wait" in error["remedy"]
    assert "./trispark rollback" in error["remedy"]
    assert anas.ask("status")["epoch"] == 0
    answer, _ = cli.answer(anas.node, "lock-take", json.dumps({"owner": BEN}))
    assert (answer["lock"]["holder"]["token"], answer["lock"]["holder"]["alive"]) == ("ana", True)


WORK = {"action": "ensure", "checkpoint": "/c", "directory": "/d", "rank": 0, "tp": 3, "layers": [1]}
READING: list[tuple[str, dict[str, Any]]] = [
    ("engram", {**WORK, "action": "verify"}),
    ("engram", {**WORK, "action": "inspect"}),
    ("engram-job", {"action": "poll", "job": "j0123456789abcdef"}),
    ("engram-job", {"action": "stop", "job": "j0123456789abcdef"}),
    (
        "engram-job",
        {
            "action": "start",
            "job": "j0123456789abcdef",
            "floor_bytes_s": 1,
            "grace_s": 1,
            "work": {**WORK, "action": "verify"},
        },
    ),
    ("share", {"action": "verify"}),
    ("wait", {"timeout_s": 0}),
    ("survey", {}),
]
CALLS: dict[str, dict[str, Any]] = {
    "image-ensure": {"image": "registry:5000/trispark/lab-engine@sha256:" + "a" * 64},
    "engram": {"action": "ensure", "checkpoint": "/c", "directory": "/d", "rank": 0, "tp": 3, "layers": [1]},
    "engram-job": {"action": "start", "job": "j0123456789abcdef", "floor_bytes_s": 1, "grace_s": 1, "work": WORK},
    "oneshot": {"image": "r/x@sha256:" + "a" * 64, "command": ["true"], "deadline_s": 1},
    "fence": {"epoch": 1},
    "stop": {},
    "start": {"boot_id": "b", "epoch": 1},
    "activate": {"generation": "g0123456789abcdef"},
    "good-mark": {"generation": "g0123456789abcdef", "boot_id": "b", "time": "t"},
    "save-log": {},
}


@pytest.mark.parametrize("verb", CALLS)
def test_changing_verbs_of_every_area_are_asked(anas, verb):
    assert cli.VERBS[verb].changes
    assert anas.refused(verb, owner=BEN, **CALLS[verb])["id"] == "TS-LOCK-HELD"
    answer, _ = cli.answer(anas.node, verb, json.dumps({**CALLS[verb], "owner": ANA}))
    assert not answer.get("error", {}).get("id", "").startswith("TS-LOCK-")


@pytest.mark.parametrize(("verb", "request_"), READING)
def test_what_only_reads_is_anybodys_while_another_command_works(anas, verb, request_):
    answer, _ = cli.answer(anas.node, verb, json.dumps({**request_, "owner": BEN}))
    assert not answer.get("error", {}).get("id", "").startswith("TS-LOCK-")
    assert holder_of(anas) == "ana"


@pytest.mark.parametrize("verb", [verb for verb, each in cli.VERBS.items() if each.changes])
def test_check_mode_takes_nothing_and_refuses_nothing_for_the_lock(bench, verb):
    answer, _ = cli.answer(bench.node, verb, json.dumps({**CALLS.get(verb, {}), "owner": ANA, "check": True}))
    assert not answer.get("error", {}).get("id", "").startswith("TS-LOCK-")
    assert not bench.node.layout.fleet_lock.exists()


@pytest.mark.parametrize(
    ("verb", "request_", "expected"),
    [("stop", {}, None), ("fence", {"epoch": 1}, None), ("start", {"boot_id": "b", "epoch": 1}, "TS-LOCK-HELD")],
)
def test_a_person_on_the_node_is_asked_before_a_start_alone(anas, verb, request_, expected):
    answer, _ = cli.answer(anas.node, verb, json.dumps(request_))
    assert answer.get("error", {}).get("id") == expected


@pytest.mark.parametrize(
    "broken",
    [
        {"token": "../x"},
        {"token": ""},
        {"pid": 0},
        {"user": "a\nb"},
        {"host": "h" * 121},
        {"reason": None},
        {"breaks": "yes"},
        {"more": 1},
    ],
)
def test_an_owner_of_another_form_is_no_request(bench, broken):
    assert bench.refused("fence", epoch=1, owner={**ANA, **broken})["id"] == "TS-AGENT-REQUEST"
    assert not bench.root.exists()


# -- leases ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passed_s", "free"), [(0, False), (59.9, False), (60, True), (1e6, True)])
def test_a_lease_ends_when_nothing_was_heard(anas, passed_s, free):
    anas.clock.time += passed_s
    answer, _ = cli.answer(anas.node, "lock-take", json.dumps({"owner": BEN}))
    assert answer["ok"] is free
    assert holder_of(anas) == ("ben" if free else "ana")


@pytest.mark.parametrize("call", [("fence", {"epoch": 1}), ("status", {}), ("wait", {"timeout_s": 0}), ("host", {})])
def test_every_call_of_the_command_renews_it(anas, call):
    verb, request = call
    anas.clock.time += 50
    cli.answer(anas.node, verb, json.dumps({**request, "owner": ANA}))
    anas.clock.time += 50
    assert anas.refused("lock-take", owner=BEN)["id"] == "TS-LOCK-HELD"


def test_reading_of_others_renews_and_refuses_nothing(anas):
    before = anas.tree()
    anas.ask("status", owner=BEN)
    anas.ask("status", owner=ANA, check=True)
    assert anas.tree() == before


def test_a_call_at_work_keeps_the_lock_however_long_it_takes(anas):
    with fleet_lock.admitted(anas.node, "engram", of(ANA)):
        anas.clock.time += 7200
        error = anas.refused("lock-take", owner=BEN)
        assert (error["id"], "a call of it is at work" in error["observed"]) == ("TS-LOCK-HELD", True)
    anas.clock.time += 59
    assert anas.refused("lock-take", owner=BEN)["id"] == "TS-LOCK-HELD", "renewed at its end"


def test_a_call_that_was_killed_leaves_its_lease_alone(anas):
    child = os.fork()
    if child == 0:
        with fleet_lock.admitted(anas.node, "engram", of(ANA)):
            os._exit(0)
    os.waitpid(child, 0)
    assert anas.refused("lock-take", owner=BEN)["id"] == "TS-LOCK-HELD"
    anas.clock.time += 60
    assert anas.ask("lock-take", owner=BEN)["changed"]


@pytest.mark.parametrize(("since_start_s", "free"), [(10, False), (59, False), (61, True)])
def test_after_a_reboot_the_lease_counts_from_the_new_start(anas, since_start_s, free):
    """Of a container that plays a host the clock goes on, of a real one it begins again."""
    for started_s in (0.0, 1000.0):
        reboot(anas, started_s)
        anas.clock.time = started_s + since_start_s
        answer, _ = cli.answer(anas.node, "fence", json.dumps({"epoch": 9, "owner": BEN}))
        assert answer["ok"] is free
        if free:
            break


def test_a_command_goes_on_after_a_reboot_and_is_heard_of(anas):
    reboot(anas, 0)
    anas.clock.time = 30
    anas.ask("fence", epoch=1, owner=ANA)
    anas.clock.time = 80
    assert anas.refused("lock-take", owner=BEN)["id"] == "TS-LOCK-HELD"
    anas.clock.time = 91
    assert anas.ask("lock-take", owner=BEN)["changed"]


def test_a_time_in_the_future_does_not_hold_it_for_ever(anas):
    anas.node.layout.fleet_hold.unlink()
    anas.clock.time = 70  # taken at 100 of this very boot, which began at 0
    assert anas.ask("lock-take", owner=BEN)["changed"]


@pytest.mark.parametrize(("lease_s", "passed_s", "free"), [(5, 5, True), (5, 4, False), (300, 200, False)])
def test_the_lease_is_the_sites(bench, lease_s, passed_s, free):
    bench.ask("lock-take", owner=ANA, lease_s=lease_s)
    bench.ask("fence", epoch=1, owner=ANA)
    bench.clock.time += passed_s
    assert cli.answer(bench.node, "lock-take", json.dumps({"owner": BEN}))[0]["ok"] is free


# -- losing it ---------------------------------------------------------------------------------------------------------


def test_a_rollback_breaks_it_and_the_other_does_nothing_any_more(anas):
    answer = anas.ask("lock-take", **{"owner": BEN, "break": True, "why": "rollback"})
    assert (answer["changed"], answer["broke"]["token"], answer["broke"]["since"][:4]) == (True, "ana", "2026")
    for verb in ("fence", "lock-take"):
        error = anas.refused(verb, owner=ANA, **({"epoch": 1} if verb == "fence" else {}))
        assert error["id"] == "TS-LOCK-LOST"
        assert "broken by rollback of user-ben on host-ben" in error["observed"]
    anas.ask("lock-release", owner=BEN)
    assert anas.refused("stop", owner={**ANA, "breaks": True})["id"] == "TS-LOCK-LOST", "also when nobody holds it"
    entries = [entry for entry in anas.node.journal.read().entries if entry.verb == "lock-break"]
    assert [entry.phase for entry in entries] == ["intent", "done"]
    assert entries[0].detail["broke"]["user"] == "user-ana"
    assert entries[0].detail["by"]["user"] == "user-ben"
    assert entries[0].detail["why"] == "rollback"


def test_a_lease_that_ended_is_forgiven_at_a_new_beginning_only(anas):
    anas.clock.time += 60
    anas.ask("lock-take", owner=BEN)
    assert anas.refused("fence", epoch=1, owner=ANA)["id"] == "TS-LOCK-LOST"
    assert anas.refused("lock-take", owner=ANA)["id"] == "TS-LOCK-HELD"
    assert anas.refused("fence", epoch=1, owner=ANA)["id"] == "TS-LOCK-LOST", "a refused beginning forgives nothing"
    anas.ask("fence", epoch=1, owner=BEN)
    anas.ask("lock-release", owner=BEN)
    assert anas.refused("fence", epoch=1, owner=ANA)["id"] == "TS-LOCK-LOST"
    assert anas.ask("lock-take", owner=ANA)["changed"]
    assert anas.ask("fence", epoch=2, owner=ANA)["changed"]


def test_whoever_gives_it_back_without_a_deed_leaves_it_as_it_was(anas):
    """The other was at work on another node, which this one did not hear of."""
    anas.clock.time += 60
    before = json.loads(anas.node.layout.fleet_lock.read_bytes())
    assert anas.ask("lock-take", owner=BEN)["changed"]
    anas.ask("status", owner=BEN)
    assert anas.refused("fence", epoch=1, owner=ANA)["id"] == "TS-LOCK-LOST"
    assert anas.ask("lock-release", owner=BEN)["changed"]
    assert json.loads(anas.node.layout.fleet_lock.read_bytes()) == before
    assert anas.ask("fence", epoch=1, owner=ANA)["changed"]


def test_what_was_taken_again_and_again_goes_back_by_one(anas):
    for name in ("ben", "carl"):
        anas.clock.time += 60
        anas.ask("lock-take", owner=owner(name))
    anas.ask("lock-release", owner=owner("carl"))
    assert (holder_of(anas), anas.ask("lock-show")["holder"]["alive"]) == ("ben", False)
    anas.ask("lock-release", owner=BEN)
    assert holder_of(anas) is None


@pytest.mark.parametrize("deed", [("fence", {"epoch": 1}), ("stop", {}), ("lock-take", {"break": True, "why": "x"})])
def test_whoever_did_something_or_broke_it_gives_it_back_to_nobody(anas, deed):
    anas.clock.time += 60
    verb, request = deed
    if verb != "lock-take":
        anas.ask("lock-take", owner=BEN)
    anas.ask(verb, owner=BEN, **request)
    anas.ask("lock-release", owner=BEN)
    assert holder_of(anas) is None
    assert anas.refused("fence", epoch=2, owner=ANA)["id"] == "TS-LOCK-LOST"


@pytest.mark.parametrize(("verb", "request_"), [("fence", {"epoch": 1}), ("lock-take", {})])
@pytest.mark.parametrize(("site_s", "lease_s"), [(90, 90), (86400, file.LONGEST_LEASE_S), (None, file.LEASE_S)])
def test_a_call_that_takes_it_takes_it_for_as_long_as_the_site_says(bench, verb, request_, site_s, lease_s):
    if site_s is not None:
        bench.know_site(lock_lease_s=site_s)
    bench.ask(verb, owner=BEN, **request_)
    assert json.loads(bench.node.layout.fleet_lock.read_bytes())["holder"]["lease_s"] == lease_s


@pytest.mark.parametrize("passed_s", [0, 60])
def test_a_break_cuts_off_a_command_that_slept_beyond_its_lease(anas, passed_s):
    """One that was replaced before the break as well as one that is replaced by it."""
    anas.clock.time += 60
    anas.ask("lock-take", owner=owner("carl"))
    anas.clock.time += passed_s
    assert anas.ask("lock-take", **{"owner": BEN, "break": True, "why": "rollback"})["broke"]["token"] == "carl"
    anas.ask("lock-release", owner=BEN)
    for name in ("ana", "carl"):
        assert anas.refused("lock-take", owner=owner(name))["id"] == "TS-LOCK-LOST"
    assert anas.ask("lock-take", owner=owner("dora"))["changed"]


def test_what_waited_for_the_node_is_asked_again(anas):
    """Broken between the first question and the node's own lock."""
    mode = Mode(False, 0, of(ANA))
    with fleet_lock.admitted(anas.node, "fence", of(ANA)):
        anas.ask("lock-take", **{"owner": BEN, "break": True, "why": "rollback"})
        with pytest.raises(Exception, match="TS-LOCK-LOST"):
            mutate(anas.node, "fence", mode, lambda: Plan(lambda: pytest.fail("it was done")))


def test_only_the_named_command_is_broken(anas):
    request = {"owner": BEN, "break": True, "why": "its process has ended", "of": "carl"}
    assert anas.refused("lock-take", **request)["id"] == "TS-LOCK-HELD"
    assert anas.ask("lock-take", **{**request, "of": "ana"})["broke"]["token"] == "ana"


@pytest.mark.parametrize(("verb", "request_", "breaks"), [("stop", {}, True), ("fence", {"epoch": 1}, False)])
def test_a_command_that_breaks_it_does_so_by_an_incidents_verbs(anas, verb, request_, breaks):
    answer, _ = cli.answer(anas.node, verb, json.dumps({**request_, "owner": {**BEN, "breaks": True}}))
    assert answer["ok"] is breaks
    assert holder_of(anas) == ("ben" if breaks else "ana")


def test_release(anas):
    assert anas.ask("lock-release", owner=BEN)["changed"] is False
    assert anas.ask("lock-release")["changed"] is False
    assert holder_of(anas) == "ana"
    assert anas.ask("lock-release", owner=ANA)["changed"]
    assert anas.ask("lock-take", owner=BEN)["changed"]
    assert anas.ask("lock-release", why="left over")["broke"]["token"] == "ben"
    assert anas.refused("fence", epoch=1, owner=BEN)["id"] == "TS-LOCK-LOST"
    assert [loss["by"] for loss in anas.ask("lock-show")["losses"]] == ["a person on the node"]
    assert anas.ask("lock-release", why="left over")["changed"] is False


def test_a_break_says_why_and_a_take_who(bench):
    assert bench.refused("lock-take", **{"owner": ANA, "break": True})["id"] == "TS-AGENT-REQUEST"
    assert bench.refused("lock-take")["id"] == "TS-AGENT-REQUEST"


def test_so_many_losses_are_kept_and_no_more(bench):
    for number in range(file.KEPT_LOST + 3):
        bench.ask("lock-take", **{"owner": owner(f"t{number}"), "break": True, "why": "x"})
    assert len(bench.ask("lock-show")["losses"]) == file.KEPT_LOST


# -- damage and full disks ---------------------------------------------------------------------------------------------

DAMAGED = [b"", b"{", b"[]", b"null", b"\xff", b'{"schema_version":2,"losses":[]}', b'{"schema_version":1}', b"[" * 300]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_lock_is_named_and_can_be_broken(anas, content):
    damage(anas, content)
    assert anas.refused("fence", epoch=1, owner=BEN)["id"] == "TS-LOCK-DAMAGED"
    assert anas.ask("lock-show")["damaged"]
    answer = anas.ask("lock-take", **{"owner": BEN, "break": True, "why": "rollback"})
    assert "damaged" in answer["broke"]
    assert anas.ask("fence", epoch=1, owner=BEN)["changed"]


def test_a_damaged_lock_is_its_holders_as_the_hold_says(anas):
    damage(anas)
    assert anas.ask("fence", epoch=1, owner=ANA)["changed"]
    assert holder_of(anas) == "ana"


def test_a_damaged_lock_ends_with_the_lease_in_the_hold(anas):
    damage(anas)
    anas.clock.time += 60
    assert anas.ask("lock-take", owner=BEN)["changed"]


def test_where_the_hold_says_nothing_it_is_broken_or_freed_by_hand(anas):
    damage(anas, hold=True)
    anas.clock.time += 1e6
    assert anas.refused("start", boot_id="b", epoch=1)["id"] == "TS-LOCK-DAMAGED"
    assert anas.refused("lock-take", owner=BEN)["id"] == "TS-LOCK-DAMAGED"
    assert anas.ask("lock-release", why="nobody works here")["changed"]
    assert anas.ask("lock-take", owner=BEN)["changed"]


class FullDisk(Disk):
    """Nothing can be written but in place."""

    def __init__(self, number: int) -> None:
        def refuse(step: str, path: Path) -> None:
            if step in ("create", "write", "mkdir"):
                raise OSError(number, os.strerror(number), str(path))

        super().__init__(refuse)


@pytest.mark.parametrize("number", file.NO_ROOM)
@pytest.mark.parametrize("held_by_ana", [False, True])
def test_on_a_full_disk_a_stop_works_and_says_that_the_lock_is_not_written(bench, number, held_by_ana):
    if held_by_ana:
        bench.ask("lock-take", owner=ANA)
    bench.root.mkdir(exist_ok=True)
    node = bench.with_disk(FullDisk(number))
    answer, _ = cli.answer(node, "stop", json.dumps({"owner": {**BEN, "breaks": True}}))
    assert (answer["ok"], answer["lock_unwritten"]) == (True, True)
    take = {"owner": BEN, "break": True, "why": "rollback"}
    answer, _ = cli.answer(node, "lock-take", json.dumps(take))
    assert (answer["ok"], answer["lock_unwritten"]) == (True, True)
    answer, _ = cli.answer(node, "fence", json.dumps({"epoch": 1, "owner": BEN}))
    assert answer["ok"] is False
    if not held_by_ana:
        assert answer["error"]["id"] == ("TS-AGENT-OS" if number == errno.EROFS else "TS-AGENT-SPACE")


def test_a_stop_works_on_a_read_only_disk(anas, monkeypatch):
    """Not a byte can be written and no file opened for it."""
    opened = os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY) and str(path).startswith(str(anas.root)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *more, **named)

    anas.ask("stop", owner=ANA)  # the node's own lock has been there before
    monkeypatch.setattr(os, "open", read_only)
    node = anas.with_disk(FullDisk(errno.EROFS))
    answer, _ = cli.answer(node, "stop", json.dumps({"owner": {**BEN, "breaks": True}}))
    assert (answer["ok"], answer["lock_unwritten"]) == (True, True)
    answer, _ = cli.answer(node, "stop", json.dumps({"owner": ANA}))
    assert (answer["ok"], answer["lock_unwritten"]) == (True, True), "its own, which cannot be renewed"


# -- cost --------------------------------------------------------------------------------------------------------------


def test_taking_it_syncs_twice_and_a_renewal_never(bench):
    steps: list[str] = []
    bench.root.mkdir()
    node = bench.with_disk(Disk(lambda step, _path: steps.append(step)))
    for request in ({"owner": ANA}, {"owner": ANA}):
        cli.answer(node, "lock-take", json.dumps(request))
    assert [step for step in steps if "sync" in step] == ["fsync", "sync-directory"]


# -- never two ---------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["call", "take", "release", "break", "damage", "reboot"]),
        st.sampled_from(["ana", "ben", "carl"]),
        st.sampled_from([0.0, 1.0, 29.0, 60.0, 61.0, 500.0]),
    ),
    max_size=20,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=STEPS)
def test_of_all_commands_one_at_most_is_admitted(make_bench, tmp_path_factory, steps):
    """While one's call is at work no other passes the question; and whoever was cut off by a break never does again."""
    bench = make_bench(tmp_path_factory.mktemp("node"))
    broken: set[str] = set()
    for number, (step, name, passes) in enumerate(steps):
        bench.clock.time += passes
        before = holder_of(bench)
        if step == "damage":
            damage(bench) if bench.root.exists() else None
            broken.clear()  # with the file goes the memory of whom it cut off
            continue
        if step == "reboot":
            reboot(bench, bench.clock.time, str(number % 10))
            continue
        if step == "release":
            bench.ask("lock-release", owner=owner(name))
            continue
        verb = {"call": "fence", "take": "lock-take", "break": "lock-take"}[step]
        request: dict[str, Any] = {"epoch": number + 1} if verb == "fence" else {}
        if step == "break":
            request = {"break": True, "why": "rollback"}
        answer, _ = cli.answer(bench.node, verb, json.dumps({**request, "owner": owner(name)}))
        assert not (answer["ok"] and name in broken)
        if not answer["ok"]:
            assert answer["error"]["id"].startswith("TS-LOCK-")
            continue
        if step == "break" and before not in (None, name):
            broken.add(before)
        assert holder_of(bench) == name
        with fleet_lock.admitted(bench.node, "fence", of(owner(name))):
            for other in {"ana", "ben", "carl"} - {name}:
                for asked in ("fence", "lock-take"):
                    more = {"epoch": 1} if asked == "fence" else {}
                    refused, _ = cli.answer(bench.node, asked, json.dumps({**more, "owner": owner(other)}))
                    assert refused["error"]["id"] in ("TS-LOCK-HELD", "TS-LOCK-LOST")


def unreadable(bench, monkeypatch, number: int) -> None:
    """The disk gives nothing of the lock's file any more; what is written in its place it takes."""
    path = bench.node.layout.fleet_lock
    inode = path.stat().st_ino
    opened = os.open

    def failing(name: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(name) == str(path) and path.stat().st_ino == inode:
            raise OSError(number, os.strerror(number), str(name))
        return opened(name, flags, *more, **named)

    monkeypatch.setattr(os, "open", failing)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EISDIR])
@pytest.mark.parametrize("verb", ["stop", "recover"])
def test_a_lock_that_the_disk_does_not_give_keeps_no_incident_from_its_work(anas, monkeypatch, number, verb):
    if number == errno.EISDIR:
        anas.node.layout.fleet_lock.unlink()
        anas.node.layout.fleet_lock.mkdir()
        (anas.node.layout.fleet_lock / "x").touch()
    else:
        unreadable(anas, monkeypatch, number)
    error = anas.refused("fence", epoch=1, owner=BEN)
    assert (error["id"], os.strerror(number) in error["observed"] or number == errno.EISDIR) == (
        "TS-LOCK-DAMAGED",
        True,
    )
    assert anas.ask("lock-show")["damaged"]
    answer = anas.ask(verb, owner={**BEN, "breaks": True})
    assert "damaged" in answer["broke"]
    assert "lock_unwritten" not in answer
    assert holder_of(anas) == "ben"
    assert anas.ask("fence", epoch=1, owner=BEN)["changed"], "what follows in the same command"


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EPERM])
def test_no_fault_of_the_disk_keeps_a_stop_from_its_work(anas, number):
    node = anas.with_disk(FullDisk(number))
    anas.node.layout.fleet_hold.unlink()
    anas.node.layout.fleet_hold.mkdir()
    answer, _ = cli.answer(node, "stop", json.dumps({"owner": {**BEN, "breaks": True}}))
    assert (answer["ok"], answer["lock_unwritten"]) == (True, True)
    answer, _ = cli.answer(node, "fence", json.dumps({"epoch": 1, "owner": ANA}))
    assert answer["ok"] is False
