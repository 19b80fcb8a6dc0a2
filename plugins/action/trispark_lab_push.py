"""Pushes built images to the lab's registry; the work is in src/trispark/lab/push.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.controller_action import ControllerAction
from trispark.lab.engine_api import connect
from trispark.lab.push import push


class ActionModule(ControllerAction):
    """plugins/modules/trispark_lab_push.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "images": {"type": "list", "elements": "str", "required": True},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        if self.check_mode or not given["images"]:
            return {"changed": bool(given["images"]), "digests": {}}
        return {"changed": True, "digests": push(Path(given["root"]).resolve(), connect(), given["images"])}
