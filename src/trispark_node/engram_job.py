"""Verb `engram-job`: work on whole shards, which takes minutes to hours, in a process that no connection holds.

start   does what `engram` does; when that is short it answers at once, else a process of its own goes on with it
poll    how far it is; when it has ended, what `engram` would have answered
stop    ends it; nothing of an unfinished shard stays. A job that has not begun yet never will

Who starts a job names it, so that it can be stopped also when the answer to its start is lost.

The job's state lies in `engram-job.json`, with the number and the start of its process: a job lives while that process
does. `lock.engram-start` is held from a look at that file until a job is in it, `lock.engram` while one is at work.
"""

from __future__ import annotations

import os
import re
import select
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trispark_node import engram, processes, shard_check
from trispark_node.detached import Say, spawn
from trispark_node.engram_request import ENSURE, EngramRequest
from trispark_node.errors import AgentError
from trispark_node.fields import Fields
from trispark_node.job_meter import Meter
from trispark_node.job_state import DIED, ENDED, FORESTALLED, PROCFS, RUNNING, STOPPED, JobFile
from trispark_node.journal import FAILED
from trispark_node.lock import held
from trispark_node.mutation import Mode
from trispark_node.node import Node
from trispark_node.shard_check import QUICK, Work
from trispark_node.unexpected import internal_error, os_error

JOB_ID = re.compile(r"j[0-9a-f]{16}")
POLL_S = 0.2
START_S = 60.0
"""For a process to begin its work after the locks were got."""
BEGIN_S = START_S + engram.INSPECT_S
"""It looks at the shards once more before it begins."""
_OF_BEGUN = ("job", "total_bytes", "deadline_s")
STOP_S = 10.0
"""Between TERM and KILL, and after KILL."""


@dataclass(frozen=True)
class JobRequest:
    """A job that nobody waits for any more ends after what its bytes take at `floor_bytes_s`, and `grace_s`;
    `timeout_s` is how long a poll waits for news."""

    action: str
    work: EngramRequest | None
    job: str
    floor_bytes_s: int
    grace_s: float
    timeout_s: float

    @classmethod
    def parse(cls, fields: Fields) -> JobRequest:
        action = fields.text("action", pattern=re.compile("start|poll|stop"))
        return cls(
            action=action,
            work=EngramRequest.parse_inner(fields.inner("work")) if action == "start" else None,
            job=fields.text("job", pattern=JOB_ID),
            floor_bytes_s=fields.integer("floor_bytes_s", low=1) if action == "start" else 1,
            grace_s=fields.seconds("grace_s") if action == "start" else 0.0,
            timeout_s=fields.seconds("timeout_s", 0, high=30) if action == "poll" else 0.0,
        )


def changes(request: JobRequest) -> bool:
    """Whether a start writes shards. A job is ended by whoever knows its name, also after it lost the fleet lock."""
    return request.work is not None and engram.changes(request.work)


def engram_job(node: Node, request: JobRequest, mode: Mode) -> dict[str, Any]:
    if request.work is not None:
        return _start(node, request, request.work, mode)
    if request.action == "poll":
        return _poll(node, request)
    return _stop(node, request.job, mode)


def _start(node: Node, request: JobRequest, work: EngramRequest, mode: Mode) -> dict[str, Any]:
    """`job` is None where the answer is there already; `earlier` says how a job ended that nobody asked after."""
    if mode.check:
        return {**engram.engram(node, work, mode), "job": None}
    joined = _join(node, request, work)
    if joined is not None:
        return joined
    if work.action != ENSURE and work.level == QUICK:
        return {**engram.engram(node, work, mode), "job": None}
    node.disk.make_directory(node.layout.root)
    # Held until the job is in its file: of two controllers that start at once the second one joins or is refused.
    with held(node.layout.lock("engram-start"), node.clock, mode.lock_wait_s, f"start of job {request.job}") as note:
        note()
        return _join(node, request, work) or _begin(node, request, work, mode)


def _join(node: Node, request: JobRequest, work: EngramRequest) -> dict[str, Any] | None:
    """The job at work, where it does what is asked for; also the asked one itself, whose start may arrive twice."""
    file = JobFile(node)
    before = file.read()
    if before is None:
        return None
    if before["job"] != request.job:
        if _state_of(node, file, before["job"])["state"] != RUNNING:
            return None
        if before["fingerprint"] != work.fingerprint:
            raise _busy(before)
    return {"changed": False, "attached": True, **{key: before[key] for key in _OF_BEGUN}}


def _begin(node: Node, request: JobRequest, work: EngramRequest, mode: Mode) -> dict[str, Any]:
    file = JobFile(node)
    before = file.read()
    file.refuse_forestalled(request.job)
    total, answer = engram.outlook(node, work)
    earlier = _earlier(before)
    if not total:
        if before is not None:
            file.see(before["job"])
        return {"changed": False, **answer, "job": None, "earlier": earlier}
    job, deadline_s = request.job, request.grace_s + total / request.floor_bytes_s

    def run(started: Say) -> None:
        # The connection to Docker is closed here, and its number may be a lock's by now: a node of its own.
        _run(replace(node), work, job, total, deadline_s, mode, started)

    said = spawn(run, BEGIN_S + mode.lock_wait_s)
    if said is None:
        raise AgentError(
            "TS-ENGRAM-JOB",
            "a job on this node's shards did not begin",
            where=str(node.layout.engram_job),
            expected=f"its begin within {BEGIN_S + mode.lock_wait_s:g} s",
            observed="no word of it",
            remedy="run the verb again; see the node's memory and processes",
        )
    if "error" in said:
        raise _of_fields(said["error"])
    begun = {"job": job, "total_bytes": total, "deadline_s": deadline_s}
    return {"changed": False, "attached": False, "earlier": earlier, **begun}


