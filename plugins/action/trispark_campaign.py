"""Walks a campaign (trispark.campaign_walk); ends with the ansible-playbook that runs it, and so do its children."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from trispark.campaign import refuse_variables
from trispark.campaign_run import outline_campaign, report, run_campaign
from trispark.campaign_walk import interrupted
from trispark.errors import TrisparkError
from trispark.lifeline import die_with_controller
from trispark.run_events import WALK_PREFIX
from trispark.runner import forget_outer_run
from trispark.walk import WalkInterrupted
from trispark.walk_child import child_arguments


class ActionModule(ActionBase):
    """`trispark_campaign`: returns `lines`, `published` and `failure_line`; in check mode `lines` say what would be
    begun."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"root", "site", "name"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        root, site, name = (str(self._task.args[key]) for key in ("root", "site", "name"))
        die_with_controller()
        forget_outer_run(os.environ)
        display = Display()
        try:
            refuse_variables(task_vars or {})
            if self._task.check_mode:
                lines = outline_campaign(Path(root).resolve(), site, name)
                result.update(changed=False, lines=lines, published={}, failure_line="")
                return result
            campaign, end = run_campaign(
                Path(root).resolve(),
                site,
                name,
                child_arguments(context.CLIARGS),
                lambda line: display.display(f"{WALK_PREFIX}{line}"),
            )
        except TrisparkError as error:
            result.update(failed=True, msg=str(error), check_id=error.id)
        except WalkInterrupted as end_of_trial:
            failure = interrupted(name, str(end_of_trial))
            result.update(failed=True, msg=str(failure), check_id=failure.id)
        else:
            found = report(campaign, end)
            result.update(
                changed=bool(end.ends), lines=found.lines, published=found.published, failure_line=found.failure_line
            )
        return result
