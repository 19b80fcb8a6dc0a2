"""What a playbook says at its end; the work is in trispark.reporting."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark import reporting
from trispark.controller_action import ControllerAction
from trispark.records import RecordCache


class ActionModule(ControllerAction):
    """plugins/modules/trispark_report.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "kind": {"type": "str", "choices": ["stage_a", "rollback", "status"], "required": True},
        "boot_id": {"type": "str", "default": ""},
        "statuses": {"type": "dict", "default": {}},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        report = make(given, Path(given["root"]).resolve())
        return {
            "changed": False,
            "lines": report.lines,
            "published": report.published,
            "failure_line": report.failure_line,
        }


def make(given: dict[str, Any], root: Path) -> reporting.Report:
    if given["kind"] == "status":
        return reporting.status(given["statuses"])
    cache = RecordCache(root / ".trispark" / given["site"] / "records")
    record = cache.show(given["boot_id"])
    path = reporting.record_path(cache, record, root)
    if given["kind"] == "rollback":
        return reporting.rollback(record, path)
    # Here, because a status needs no catalog and is asked for often.
    from trispark.catalog import load_catalog
    from trispark.stages import exit_of

    report = reporting.stage_a(record, path)
    judged = exit_of(load_catalog(root), "a", record["resolved"]["generation"], cache.list())
    return reporting.Report([*report.lines, *(each.line() for each in judged)], report.published)
