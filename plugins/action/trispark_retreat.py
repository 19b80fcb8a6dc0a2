"""Says what came of stopping and repointing; the work is in trispark.rollback_outcome."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from trispark.controller_action import ControllerAction
from trispark.rollback_outcome import judge


class ActionModule(ControllerAction):
    """plugins/modules/trispark_retreat.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "target": {"type": "str", "required": True},
        "results": {"type": "dict", "required": True},
        "missing": {"type": "dict", "required": True},
        "started": {"type": "float", "required": True},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        seconds = time.time() - given["started"]
        found = judge(given["target"], given["results"], given["missing"], seconds, planned=self.check_mode)
        return {
            "changed": False,
            "state": found.state,
            "lines": found.lines(),
            "failure_line": found.failure_line(),
            "broke_lock": found.broke,
            "published": {"rollback": found.published()},
        }
