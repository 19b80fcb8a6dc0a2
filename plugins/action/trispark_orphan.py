"""The plan and the facts by which a boot that lost its controller is recorded; the work is in trispark.recovery."""

from __future__ import annotations

from typing import Any, ClassVar

from trispark.controller_action import ControllerAction
from trispark.recovery import judge, orphan_facts, orphan_plan


class ActionModule(ControllerAction):
    """plugins/modules/trispark_orphan.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "boot_id": {"type": "str", "required": True},
        "results": {"type": "dict", "required": True},
        "stored": {"type": "dict", "required": True},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        found = judge(given["results"], {})
        (orphan,) = [each for each in found.orphans if each.boot_id == given["boot_id"]]
        statuses = {node: result["answer"] for node, result in given["results"].items() if node not in found.missing}
        stored = {node: answer for node, answer in given["stored"].items() if answer}
        return {
            "changed": False,
            "plan": orphan_plan(orphan, stored, statuses),
            "facts": orphan_facts(orphan, sorted(given["results"])),
        }
