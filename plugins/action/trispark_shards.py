"""Inspects, verifies or packs this node's shards and shows how far that is; see trispark.shard_job.

An action plugin because it asks the node again and again while the node's own job works, and shows lines meanwhile.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from trispark.agent_call import AGENT, call_agent
from trispark.lifeline import die_with_controller
from trispark.run_events import WORK_PREFIX
from trispark.shard_job import Interrupted, follow

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ActionModule(ActionBase):
    """`trispark_shards`: `work` is a request of the agent's verb `engram`; returns what `trispark_node` returns for it.

    `floor_mib_s`: the lowest believable speed, from which the deadline follows. `agent`: its path on the node.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = True
    _VALID_ARGS = frozenset({"work", "floor_mib_s", "agent"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        die_with_controller()
        display = Display()
        agent = str(self._task.args.get("agent", AGENT))
        node = str((task_vars or {}).get("inventory_hostname", ""))

        def ask(request: Mapping[str, Any]) -> dict[str, Any]:
            check = self._task.check_mode and request["action"] == "start"  # a job that was begun is followed as ever
            return call_agent(self, "engram-job", request, agent=agent, check=check)

        caught: list[int] = []
        try:
            with _interruptible(caught):
                result = follow(
                    ask,
                    self._task.args["work"],
                    floor_mib_s=float(self._task.args["floor_mib_s"]),
                    show=lambda line: display.display(f"{WORK_PREFIX}{node}: {line}"),
                    clock=time.monotonic,
                    pause=time.sleep,
                )
        except Interrupted:
            signal.signal(caught[0], signal.SIG_DFL)
            os.kill(os.getpid(), caught[0])  # as it would have ended without this plugin
            raise
        if not self._task.diff:
            result.pop("diff", None)
        return result


@contextmanager
def _interruptible(caught: list[int]) -> Iterator[None]:
    """The first INT or TERM raises Interrupted inside; the node is told then, so further ones are not heard."""

    def handle(number: int, _frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        caught.append(number)
        raise Interrupted

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        if not caught:
            for number, handler in before.items():
                signal.signal(number, handler)