def _run(node: Node, work: EngramRequest, job: str, total: int, deadline_s: float, mode: Mode, started: Say) -> None:
    """In the detached process."""
    file = JobFile(node)
    meter = Meter(file, job, total)

    def begun() -> None:
        file.begin(job, work, total, deadline_s)
        signal.setitimer(signal.ITIMER_REAL, deadline_s)  # its default action ends the process, and with it the lock
        started({"job": job})

    try:
        answer = engram.engram(node, work, Mode(False, mode.lock_wait_s), Work(watch=meter), begun)
        if not file.is_mine(job):  # somebody else did it between the outlook and the lock
            begun()
    except AgentError as error:
        result: dict[str, Any] = {"error": error.fields(), **error.extra}
    except OSError as error:
        result = {"error": os_error("engram", error).fields()}
    except Exception as error:
        result = {"error": internal_error(node, "engram", error).fields()}
    else:
        file.end(job, {"ok": True, **answer})
        return
    if file.is_mine(job):
        file.end(job, {"ok": False, **result})
    else:
        started({"error": result["error"]})


def _poll(node: Node, request: JobRequest) -> dict[str, Any]:
    file = JobFile(node)
    deadline = node.clock.monotonic() + request.timeout_s
    while True:
        state = _state_of(node, file, request.job)
        if state["state"] in ENDED or node.clock.monotonic() >= deadline:
            break
        node.clock.sleep(POLL_S)
    if state["state"] in ENDED and not state["seen"]:
        with suppress(OSError, AgentError):  # whoever asks has the result all the same
            file.see(request.job)
    return {"changed": False, **{key: value for key, value in state.items() if key not in ("fingerprint", "seen")}}


def _state_of(node: Node, file: JobFile, job: str) -> dict[str, Any]:
    """What the file says, and DIED for one that says running without a process behind it."""
    state = file.find(job)
    gone = state is not None and state["state"] == RUNNING and not _is_there(state)
    if gone:  # the lock is given back before the end is written: what counts is what the file says after the process
        state = file.find(job)
    if state is None:
        now = file.read()
        raise AgentError(
            "TS-ENGRAM-JOB",
            "there is no such job on this node's shards",
            where=str(node.layout.engram_job),
            expected=job,
            observed="none" if now is None else now["job"],
            remedy="run the verb again; other controllers may have begun their own jobs",
        )
    if state["state"] == RUNNING and gone:
        return {**state, "state": DIED}
    return state


def _is_there(state: dict[str, Any]) -> bool:
    return _is_process(int(state["pid"]), int(state["pid_started"]))


def _is_process(pid: int, started: int) -> bool:
    """Whether the process that has this number now is the one that began then, and has not ended."""
    try:
        return processes.start_ticks(PROCFS, pid) == started and not processes.is_zombie(PROCFS, pid)
    except OSError:
        return False


def _stop(node: Node, job: str, mode: Mode) -> dict[str, Any]:
    """`running`: the job that goes on all the same, which another controller began; None without one."""
    file = JobFile(node)
    if not mode.check and file.forestall(job):
        other = file.read()
        running = other["job"] if other is not None and other["state"] == RUNNING and _is_there(other) else None
        return {"changed": True, "state": FORESTALLED, "running": running}
    state = _state_of(node, file, job)
    if state["state"] not in (RUNNING, DIED) or not file.is_last(job):
        return {"changed": False, "state": state["state"]}
    if mode.check:
        return {"changed": True, "state": state["state"]}
    if state["state"] == RUNNING:
        _end(node, int(state["pid"]), int(state["pid_started"]))
    with held(node.layout.lock("engram"), node.clock, STOP_S, "engram-job stop"):
        state = _state_of(node, file, job)
        if state["state"] in (RUNNING, DIED):  # the lock is this process's own now
            _clean_up(node, state)
            file.stop(job)
            return {"changed": True, "state": STOPPED}
    return {"changed": False, "state": state["state"]}


def _clean_up(node: Node, state: dict[str, Any]) -> None:
    """The space of an unfinished shard, and the intent that nobody answers any more."""
    for name in state["files"]:
        node.disk.remove_file(shard_check.partial_path(Path(state["directory"]) / name))
    for entry in node.journal.read().pending():
        if entry.verb == "engram":
            node.journal.append("engram", FAILED, {"intent": entry.seq, "error": "stopped"})


def _end(node: Node, pid: int, started: int) -> None:
    """TERM, then KILL. The descriptor names this process alone, whoever gets its number later."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not _is_process(pid, started):
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
            if select.select([descriptor], [], [], STOP_S)[0]:
                return
    finally:
        os.close(descriptor)


def _earlier(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """How the last job ended, once: for a controller that comes after one that died."""
    if state is None or state["seen"]:
        return None
    error = (state.get("answer") or {}).get("error")
    return {
        "job": state["job"],
        "title": state["title"],
        "state": DIED if state["state"] == RUNNING else state["state"],
        "started_at": state["started_at"],
        "ended_at": state["ended_at"],
        "error": error["id"] if error else None,
    }


def _busy(state: dict[str, Any]) -> AgentError:
    return AgentError(
        "TS-ENGRAM-BUSY",
        "another job is at work on this node's shards",
        where=str(state["directory"]),
        expected="no job, or the same one",
        observed=f"{state['title']} (job {state['job']}, pid {state['pid']}), since {state['started_at']}",
        remedy="wait until it has ended, or ask for the same again, which goes on watching it",
    )


def _of_fields(fields: dict[str, str]) -> AgentError:
    return AgentError(
        fields["id"],
        fields["what"],
        where=fields["where"],
        expected=fields["expected"],
        observed=fields["observed"],
        remedy=fields["remedy"],
    )
