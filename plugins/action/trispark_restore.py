"""Hands a node the archive of a backup of its own; what is in it passes no event of the run."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from trispark.agent_call import AGENT, call_agent
from trispark.backups import archive_of
from trispark.controller_action import failure
from trispark.errors import TrisparkError
from trispark.lifeline import die_with_controller


class ActionModule(ActionBase):
    """`trispark_restore`: returns the agent's `answer` and `changed`, in check mode what would be."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(
            {
                "root": {"type": "path", "required": True},
                "site": {"type": "str", "required": True},
                "backup": {"type": "str", "required": True},
                "node": {"type": "str", "required": True},
                "replace": {"type": "bool", "default": False},
                "agent": {"type": "path", "default": AGENT},
            }
        )
        die_with_controller()
        try:
            content = archive_of(Path(given["root"]).resolve(), given["site"], given["backup"], given["node"])
        except TrisparkError as error:
            return {**result, **failure(error.as_dict())}
        request = {name: given[name] for name in ("site", "node", "replace")}
        request["content"] = base64.b64encode(content).decode("ascii")
        done = call_agent(self, "restore", request, agent=given["agent"], check=self._task.check_mode)
        return {**result, **done}
