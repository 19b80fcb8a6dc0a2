"""Follows the work on a node's whole shards: begins or joins the node's job, shows how far it is, hands on its answer.

The job belongs to the node (trispark_node.engram_job). It ends by itself when nobody follows it any more; the next run
joins it, or is told how it ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from trispark.agent_call import AGENT, failed, result_of_answer
from trispark.errors import TrisparkError

START_S: Final = 300.0
"""Before the first byte, and after the last one: room is looked for, files are synced."""
GRACE_S: Final = 300.0
"""How much longer than this controller the node waits for its job's end. Who joins a job later counts from then on, and
the node ends it first."""
POLL_S: Final = 2.0
"""How long the node waits for the job's end before it answers a poll."""
LOST_AT_MOST: Final = 10
"""Polls in a row that may be lost, without a connection or without an answer: the job needs neither."""
MIB: Final = 2**20
TASK: Final = "Verify the packed shards, pack what is missing"
"""Of the role engram: in which a run was interrupted."""
INTERRUPTED: Final = (
    "jobs on the nodes' shards were told to end; one whose node did not hear it ends by itself, "
    "and the same command joins it or says how it ended"
)
"""Said by the front end: what a task shows after an interrupt, ansible-playbook does not print any more."""
_JOINED: Final = "if it goes on, it ends by itself, and the same verb joins it or says how it ended"


class Ask(Protocol):
    def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A task's result of one call of the agent's verb `engram-job` (agent_call.call_agent). Raises Lost."""


class Lost(Exception):
    """The connection to the node could not be made or broke."""


class Interrupted(BaseException):
    """A signal ended the controller's wait. No Exception: Ansible's connections try again after any of those."""


def floor_bytes_s(floor_mib_s: float, limit_bytes_s: int = 0) -> int:
    """The lowest believable speed; a throttle lowers it to the throttle's half."""
    floor = floor_mib_s * MIB
    return max(int(min(floor, limit_bytes_s / 2) if limit_bytes_s else floor), 1)


