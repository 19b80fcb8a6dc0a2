"""Keeps what the nodes answered as a backup on the controller; the work is in trispark.backups."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.backups import keep, lines, missing
from trispark.controller_action import ControllerAction, failure


class ActionModule(ControllerAction):
    """plugins/modules/trispark_backup.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "directory": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "nodes": {"type": "list", "elements": "str", "required": True},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        directory = Path(given["directory"]).resolve()
        kept = keep(directory, given["site"], given["nodes"])
        result = {"lines": lines(kept, directory), "published": {"backup": {"directory": str(directory), **kept}}}
        if kept["missing"]:
            return failure(missing(kept["missing"]).as_dict(), **result)
        return {"changed": True, **result}
