"""Plans one boot on the controller; the work is in trispark.boot_plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.boot_plan import Moment, Project, plan_arm, plan_stored, require_given
from trispark.controller_action import ControllerAction
from trispark.errors import TrisparkError
from trispark.node_site import node_requests_if_readable
from trispark.record_chain import heads_of, is_level, leading_head
from trispark.records import RecordCache


class ActionModule(ControllerAction):
    """plugins/modules/trispark_plan.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "stage": {"type": "str", "default": ""},
        "feature": {"type": "str", "default": ""},
        "value": {"type": "str", "default": ""},
        "arm": {"type": "str", "choices": ["", "baseline", "candidate", "stored", "none"], "default": ""},
        "purpose": {"type": "str", "choices": ["serve", "trial", "restore", "rollback", "verify"], "required": True},
        "trial": {"type": "str", "default": ""},
        "slot": {"type": "int", "default": -1},
        "planned": {"type": "str", "default": ""},
        "check": {"type": "bool", "default": False},
        "measure": {"type": "bool", "default": False},
        "statuses": {"type": "dict", "default": {}},
        "stored": {"type": "dict", "default": {}},
        "variables": {"type": "list", "elements": "str", "default": []},
        "site_variables": {"type": "dict", "default": {}},
        "started": {"type": "float", "default": 0},
        "boot_id": {"type": "str", "default": ""},
        "broke_lock": {"type": "str", "default": ""},
        "epoch": {"type": "int", "default": 0},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        misplaced = dict.fromkeys(given["variables"], "-e or a variable of the inventory")
        if given["arm"] == "none":
            require_given(
                Project.load(Path(given["root"]).resolve(), given["site"]),
                stage=given["stage"],
                feature=given["feature"],
                misplaced=misplaced,
                seen_site=given["site_variables"],
            )
            return {"changed": False}
        if given["arm"] == "stored":
            plan = plan_stored(
                purpose=given["purpose"],
                stored=given["stored"],
                statuses=given["statuses"],
                moment=Moment.current(),
                site_facts=node_requests_if_readable(Path(given["root"]).resolve(), given["site"]),
            )
        else:
            root = Path(given["root"]).resolve()
            plan = plan_arm(
                Project.load(root, given["site"]),
                stage=given["stage"],
                feature=given["feature"],
                value=given["value"],
                arm=given["arm"],
                purpose=given["purpose"],
                trial=given["trial"],
                slot=given["slot"] if given["slot"] >= 0 else None,
                planned=given["planned"],
                check=given["check"],
                measure=given["measure"],
                statuses=given["statuses"],
                misplaced=misplaced,
                seen_site=given["site_variables"],
                moment=Moment.current(),
            )
            # A fork would be found after the boot otherwise, which then had no record.
            leading_head(heads_of(given["statuses"]), RecordCache(root / ".trispark" / given["site"] / "records"))
        if given["boot_id"]:
            plan["boot_id"] = given["boot_id"]
        if given["epoch"]:
            plan["epoch"] = given["epoch"]
        if given["broke_lock"]:
            plan["requested"]["broke_lock"] = given["broke_lock"]
        if given["started"]:
            plan["started"] = given["started"]
        return {"changed": False, "plan": plan, "level": _level(given)}


def _level(given: dict[str, Any]) -> bool:
    """Copies that cannot be read are no reason to end here; the task that copies records judges them."""
    heads = heads_of(given["statuses"])
    cache = RecordCache(Path(given["root"]).resolve() / ".trispark" / given["site"] / "records")
    try:
        return len(heads) == len(given["statuses"]) and is_level(heads, cache)
    except TrisparkError:
        return False
