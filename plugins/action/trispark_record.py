"""Builds and keeps the record of a boot; the work is in trispark.boot_outcome."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from trispark import __version__
from trispark.allowlist import Allowlist
from trispark.boot_outcome import record_boot
from trispark.catalog import load_catalog
from trispark.controller_action import ControllerAction
from trispark.errors import TrisparkError
from trispark.project import project_state
from trispark.record_chain import appends
from trispark.record_follow import follow
from trispark.records import RecordCache
from trispark.reporting import record_path


class ActionModule(ControllerAction):
    """plugins/modules/trispark_record.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "plan": {"type": "dict", "required": True},
        "facts": {"type": "dict", "required": True},
        "statuses": {"type": "dict", "required": True},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        root = Path(given["root"]).resolve()
        cache = RecordCache(root / ".trispark" / given["site"] / "records")
        now = datetime.now(UTC)
        found = follow(given["statuses"], cache, given["plan"]["purpose"], change=not self.check_mode)
        allowlist = loggable_names(root)
        project = project_state(root, __version__)
        record = record_boot(project, given["site"], allowlist, given["plan"], given["facts"], found.head, now)
        plan = appends(given["statuses"], found.heads, cache, record)
        added = False if self.check_mode else cache.add(record)
        outcome = record["outcome"]
        return {
            "changed": added or found.aside is not None,
            "record": record,
            "append": plan.appends,
            "set_aside": str(found.aside) if found.aside else "",
            "failure_line": "" if outcome["state"] == "valid" else outcome["reason"],
            "path": record_path(cache, record, root),
            "warnings": [*([project.problem] if project.problem else []), *found.warnings(plan)],
        }


def loggable_names(root: Path) -> Allowlist:
    """The catalog's allowlist; an empty one, which withholds every value, when the tree cannot be read.

    A rollback is recorded even then.
    """
    try:
        return load_catalog(root).allowlist
    except TrisparkError:
        return Allowlist.nothing()
