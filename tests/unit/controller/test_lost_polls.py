"""Questions that change nothing are put again when the connection breaks, by the plugins that wait with them, too."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from trispark.lost_polls import AT_MOST, PAUSE_S, again

ROOT = Path(__file__).resolve().parents[3]
RESET = AnsibleConnectionFailure("reset")
LOADS = {"ok": True, "status": 200, "body": {"loads": [{"num_reqs": 0}]}}
SEEN = {"ok": True, "log": ""}


class Said:
    """Gives what it was told to, one after the other."""

    def __init__(self, *values: Any) -> None:
        self.values = list(values)

    def __call__(self) -> Any:
        value = self.values.pop(0)
        if isinstance(value, BaseException):
            raise value
        return value


@pytest.mark.parametrize("times", range(AT_MOST + 1))
def test_as_many_may_be_lost(times: int) -> None:
    pauses: list[float] = []
    assert again(Said(*[OSError()] * times, "x"), (OSError,), pauses.append) == "x"
    assert pauses == [PAUSE_S] * times


def test_one_more_is_raised_and_another_error_at_once() -> None:
    with pytest.raises(OSError, match="last"):
        again(Said(*[OSError("first")] * AT_MOST, OSError("last"), "x"), (OSError,), lambda _seconds: None)
    said = Said(ValueError("other"), "x")
    with pytest.raises(ValueError, match="other"):
        again(said, (OSError,), lambda _seconds: None)
    assert said.values == ["x"]


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("drain", {"url": "http://127.0.0.1:8888", "deadline_s": 5}, [RESET, LOADS, RESET, LOADS]),
        ("observe", {"patterns": [], "layers": []}, [RESET, SEEN]),
    ],
)
def test_the_plugins_outlive_a_broken_connection(
    monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any], said: list[Any]
) -> None:
    spec = importlib.util.spec_from_file_location(f"{name}_action", ROOT / f"plugins/action/trispark_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    monkeypatch.setattr(plugin, "die_with_controller", lambda: None)
    monkeypatch.setattr(plugin.ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr(plugin.time, "sleep", lambda _seconds: None)
    connection = Said(*said)

    def execute(_command: str, **_how: Any) -> dict[str, Any]:
        return {"rc": 0, "stdout": json.dumps(connection()), "stderr": ""}

    action = plugin.ActionModule.__new__(plugin.ActionModule)
    action._task = SimpleNamespace(args=arguments, check_mode=False, diff=False)
    action._low_level_execute_command = execute
    assert action.run()["changed"] is False
    assert connection.values == []
