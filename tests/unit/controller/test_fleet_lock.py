"""Who a command is to the fleet lock, and what becomes of the lock of one whose process has ended."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark import fleet_lock
from trispark.agent_call import result_of_answer
from trispark.runner import playbook_environment
from trispark_node import cli
from trispark_node.fields import Fields
from trispark_node.fleet_owner import Owner
from trispark_node.layout import Layout
from trispark_node.node import Node


@pytest.fixture(autouse=True)
def no_command_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(fleet_lock.VARIABLE, raising=False)


@pytest.fixture
def sleeper() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Another process of this host and its token."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process, fleet_lock._own_token(process.pid)
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


class Agent:
    """The real agent in a directory."""

    def __init__(self, root: Path) -> None:
        self.node = Node(Layout(root / "state"))
        self.calls: list[str] = []
        self.owner = fleet_lock.owner()

    def __call__(self, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
        self.calls.append(verb)
        answer, status = cli.answer(self.node, verb, json.dumps({**request, "owner": self.owner}))
        return result_of_answer(verb, "agent", status, answer)

    def held_by(self, token: str) -> Agent:
        self("lock-take", {})
        own, self.owner = self.owner, {**self.owner, "token": token}
        self("lock-take", {"break": True, "why": "test"})
        self.owner = {**own, "token": "fresh"}
        self.calls.clear()
        return self


def in_a_worker(queue: Any) -> None:
    queue.put((fleet_lock.owner(), fleet_lock.handed_on()))


def test_all_workers_of_one_ansible_playbook_are_one_command() -> None:
    context = multiprocessing.get_context("fork")
    found = []
    for _ in range(2):
        queue = context.Queue()
        worker = context.Process(target=in_a_worker, args=(queue,))
        worker.start()
        found.append(queue.get(timeout=20))
        worker.join()
    (owner, handed), second = found
    assert second == (owner, handed)
    assert owner["pid"] == os.getpid()
    assert handed == {"TRISPARK_LOCK": owner["token"]}


def test_a_run_below_has_the_token_of_the_command_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRISPARK_LOCK", "0123456789abcdef-77-88")
    owner = fleet_lock.owner()
    assert (owner["token"], owner["pid"]) == ("0123456789abcdef-77-88", 77)
    assert fleet_lock.inherited()
    assert fleet_lock.handed_on() == {}, "the environment has it already"


def test_a_command_line_hands_nothing_on(tmp_path: Path) -> None:
    assert "TRISPARK_LOCK" not in playbook_environment(tmp_path, "lab", "run")


@pytest.mark.parametrize(("inherits", "breaks"), [(False, True), (True, False)])
def test_a_rollback_that_a_person_began_breaks_the_lock_and_one_of_a_trial_does_not(
    monkeypatch: pytest.MonkeyPatch, inherits: bool, breaks: bool
) -> None:
    monkeypatch.setattr(fleet_lock, "_playbook", lambda: "rollback")
    if inherits:
        monkeypatch.setenv("TRISPARK_LOCK", "0123456789abcdef-77-88")
    assert fleet_lock.owner().get("breaks", False) is breaks


def test_no_name_of_the_host_is_in_the_token() -> None:
    assert os.uname().nodename not in fleet_lock.owner()["token"]


@given(text=st.text())
def test_whatever_names_there_are_the_agent_takes_them(text: str) -> None:
    words = fleet_lock._words(text)
    owner = {**fleet_lock.owner(), "user": words, "host": words, "reason": words}
    assert Owner.parse(Fields(owner, "owner")).user == words


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_takes_an_owner(tmp_path: Path, verb: str) -> None:
    """So no list of changing verbs has to be kept beside the agent's own."""
    node = Node(Layout(tmp_path / "state"))
    answer, _ = cli.answer(node, verb, json.dumps({"owner": "no owner", "check": True}))
    other, _ = cli.answer(node, verb, json.dumps({"owner": fleet_lock.owner(), "check": True}))
    assert "unknown key" not in str(answer.get("error"))
    assert "unknown key" not in str(other.get("error"))


def test_a_living_command_of_this_host_is_left_its_lock(tmp_path: Path, sleeper: Any) -> None:
    agent = Agent(tmp_path).held_by(sleeper[1])
    result = fleet_lock.take(agent)
    assert (result["check_id"], agent.calls) == ("TS-LOCK-HELD", ["lock-take"])


@pytest.mark.parametrize("reaped", [True, False])
def test_the_lock_of_a_command_that_was_killed_is_taken_at_once_and_kept_in_the_journal(
    tmp_path: Path, sleeper: Any, reaped: bool
) -> None:
    process, token = sleeper
    agent = Agent(tmp_path).held_by(token)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | (0 if reaped else os.WNOWAIT))
    result = fleet_lock.take(agent)
    assert result["answer"]["broke"]["token"] == token
    last = [entry for entry in agent.node.journal.read().entries if entry.verb == "lock-break"][-2]
    assert last.detail["why"] == "its process has ended"


@pytest.mark.parametrize(
    ("token", "ended"),
    [
        ("{host}-{pid}-{other}", True),
        ("{host}-{pid}-{ticks}", False),
        ("{host}-1-1", False),
        ("0123456789abcdef-{pid}-{other}", False),
        ("by-hand", False),
        ("", False),
    ],
)
def test_a_command_has_ended_only_where_this_host_can_see_it(token: str, ended: bool) -> None:
    """Process 1 is another user's where the tests are not root, and begins with the host."""
    ticks = fleet_lock._stat(os.getpid())[1]
    first = fleet_lock._stat(1)[1]
    token = token.replace("-1-1", f"-1-{first}")
    text = token.format(host=fleet_lock.host_id(), pid=os.getpid(), ticks=ticks, other=ticks - 1)
    assert fleet_lock.has_ended(text) is ended


def test_a_command_below_gives_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(tmp_path)
    fleet_lock.take(agent)
    monkeypatch.setenv("TRISPARK_LOCK", agent.owner["token"])
    assert fleet_lock.release(agent) == {"changed": False}
    monkeypatch.delenv("TRISPARK_LOCK")
    assert fleet_lock.release(agent)["changed"]
    assert agent.calls == ["lock-take", "lock-release"]
