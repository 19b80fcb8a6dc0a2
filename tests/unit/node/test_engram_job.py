"""Packing as a job: detached, watched, stopped, killed at any moment, and never beside a measurement."""

from __future__ import annotations

import json
import os
import random
import secrets
import select
import signal
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.node.conftest import FakeDocker

from trispark_node import cli, detached, engram, engram_job, native_pack, shard_check, shard_pack
from trispark_node.job_state import KEPT_FORESTALLED
from trispark_node.lock import held, is_held
from trispark_node.processes import start_ticks

ROWS = 120_000
FILE = "engram-l1-r1of3.bin"
MIB = 2**20


@pytest.fixture
def place(quick_path: Path) -> Path:
    path = quick_path / "engram"
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def large_checkpoint(tmp_path_factory):
    """A table whose parts take a while when they are packed slowly; made once."""
    from tests.unit.node.conftest import Checkpoint

    return Checkpoint(tmp_path_factory.mktemp("job") / "checkpoint", {1: ROWS, 14: ROWS})


def work(checkpoint, place, **more):
    fields = {"checkpoint": str(checkpoint.directory), "directory": str(place), "rank": 1, "tp": 3, "layers": [1, 14]}
    return {"action": "ensure", **fields, **more}


def new_job():
    return f"j{secrets.token_hex(8)}"


def request(fields, **more):
    return {"action": "start", "job": new_job(), "work": fields, "floor_bytes_s": MIB, "grace_s": 600, **more}


def start(bench, fields, **more):
    return bench.ask("engram-job", **request(fields, **more))


def start_refused(bench, fields, **more):
    return bench.refused("engram-job", **request(fields, **more))


def ended(bench, job):
    """The state of a job that comes to its end."""
    real_wait(bench, job)
    return bench.ask("engram-job", action="poll", job=job)


def real_wait(bench, job, seconds=60.0):
    """Until the job's process has ended or the time is over."""
    state = json.loads((bench.root / "engram-job.json").read_bytes())
    assert state["job"] == job
    try:
        descriptor = os.pidfd_open(state["pid"])
    except ProcessLookupError:
        return
    select.select([descriptor], [], [], seconds)
    os.close(descriptor)


@pytest.fixture(autouse=True)
def no_job_left(bench):
    yield
    state = bench.root / "engram-job.json"
    if state.exists() and is_held(bench.node.layout.lock("engram")):
        bench.ask("engram-job", action="stop", job=json.loads(state.read_bytes())["job"])


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_job_packs_and_its_answer_is_that_of_the_verb(bench, checkpoint, place):
    begun = start(bench, work(checkpoint, place))
    size = sum(len(checkpoint.shard(layer, 1)) for layer in (1, 14))
    assert (begun["attached"], begun["total_bytes"], begun["earlier"]) == (False, size, None)
    state = ended(bench, begun["job"])
    assert (state["state"], state["done_bytes"], state["title"]) == ("done", size, "engram ensure")
    assert [row["action"] for row in state["answer"]["files"]] == ["packed", "packed"]
    assert state["answer"]["changed"] is True
    for layer in (1, 14):
        assert (place / f"engram-l{layer}-r1of3.bin").read_bytes() == checkpoint.shard(layer, 1)
    again = start(bench, work(checkpoint, place))
    assert (again["job"], again["changed"], [row["state"] for row in again["files"]]) == (None, False, ["ok", "ok"])


class ConnectedDocker(FakeDocker):
    """Keeps a connection and makes it anew for each question, as a pool does that finds its own one dead."""

    connection: int | None = None

    def labelled(self, labels):
        if self.connection is not None:
            os.close(self.connection)
        self.connection = os.open(os.devnull, os.O_RDONLY)
        return super().labelled(labels)


def test_a_job_has_a_connection_to_docker_of_its_own(bench, checkpoint, place):
    """The one from before the job was detached is closed there, and its number belongs to a lock by then."""
    bench.ask("engram", **work(checkpoint, place))
    node = replace(bench.node, connect=ConnectedDocker)
    node.docker.labelled({})
    fields = work(checkpoint, place, action="verify", level="full", running_mount="/engram")
    begun, _ = cli.answer(node, "engram-job", json.dumps(request(fields)))
    state = ended(bench, begun["job"])
    assert (state["state"], state["answer"].get("error")) == ("done", None)


