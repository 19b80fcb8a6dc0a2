"""Sends rounds of requests to the engine of this node through its agent, one round after the other."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from trispark.agent_call import call_agent
from trispark.lifeline import die_with_controller


class ActionModule(ActionBase):
    """`trispark_ask`: returns `answers` to all requests of `rounds`, in their order. A round that the agent refuses
    ends it with the agent's error. Check mode skips it: questions are work of the engine."""

    TRANSFERS_FILES = False
    _supports_check_mode = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec({"rounds": {"type": "list", "elements": "list", "required": True}})
        die_with_controller()
        answers: list[Any] = []
        for requests in given["rounds"]:
            done = call_agent(self, "request-batch", {"requests": requests})
            if done.get("failed"):
                return {**result, **done}
            answers += done["answer"]["answers"]
        result.update(changed=False, answers=answers)
        return result
