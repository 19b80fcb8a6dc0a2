"""A measurement of what runs now, on the controller's side; the work is in trispark.running_bench."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from trispark.boot_plan import Moment
from trispark.controller_action import ControllerAction
from trispark.running_bench import judge_bench, keep_bench, plan_bench


class ActionModule(ControllerAction):
    """plugins/modules/trispark_bench.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "step": {"type": "str", "choices": ["plan", "judge"], "required": True},
        "plan": {"type": "dict", "required": True},
        "facts": {"type": "dict", "default": {}},
        "statuses": {"type": "dict", "default": {}},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        root = Path(given["root"]).resolve()
        if given["step"] == "plan":
            return {"changed": False, "plan": plan_bench(root, given["site"], given["plan"])}
        moment = Moment.current()
        found = judge_bench(given["site"], given["plan"], given["facts"], given["statuses"], moment)
        path = None if self.check_mode else os.path.relpath(keep_bench(root, found, moment), root)
        published = {name: found.document[name] for name in ("generation", "boots", "outcome", "metrics")}
        return {
            "changed": path is not None,
            "lines": found.lines if path is None else [*found.lines, f"kept: {path}"],
            "published": {"bench": {**published, "file": path}},
            "failure_line": found.failure_line,
        }
