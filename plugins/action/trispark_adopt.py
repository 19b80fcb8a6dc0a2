"""Plans the take-over of an engine that someone started by hand; the work is in trispark.adopt."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.adopt import container_names, loggable_names, plan_adopt
from trispark.catalog import load_catalog
from trispark.controller_action import ControllerAction
from trispark.site import load_site


class ActionModule(ControllerAction):
    """plugins/modules/trispark_adopt.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "surveys": {"type": "dict", "default": {}},
        "container": {"type": "str", "default": ""},
        "back_to": {"type": "str", "default": ""},
        "confirm": {"type": "bool", "default": False},
        "remove": {"type": "bool", "default": False},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        root = Path(given["root"]).resolve()
        site = load_site(root / "inventory" / given["site"], images="optional")
        loggable = loggable_names(load_catalog(root).allowlist)
        question = {"names": list(container_names(given["container"])), "loggable": loggable}
        plan = {}
        if given["surveys"]:
            answered = {name: answer for name, answer in given["surveys"].items() if answer}
            plan = plan_adopt(
                site,
                answered,
                container=given["container"],
                back_to=given["back_to"],
                confirm=given["confirm"],
                remove=given["remove"],
                loggable=loggable,
            ).as_dict()
        return {"changed": False, "question": question, "plan": plan}
