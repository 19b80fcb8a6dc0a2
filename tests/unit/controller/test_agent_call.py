"""What the action plugins make of the agent's answer, and of anything else that the node may say in its place."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark import agent_deadline
from trispark.agent_call import call_agent, result_of
from trispark.agent_deadline import DEADLINES, Bound, Late, deadline_s, ended_after, of_call
from trispark.errors import ID_PATTERN
from trispark.fleet_lock import host_id, owner
from trispark_node import PROTOCOL
from trispark_node.cli import VERBS


class Node:
    """An action on a node that says what it is told to."""

    def __init__(self, rc: int, stdout: str, stderr: str = "") -> None:
        self.said = {"rc": rc, "stdout": stdout, "stderr": stderr}
        self.commands: list[tuple[str, dict[str, Any]]] = []

    def _low_level_execute_command(
        self, cmd: str, sudoable: bool = True, in_data: bytes | None = None
    ) -> dict[str, Any]:
        assert sudoable
        self.commands.append((cmd, json.loads(in_data or b"")))
        return self.said


def test_only_the_request_is_sent() -> None:
    node = Node(0, '{"ok": true, "changed": true, "pulled": 1}\n')
    result = call_agent(node, "image-ensure", {"image": "x"}, agent="/opt/an agent", check=True)
    assert result == {"changed": True, "answer": {"ok": True, "changed": True, "pulled": 1}}
    ((command, request),) = node.commands
    assert shlex.split(command)[-2:] == ["/opt/an agent", "image-ensure"]
    assert request == {"image": "x", "protocol": PROTOCOL, "check": True}


def test_a_real_run_asks_for_no_check() -> None:
    node = Node(0, '{"ok": true}')
    assert call_agent(node, "status", {})["changed"] is False
    assert node.commands[0][1] == {"protocol": PROTOCOL, "owner": owner()}


def test_lines_before_the_answer_do_not_matter() -> None:
    assert result_of("status", "agent", 0, 'lecture\n{"ok": true}\n', "")["answer"] == {"ok": True}


def test_the_agents_refusal_keeps_its_id_and_answer() -> None:
    error = {
        "id": "TS-ENGRAM-SIZE",
        "what": "too short",
        "where": "x.bin",
        "expected": "5",
        "observed": "4",
        "remedy": "r",
    }
    result = result_of("engram", "agent", 1, json.dumps({"ok": False, "error": error, "files": [1]}), "")
    assert result["failed"] is True
    assert result["check_id"] == "TS-ENGRAM-SIZE"
    assert result["msg"] == "TS-ENGRAM-SIZE: too short; where: x.bin; expected: 5; observed: 4; do: r"
    assert result["answer"]["files"] == [1]


@pytest.mark.parametrize(
    ("rc", "stdout", "stderr", "check_id"),
    [
        (127, "", "sh: trispark-node: not found", "TS-AGENT-MISSING"),
        (126, "", "sh: permission denied", "TS-AGENT-MISSING"),
        (0, "", "", "TS-AGENT-SILENT"),
        (1, "Traceback", "ValueError", "TS-AGENT-SILENT"),
        (0, "[1]", "", "TS-AGENT-SILENT"),
        (0, "{}", "", "TS-AGENT-FAILED"),
        (3, '{"ok": true}', "", "TS-AGENT-FAILED"),
        (1, '{"ok": false, "error": {"id": "no id"}}', "", "TS-AGENT-FAILED"),
        (1, '{"ok": false, "error": "text"}', "", "TS-AGENT-FAILED"),
    ],
)
def test_anything_else_is_a_failure(rc: int, stdout: str, stderr: str, check_id: str) -> None:
    result = result_of("status", "agent", rc, stdout, stderr)
    assert (result["failed"], result["check_id"]) == (True, check_id)


@given(rc=st.integers(0, 255), stdout=st.text(), stderr=st.text())
def test_no_output_is_a_traceback(rc: int, stdout: str, stderr: str) -> None:
    result = result_of("status", "agent", rc, stdout, stderr)
    assert "answer" in result or ID_PATTERN.fullmatch(result["check_id"])


# -- a call has an end -------------------------------------------------------------------------------------------------


def test_every_verb_of_the_agent_has_a_deadline_and_no_other() -> None:
    assert {name.split()[0] for name in DEADLINES} == set(VERBS)


@pytest.mark.parametrize(
    ("verb", "request_", "beyond"),
    [
        ("wait", {"timeout_s": 300}, 300),
        ("stop", {"deadline_s": 420.0, "lock_wait_s": 20}, 440),
        ("oneshot", {"deadline_s": 2500}, 2500),
        ("request-batch", {"requests": [{"timeout_s": 5}, {"timeout_s": 600}]}, 600),
        ("share", {"action": "mount", "deadline_s": 30}, 90),
        ("status", {}, 0),
    ],
)
def test_what_the_request_gives_is_on_top_of_the_verbs_own_time(
    verb: str, request_: dict[str, Any], beyond: float
) -> None:
    assert deadline_s(verb, request_) == DEADLINES[verb].own_s + beyond


def test_verifying_shards_is_given_up_long_before_packing_them() -> None:
    assert deadline_s("engram", {"action": "verify"}) < deadline_s("engram", {"action": "ensure"})


class Shell:
    """An action on this machine: what it is told to run is run."""

    def _low_level_execute_command(
        self, cmd: str, sudoable: bool = True, in_data: bytes | None = None
    ) -> dict[str, Any]:
        done = subprocess.run(["/bin/sh", "-c", cmd], input=in_data, capture_output=True, check=False)
        return {"rc": done.returncode, "stdout": done.stdout.decode(), "stderr": done.stderr.decode()}


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """An agent that has begun something and never ends; it says that it runs."""
    program = tmp_path / "agent"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def test_an_agent_that_hangs_is_ended_on_its_node(hanging: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_deadline, "DEADLINES", {"status": Bound(0.5)})
    began = time.monotonic()
    result = call_agent(Shell(), "status", {}, agent=str(hanging))
    assert (result["failed"], result["check_id"]) == (True, "TS-AGENT-LATE")
    assert "status" in result["msg"]
    assert "within 0.5 s" in result["msg"]
    assert time.monotonic() - began < 60
    pid = (hanging.parent / "pid").read_text(encoding="ascii").strip()
    assert not Path(f"/proc/{pid}").exists()


def test_a_node_that_never_answers_does_not_hold_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in the kernel cannot be ended, and a connection can die without a word."""

    class Dead:
        tries = 0

        def _low_level_execute_command(
            self, cmd: str, sudoable: bool = True, in_data: bytes | None = None
        ) -> dict[str, Any]:
            while self.tries < 3:  # as Ansible's ssh does after an exception
                self.tries += 1
                try:
                    time.sleep(600)
                except Exception:
                    continue
            return {"rc": 255, "stdout": "", "stderr": ""}

    monkeypatch.setattr(agent_deadline, "DEADLINES", {"status": Bound(0.2)})
    monkeypatch.setattr(agent_deadline, "KILL_AFTER_S", 0)
    monkeypatch.setattr(agent_deadline, "CONTROLLER_S", 0)
    node, before = Dead(), signal.getsignal(signal.SIGALRM)
    result = call_agent(node, "status", {})
    assert (result["failed"], result["check_id"], node.tries) == (True, "TS-AGENT-LATE", 1)
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_bound_of_its_own_holds_for_the_whole_call_and_ends_the_agent_first(hanging: Path) -> None:
    began = time.monotonic()
    result = call_agent(Shell(), "status", {}, agent=str(hanging), within_s=1.0)
    assert (result["failed"], result["check_id"]) == (True, "TS-AGENT-LATE")
    assert "it was ended there" in result["msg"]
    assert time.monotonic() - began < 30
    pid = (hanging.parent / "pid").read_text(encoding="ascii").strip()
    assert not Path(f"/proc/{pid}").exists()


