"""Plans and judges in-boot rounds on the controller; the work is in trispark.rounds and rounds_kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.boot_plan import Moment
from trispark.controller_action import ControllerAction
from trispark.rounds import RoundsPlan, plan_rounds
from trispark.rounds_kept import judge_rounds, play_failure


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
        "facts": {"type": "dict", "default": {}},
        "behind": {"type": "list", "elements": "str", "default": []},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        root = Path(given["root"]).resolve()
        if given["step"] == "plan":
            plan = plan_rounds(
                root, given["site"], given["running"], given["statuses"], given["feature"], given["rounds"]
            )
            return {"changed": False, "plan": plan.as_dict()}
        # What it keeps is the controller's own copy of a measurement; of the site nothing is changed.
        failure = play_failure(given["facts"], given["behind"])
        found = judge_rounds(root, RoundsPlan.of(given["plan"]), given["output"], Moment.current().utc, failure)
        return {"changed": False, **found}
