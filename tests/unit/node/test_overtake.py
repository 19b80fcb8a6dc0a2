"""A rollback gets through beside an agent that hangs, in real processes on this machine's own kernel."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trispark_node import cli
from trispark_node.clock import SystemClock
from trispark_node.lock import held
from trispark_node.node import Node
from trispark_node.overtake import OVERTAKEN, Overtake

ANA = {"token": "ana", "host": "a", "pid": 4711, "user": "ana", "reason": "stop"}
BEN = {"token": "ben", "host": "b", "pid": 4712, "user": "ben", "reason": "rollback", "breaks": True}
CONTEXT = multiprocessing.get_context("fork")


def real(bench: Any) -> Node:
    """The bench's node with real time and real processes; only the Docker Engine is a fake."""
    return Node(bench.node.layout, clock=SystemClock(), connect=lambda: bench.docker)


@pytest.fixture
def serving(bench: Any, active: dict[str, Any]) -> Any:
    bench.ask("start", boot_id="b1", epoch=5)
    bench.ask("good-mark", generation=active["generation"], boot_id="b1", time="2026-01-02T03:04:05Z")
    return bench


def until(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_taken(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def in_the_way(bench: Any, verb: str, request: dict[str, Any], *, deaf: bool = False) -> Any:
    """Another agent at work with `verb`, on an engine that never ends."""

    def work() -> None:
        if deaf:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        bench.docker.exits_on = ()
        cli.answer(real(bench), verb, json.dumps(request))

    process = CONTEXT.Process(target=work)
    process.start()
    path = bench.node.layout.lock("state")
    until(lambda: f'"{verb}"'.encode() in path.read_bytes())
    return process


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("by", [BEN, None])
def test_a_rollback_overtakes_a_stop_that_waits_for_an_engine(serving: Any, by: Any, deaf: bool) -> None:
    other = in_the_way(serving, "stop", {"owner": ANA, "deadline_s": 420}, deaf=deaf)
    serving.docker.exits_on = ("SIGKILL",)
    began = time.monotonic()
    owner = {"owner": by} if by else {}
    answer, code = cli.answer(real(serving), "rollback", json.dumps({**owner, "deadline_s": 0.2}))
    seconds = time.monotonic() - began
    other.join(5)
    assert (code, answer["ok"], answer["stop"]["killed"]) == (0, True, True), answer
    assert seconds < 3
    assert answer["overtook"] == [f"stop, pid {other.pid}"]
    assert other.exitcode == -(signal.SIGKILL if deaf else signal.SIGTERM)
    assert serving.docker.containers == {}
    (entry,) = [each for each in serving.node.journal.read().entries if "overtook" in each.detail]
    assert (entry.verb, entry.detail["overtook"]) == ("rollback", answer["overtook"])


def test_a_stop_overtakes_nobody(serving: Any) -> None:
    other = in_the_way(serving, "stop", {"deadline_s": 420})
    try:
        answer, _ = cli.answer(real(serving), "stop", json.dumps({"lock_wait_s": 0.3}))
        assert answer["error"]["id"] == "TS-AGENT-LOCKED"
        assert other.is_alive()
    finally:
        other.kill()
        other.join(5)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock.state"


def holder(lock: Path, verb: str, note: str) -> Iterator[Any]:
    """A process whose command line is an agent's, which holds the lock and may have written its name."""
    agent = lock.with_name("trispark-node")
    agent.write_text(
        "import fcntl, os, sys, time\n"
        f"d = os.open({str(lock)!r}, os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(d, fcntl.LOCK_EX)\n"
        f"os.pwrite(d, {note!r}.replace('PID', str(os.getpid())).encode(), 0)\n"
        "time.sleep(60)\n",
        encoding="utf-8",
    )
    process = subprocess.Popen([sys.executable, str(agent), verb, "--deadline", "9"])
    try:
        until(lambda: lock.exists() and is_taken(lock))
        time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


NOTE = '{"verb": "VERB", "pid": PID}'


@pytest.mark.parametrize("verb", ["stop", "at-boot", "prune", "start", "stage", "rollback", "adopt"])
@pytest.mark.parametrize(
    "note", ["", NOTE, "{", '{"verb": "stop", "pid": 1}'], ids=["unnamed", "named", "torn", "other"]
)
def test_who_is_ended_goes_by_the_verb_whether_it_wrote_its_name_or_not(lock: Path, verb: str, note: str) -> None:
    for process in holder(lock, verb, note.replace("VERB", verb)):
        overtake = Overtake(Path("/proc"), lock, SystemClock())
        overtake()
        if verb not in OVERTAKEN:
            assert overtake.ended == []
            assert process.poll() is None
            continue
        assert process.wait(5) == -signal.SIGTERM
        assert overtake.ended == [f"{verb}, pid {process.pid}"]


def test_a_name_of_a_process_that_does_not_hold_the_lock_ends_nobody(lock: Path) -> None:
    """A number that another process has by now."""
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        for process in holder(lock, "stage", f'{{"verb": "stop", "pid": {bystander.pid}}}'):
            overtake = Overtake(Path("/proc"), lock, SystemClock())
            overtake()
            assert (overtake.ended, process.poll(), bystander.poll()) == ([], None, None)
    finally:
        bystander.kill()
        bystander.wait()


def test_one_that_only_waits_is_not_ended(lock: Path) -> None:
    with held(lock, SystemClock(), 0, "stage"):
        for process in waiting(lock):
            overtake = Overtake(Path("/proc"), lock, SystemClock())
            overtake()
            assert (overtake.ended, process.poll()) == ([], None)


def waiting(lock: Path) -> Iterator[Any]:
    agent = lock.with_name("trispark-node")
    agent.write_text(f"import os, time\nd = os.open({str(lock)!r}, os.O_RDWR)\ntime.sleep(60)\n", encoding="utf-8")
    process = subprocess.Popen([sys.executable, str(agent), "stop"])
    try:
        until(lambda: lock in {fd.readlink() for fd in Path(f"/proc/{process.pid}/fd").iterdir()})
        yield process
    finally:
        process.kill()
        process.wait()