def test_it_belongs_to_no_session_terminal_or_parent(bench, large_checkpoint, place):
    begun = start(bench, work(large_checkpoint, place, limit_bytes_s=2 * MIB))
    state = json.loads((bench.root / "engram-job.json").read_bytes())
    pid = state["pid"]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    parent, session, terminal = int(fields[1]), int(fields[3]), int(fields[4])
    assert parent not in (os.getpid(), os.getppid())
    assert session != os.getsid(0)
    assert terminal == 0
    assert {str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in (0, 1, 2)} == {"/dev/null"}
    assert bench.ask("engram-job", action="poll", job=begun["job"])["state"] == "running"


def test_the_same_request_attaches_and_another_one_is_told_who_is_at_work(bench, large_checkpoint, place):
    slow = work(large_checkpoint, place, limit_bytes_s=2 * MIB)
    begun = start(bench, slow)
    attached = start(bench, {**slow, "limit_bytes_s": 0})
    assert (attached["job"], attached["attached"]) == (begun["job"], True)
    error = start_refused(bench, {**slow, "layers": [1]})
    assert error["id"] == "TS-ENGRAM-BUSY"
    assert f"engram ensure (job {begun['job']}" in error["observed"]
    assert "since 2026-01-02T03:04:05.000Z" in error["observed"]
    stopped = bench.ask("engram-job", action="stop", job=begun["job"])
    assert (stopped["changed"], stopped["state"]) == (True, "stopped")


def test_the_second_of_two_starts_at_once_is_refused_by_the_name_of_the_first(bench, checkpoint, place, monkeypatch):
    fields, errors = work(checkpoint, place), []

    def spawn(run, deadline_s):
        errors.append(start_refused(bench, fields))
        return detached.spawn(run, deadline_s)

    monkeypatch.setattr(engram_job, "spawn", spawn)
    begun = start(bench, fields)
    (error,) = errors
    assert error["id"] == "TS-AGENT-LOCKED"
    assert error["observed"].startswith(f"held by start of job {begun['job']}, pid {os.getpid()}, since ")
    assert ended(bench, begun["job"])["state"] == "done"


@pytest.mark.parametrize("other", [False, True])
def test_the_second_of_two_starts_at_once_joins_when_the_first_has_begun(bench, large_checkpoint, place, other):
    slow, begun = work(large_checkpoint, place, limit_bytes_s=2 * MIB), []
    bench.root.mkdir()
    with ExitStack() as first:
        first.enter_context(held(bench.node.layout.lock("engram-start"), bench.clock, 0, "start of job"))

        def go_on(_time):
            if not begun:
                first.close()
                begun.append(start(bench, slow))

        bench.clock.on_sleep.append(go_on)
        if other:
            error = start_refused(bench, {**slow, "layers": [1]})
            assert (error["id"], begun[0]["job"] in error["observed"]) == ("TS-ENGRAM-BUSY", True)
        else:
            joined = start(bench, slow)
            assert (joined["job"], joined["attached"]) == (begun[0]["job"], True)
    assert begun[0]["attached"] is False


def test_a_start_that_arrives_twice_begins_one_job(bench, checkpoint, place):
    """A connection that breaks is made again, and the request sent again."""
    bench.ask("engram", **work(checkpoint, place))
    asked = request(work(checkpoint, place, action="verify", level="full"))
    begun = bench.ask("engram-job", **asked)
    state = ended(bench, begun["job"])
    again = bench.ask("engram-job", **asked)
    assert (again["job"], again["attached"]) == (begun["job"], True)
    assert bench.ask("engram-job", action="poll", job=begun["job"])["started_at"] == state["started_at"]
    assert not bench.node.layout.engram_job_before.exists()


def test_a_job_that_follows_at_once_takes_no_result_away(bench, checkpoint, place):
    """The first controller's next poll comes when another controller's job has begun already."""
    first = start(bench, work(checkpoint, place))
    real_wait(bench, first["job"])
    second = start(bench, work(checkpoint, place, action="verify", level="full"))
    real_wait(bench, second["job"])
    state = bench.ask("engram-job", action="poll", job=first["job"])
    assert (state["state"], state["title"], state["answer"]["changed"]) == ("done", "engram ensure", True)
    assert bench.ask("engram-job", action="stop", job=first["job"]) == {"ok": True, "changed": False, "state": "done"}
    state = bench.ask("engram-job", action="poll", job=second["job"])
    assert (state["state"], state["title"]) == ("done", "engram verify full")


