"""Makes the lab's networks and removes its objects, each kind at once; the decisions are in src/trispark/lab."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.controller_action import ControllerAction
from trispark.lab.engine_api import connect
from trispark.lab.objects import Change, carry_out


class ActionModule(ControllerAction):
    """plugins/modules/trispark_lab_objects.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "remove_containers": {"type": "list", "elements": "str", "default": []},
        "remove_networks": {"type": "list", "elements": "str", "default": []},
        "remove_volumes": {"type": "list", "elements": "str", "default": []},
        "networks": {"type": "list", "elements": "dict", "default": []},
        "abandoned": {"type": "list", "elements": "str", "default": []},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        root = Path(given["root"]).resolve()
        change = Change(
            remove_containers=tuple(given["remove_containers"]),
            remove_networks=tuple(given["remove_networks"]),
            remove_volumes=tuple(given["remove_volumes"]),
            networks={each["name"]: each["subnet"] for each in given["networks"]},
            abandoned=tuple(given["abandoned"]),
        )
        if self.check_mode:
            return {"changed": change.some, "done": []}
        done = carry_out(root, connect(), change)
        return {"changed": bool(done), "done": done}
