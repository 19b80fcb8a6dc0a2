"""Gives the controller the records of a node that its own copy lacks.

An action plugin because it asks the node's agent once for each record and keeps what it gets on the controller.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from trispark.agent_call import call_agent
from trispark.errors import TrisparkError
from trispark.record_chain import missing
from trispark.records import RecordCache


class ActionModule(ActionBase):
    """`trispark_catch_up`: returns `added`, how many records are new on the controller."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"root", "site", "status"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = self._task.args
        cache = RecordCache(Path(str(given["root"])).resolve() / ".trispark" / str(given["site"]) / "records")
        added = 0
        try:
            after = missing(given["status"].get("record_head"), cache)
            if after is not None:
                listed = self._ask("record-list", {"limit": 100_000})
                for head in listed["records"]:
                    if int(head["seq"]) > after:
                        added += cache.add(self._ask("record-show", {"id": head["id"]})["record"])
        except _Failed as failed:
            return {**failed.answer, "failed": True}
        except TrisparkError as error:
            result.update(failed=True, msg=str(error), check_id=error.id)
            return result
        result.update(changed=added > 0, added=added)
        return result

    def _ask(self, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        answer = call_agent(self, verb, request)
        if answer.get("failed"):
            raise _Failed(answer)
        found: dict[str, Any] = answer["answer"]
        return found


class _Failed(Exception):
    """The agent did not answer as asked."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(str(answer.get("msg")))
        self.answer = answer
