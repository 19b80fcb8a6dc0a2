"""Says what the lab needs; the decisions are in src/trispark/lab, the playbooks carry them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.controller_action import ControllerAction
from trispark.lab.engine_api import connect
from trispark.lab.plan import down_plan, up_check, up_plan


class ActionModule(ControllerAction):
    """plugins/modules/trispark_lab_state.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "action": {"type": "str", "choices": ["up", "check", "down"], "required": True},
        "deadline_s": {"type": "float", "default": 60},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        root = Path(given["root"]).resolve()
        if given["action"] == "up":
            lab = up_plan(root, connect())
        elif given["action"] == "check":
            lab = up_check(root, connect(), given["deadline_s"])
        else:
            lab = down_plan(root, connect())
        return {"changed": False, "lab": lab}
