"""Verb `at-boot`: once after each start of a node, by its boot unit: what an engine left when the node went down.

What the agent was interrupted in is ended first (`recover`). Engines of ours that have ended are removed and their
logs kept. One that runs under an epoch which no longer holds, because a person or a restart policy started it, is
stopped; one that serves rightly is left alone, so that the unit may be started again at any time.

A boot unit that ended well is looked at by nobody. So what could not be done is a failure, after all else was done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trispark_node import left_engines, recover, stopped
from trispark_node.errors import AgentError
from trispark_node.mutation import Mode, mutate
from trispark_node.node import Node
from trispark_node.unexpected import internal_error, os_error

LOCK_WAIT_S = 60.0
"""A controller that is back before the node is may be at work already."""
DOCKER_WAIT_S = 60.0
"""An Engine that fails its first start is tried again by systemd after seconds."""
DOCKER_POLL_S = 0.5


def at_boot(node: Node, mode: Mode) -> dict[str, Any]:
    """Raises what could not be judged or ended, with what was done beside it: the first failure is the error, the
    others are its `problems`. The answer has no `stopped`, `removed`, `left_alone` or `proof` of a part that failed."""
    waiting = Mode(mode.check, max(mode.lock_wait_s, LOCK_WAIT_S))
    _wait_for_docker(node)
    failed: list[AgentError] = []
    ended: dict[str, Any] = {"changed": False, "recovered": []}
    done: dict[str, Any] = {"changed": False}
    proof: dict[str, Any] = {}
    with _collected(node, "recover", failed):  # a journal that cannot be read keeps no stale engine running
        ended = mutate(node, "recover", waiting, lambda: recover.plan_recover(node, left_engines.MOST_STOP_S))
    with _collected(node, "at-boot", failed):
        done = mutate(node, "at-boot", waiting, lambda: left_engines.plan_clear_away(node))
    with _collected(node, "at-boot", failed):
        unjudged = left_engines.unjudged(node)
        if unjudged is not None:
            failed.insert(0, unjudged)
    with _collected(node, "prove-stopped", failed):
        proof = {"proof": stopped.prove(node, 0, beside_engine=True).answer()}
    answer = {**done, "changed": ended["changed"] or done["changed"], "recovered": ended["recovered"], **proof}
    if failed:
        said = list(dict.fromkeys(map(str, failed)))  # a lock that is held fails two parts by one sentence
        raise failed[0].beside({**answer, "problems": said[1:]})
    return answer


@contextmanager
def _collected(node: Node, part: str, failed: list[AgentError]) -> Iterator[None]:
    """What fails in one part keeps no other part from being tried, and is told with theirs."""
    try:
        yield
    except AgentError as error:
        failed.append(error)
    except OSError as error:
        failed.append(os_error(part, error))
    except Exception as error:
        failed.append(internal_error(node, part, error))


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
