"""Walks the boots of a stage and restores the site's baseline; the work is in trispark.walk.

An action plugin because it starts further playbooks and shows a line for each boot while it goes on. When the
ansible-playbook that runs it ends, however that happens, this process and its children end too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from trispark.errors import TrisparkError
from trispark.lifeline import die_with_controller
from trispark.reporting import paused
from trispark.run_events import WALK_PREFIX
from trispark.runner import forget_outer_run
from trispark.walk import WalkInterrupted, interrupted
from trispark.walk_child import child_arguments
from trispark.walk_run import Walk, run_walk


class ActionModule(ActionBase):
    """`trispark_walk`, whose argument `walk` is what `trispark_trial` returned: returns `walk` (its id), `state`
    (complete, stopped or paused), `reason` and `restored`; for a paused walk also `lines`, `published` and
    `failure_line`, as `trispark_verdict` gives them for another one."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"root", "site", "stage", "walk", "plan", "statuses"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        given: Mapping[str, Any] = self._task.args
        die_with_controller()
        forget_outer_run(os.environ)
        display = Display()
        walk: Mapping[str, Any] = given["walk"]
        name, deadline = str(walk["id"]), str(walk["deadline"])
        try:
            ended = run_walk(
                Walk(
                    root=Path(str(given["root"])).resolve(),
                    site=str(given["site"]),
                    stage=str(given["stage"]),
                    feature=str(walk["feature"]),
                    value=str(walk["value"]),
                    walk=name,
                    agreed=str(given.get("plan") or ""),
                    refused=str(walk["refused"]),
                    statuses=given["statuses"],
                    deadline=datetime.fromisoformat(deadline) if deadline else None,
                    arguments=child_arguments(context.CLIARGS),
                    boots=str(walk["boots_an_arm"]),
                    check=bool(self._task.check_mode),
                ),
                lambda line: display.display(f"{WALK_PREFIX}{line}"),
            )
        except TrisparkError as error:
            result.update(failed=True, msg=str(error), check_id=error.id)
        except WalkInterrupted:
            failure = interrupted(name)
            result.update(failed=True, msg=str(failure), check_id=failure.id)
        else:
            result.update(
                changed=ended.booted > 0,
                walk=name,
                state=ended.state,
                reason=ended.reason,
                restored=ended.restored or "",
            )
            if self._task.check_mode:
                result.update(lines=[ended.reason], published={}, failure_line="")
            elif ended.state == "paused":
                report = paused(name, ended.reason, restored=ended.restored, begun=ended.begun)
                result.update(lines=report.lines, published=report.published, failure_line=report.failure_line)
        return result