def test_a_bound_of_its_own_holds_for_a_connection_that_says_nothing() -> None:
    class Silent:
        def _low_level_execute_command(
            self, cmd: str, sudoable: bool = True, in_data: bytes | None = None
        ) -> dict[str, Any]:
            time.sleep(600)
            raise AssertionError("it was waited for")

    result = call_agent(Silent(), "status", {}, within_s=0.2)
    assert (result["failed"], result["check_id"]) == (True, "TS-AGENT-LATE")
    assert "whether it still runs is not known" in result["msg"]


@pytest.mark.parametrize("within_s", [0.1, 1, 6, 20.0, 3600])
def test_the_node_ends_and_kills_the_agent_before_the_controller_stops_waiting(within_s: float) -> None:
    bound = of_call("status", {}, within_s)
    assert bound.node_s + bound.kill_after_s < bound.whole_s == within_s
    usual = of_call("status", {})
    assert usual.node_s == deadline_s("status", {})
    assert usual.node_s + usual.kill_after_s < usual.whole_s


@pytest.mark.parametrize("within_s", [0, -1])
def test_a_call_without_any_time_is_a_mistake(within_s: float) -> None:
    with pytest.raises(ValueError, match="cannot end within"):
        of_call("status", {}, within_s)


def test_an_agent_that_was_killed_early_is_not_called_late() -> None:
    assert call_agent(Node(137, "", "Killed"), "status", {})["check_id"] == "TS-AGENT-SILENT"


