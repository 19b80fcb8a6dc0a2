"""Plans a promotion on the controller and keeps the controller's copy; the work is in trispark.promote."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from trispark.boot_plan import Project
from trispark.controller_action import ControllerAction
from trispark.preflight import require_nodes
from trispark.promote import Promotion, plan_promotion, plan_revert, promotable
from trispark.promoted import REVERT, Promoted, write_cache
from trispark.record_chain import heads_of, leading_head
from trispark.records import RecordCache


class ActionModule(ControllerAction):
    """plugins/modules/trispark_promote.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "state": {"type": "str", "choices": ["planned", "cached"], "default": "planned"},
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "record": {"type": "str", "default": ""},
        "revert": {"type": "bool", "default": False},
        "statuses": {"type": "dict", "default": {}},
        "baseline": {"type": "dict", "default": {}},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        root = Path(given["root"]).resolve()
        if given["state"] == "cached":
            promoted = Promoted.of(given["baseline"], "the answer of the nodes", REVERT) if given["baseline"] else None
            return {"changed": False if self.check_mode else write_cache(root, given["site"], promoted)}
        promotion = planned(root, given)
        return {
            "changed": False,
            "baseline": promotion.baseline.as_dict() if promotion.baseline else {},
            "requests": promotion.requests(),
            "lines": promotion.lines(),
            "published": promotion.published(),
        }


def planned(root: Path, given: dict[str, Any]) -> Promotion:
    project = Project.load(root, given["site"])
    require_nodes(project.site, given["statuses"])
    if given["revert"]:
        return plan_revert(given["statuses"], given["record"])
    cache = RecordCache(root / ".trispark" / given["site"] / "records")
    cache.verify()
    leading_head(heads_of(given["statuses"]), cache)
    return plan_promotion(
        root=root,
        site=project.site,
        catalog=project.catalog,
        records=cache.list(),
        record=promotable(cache, given["record"]),
        statuses=given["statuses"],
        time=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    )
