"""Verb `at-boot`: once after each start of a node, by its boot unit: what an engine left when the node went down.

What the agent was interrupted in is ended first (`recover`). Engines of ours that have ended are removed and their
logs kept. One that runs under an epoch which no longer holds, because a person or a restart policy started it, is
stopped; one that serves rightly is left alone, so that the unit may be started again at any time.

A boot unit that ended well is looked at by nobody. So what could not be done is a failure, after all else was done.
"""

from __future__ import annotations

from typing import Any

from trispark_node import left_engines, recover, stopped
from trispark_node.errors import AgentError
from trispark_node.mutation import Mode, mutate
from trispark_node.node import Node
from trispark_node.unexpected import os_error

LOCK_WAIT_S = 60.0
"""A controller that is back before the node is may be at work already."""
DOCKER_WAIT_S = 60.0
"""An Engine that fails its first start is tried again by systemd after seconds."""
DOCKER_POLL_S = 0.5


def at_boot(node: Node, mode: Mode) -> dict[str, Any]:
    """Raises what could not be judged or ended, with what was done beside it."""
    waiting = Mode(mode.check, max(mode.lock_wait_s, LOCK_WAIT_S))
    _wait_for_docker(node)
    failed: list[AgentError] = []
    ended: dict[str, Any] = {"changed": False, "recovered": []}
    try:
        ended = mutate(node, "recover", waiting, lambda: recover.plan_recover(node, left_engines.MOST_STOP_S))
    except AgentError as error:
        failed.append(error)
    except OSError as error:  # a journal that cannot be read keeps no stale engine running
        failed.append(os_error("recover", error))
    done = mutate(node, "at-boot", waiting, lambda: left_engines.plan_clear_away(node))
    unjudged = left_engines.unjudged(node)
    if unjudged is not None:
        failed.insert(0, unjudged)
    changed = ended["changed"] or done["changed"]
    proof = stopped.prove(node, 0, beside_engine=True).answer()
    answer = {**done, "changed": changed, "recovered": ended["recovered"], "proof": proof}
    if failed:
        raise failed[0].beside({**answer, "problems": [str(error) for error in failed[1:]]})
    return answer


def _wait_for_docker(node: Node) -> None:
    """Nothing can be said without it. Raises TS-AGENT-DOCKER when it does not answer in time."""
    deadline = node.clock.monotonic() + DOCKER_WAIT_S
    while True:
        try:
            _ = node.docker  # connects; after a failure the next look does so again
            return
        except AgentError:
            if node.clock.monotonic() >= deadline:
                raise
        node.clock.sleep(DOCKER_POLL_S)
