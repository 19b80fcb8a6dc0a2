"""Gives the controller the records of a node that its own copy lacks.

An action plugin because it asks the node's agent once for each record and keeps what it gets on the controller.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from trispark.agent_call import call_agent
from trispark.errors import TrisparkError
from trispark.record_chain import (
    heads_of,
    judge,
    missing,
    needed,
    refuse_forked_copy,
    set_aside_forked_copy,
)
from trispark.records import RecordCache


class ActionModule(ActionBase):
    """`trispark_catch_up`: returns `added`, how many records are new on the controller.

    With `statuses`, of all nodes, only those that the record of the next boot needs, and a copy that is not the nodes'
    chain is refused, as are nodes of different chains; with `set_aside` the copy is put out of the way instead, and a
    node of another chain than the one that leads gives nothing. Else all that this node has.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"root", "set_aside", "site", "status", "statuses"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = self._task.args
        cache = RecordCache(Path(str(given["root"])).resolve() / ".trispark" / str(given["site"]) / "records")
        added = 0
        try:
            lacked = self._lacked(cache, str((task_vars or {})["inventory_hostname"]))
            if lacked:
                listed = self._ask("record-list", {"limit": 100_000})
                for head in listed["records"]:
                    if int(head["seq"]) in lacked:
                        added += cache.add(self._ask("record-show", {"id": head["id"]})["record"])
        except _Failed as failed:
            return {**failed.answer, "failed": True}
        except TrisparkError as error:
            result.update(failed=True, msg=str(error), check_id=error.id)
            return result
        result.update(changed=added > 0, added=added)
        return result

    def _lacked(self, cache: RecordCache, node: str) -> Collection[int]:
        """Numbers of the records to copy from this node."""
        given = self._task.args
        head = given["status"].get("record_head")
        if "statuses" not in given:
            after = missing(head, cache)
            return () if after is None else range(after + 1, int(head["seq"]) + 1)
        heads = heads_of(given["statuses"])
        if boolean(given.get("set_aside", False)):
            chain = judge(heads, cache)
            if chain.copy_fork is not None:
                set_aside_forked_copy(heads, cache)
            return () if node in chain.forks else needed(head, heads, cache)
        refuse_forked_copy(heads, cache)
        judge(heads, cache).require_one()
        return needed(head, heads, cache)

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
