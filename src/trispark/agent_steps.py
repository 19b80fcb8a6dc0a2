"""Several verbs of a node's agent in one call: what a task names, and its result as if it were one verb's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trispark.agent_deadline import STEPS

Call = Callable[[str, Mapping[str, Any]], dict[str, Any]]
"""(verb, request) to a task's result: agent_call.call_agent on one node."""


def in_steps(call: Call, named: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The task's result; nothing is called where no step is left."""
    steps = asked(named)
    if not steps:
        return {"changed": False, "skipped": True, "skip_reason": "no step is asked for", "answers": {}}
    return as_one(call(STEPS, {STEPS: steps}))


def asked(named: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The agent's steps, {"verb", "request"} each, of {"verb", "request", "requests", "when"} each. Where `requests` is
    given, each of its own is a step."""
    return [
        {"verb": each["verb"], "request": request}
        for each in named
        if each["when"]
        for request in (each["requests"] if each["requests"] is not None else [each["request"]])
    ]


def as_one(result: dict[str, Any]) -> dict[str, Any]:
    """The result of the agent's verb `steps` as that of its last step: `answer` is the last one's, `answers` is {verb:
    the answer to its last step}, also of a call of which a later step failed; `diff` is that of all."""
    answers = list((result.get("answer") or {}).get("answers") or [])
    found = {**result, "answers": {str(each["verb"]): {"ok": True, **each} for each in answers}}
    if result.get("failed") or not answers:
        found["changed"] = any(each.get("changed", False) for each in answers)
        return found
    found["answer"] = {"ok": True, **answers[-1]}
    diffs = [each["diff"] for each in answers if each.get("diff")]
    if diffs:
        found["diff"] = {part: "".join(str(diff[part]) for diff in diffs) for part in ("before", "after")}
    return found
