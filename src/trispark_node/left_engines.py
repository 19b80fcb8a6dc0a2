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


def plan_clear_away(node: Node) -> Plan:
    found = own(node.docker, ROLE_ENGINE)
    problems: list[str] = []
    stale = _stale(node, [container for container in found if container.alive], problems)
    ended = [container for container in found if not container.alive]
    answer = {"problems": problems, "stopped": _boots(stale), "removed": _boots(ended)}
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


def _stale(node: Node, alive: list[Container], problems: list[str]) -> list[Container]:
    """Those whose epoch is not this node's, or was fenced before the host's last start."""
    if not alive:
        return []
    try:
        stored = epoch.read(node)
    except AgentError as error:
        problems.append(str(error))
        return []  # what cannot be judged is not stopped
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
    return facts.stop_deadline_s if facts is not None else STOP_DEADLINE_S
