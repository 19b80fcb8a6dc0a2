"""Waits until the serving engine has no request any more (trispark.drain), asking through the head's agent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

from trispark.agent_call import call_agent
from trispark.drain import drain
from trispark.errors import TrisparkError
from trispark.lifeline import die_with_controller
from trispark.lost_polls import again


class ActionModule(ActionBase):
    """`trispark_drain`: returns `seconds` and `at_first`, the number of requests that were seen at the beginning."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"url", "deadline_s", "interval_s"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = self._task.args
        die_with_controller()

        def ask(path: str) -> Mapping[str, Any]:
            request = {"url": f"{given['url']}{path}"}
            answer = again(lambda: call_agent(self, "request", request), (AnsibleError, OSError), time.sleep)
            if answer.get("failed"):
                raise AnsibleActionFail(str(answer.get("msg", "the node gave no answer")), result=answer)
            found: Mapping[str, Any] = answer["answer"]
            return found

        deadline_s, interval_s = float(given["deadline_s"]), float(given.get("interval_s", 2))
        try:
            drained = drain(ask, deadline_s, interval_s, time.monotonic, time.sleep)
        except TrisparkError as error:
            result.update(failed=True, msg=str(error), check_id=error.id)
        else:
            result.update(changed=False, seconds=drained.seconds, at_first=drained.at_first)
        return result
