"""Observes one rank through its agent until its row store has counted what was awaited; see trispark.observing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

from trispark.agent_call import call_agent
from trispark.lifeline import die_with_controller
from trispark.lost_polls import again
from trispark.observing import observe


class ActionModule(ActionBase):
    """`trispark_observe`: returns the agent's `answer` and `lookups`, the total per layer as {"1": n, "14": n}.

    `patterns` are those of the plan: the agent searches the whole log and hands out the lines in which one is found.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(
        {"layers", "patterns", "more_than", "awaited", "deadline_s", "interval_s", "phase", "identity"}
    )

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = self._task.args
        die_with_controller()

        def ask() -> Mapping[str, Any]:
            request: dict[str, Any] = {"patterns": [str(each) for each in arguments["patterns"]]}
            if arguments.get("identity"):
                request["identity"] = True
            answer = again(lambda: call_agent(self, "observe", request), (AnsibleError, OSError), time.sleep)
            if answer.get("failed"):
                raise AnsibleActionFail(str(answer.get("msg", "the node gave no answer")), result=answer)
            seen: Mapping[str, Any] = answer["answer"]
            return seen

        seen = observe(
            ask,
            layers=[int(layer) for layer in arguments["layers"]],
            more_than={int(layer): int(count) for layer, count in (arguments.get("more_than") or {}).items()},
            awaited=[str(pattern) for pattern in arguments.get("awaited") or []],
            deadline_s=float(arguments.get("deadline_s", 0)),
            interval_s=float(arguments.get("interval_s", 1)),
            phase=str(arguments.get("phase", "boot")),
            clock=time.monotonic,
            pause=time.sleep,
        )
        result.update(changed=False, **seen)
        return result
