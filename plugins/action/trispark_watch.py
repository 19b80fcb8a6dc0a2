"""Watches this node's rank while the engine starts, together with the watchers of the other ranks (trispark.watch).

An action plugin because a module has only its own node: the board on which the watchers meet is on the controller.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from trispark.agent_call import call_agent
from trispark.lifeline import die_with_controller
from trispark.watch import Board, watch


class ActionModule(ActionBase):
    """`trispark_watch`: returns `state` and `seconds`; on failure `check_id`, the lost rank and its last lines."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"directory", "deadline_s", "interval_s", "rank"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = self._task.args
        die_with_controller()

        def ask(seconds: float) -> Mapping[str, Any]:
            answer = call_agent(self, "wait", {"timeout_s": seconds})
            if answer.get("failed"):
                raise AnsibleActionFail(str(answer.get("msg", "the node gave no answer")), result=answer)
            seen: Mapping[str, Any] = answer["answer"]
            return seen

        watched = watch(
            ask,
            Board(Path(str(arguments["directory"]))),
            int(arguments["rank"]),
            float(arguments["deadline_s"]),
            float(arguments["interval_s"]),
            time.monotonic,
            time.sleep,
        )
        result.update(changed=False, state=watched.state, seconds=watched.seconds, last_log=watched.last_log)
        if watched.lost_rank is not None:
            result.update(
                failed=True,
                check_id="boot.ready",
                rank=watched.lost_rank,
                by_peer=watched.by_peer,
                log_tail=watched.log_tail,
                msg=watched.line(),
            )
        return result
