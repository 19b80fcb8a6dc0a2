"""Completes a rollback as a run of its own playbook, on the same site with the same options.

An action plugin because it starts a further playbook; that one ends with the ansible-playbook that runs this.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from trispark.errors import TrisparkError
from trispark.lifeline import die_with_controller
from trispark.run_events import WALK_PREFIX
from trispark.runner import forget_outer_run, run_playbook
from trispark.walk_child import child_arguments, child_end

DEADLINE_S = 4 * 3600.0
"""For a boot of the slowest site, which has deadlines of its own."""


class ActionModule(ActionBase):
    """`trispark_complete`: rolls back to `to` (empty for what is good); returns `published` of the rollback."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"root", "site", "to"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        root, site, to = (str(self._task.args[key]) for key in ("root", "site", "to"))
        if self._task.check_mode:
            return {**result, "changed": True, "published": {}}
        die_with_controller()
        forget_outer_run(os.environ)
        Display().display(f"{WALK_PREFIX}rolling back to {to or 'the last good generation'}")
        try:
            done = run_playbook(
                Path(root).resolve(),
                "rollback",
                site=site,
                extra={"rollback_to": to} if to else {},
                arguments=child_arguments(context.CLIARGS),
                deadline_s=DEADLINE_S,
            )
        except TrisparkError as error:
            result.update(failed=True, msg=str(error), check_id=error.id)
            return result
        if not done.ok:
            lines = child_end(done).lines
            result.update(failed=True, msg=lines[0] if lines else f"TS-PLAY-FAILED: rollback ended with {done.rc}")
        result.update(changed=True, published=done.published, lines=_lines(done.published))
        return result


def _lines(published: dict[str, Any]) -> list[str]:
    found = published.get("rollback") or {}
    if not found.get("verified"):
        return []
    return [f"{found['generation']} serves again and passed its gates after {found['seconds']} s"]
