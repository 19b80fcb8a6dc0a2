"""Following a node's job: lines, deadline, lost connections, interrupts, and whose answer it ends with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from trispark.shard_job import (
    GRACE_S,
    LOST_AT_MOST,
    START_S,
    Interrupted,
    Lost,
    duration,
    floor_bytes_s,
    follow,
    new_job,
    percent,
    progress_line,
)

JOB = "j" + "1" * 16
WORK = {"action": "ensure", "directory": "/srv/engram", "limit_bytes_s": 0}
FILES = {"ok": True, "changed": True, "files": [{"file": "engram-l1-r0of3.bin"}]}
GB = 10**9


def running(done: int, total: int = 10 * GB, file: str = "engram-l1-r0of3.bin", phase: str = "pack") -> dict[str, Any]:
    return {
        "ok": True,
        "state": "running",
        "title": "engram ensure",
        "directory": "/srv/engram",
        "file": file,
        "phase": phase,
        "done_bytes": done,
        "total_bytes": total,
        "mib_s": 100.0,
        "left_s": (total - done) / (100 * 2**20),
        "answer": None,
    }


def over(state: str, answer: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {**running(10 * GB), "state": state, "answer": answer}


class Node:
    """Answers as told, one after the other; time passes by polls and pauses."""

    def __init__(self, *polls: Any, start: Mapping[str, Any] | BaseException | None = None) -> None:
        self.start = start
        self.polls = list(polls)
        self.begun = (
            dict(start)
            if isinstance(start, Mapping)
            else {
                "job": JOB,
                "attached": False,
                "total_bytes": 10 * GB,
                "earlier": None,
            }
        )
        self.asked: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.time = 0.0
        self.step = 2.0

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(dict(request))
        if request["action"] == "start":
            if isinstance(self.start, BaseException):
                raise self.start
            deadline = request["grace_s"] + self.begun.get("total_bytes", 0) / request["floor_bytes_s"]
            return {"changed": False, "answer": {"ok": True, "deadline_s": deadline, **self.begun}}
        if request["action"] == "stop":
            return {"changed": True, "answer": {"ok": True, "state": "stopped"}}
        self.time += self.step
        said = self.polls.pop(0)
        if isinstance(said, BaseException):
            raise said
        return said if "failed" in said else {"changed": False, "answer": said}

    def pause(self, seconds: float) -> None:
        self.time += seconds

    def follow(self, floor: float = 20.0, **work: Any) -> dict[str, Any]:
        return follow(
            self.ask,
            {**WORK, **work},
            job=JOB,
            floor_mib_s=floor,
            show=self.lines.append,
            clock=lambda: self.time,
            pause=self.pause,
        )

    @property
    def actions(self) -> list[str]:
        return [request["action"] for request in self.asked]


def test_the_jobs_answer_is_the_tasks() -> None:
    node = Node(running(GB), running(5 * GB), over("done", FILES))
    assert node.follow() == {"changed": True, "answer": FILES}
    assert node.asked[0] == {
        "action": "start",
        "job": JOB,
        "work": WORK,
        "floor_bytes_s": 20 * 2**20,
        "grace_s": START_S + GRACE_S,
    }
    assert node.lines[0] == f"job {JOB} begins 10.00 GB; at most 12 min 57 s"
    assert node.lines[1] == "pack engram-l1-r0of3.bin: 10 % of 10.00 GB, 100.0 MiB/s, 1 min 26 s left"


def test_a_refusal_of_the_job_keeps_its_id_and_files() -> None:
    error = {"id": "TS-AGENT-SPACE", "what": "full", "where": "x", "expected": "y", "observed": "z", "remedy": "r"}
    result = Node(over("failed", {"ok": False, "error": error, "files": [1]})).follow()
    assert (result["failed"], result["check_id"], result["answer"]["files"]) == (True, "TS-AGENT-SPACE", [1])
    assert result["msg"] == "TS-AGENT-SPACE: full; where: x; expected: y; observed: z; do: r"


def test_what_is_short_is_answered_at_once() -> None:
    node = Node(start={**FILES, "changed": False, "job": None})
    assert node.follow()["answer"]["files"] == FILES["files"]
    assert (node.actions, node.lines) == (["start"], [])


def test_a_refused_begin_is_the_result() -> None:
    node = Node()
    node.ask = lambda request: {"failed": True, "check_id": "TS-ENGRAM-BUSY", "answer": {}}  # type: ignore[method-assign]
    assert node.follow()["check_id"] == "TS-ENGRAM-BUSY"
    assert node.lines == []


@pytest.mark.parametrize("state", ["died", "stopped"])
def test_a_job_without_a_result_is_an_error(state) -> None:
    result = Node(over(state)).follow()
    assert result["check_id"] == "TS-ENGRAM-JOB"
    assert f"{state} at 100 % of engram ensure" in result["msg"]


def test_a_job_that_is_joined_and_one_that_nobody_waited_for_are_said() -> None:
    earlier = {
        "title": "engram ensure",
        "state": "failed",
        "error": "TS-AGENT-SPACE",
        "started_at": "10:00",
        "ended_at": "11:00",
    }
    start = {"job": JOB, "attached": True, "total_bytes": GB, "deadline_s": 648.0, "earlier": earlier}
    node = Node(over("done", FILES), start=start)
    node.follow()
    assert node.lines == [
        "an earlier job, engram ensure, that nobody waited for: failed with TS-AGENT-SPACE at 11:00",
        f"job {JOB} goes on with 1.00 GB; at most 5 min 48 s",
    ]


def test_too_slow_is_ended_with_its_speed() -> None:
    node = Node(*[running(GB)] * 1000)
    node.step = 30.0
    result = node.follow()
    assert result["check_id"] == "TS-ENGRAM-LATE"
    assert "10 % done, 100.0 MiB/s" in result["msg"]
    assert "; it was ended; where: job " in result["msg"]
    assert node.actions[-1] == "stop"
    assert 776 < node.time < 776 + 60


@pytest.mark.parametrize(
    "refusal",
    [{"failed": True, "msg": "TS-AGENT-LOCKED: held"}, Lost("TS-AGENT-LOCKED: held")],
    ids=["refused", "lost"],
)
def test_too_slow_and_not_ended_says_that_it_may_go_on(refusal: dict[str, Any] | Lost) -> None:
    node = Node(*[running(GB)] * 1000)
    node.step = 30.0
    plain = node.ask

    def ask(request: Mapping[str, Any]) -> dict[str, Any]:
        if request["action"] != "stop":
            return plain(request)
        if isinstance(refusal, Lost):
            raise refusal
        return refusal

    node.ask = ask  # type: ignore[method-assign]
    result = node.follow()
    assert result["check_id"] == "TS-ENGRAM-LATE"
    assert "it was ended" not in result["msg"]
    assert f"it may go on, the node does not say that it ended; where: job {JOB}: " in result["msg"]
    assert "to stop it now run the same verb again" in result["msg"]
    assert "the node does not say that it ended (TS-AGENT-LOCKED: held)" in node.lines[-1]
    assert not [line for line in node.lines if "no answer to its start" in line], "it began"


SILENT = {"failed": True, "check_id": "TS-AGENT-SILENT", "msg": "TS-AGENT-SILENT: no JSON"}


@pytest.mark.parametrize(
    ("lost", "unreachable", "said"),
    [
        pytest.param(SILENT, False, "TS-AGENT-SILENT: no JSON", id="no answer"),
        pytest.param(Lost("ssh: connection reset"), True, "ssh: connection reset", id="no connection"),
    ],
)
def test_polls_may_be_lost_for_a_while(lost, unreachable, said) -> None:
    node = Node(*[lost] * LOST_AT_MOST, running(GB), *[lost] * LOST_AT_MOST, over("done", FILES))
    assert node.follow()["answer"] == FILES
    node = Node(*[lost] * (LOST_AT_MOST + 1), running(GB))
    result = node.follow()
    assert (result["check_id"], bool(result.get("unreachable"))) == ("TS-ENGRAM-LOST", unreachable)
    assert bool(result["failed"]) is not unreachable, "else Ansible would not mark the node unreachable"
    assert said in result["msg"]
    assert f"job {JOB}" in result["msg"]
    assert "goes on" in result["msg"]
    assert "stop" not in node.actions, "the job ends by itself"


def test_a_refusal_of_the_node_is_no_lost_connection() -> None:
    refused = {"failed": True, "check_id": "TS-ENGRAM-JOB", "answer": {"ok": False}}
    assert Node(refused).follow()["check_id"] == "TS-ENGRAM-JOB"


def test_an_interrupt_ends_the_job_on_the_node() -> None:
    node = Node(running(GB), Interrupted())
    with pytest.raises(Interrupted):
        node.follow()
    assert node.asked[-1] == {"action": "stop", "job": JOB}
    assert "interrupted" in node.lines[-1]


def test_an_interrupt_goes_on_when_the_node_does_not_answer() -> None:
    node = Node(Interrupted())
    plain = node.ask

    def ask(request: Mapping[str, Any]) -> dict[str, Any]:
        if request["action"] == "stop":
            raise OSError("gone")
        return plain(request)

    node.ask = ask  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        node.follow()
    assert node.lines[-1].startswith(f"job {JOB}: the node does not say that it ended (gone)")
    assert "the same verb joins it" in node.lines[-1]


def test_an_interrupt_while_the_job_starts_stops_it_by_its_name() -> None:
    node = Node(start=Interrupted())
    with pytest.raises(Interrupted):
        node.follow()
    assert node.asked[1] == {"action": "stop", "job": node.asked[0]["job"]}
    assert node.lines == [f"job {JOB}: interrupted, it is ended on the node"]


def test_an_interrupt_while_it_starts_says_whose_job_goes_on() -> None:
    node = Node(start=Interrupted())
    other = "j" + "2" * 16
    plain = node.ask

    def ask(request: Mapping[str, Any]) -> dict[str, Any]:
        return {"answer": {"running": other}} if request["action"] == "stop" else plain(request)

    node.ask = ask  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        node.follow()
    assert node.lines[-1] == f"job {JOB} did not begin; job {other} of another controller goes on"


def test_a_start_without_an_answer_says_what_may_go_on() -> None:
    node = Node(start=Lost("reset"))
    with pytest.raises(Lost):
        node.follow()
    late = Node()
    late.ask = lambda request: {"failed": True, "check_id": "TS-AGENT-LATE"}  # type: ignore[method-assign]
    assert late.follow()["check_id"] == "TS-AGENT-LATE"
    for lines in (node.lines, late.lines):
        assert [line.startswith(f"job {JOB}: no answer to its start; if it goes on") for line in lines] == [True]


def test_a_jobs_name_is_its_own() -> None:
    assert re.fullmatch(r"j[0-9a-f]{16}", new_job())
    assert new_job() != new_job()


def test_lines_are_fewer_the_longer_it_takes() -> None:
    node = Node(*[running(k * GB // 100, file=f"f{k // 500}") for k in range(1000)], over("done", FILES))
    node.follow(floor=0.5)
    progress = [line for line in node.lines if line.startswith("pack ")]
    assert 20 < len(progress) < 80
    assert any(line.startswith("pack f1:") for line in progress)


@pytest.mark.parametrize(
    ("floor", "limit", "bytes_s"), [(20, 0, 20 * 2**20), (20, 2 * 2**20, 2**20), (1, 2**30, 2**20), (20, 1, 1)]
)
def test_the_lowest_speed_follows_from_floor_and_throttle(floor, limit, bytes_s) -> None:
    assert floor_bytes_s(floor, limit) == bytes_s


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (11100, "3 h 5 min")]
)
def test_durations(seconds, text) -> None:
    assert duration(seconds) == text


def test_nothing_is_known_of_the_time_left_at_first() -> None:
    assert progress_line({**running(0), "left_s": None}).endswith("100.0 MiB/s")
    assert percent({"done_bytes": 0, "total_bytes": 0}) == "0 %"
