"""Calls one verb of the node's agent; plugins/modules/trispark_node.py has its documentation."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from trispark.agent_call import AGENT, call_agent


class ActionModule(ActionBase):
    """`trispark_node`: returns the agent's `answer`, `changed` and `diff`."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(
            {
                "verb": {"type": "str", "required": True},
                "request": {"type": "dict", "default": {}},
                "agent": {"type": "path", "default": AGENT},
                "deadline_s": {"type": "float"},
            }
        )
        within_s = given["deadline_s"]
        if within_s is not None and within_s <= 0:
            return {"failed": True, "changed": False, "msg": f"deadline_s must be above 0, it is {within_s:g}"}
        result = call_agent(
            self,
            given["verb"],
            given["request"],
            agent=given["agent"],
            check=self._task.check_mode,
            within_s=within_s,
        )
        if not self._task.diff:
            result.pop("diff", None)
        return result
