"""Observes one rank through its agent, until the row store's counters in the log have grown past a given point.

The counters are printed once a period (DSV41_STATS_SECONDS). An observation taken at once after a request would miss
the request's own reads, so this asks again until they are there, or fails at the deadline. Lines that are awaited for
other gates are waited for as well; whether they are there is for the gates to judge.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase

from trispark.agent_call import call_agent
from trispark.lifeline import die_with_controller
from trispark.logparse import lines_matching, total_lookups

ARGUMENTS = frozenset({"layers", "more_than", "awaited", "deadline_s", "interval_s"})


class ActionModule(ActionBase):
    """`trispark_observe`: returns the agent's `answer` and `lookups`, the total per layer as {"1": n, "14": n}."""

    TRANSFERS_FILES = False
    _VALID_ARGS = ARGUMENTS

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = self._task.args
        die_with_controller()
        layers = [int(layer) for layer in arguments["layers"]]
        more_than = {int(layer): int(count) for layer, count in (arguments.get("more_than") or {}).items()}
        awaited = [str(pattern) for pattern in arguments.get("awaited") or []]
        deadline = time.monotonic() + float(arguments.get("deadline_s", 0))
        while True:
            answer = call_agent(self, "observe", {})
            if answer.get("failed"):
                return answer
            totals = total_lookups(answer["answer"]["log"])
            lookups = {layer: totals.get(layer, 0) for layer in layers}
            result.update(answer=answer["answer"], lookups={str(k): v for k, v in lookups.items()}, changed=False)
            counted = all(lookups[layer] > count for layer, count in more_than.items())
            shown = all(lines_matching(pattern, answer["answer"]["log"]) for pattern in awaited)
            if counted and (shown or time.monotonic() > deadline):
                return result
            if time.monotonic() > deadline:
                result.update(
                    failed=True,
                    check_id="engram.reads",
                    msg="engram.reads: the row store counted no read of the canary in time; "
                    f"expected: more than {more_than}; observed: {lookups}; "
                    "do: read the rank's log for its Engram lines",
                )
                return result
            time.sleep(float(arguments.get("interval_s", 1)))
