"""Calls one verb of the node's agent; plugins/modules/trispark_node.py has its documentation."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from ansible.plugins.action import ActionBase

from trispark.agent_call import AGENT, call_agent
from trispark.agent_steps import in_steps

STEP: Final = {
    "verb": {"type": "str", "required": True},
    "request": {"type": "dict", "default": {}},
    "requests": {"type": "list", "elements": "dict"},
    "when": {"type": "bool", "default": True},
}


class ActionModule(ActionBase):
    """`trispark_node`: returns the agent's `answer`, `changed` and `diff`; of steps `answers`, by verb, too."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(
            {
                "verb": {"type": "str"},
                "request": {"type": "dict", "default": {}},
                "steps": {"type": "list", "elements": "dict", "options": STEP},
                "agent": {"type": "path", "default": AGENT},
                "deadline_s": {"type": "float"},
            },
            mutually_exclusive=[("verb", "steps")],
            required_one_of=[("verb", "steps")],
        )
        within_s = given["deadline_s"]
        if within_s is not None and within_s <= 0:
            return {"failed": True, "changed": False, "msg": f"deadline_s must be above 0, it is {within_s:g}"}
        call = partial(call_agent, self, agent=given["agent"], check=self._task.check_mode, within_s=within_s)
        steps = given["steps"]
        result = call(given["verb"], given["request"]) if steps is None else in_steps(call, steps)
        if not self._task.diff:
            result.pop("diff", None)
        return result
