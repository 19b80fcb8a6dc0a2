"""Calls one verb of the node's agent and writes its answer to a file on the controller, past the run's events.

For answers that are large, or that hold what events must not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from trispark.agent_call import AGENT, call_agent
from trispark.host.state import private_directory
from trispark.lifeline import die_with_controller
from trispark.tar_file import PRIVATE_FILE


class ActionModule(ActionBase):
    """`trispark_fetch`: returns `file` and `bytes`; `dest` is replaced whole, its directory is made private."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(
            {
                "verb": {"type": "str", "required": True},
                "request": {"type": "dict", "default": {}},
                "agent": {"type": "path", "default": AGENT},
                "dest": {"type": "path", "required": True},
            }
        )
        die_with_controller()
        done = call_agent(self, given["verb"], given["request"], agent=given["agent"])
        if done.get("failed"):
            return {**result, **{name: value for name, value in done.items() if name != "answer"}}
        target = Path(given["dest"])
        private_directory(target.parent)
        partial = target.with_name(f".{target.name}.partial")
        partial.touch(PRIVATE_FILE)
        partial.chmod(PRIVATE_FILE)
        partial.write_text(json.dumps(done["answer"], ensure_ascii=True), encoding="utf-8")
        partial.replace(target)
        return {**result, "changed": False, "file": str(target), "bytes": target.stat().st_size}
