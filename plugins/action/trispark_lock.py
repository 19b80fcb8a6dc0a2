"""Looks at the fleet lock of a node, takes it or gives it back; the work is in trispark.fleet_lock.

An action plugin because it sees on the controller whether the process of another command has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase

from trispark.agent_call import call_agent
from trispark.fleet_lock import look, release, take


class ActionModule(ActionBase):
    """`trispark_lock`: returns the agent's `answer`, never `changed`. Check mode asks nothing."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(
            {
                "state": {"type": "str", "required": True, "choices": ["seen", "taken", "free"]},
                "lease_s": {"type": "float"},
                "why": {"type": "str", "default": ""},
            }
        )
        if self._task.check_mode:
            return {**result, "changed": False}

        def call(verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
            return call_agent(self, verb, request)

        if given["state"] == "seen":
            done = look(call)
        elif given["state"] == "taken":
            done = take(call, given["lease_s"], given["why"])
        else:
            done = release(call)
        return {**result, **done, "changed": False}
