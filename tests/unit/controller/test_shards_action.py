"""The action plugin hands on what a connection does: one lost poll is no end, a lost start is the node's absence."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError

ROOT = Path(__file__).resolve().parents[3]
JOB = "j" + "1" * 16
STATE = {"ok": True, "state": "done", "answer": {"ok": True, "changed": False, "files": []}}
BEGUN = {"ok": True, "job": JOB, "attached": False, "total_bytes": 1, "deadline_s": 600, "earlier": None}


class Connection:
    """Says what it was told to, or breaks; keeps the requests."""

    def __init__(self, *said: Any) -> None:
        self.said = list(said)
        self.requests: list[dict[str, Any]] = []

    def __call__(self, _command: str, sudoable: bool, in_data: bytes) -> dict[str, Any]:
        self.requests.append(json.loads(in_data))
        said = self.said.pop(0)
        if isinstance(said, BaseException):
            raise said
        return {"rc": 0, "stdout": json.dumps(said), "stderr": ""}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("shards_action", ROOT / "plugins/action/trispark_shards.py")
    assert spec is not None
    assert spec.loader is not None
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    monkeypatch.setattr(plugin, "die_with_controller", lambda: None)
    monkeypatch.setattr(plugin.ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr(plugin.time, "sleep", lambda _seconds: None)

    def of(connection: Connection, check: bool = False) -> dict[str, Any]:
        action = plugin.ActionModule.__new__(plugin.ActionModule)
        arguments = {"work": {"action": "verify", "level": "deep"}, "floor_mib_s": 20.0}
        action._task = SimpleNamespace(args=arguments, check_mode=check, diff=False)
        action._low_level_execute_command = connection
        return action.run(None, {"inventory_hostname": "a"})

    return of


@pytest.mark.parametrize(
    "broken", [AnsibleConnectionFailure("reset"), AnsibleError("no prompt of sudo"), BrokenPipeError(32, "pipe")]
)
def test_a_connection_that_breaks_at_a_poll_does_not_end_the_watch(run: Any, broken: Exception) -> None:
    connection = Connection(BEGUN, broken, STATE)
    assert run(connection)["answer"] == STATE["answer"]
    assert [request["action"] for request in connection.requests] == ["start", "poll", "poll"]


def test_a_node_that_cannot_be_reached_at_first_is_unreachable(run: Any) -> None:
    with pytest.raises(AnsibleConnectionFailure, match="no route"):
        run(Connection(AnsibleConnectionFailure("no route")))


def test_check_mode_asks_once(run: Any) -> None:
    connection = Connection({"ok": True, "changed": False, "job": None, "files": [], "skipped_level": "deep"})
    assert run(connection, check=True)["answer"]["skipped_level"] == "deep"
    assert [request.get("check") for request in connection.requests] == [True]
