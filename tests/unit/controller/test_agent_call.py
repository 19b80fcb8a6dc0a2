"""What the action plugins make of the agent's answer, and of anything else that the node may say in its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.agent_call import call_agent, result_of
from trispark.errors import ID_PATTERN
from trispark_node import PROTOCOL


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
    assert node.commands == [("'/opt/an agent' image-ensure", {"image": "x", "protocol": PROTOCOL, "check": True})]


def test_a_real_run_asks_for_no_check() -> None:
    node = Node(0, '{"ok": true}')
    assert call_agent(node, "status", {})["changed"] is False
    assert node.commands[0][1] == {"protocol": PROTOCOL}


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
