"""Verb `steps`: several verbs in one call. Most of a short call is the way to the node and the start of the agent.

Nothing binds them together: each step has its own locks, journal entry and answer, as if it had been called alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trispark_node.errors import AgentError, request_error
from trispark_node.fields import Fields
from trispark_node.node import Node
from trispark_node.unexpected import os_error

Run = Callable[[Node, Fields], dict[str, Any]]
VERB = "steps"


@dataclass(frozen=True)
class Step:
    verb: str
    request: dict[str, Any]
    where: str

    @classmethod
    def parse(cls, fields: Fields) -> Step:
        found = cls(fields.text("verb"), fields.mapping("request", {}), fields.where)
        fields.done()
        return found


def steps(node: Node, fields: Fields, run_of: Callable[[str], Run]) -> dict[str, Any]:
    """`answers`: [{"verb", **its answer}, ...] in order; `changed`: whether one of them changed something.

    A step that fails raises its own error, with the `answers` of those before it; the rest is not begun. What the call
    says of owner and check mode holds for each step. Verbs are known before the first one is run; a request that its
    own verb does not understand is refused when its turn comes.
    """
    asked = [Step.parse(each) for each in fields.inners("steps", [])]
    shared = {name: value for name in ("owner", "check") if (value := fields.anything(name)) is not None}
    fields.done()
    runs = [_run(step, run_of) for step in asked]
    answers: list[dict[str, Any]] = []
    for step, run in zip(asked, runs, strict=True):
        try:
            answers.append({"verb": step.verb, **run(node, Fields({**step.request, **shared}, step.where))})
        except AgentError as error:
            error.extra["answers"] = answers
            raise
        except OSError as error:
            failed = os_error(step.verb, error)
            failed.extra["answers"] = answers
            raise failed from error
    return {"changed": any(answer.get("changed", False) for answer in answers), "answers": answers}


def _run(step: Step, run_of: Callable[[str], Run]) -> Run:
    if step.verb == VERB:
        raise request_error(
            "steps within steps", where=step.where, expected="another verb", observed="a list in a list"
        )
    return run_of(step.verb)
