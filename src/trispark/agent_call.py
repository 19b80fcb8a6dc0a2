"""One call of a node's agent over Ansible's own connection, for the action plugins.

The agent is on the node already, so nothing is sent but the request: a module of Ansible would bring its own program
and import it there again for each call.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

from trispark.agent_deadline import LATE_STATUS, STEPS, CallBound, Late, ended_after, of_call
from trispark.errors import ID_PATTERN, TrisparkError
from trispark.fleet_lock import TAKE, held_by_the_dead, owner, take
from trispark_node import NODE_ROOT, PROTOCOL
from trispark_node.errors import FIELDS, error_line

AGENT: Final = f"{NODE_ROOT}/bin/trispark-node"
_SHELL_NOT_FOUND: Final = (126, 127)


class Action(Protocol):
    """What an action plugin offers."""

    def _low_level_execute_command(self, cmd: str, sudoable: bool = ..., in_data: bytes | None = ...) -> dict[str, Any]:
        """Runs a command on the node; rc, stdout, stderr. Raises AnsibleConnectionFailure."""


def call_agent(
    action: Action,
    verb: str,
    request: Mapping[str, Any],
    *,
    agent: str = AGENT,
    check: bool = False,
    within_s: float | None = None,
) -> dict[str, Any]:
    """The task's result: `answer` and `changed` (and the agent's `diff`), or `failed` with msg, check_id and error.

    A node that cannot be reached raises Ansible's own error, which marks the host unreachable. A call that takes longer
    than its verb may (agent_deadline), or than `within_s` from its beginning to its end, is ended and fails.

    Where a command of this host that has ended still holds the fleet lock, it is taken from it and the call repeated.
    """

    def ask(verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return _call(action, verb, request, agent, check, within_s)

    result = ask(verb, request)
    if check or verb == TAKE or not held_by_the_dead(result):
        return result
    taken = take(ask)
    return taken if taken.get("failed") else ask(verb, request)


def _call(
    action: Action, verb: str, request: Mapping[str, Any], agent: str, check: bool, within_s: float | None
) -> dict[str, Any]:
    # Each call, a reading one too, is heard of by the fleet lock. Check mode takes nothing.
    named = f"{verb} ({', '.join(each['verb'] for each in request[STEPS])})" if verb == STEPS else verb
    body = {"owner": owner(), **request, "protocol": PROTOCOL}
    if check:
        body = {**request, "protocol": PROTOCOL, "check": True}
    bound = of_call(verb, request, within_s)
    command = f"timeout -k {bound.kill_after_s:g} {bound.node_s:g} {shlex.quote(agent)} {shlex.quote(verb)}"
    began = time.monotonic()
    try:
        with ended_after(bound.whole_s):
            done = action._low_level_execute_command(command, sudoable=True, in_data=json.dumps(body).encode())
    except Late:
        return failed(_late(named, agent, bound, "none; whether it still runs is not known").as_dict())
    rc = int(done["rc"])
    if rc in LATE_STATUS and time.monotonic() - began >= bound.node_s:
        return failed(_late(named, agent, bound, f"none; it was ended there (exit {rc})").as_dict())
    return result_of(verb, agent, rc, str(done["stdout"]), str(done["stderr"]))


def result_of(verb: str, agent: str, rc: int, stdout: str, stderr: str) -> dict[str, Any]:
    """The task's result from what the agent (or the shell in its place) said."""
    try:
        answer = json.loads(stdout.strip().splitlines()[-1])
        if not isinstance(answer, dict):
            raise ValueError("no object")
    except (ValueError, IndexError):
        return failed(_no_answer(verb, agent, rc, stderr).as_dict())
    return result_of_answer(verb, agent, rc, answer)


def result_of_answer(verb: str, agent: str, rc: int, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The task's result from the agent's answer and exit status."""
    if rc != 0 or not answer.get("ok", False):
        error = answer.get("error")
        unknown = {
            "id": "TS-AGENT-FAILED",
            "what": f"{verb} failed without saying why",
            "where": agent,
            "expected": "an answer that is ok, or an error",
            "observed": f"exit {rc}",
            "remedy": "call it on the node, see its journal",
        }
        return {**failed(error if isinstance(error, Mapping) else unknown), "answer": answer}
    result: dict[str, Any] = {"changed": bool(answer.get("changed", False)), "answer": answer}
    if answer.get("diff"):
        result["diff"] = answer["diff"]
    return result


def _late(verb: str, agent: str, bound: CallBound, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-AGENT-LATE",
        f"the node agent did not end {verb} in time",
        where=agent,
        expected=f"an answer within {bound.node_s:g} s",
        observed=observed,
        remedy="see what hangs on that node: its disks, the share of the checkpoint (dmesg), the Docker Engine",
    )


def _no_answer(verb: str, agent: str, rc: int, stderr: str) -> TrisparkError:
    last = (stderr.strip().splitlines() or ["nothing"])[-1]
    if rc in _SHELL_NOT_FOUND:
        return TrisparkError(
            "TS-AGENT-MISSING",
            "the node agent cannot be run",
            where=agent,
            expected="an executable file",
            observed=last,
            remedy="./trispark play install (lab: ./trispark lab up)",
        )
    return TrisparkError(
        "TS-AGENT-SILENT",
        f"the node agent gave no JSON answer to {verb}",
        where=agent,
        expected="one JSON object",
        observed=f"exit {rc}, {last}",
        remedy="./trispark play install (lab: ./trispark lab up)",
    )


def failed(error: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a task that ends with this error."""
    fields = {name: str(error.get(name, "")) for name in FIELDS}
    if ID_PATTERN.fullmatch(fields["id"]) is None:
        fields["id"] = "TS-AGENT-FAILED"
    return {"failed": True, "changed": False, "msg": error_line(fields), "check_id": fields["id"], "error": fields}
