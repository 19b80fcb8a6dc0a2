"""Chooses the generation to go back to; the work is in trispark.rollback."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.boot_plan import Project
from trispark.controller_action import ControllerAction
from trispark.errors import TrisparkError
from trispark.promoted import on_nodes, settings_of
from trispark.resolve import resolve
from trispark.rollback import choose


class ActionModule(ControllerAction):
    """plugins/modules/trispark_rollback.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "to": {"type": "str", "default": ""},
        "statuses": {"type": "dict", "required": True},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        baseline = baseline_id(Path(given["root"]).resolve(), given["site"], given["statuses"])
        target = choose(given["statuses"], given["to"], baseline)
        line = f"from {target.current or 'differing generations'} to {target.generation}: {target.reason}"
        return {"changed": False, "generation": target.generation, "line": line}


def baseline_id(root: Path, site: str, statuses: dict[str, Any]) -> str | None:
    """The id of the site's baseline; None when tree or nodes cannot tell, which must not stop a rollback."""
    try:
        project = Project.load(root, site)
        promoted = settings_of(on_nodes(statuses), project.catalog)
        return resolve(project.site, project.catalog, None, None, root, promoted=promoted).id
    except TrisparkError:
        return None