def test_the_alarm_of_a_task_goes_on_after_a_call() -> None:
    """Ansible bounds a task with `timeout` by the same alarm."""
    rang: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: rang.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Late), ended_after(0.05):
            time.sleep(600)
        assert rang == []
        deadline = time.monotonic() + 60
        while not rang and time.monotonic() < deadline:
            time.sleep(0.01)
        assert rang == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Held:
    """A node whose fleet lock is another command's until it is taken from it."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.broken = False
        self.asked: list[str] = []

    def _low_level_execute_command(
        self, cmd: str, sudoable: bool = True, in_data: bytes | None = None
    ) -> dict[str, Any]:
        request = json.loads(in_data or b"")
        verb = shlex.split(cmd)[-1]
        self.asked.append(verb + (" break" if request.get("break") else ""))
        self.broken = self.broken or (verb == "lock-take" and request.get("break", False))
        if self.broken:
            return {"rc": 0, "stdout": '{"ok": true}', "stderr": ""}
        error = {"id": "TS-LOCK-HELD", "what": "x", "where": "x", "expected": "x", "observed": "x", "remedy": "x"}
        held = {"ok": False, "error": error, "lock": {"holder": {"token": self.token}}}
        return {"rc": 1, "stdout": json.dumps(held), "stderr": ""}


def test_a_command_of_this_host_that_has_ended_holds_nobody_up() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    node = Held(f"{host_id()}-{gone.pid}-1")
    assert call_agent(node, "stop", {})["answer"] == {"ok": True}
    assert node.asked == ["stop", "lock-take", "lock-take break", "stop"]


@pytest.mark.parametrize("token", [f"{'0' * 16}-1-1", "by somebody"])
def test_a_command_that_may_live_is_not_pushed_aside(token: str) -> None:
    node = Held(token)
    assert call_agent(node, "stop", {})["check_id"] == "TS-LOCK-HELD"
    assert node.asked == ["stop"]


def test_every_id_of_the_agent_reaches_the_caller() -> None:
    """One that the controller did not take for an id came out as TS-AGENT-FAILED."""
    text = "".join(path.read_text(encoding="utf-8") for path in Path("src/trispark_node").glob("*.py"))
    ids = set(re.findall(r'"(TS-[A-Z0-9-]+)"', text)) - {"TS-LOCK-"}
    assert len(ids) > 60
    for error_id in ids:
        error = dict.fromkeys(("what", "where", "expected", "observed", "remedy"), "x") | {"id": error_id}
        result = result_of("stop", "agent", 1, json.dumps({"ok": False, "error": error}), "")
        assert result["check_id"] == error_id
        assert result["msg"].startswith(f"{error_id}: ")
