"""Judges the nodes before anything is changed; the work is in trispark.preflight."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.controller_action import ControllerAction
from trispark.preflight import check_nodes
from trispark.site import load_site


class ActionModule(ControllerAction):
    """plugins/modules/trispark_preflight.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "hosts": {"type": "dict", "required": True},
        "statuses": {"type": "dict", "required": True},
        "minimum_free_bytes": {"type": "int", "required": True},
        "minimum_memory_bytes": {"type": "int", "required": True},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        site = load_site(Path(given["root"]).resolve() / "inventory" / given["site"])
        check_nodes(site, given["hosts"], given["statuses"], given["minimum_free_bytes"], given["minimum_memory_bytes"])
        return {"changed": False, "nodes": sorted(given["hosts"])}
