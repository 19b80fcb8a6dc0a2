"""Walks a campaign (trispark.campaign_walk); ends with the ansible-playbook that runs it, and so do its children."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from trispark.campaign_run import report, run_campaign
from trispark.errors import TrisparkError
from trispark.lifeline import die_with_controller
from trispark.run_events import WALK_PREFIX
from trispark.runner import forget_outer_run
from trispark.walk import WalkInterrupted, interrupted
from trispark.walk_child import child_arguments


class ActionModule(ActionBase):
    """`trispark_campaign`: returns `lines`, `published` and `failure_line`."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"root", "site", "name"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = self._task.args
        die_with_controller()
        forget_outer_run(os.environ)
        display = Display()
        try:
            campaign, end = run_campaign(
                Path(str(given["root"])).resolve(),
                str(given["site"]),
                str(given["name"]),
                child_arguments(context.CLIARGS),
                lambda line: display.display(f"{WALK_PREFIX}{line}"),
            )
        except TrisparkError as error:
            result.update(failed=True, msg=str(error), check_id=error.id)
        except WalkInterrupted as end_of_trial:
            failure = interrupted(str(end_of_trial))
            result.update(failed=True, msg=str(failure), check_id=failure.id)
        else:
            found = report(campaign, end)
            result.update(
                changed=bool(end.ends), lines=found.lines, published=found.published, failure_line=found.failure_line
            )
        return result
