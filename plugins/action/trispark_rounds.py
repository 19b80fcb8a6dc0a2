"""Plans and judges in-boot rounds on the controller; the work is in trispark.rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.boot_plan import Moment
from trispark.controller_action import ControllerAction
from trispark.rounds import RoundsPlan, judge_rounds, plan_rounds


class ActionModule(ControllerAction):
    """plugins/modules/trispark_rounds.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "step": {"type": "str", "choices": ["plan", "judge"], "required": True},
        "running": {"type": "dict", "default": {}},
        "statuses": {"type": "dict", "default": {}},
        "feature": {"type": "str", "default": ""},
        "rounds": {"type": "str", "default": ""},
        "plan": {"type": "dict", "default": {}},
        "output": {"type": "dict", "default": {}},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        root = Path(given["root"]).resolve()
        if given["step"] == "plan":
            plan = plan_rounds(
                root, given["site"], given["running"], given["statuses"], given["feature"], given["rounds"]
            )
            return {"changed": False, "plan": plan.as_dict()}
        # What it keeps is the controller's own copy of a measurement; of the site nothing is changed.
        found = judge_rounds(root, RoundsPlan.of(given["plan"]), given["output"], Moment.current().utc)
        return {"changed": False, **found}
