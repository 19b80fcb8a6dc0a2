"""Chooses the generation to go back to; the work is in trispark.rollback."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.agent_deadline import AGENT_SHARE
from trispark.boot_plan import Moment, Project, next_epoch
from trispark.controller_action import ControllerAction
from trispark.errors import TrisparkError
from trispark.promoted import on_nodes, settings_of
from trispark.records import RecordCache
from trispark.resolve import resolve
from trispark.rollback import call_s, choose, plan_lines

NEWEST = 5
LATE_S = 1.0
"""For a node that did not say its state in time, beside the time of its engine."""


class ActionModule(ControllerAction):
    """plugins/modules/trispark_rollback.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "to": {"type": "str", "default": ""},
        "stop_s": {"type": "float", "required": True},
        "results": {"type": "dict", "required": True},
        "started": {"type": "float", "default": 0},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        root = Path(given["root"]).resolve()
        statuses = {node: _answer(result) for node, result in given["results"].items()}
        silent = {node: _why(result) for node, result in given["results"].items() if statuses[node] is None}
        baseline, unknown = baseline_id(root, given["site"], statuses)
        target = choose(statuses, given["to"], baseline, silent, unknown)
        answers = {node: status for node, status in statuses.items() if status}
        # A node that is late with its state may still be able to stop; one that cannot be reached is left out.
        late = {node for node in target.missing if not given["results"][node].get("unreachable")}
        missing = {node: why for node, why in target.missing.items() if node not in late}
        moment = Moment.current()
        return {
            "changed": False,
            "generation": target.generation,
            "lines": plan_lines(target, statuses, given["stop_s"], boot_seconds(root, given["site"])),
            "missing": missing,
            "silent": list(target.missing),
            "call_s": {
                node: (LATE_S + given["stop_s"]) / AGENT_SHARE if node in late else call_s(given["stop_s"])
                for node in statuses
            },
            # One more than a boot that fences now would take.
            "epoch": next_epoch(answers) + 1,
            "boot_id": moment.boot_id,
            "started": given["started"] or moment.now.timestamp(),
        }


def _answer(result: dict[str, Any]) -> dict[str, Any] | None:
    found = result.get("answer")
    return found if isinstance(found, dict) and found.get("ok") else None


def _why(result: dict[str, Any]) -> str:
    return " ".join(str(result.get("msg") or "no answer").split())[:300]


def baseline_id(root: Path, site: str, statuses: dict[str, Any]) -> tuple[str | None, str]:
    """The id of the site's baseline; None and why when tree or nodes cannot tell, which must not stop a rollback."""
    try:
        project = Project.load(root, site)
        promoted = settings_of(on_nodes({node: status for node, status in statuses.items() if status}), project.catalog)
        return resolve(project.site, project.catalog, None, None, root, promoted=promoted).id, ""
    except TrisparkError as error:
        return None, str(error)


def boot_seconds(root: Path, site: str) -> float | None:
    """How long the newest valid boots without a measurement took; None when the controller has no record of one."""
    try:
        records = RecordCache(root / ".trispark" / site / "records").list()
    except TrisparkError:
        return None
    found = [
        float(record["timings"]["phases"]["total"])
        for record in records
        if record["kind"] == "boot" and record["bench"] is None and record["outcome"]["state"] == "valid"
    ]
    return max(found[-NEWEST:], default=None)