def test_two_controllers_get_the_same_result(bench, checkpoint, place):
    begun = start(bench, work(checkpoint, place))
    state = ended(bench, begun["job"])
    assert bench.ask("engram-job", action="poll", job=begun["job"]) == state


def test_a_result_is_handed_out_also_when_it_cannot_be_noted(bench, checkpoint, place):
    begun = start(bench, work(checkpoint, place))
    real_wait(bench, begun["job"])
    with held(bench.node.layout.lock("engram-job"), bench.clock, 0, "another"):
        assert bench.ask("engram-job", action="poll", job=begun["job"])["state"] == "done"
    assert start(bench, work(checkpoint, place))["earlier"] is not None


def test_progress_is_seen_with_its_speed_and_the_time_left(bench, large_checkpoint, place):
    begun = start(bench, work(large_checkpoint, place, limit_bytes_s=4 * MIB))
    seen = []
    while not seen or (seen[-1]["state"] == "running" and not seen[-1]["done_bytes"]):
        real_wait(bench, begun["job"], 0.2)
        seen.append(bench.ask("engram-job", action="poll", job=begun["job"]))
    now = seen[-1]
    assert (now["state"], now["file"], now["phase"]) == ("running", FILE, "pack")
    assert 0 < now["done_bytes"] < now["total_bytes"] == begun["total_bytes"]
    assert 0 < now["mib_s"] < 40
    assert now["left_s"] > 0


def test_stopping_gives_the_space_back_and_leaves_nothing_pending(bench, large_checkpoint, place):
    begun = start(bench, work(large_checkpoint, place, limit_bytes_s=2 * MIB))
    bench.ask("engram-job", action="stop", job=begun["job"])
    assert names(place) == []
    assert bench.node.journal.read().pending() == []
    assert bench.ask("engram-job", action="poll", job=begun["job"])["state"] == "stopped"
    assert bench.ask("engram-job", action="stop", job=begun["job"])["changed"] is False


def test_an_unknown_job_is_said_to_be_so(bench, checkpoint, place):
    job = "j" + "0" * 16
    for how in ({"action": "poll"}, {"action": "stop", "check": True}):
        assert bench.refused("engram-job", job=job, **how)["id"] == "TS-ENGRAM-JOB"
    start(bench, work(checkpoint, place))
    assert bench.refused("engram-job", action="poll", job=job)["id"] == "TS-ENGRAM-JOB"


def test_a_job_that_is_stopped_before_its_start_arrives_never_begins(bench, checkpoint, place):
    """Its controller was interrupted while the request was on its way."""
    asked = request(work(checkpoint, place))
    stop = {"action": "stop", "job": asked["job"]}
    assert bench.ask("engram-job", **stop) == {"ok": True, "changed": True, "state": "forestalled", "running": None}
    assert bench.ask("engram-job", **stop)["state"] == "forestalled"
    error = bench.refused("engram-job", **asked)
    assert (error["id"], asked["job"] in error["expected"]) == ("TS-ENGRAM-JOB", True)
    assert names(place) == []
    assert ended(bench, start(bench, work(checkpoint, place))["job"])["state"] == "done"


def test_a_job_that_is_stopped_while_it_starts_never_begins(bench, checkpoint, place, monkeypatch):
    asked = request(work(checkpoint, place))

    def spawn(run, deadline_s):
        bench.ask("engram-job", action="stop", job=asked["job"])
        return detached.spawn(run, deadline_s)

    monkeypatch.setattr(engram_job, "spawn", spawn)
    assert bench.refused("engram-job", **asked)["what"] == "a job on this node's shards was stopped before it began"
    assert names(place) == []
    assert bench.node.journal.read().pending() == []
    assert not is_held(bench.node.layout.lock("engram"))


def test_stopping_a_job_that_never_began_leaves_another_ones_alone(bench, large_checkpoint, place):
    begun = start(bench, work(large_checkpoint, place, limit_bytes_s=2 * MIB))
    assert bench.ask("engram-job", action="stop", job=new_job())["running"] == begun["job"]
    assert bench.ask("engram-job", action="poll", job=begun["job"])["state"] == "running"


