"""Records the verdicts of a walk that has ended; the work is in trispark.trial_outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.controller_action import ControllerAction
from trispark.walk_end import conclude


class ActionModule(ControllerAction):
    """plugins/modules/trispark_verdict.py has its documentation."""

    _supports_check_mode = False  # a walk that was not made has no verdict

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "walk": {"type": "str", "required": True},
        "stopped": {"type": "str", "default": ""},
        "restored": {"type": "str", "default": ""},
        "statuses": {"type": "dict", "required": True},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        end = conclude(
            Path(given["root"]).resolve(),
            given["site"],
            given["walk"],
            stopped=given["stopped"],
            restored=given["restored"] or None,
            statuses=given["statuses"],
        )
        report = end.report
        return {
            "changed": end.added > 0,
            "append": end.append,
            "lines": report.lines,
            "published": report.published,
            "failure_line": report.failure_line,
        }
