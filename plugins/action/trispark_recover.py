"""Finds what a controller that died left behind; the work is in trispark.recovery."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.controller_action import ControllerAction
from trispark.errors import TrisparkError
from trispark.records import RecordCache
from trispark.recovery import judge, require_complete


class ActionModule(ControllerAction):
    """plugins/modules/trispark_recover.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "results": {"type": "dict", "required": True},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        found = judge(given["results"], outcomes(Path(given["root"]).resolve(), given["site"]))
        require_complete(found)
        newest = max(found.orphans, key=lambda orphan: orphan.epoch, default=None)
        return {
            "changed": False,
            "agents": list(found.agents),
            "stop": found.stop,
            "orphan": None if newest is None else newest.boot_id,
            "orphan_generation": None if newest is None else newest.generation,
            "answering": list(found.answering),
            "moot": list(found.clear),
            "rolls_back": found.stop and bool(found.missing),
            "completes": found.completes,
            "incomplete": "" if found.incomplete is None else found.incomplete.target,
            "lines": found.lines(),
        }


def outcomes(root: Path, site: str) -> dict[str, str]:
    """{boot id: state} of the controller's records; none where they cannot be read, which must not stop a recovery."""
    try:
        records = RecordCache(root / ".trispark" / site / "records").list()
    except TrisparkError:
        return {}
    return {str(each["boot_id"]): str(each["outcome"]["state"]) for each in records if each["kind"] == "boot"}