def test_only_the_last_forestalled_jobs_are_kept(bench):
    jobs = [new_job() for _ in range(KEPT_FORESTALLED + 3)]
    for job in jobs:
        bench.ask("engram-job", action="stop", job=job)
    assert json.loads(bench.node.layout.engram_forestalled.read_bytes()) == jobs[3:]


def test_a_failure_is_the_jobs_result_with_its_id(bench, checkpoint, place, monkeypatch):
    def full(*_given, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(native_pack, "pack", full)
    begun = start(bench, work(checkpoint, place))
    state = ended(bench, begun["job"])
    assert (state["state"], state["answer"]["error"]["id"]) == ("failed", "TS-AGENT-SPACE")
    assert names(place) == []
    monkeypatch.undo()
    later = start(bench, work(checkpoint, place))
    assert later["earlier"] is None, "the poll has seen it"
    assert ended(bench, later["job"])["state"] == "done"


def test_a_defect_of_the_agent_is_a_result_too(bench, checkpoint, place, monkeypatch):
    monkeypatch.setattr(shard_pack, "pack", None)
    state = ended(bench, start(bench, work(checkpoint, place))["job"])
    assert (state["state"], state["answer"]["error"]["id"]) == ("failed", "TS-AGENT-INTERNAL")


def test_the_result_of_a_job_that_nobody_asked_after_is_told_once(bench, checkpoint, place):
    """The controller died; the job ended by itself."""
    begun = start(bench, work(checkpoint, place))
    real_wait(bench, begun["job"])
    later = start(bench, work(checkpoint, place))
    assert (later["job"], later["changed"]) == (None, False)
    assert {key: later["earlier"][key] for key in ("job", "state", "error")} == {
        "job": begun["job"],
        "state": "done",
        "error": None,
    }
    assert start(bench, work(checkpoint, place))["earlier"] is None


def test_check_mode_begins_nothing(bench, checkpoint, place):
    answer = start(bench, work(checkpoint, place), check=True)
    assert (answer["job"], answer["changed"]) == (None, True)
    assert [row["action"] for row in answer["files"]] == ["packed", "packed"]
    assert names(place) == []


@pytest.mark.parametrize("level", ["full", "deep"])
@pytest.mark.parametrize("verb", ["engram", "engram-job"])
def test_check_mode_verifies_at_the_quick_level_alone(bench, checkpoint, place, monkeypatch, level, verb):
    bench.ask("engram", **work(checkpoint, place))
    monkeypatch.setattr(engram, "look", None)
    monkeypatch.setattr(engram_job, "spawn", None)
    fields = work(checkpoint, place, action="verify", level=level)
    asked = fields if verb == "engram" else request(fields)
    with held(bench.node.layout.lock("disk"), bench.clock, 0, "a measurement"):
        before = bench.tree()
        answer = bench.ask(verb, **asked, check=True)
        assert bench.tree() == before
    assert (answer["changed"], answer["skipped_level"], answer.get("job")) == (False, level, None)
    assert [row["state"] for row in answer["files"]] == ["ok", "ok"]
    (place / FILE).write_bytes(b"wrong")
    refused, _ = cli.answer(bench.node, verb, json.dumps({**asked, "check": True}))
    assert (refused["error"]["id"], refused["skipped_level"]) == ("TS-ENGRAM-SIZE", level)


def test_check_mode_follows_no_job(bench, large_checkpoint, place):
    fields = work(large_checkpoint, place, limit_bytes_s=2 * MIB)
    begun = start(bench, fields)
    answer = start(bench, fields, check=True)
    assert (answer["job"], [row["action"] for row in answer["files"]]) == (None, ["packed", "packed"])
    assert bench.ask("engram-job", action="poll", job=begun["job"])["state"] == "running"


def test_refusals_come_at_once_and_not_from_a_job(bench, checkpoint, place):
    (place / FILE).write_bytes(b"wrong")
    fields = work(checkpoint, place)
    assert start_refused(bench, fields)["id"] == "TS-ENGRAM-SIZE"
    fields = work(checkpoint, place, action="verify", level="deep")
    assert start_refused(bench, fields)["id"] == "TS-ENGRAM-SIZE"
    fields = work(checkpoint, place, repair=True, reserve_bytes=2**60)
    error = start_refused(bench, fields)
    assert (error["id"], str(2**60) in error["expected"]) == ("TS-ENGRAM-SPACE", True)
    assert not (bench.root / "engram-job.json").exists()


@pytest.mark.parametrize("level", ["full", "deep"])
def test_a_whole_verification_is_a_job(bench, checkpoint, place, level):
    bench.ask("engram", **work(checkpoint, place))
    begun = start(bench, work(checkpoint, place, action="verify", level=level))
    state = ended(bench, begun["job"])
    assert (state["state"], state["title"]) == ("done", f"engram verify {level}")
    assert [row["checked"] for row in state["answer"]["files"]] == ["whole", "whole"]


@pytest.mark.parametrize(("flipped", "error_id"), [(False, "TS-ENGRAM-MANIFEST"), (True, "TS-ENGRAM-CONTENT")])
def test_the_deepest_level_says_whether_a_file_or_its_manifest_is_wrong(
    bench, checkpoint, place, monkeypatch, flipped, error_id
):
    bench.ask("engram", **work(checkpoint, place))
    monkeypatch.setattr(shard_check, "WHOLE_BELOW_BYTES", 4096)
    monkeypatch.setattr(shard_check, "SAMPLED_ROWS", 0)
    (place / f"{FILE}.manifest.json").write_bytes(b"{}")
    if flipped:
        content = bytearray((place / FILE).read_bytes())
        content[-1] ^= 1
        (place / FILE).write_bytes(content)
    full = start_refused(bench, work(checkpoint, place, action="verify", level="full"))
    assert full["id"] == "TS-ENGRAM-MANIFEST"
    begun = start(bench, work(checkpoint, place, action="verify", level="deep"))
    assert ended(bench, begun["job"])["answer"]["error"]["id"] == error_id


def test_the_deadline_is_what_the_bytes_take_at_the_floor_and_the_grace(bench, large_checkpoint, place):
    fields = work(large_checkpoint, place, limit_bytes_s=2 * MIB)
    begun = start(bench, fields, floor_bytes_s=MIB, grace_s=7)
    assert begun["deadline_s"] == 7 + begun["total_bytes"] / MIB
    attached = start(bench, fields, floor_bytes_s=5, grace_s=5)
    assert attached["deadline_s"] == round(begun["deadline_s"], 1), "the job's own"


def test_a_job_ends_at_its_deadline_and_the_next_run_goes_on(bench, large_checkpoint, place):
    fields = work(large_checkpoint, place, limit_bytes_s=MIB)
    begun = start(bench, fields, floor_bytes_s=2**40, grace_s=0.5)
    assert ended(bench, begun["job"])["state"] == "died"
    assert start(bench, work(large_checkpoint, place))["job"] != begun["job"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"job":"x"}', b"x" * 2**21])
def test_a_damaged_job_file_keeps_nobody_from_packing(bench, checkpoint, place, content):
    bench.root.mkdir(exist_ok=True)
    (bench.root / "engram-job.json").write_bytes(content)
    assert ended(bench, start(bench, work(checkpoint, place))["job"])["state"] == "done"


def test_a_process_that_only_has_the_jobs_number_is_left_alone(bench, checkpoint, place):
    """The job died, and its number belongs to another process now."""
    begun = start(bench, work(checkpoint, place))
    ended(bench, begun["job"])
    path = bench.root / "engram-job.json"
    state = json.loads(path.read_bytes())
    bystander = os.fork()
    if bystander == 0:
        signal.pause()
        os._exit(0)
    try:
        path.write_text(json.dumps({**state, "state": "running", "pid": bystander}))
        assert bench.ask("engram-job", action="poll", job=begun["job"])["state"] == "died"
        with held(bench.node.layout.lock("disk"), bench.clock, 0, "x"):
            bench.ask("engram-job", action="stop", job=begun["job"])
        assert os.waitpid(bystander, os.WNOHANG) == (0, 0)
    finally:
        os.kill(bystander, signal.SIGKILL)
        os.waitpid(bystander, 0)


@pytest.mark.parametrize("reaped", [False, True])
def test_a_job_between_its_lock_and_its_last_word_still_runs(bench, checkpoint, place, reaped):
    """The lock is given back before the end is written: the process alone says whether the job has died."""
    begun = start(bench, work(checkpoint, place))
    ended(bench, begun["job"])
    path = bench.root / "engram-job.json"
    state = json.loads(path.read_bytes())
    process = os.fork()
    if process == 0:
        signal.pause()
        os._exit(0)
    try:
        running = {**state, "state": "running", "pid": process, "pid_started": start_ticks(Path("/proc"), process)}
        path.write_text(json.dumps(running))
        assert bench.ask("engram-job", action="poll", job=begun["job"])["state"] == "running"
        assert json.loads(path.read_bytes()) == running
        os.kill(process, signal.SIGKILL)
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        if reaped:
            os.waitpid(process, 0)
        assert bench.ask("engram-job", action="poll", job=begun["job"])["state"] == "died"
    finally:
        with suppress(ChildProcessError, ProcessLookupError):  # also when a check before the kill fails
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


# -- never beside a measurement ----------------------------------------------------------------------------------------


def test_packing_is_refused_while_a_measurement_runs(bench, checkpoint, place):
    bench.root.mkdir(exist_ok=True)
    with held(bench.node.layout.lock("disk"), bench.clock, 0, "oneshot trispark-bench") as note:
        note()
        for verb, asked in (
            ("engram", work(checkpoint, place)),
            ("engram-job", request(work(checkpoint, place))),
        ):
            error = bench.refused(verb, **asked, lock_wait_s=0)
            assert error["id"] == "TS-AGENT-LOCKED"
            assert error["observed"].startswith("held by oneshot trispark-bench, pid ")
            assert error["observed"].endswith("since 2026-01-02T03:04:05.000Z")
    assert names(place) == []


def test_a_measurement_is_refused_while_a_job_packs(bench, active, large_checkpoint, place):
    begun = start(bench, work(large_checkpoint, place, limit_bytes_s=2 * MIB))
    ask = {"image": active["spec"]["container"]["image"], "command": ["bench"], "input": {}, "deadline_s": 5}
    error = bench.refused("oneshot", **ask, lock_wait_s=0)
    assert (error["id"], "held by engram ensure, pid " in error["observed"]) == ("TS-AGENT-LOCKED", True)
    assert bench.docker.containers == {}
    bench.ask("engram-job", action="stop", job=begun["job"])
    assert not is_held(bench.node.layout.lock("disk"))


# -- killed at any moment ----------------------------------------------------------------------------------------------

KILLS = 20


@pytest.mark.parametrize(
    "old",
    [pytest.param(None, id="nothing before"), pytest.param(b"old", id="a wrong file before", marks=pytest.mark.slow)],
)
def test_killed_at_random_moments_a_job_leaves_the_old_state_or_a_complete_file(bench, large_checkpoint, place, old):
    """kill -9 of the real process, at seeded moments of a run that takes about half a second."""
    moments = random.Random(4)
    whole = large_checkpoint.shard(1, 1)
    fields = work(large_checkpoint, place, layers=[1], repair=True, limit_bytes_s=32 * MIB)
    path = place / FILE
    deaths = 0
    for _ in range(KILLS):
        for each in place.iterdir():
            each.unlink()
        if old is not None:
            path.write_bytes(old)
        begun = start(bench, fields)
        real_wait(bench, begun["job"], moments.uniform(0, 0.5))
        state = json.loads((bench.root / "engram-job.json").read_bytes())
        if state["state"] == "running":
            os.kill(state["pid"], signal.SIGKILL)
        after = ended(bench, begun["job"])["state"]
        assert after in ("done", "died")
        deaths += after == "died"
        assert (path.read_bytes() if path.exists() else None) in (old, whole)
        again = start(bench, {**fields, "limit_bytes_s": 0})
        if again["job"] is not None:
            assert ended(bench, again["job"])["state"] == "done"
        assert path.read_bytes() == whole
        answer = bench.ask("engram", **work(large_checkpoint, place, layers=[1], action="verify", level="full"))
        assert answer["files"][0]["state"] in ("ok", "adopted")
        assert f"{FILE}.partial" not in names(place)
    assert deaths > KILLS // 2, "most moments must lie within the run"
