"""Builds the node agent's one file on the controller; the work is in trispark.agent_file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from ansible.utils.display import Display

from trispark.agent_file import kept_agent
from trispark.controller_action import ControllerAction
from trispark_node import PROTOCOL, VERSION


class ActionModule(ControllerAction):
    """plugins/modules/trispark_agent.py has its documentation."""

    ARGUMENTS: ClassVar = {"root": {"type": "path", "required": True}}

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        path, digest = kept_agent(Path(given["root"]).resolve(), Display().display)
        return {"changed": False, "path": str(path), "sha256": digest, "version": VERSION, "protocol": PROTOCOL}
