"""Engines of ours that have ended, or run under an epoch that no longer holds: what a node's start leaves behind.

One that has ended is removed and its log kept. One that a person or a restart policy started is stopped. One that
serves rightly is left alone.
"""

from __future__ import annotations

from typing import Any

from trispark_node import engine, epoch, logs, site_facts
from trispark_node.containers import ROLE_ENGINE, identity, own
from trispark_node.docker_client import Container
from trispark_node.errors import AgentError
from trispark_node.mutation import Plan
from trispark_node.node import Node

STOP_DEADLINE_S = 15.0
"""On a node that was not told of its site."""
MOST_STOP_S = 60.0
"""A site may give its engines longer, to end what they answer. One that came back alone answers nobody."""


def plan_clear_away(node: Node) -> Plan:
    found = own(node.docker, ROLE_ENGINE)
    alive = [container for container in found if container.alive]
    stale = _stale(node, alive)
    ended = [container for container in found if not container.alive]
    left_alone = [container for container in alive if container not in stale]
    answer = {"stopped": _boots(stale), "removed": _boots(ended), "left_alone": _boots(left_alone)}
    if not stale and not ended:
        return Plan(None, answer)
    return Plan(
        lambda: _apply(node, stale, ended),
        answer,
        {**answer, "ids": [container.id for container in (*stale, *ended)]},
        ("".join(f"engine {container.name} {container.status}\n" for container in found), "engine absent\n"),
        journal_required=False,
    )


def _boots(containers: list[Container]) -> list[str]:
    return [logs.boot_of(container) for container in containers]


def unjudged(node: Node) -> AgentError | None:
    """What keeps this node from saying whether the engines that run may run; None when it can say, or none runs."""
    alive = [container for container in own(node.docker, ROLE_ENGINE) if container.alive]
    if not alive:
        return None
    try:
        epoch.read(node)
    except AgentError as error:
        return AgentError(
            error.id,
            f"{error.what}, and an engine runs: boot {', '.join(_boots(alive))}; whether it may is not known",
            where=error.where,
            expected=error.expected,
            observed=error.observed,
            remedy=error.remedy,
        )
    return None


def _stale(node: Node, alive: list[Container]) -> list[Container]:
    """Those whose epoch is not this node's, or was fenced before the host's last start."""
    if not alive:
        return []
    try:
        stored = epoch.read(node)
    except AgentError:
        return []  # what cannot be judged is not stopped, but named
    if stored.host_boot not in (None, node.boot_identity):
        return alive
    return [container for container in alive if _epoch_of(container) != stored.number]


def _epoch_of(container: Container) -> int:
    who = identity(container)
    return who.epoch if who is not None else 0


def _apply(node: Node, stale: list[Container], ended: list[Container]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    if stale:
        done = engine.stop_containers(node, _deadline(node), stale)
        kept = {"killed": done["killed"]}
    for container in ended:
        if container.status != "created":  # one that never ran has no log
            logs.save(node, container)
        node.docker.remove(container.id)
    return {**kept, "exit_codes": {logs.boot_of(container): container.exit_code for container in ended}}


def _deadline(node: Node) -> float:
    try:
        facts = site_facts.read(node)
    except AgentError:
        return STOP_DEADLINE_S
    return min(facts.stop_deadline_s, MOST_STOP_S) if facts is not None else STOP_DEADLINE_S
