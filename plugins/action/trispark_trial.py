"""Plans the boots of a stage on the controller; the work is in trispark.walk_plan."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from trispark.boot_plan import Moment
from trispark.controller_action import ControllerAction
from trispark.trial_begin import TrialAsked, begin_trial


class ActionModule(ControllerAction):
    """plugins/modules/trispark_trial.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "stage": {"type": "str", "required": True},
        "feature": {"type": "str", "default": ""},
        "value": {"type": "str", "default": ""},
        "resume": {"type": "str", "default": ""},
        "trial": {"type": "str", "default": ""},
        "plan": {"type": "str", "default": ""},
        "boots": {"type": "str", "default": ""},
        "deadline": {"type": "str", "default": ""},
        "drain_deadline_s": {"type": "str", "default": ""},
        "variables": {"type": "list", "elements": "str", "default": []},
        "names": {"type": "list", "elements": "str", "default": []},
        "site_variables": {"type": "dict", "default": {}},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        asked = TrialAsked(
            root=Path(given["root"]).resolve(),
            site=given["site"],
            stage=given["stage"],
            feature=given["feature"],
            value=given["value"],
            resume=given["resume"],
            trial=given["trial"],
            agreed=given["plan"],
            boots=given["boots"],
            deadline=given["deadline"],
            drain=given["drain_deadline_s"],
            misplaced=given["variables"],
            names=given["names"],
            seen_site=given["site_variables"],
        )
        begin = begin_trial(asked, datetime.now(UTC), Moment.current().trial_id)
        walk = {
            "id": begin.walk,
            "feature": begin.feature,
            "value": begin.value,
            "resumed": begin.resumed,
            "refused": begin.refused,
            "boots": begin.boots,
            "boots_an_arm": given["boots"],
            "deadline": "" if begin.deadline is None else begin.deadline.isoformat(),
            "drain_s": begin.drain_s,
        }
        return {"changed": False, "walk": walk, "lines": begin.lines}
