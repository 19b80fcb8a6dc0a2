"""What the action plugins that work on the controller alone have in common: arguments, failures and results.

They are no modules, because a module starts a Python of its own for each task and imports this library again there.
Ansible loads an action plugin once, before it forks the process in which a task runs.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.json import Direction, get_module_encoder
from ansible.plugins.action import ActionBase

from trispark.errors import TrisparkError
from trispark_node.errors import error_line

_Encoder = get_module_encoder("legacy", Direction.CONTROLLER_TO_MODULE)


class ControllerAction(ActionBase):
    """A plugin declares `ARGUMENTS`, an argument spec, and does its work in `work`.

    It runs in a process of its own for each task and host: nothing that it keeps in memory is there for the next one.
    """

    TRANSFERS_FILES = False
    _requires_connection = False

    ARGUMENTS: ClassVar[dict[str, dict[str, Any]]]

    @property
    def check_mode(self) -> bool:
        return bool(self._task.check_mode)

    @abstractmethod
    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        """The task's result from its checked arguments, each of its declared type. Raises TrisparkError."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            _, given = self.validate_argument_spec(self.ARGUMENTS)
        except AnsibleActionFail as error:
            # Returned, as a module does it: raised, it would end the task whatever its `failed_when` says.
            return {**result, "failed": True, "changed": False, "msg": error.message}
        try:
            done = self.work(plain(given))
        except TrisparkError as error:
            done = failure(error.as_dict())
        result.update(plain(done))
        return result


def failure(error: Mapping[str, str], **result: Any) -> dict[str, Any]:
    """A failed result: the error's line as `msg`, its id as `check_id`, its six fields under `error`."""
    return {
        "failed": True,
        "changed": False,
        "msg": error_line(error),
        "check_id": error["id"],
        "error": dict(error),
        **result,
    }


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """The same as JSON has it: without Ansible's tags and types of its own, which pydantic and YAML would not know."""
    found: dict[str, Any] = json.loads(json.dumps(value, cls=_Encoder))
    return found
