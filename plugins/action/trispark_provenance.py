"""Gives a node the files that prove where a boot's images come from.

An action plugin because they lie on the controller, and are too large to be carried from task to task in the plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from trispark.agent_call import call_agent, failed
from trispark.controller_action import plain
from trispark.errors import TrisparkError
from trispark.images.demanded import KNOWN_ALREADY, files_of


class ActionModule(ActionBase):
    """`trispark_provenance`: `root`, `plan` (of a boot). Returns `stored`, the agent's ids of what the node has now.

    Nothing is sent where the site demands no signature, and for a boot of what ran here before: the node has it.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"plan", "root"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        root = Path(str(self._task.args["root"])).resolve()
        plan = plain({"plan": self._task.args["plan"]})["plan"]
        facts = [] if plan["purpose"] in KNOWN_ALREADY else plan.get("provenance") or []
        result.update(changed=False, stored=[])
        for fact in facts:
            try:
                request = {"fact": fact, "files": files_of(root, fact)}
            except TrisparkError as error:
                return {**result, **failed(error.as_dict())}
            answer = call_agent(self, "provenance-store", request, check=self._task.check_mode)
            if answer.get("failed"):
                return {**result, **answer}
            result["changed"] = result["changed"] or answer["changed"]
            result["stored"].append(answer["answer"]["id"])
        return result