def follow(
    ask: Ask,
    work: Mapping[str, Any],
    *,
    job: str,
    floor_mib_s: float,
    show: Callable[[str], None],
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> dict[str, Any]:
    """The task's result, as the agent's verb `engram` would give it; with `work` as that verb's request.

    `job` (`new_job`) is what a job that begins is called. An interrupt stops it on the node and goes on. `show` gets
    lines for a person. Raises Lost when the start got no answer.
    """
    floor = floor_bytes_s(floor_mib_s, int(work.get("limit_bytes_s") or 0))
    start = {"action": "start", "job": job, "work": dict(work), "floor_bytes_s": floor, "grace_s": START_S + GRACE_S}
    try:
        try:
            begun = ask(start)
        except Lost:
            show(f"job {job}: no answer to its start; {_JOINED}")
            raise
        if "answer" not in begun:
            show(f"job {job}: no answer to its start; {_JOINED}")
        if begun.get("failed"):
            return begun
        answer = begun["answer"]
        _show_earlier(answer.get("earlier"), show)
        if answer["job"] is None:
            return begun
        job = str(answer["job"])
        return _watch(ask, job, answer, show, clock, pause)
    except Interrupted:
        _end(ask, job, show, "interrupted")
        raise


def new_job() -> str:
    return f"j{secrets.token_hex(8)}"


def _end(ask: Ask, job: str, show: Callable[[str], None], why: str) -> bool:
    """End it, also one whose start has not been answered yet. Whether the node says that it does not run any more."""
    show(f"job {job}: {why}, it is ended on the node")
    try:
        ended = ask({"action": "stop", "job": job})
    except Exception as error:
        ended = {"failed": True, "msg": str(error)}
    if ended.get("failed"):
        show(f"job {job}: the node does not say that it ended ({ended.get('msg')}); {_JOINED}")
        return False
    if other := ended["answer"].get("running"):
        show(f"job {job} did not begin; job {other} of another controller goes on")
    return True


def _watch(
    ask: Ask,
    job: str,
    begun: Mapping[str, Any],
    show: Callable[[str], None],
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> dict[str, Any]:
    total = int(begun["total_bytes"])
    within = max(float(begun["deadline_s"]) - GRACE_S, 0.0)
    what = "goes on with" if begun["attached"] else "begins"
    show(f"job {job} {what} {total / 1e9:.2f} GB; at most {duration(within)}")
    began, lines, lost = clock(), _Lines(show, clock), 0
    while True:
        polled = _poll(ask, job)
        if "answer" not in polled:
            lost += 1
            if lost > LOST_AT_MOST:
                return _lost(job, polled)
            pause(POLL_S)
            continue
        if polled.get("failed"):
            return polled
        lost = 0
        state = polled["answer"]
        if state["state"] != "running":
            return _ended(state)
        lines.progress(state)
        if clock() - began > within:
            ended = _end(ask, job, show, "too slow")
            return failed(_late(job, within, state, ended).as_dict())


def _poll(ask: Ask, job: str) -> dict[str, Any]:
    """The result of a poll, without `answer` when it was lost."""
    try:
        return ask({"action": "poll", "job": job, "timeout_s": POLL_S})
    except Lost as lost:
        return {"unreachable": True, "msg": str(lost)}


def _lost(job: str, polled: Mapping[str, Any]) -> dict[str, Any]:
    """A node that cannot be reached is unreachable for Ansible, too."""
    error = TrisparkError(
        "TS-ENGRAM-LOST",
        "the node does not answer any more; its job on the shards goes on without this controller",
        where=f"job {job}",
        expected=f"an answer to one of {LOST_AT_MOST + 1} polls in a row",
        observed=str(polled.get("msg") or "none"),
        remedy="see the node and its connection, then run the same verb again: it joins the job or says how it ended",
    )
    result = failed(error.as_dict())
    return {**result, "failed": False, "unreachable": True} if polled.get("unreachable") else result


def _ended(state: Mapping[str, Any]) -> dict[str, Any]:
    if state["answer"] is not None:
        return result_of_answer("engram", AGENT, 0 if state["answer"].get("ok") else 1, state["answer"])
    return failed(
        TrisparkError(
            "TS-ENGRAM-JOB",
            "the job on the node's shards ended without a result",
            where=str(state["directory"]),
            expected="its end with an answer",
            observed=f"{state['state']} at {percent(state)} of {state['title']}",
            remedy="see what ended it (another controller, its deadline, a reboot, the kernel's memory killer), "
            "then run it again",
        ).as_dict()
    )


def _late(job: str, within: float, state: Mapping[str, Any], ended: bool) -> TrisparkError:
    """`ended`: whether the node says so; without that the job may still run."""
    return TrisparkError(
        "TS-ENGRAM-LATE",
        "work on a node's shards was slower than the lowest speed that is believed in; it was ended"
        if ended
        else "work on a node's shards was slower than the lowest speed that is believed in; it may go on, the node "
        "does not say that it ended",
        where=f"job {job}: {state['directory']}/{state['file']}",
        expected=f"its end within {duration(within)}",
        observed=f"{percent(state)} done, {state['mib_s']} MiB/s",
        remedy="see the disk and the checkpoint's file system, or lower engram_floor_mib_s"
        if ended
        else "see the node; it ends by itself when nobody follows it; to stop it now run the same verb again, which "
        "joins it, and press Ctrl-C",
    )


class _Lines:
    """A line at each new file or phase, and in between less often the longer it takes."""

    def __init__(self, show: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._show = show
        self._clock = clock
        self._began = clock()
        self._due = self._began
        self._current = ("", "")

    def progress(self, state: Mapping[str, Any]) -> None:
        now = self._clock()
        current = (str(state["file"]), str(state["phase"]))
        if not state["file"] or (now < self._due and current == self._current):
            return
        self._current = current
        self._due = now + min(max((now - self._began) / 10, 5.0), 60.0)
        self._show(progress_line(state))


def progress_line(state: Mapping[str, Any]) -> str:
    """`pack engram-l1-r0of3.bin: 12 % of 67.6 GB, 350.1 MiB/s, 2 min 50 s left`."""
    left = "" if state["left_s"] is None else f", {duration(float(state['left_s']))} left"
    total = int(state["total_bytes"]) / 1e9
    return f"{state['phase']} {state['file']}: {percent(state)} of {total:.2f} GB, {state['mib_s']} MiB/s{left}"


def percent(state: Mapping[str, Any]) -> str:
    return f"{100 * int(state['done_bytes']) // max(int(state['total_bytes']), 1)} %"


def duration(seconds: float) -> str:
    """`45 s`, `2 min 50 s`, `3 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _show_earlier(earlier: Mapping[str, Any] | None, show: Callable[[str], None]) -> None:
    if earlier is not None:
        said = f" with {earlier['error']}" if earlier["error"] else ""
        when = f" at {earlier['ended_at']}" if earlier["ended_at"] else f", begun at {earlier['started_at']}"
        show(f"an earlier job, {earlier['title']}, that nobody waited for: {earlier['state']}{said}{when}")
