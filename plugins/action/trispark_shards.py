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

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from trispark.agent_call import AGENT, call_agent
from trispark.lifeline import die_with_controller
from trispark.run_events import WORK_PREFIX
from trispark.shard_job import Interrupted, Lost, follow, new_job


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
            try:
                return call_agent(self, "engram-job", request, agent=agent, check=check)
            except (AnsibleError, OSError) as error:
                raise Lost(str(error)) from error

        try:
            with _interruptible():
                result = follow(
                    ask,
                    self._task.args["work"],
                    job=new_job(),
                    floor_mib_s=float(self._task.args["floor_mib_s"]),
                    show=lambda line: display.display(f"{WORK_PREFIX}{node}: {line}"),
                    clock=time.monotonic,
                    pause=time.sleep,
                )
        except Lost as lost:  # nothing began: as any other task of a node that cannot be reached
            raise lost.__cause__ or lost from None
        except Interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)  # as it would have ended without this plugin
            raise
        if not self._task.diff:
            result.pop("diff", None)
        return result


@contextmanager
def _interruptible() -> Iterator[None]:
    """INT raises Interrupted inside; while the node is told, the TERM that ansible-playbook sends next is not heard.

    A TERM without it means that ansible-playbook itself is being ended: this process goes with it, the job does not.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    except Interrupted:
        raise
    except BaseException:
        signal.signal(signal.SIGINT, before)
        raise
    else:
        signal.signal(signal.SIGINT, before)
