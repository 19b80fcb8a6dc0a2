"""Verb `at-boot`: once after each start of a node, by its boot unit: what an engine left when the node went down.

What the agent was interrupted in is ended first (`recover`). Engines of ours that have ended are removed and their
logs kept. One that runs under an epoch which no longer holds, because a person or a restart policy started it, is
stopped; one that serves rightly is left alone, so that the unit may be started again at any time.
"""

from __future__ import annotations

from typing import Any

from trispark_node import left_engines, recover, stopped
from trispark_node.mutation import Mode, mutate
from trispark_node.node import Node

LOCK_WAIT_S = 60.0
"""A controller that is back before the node is may be at work already."""


def at_boot(node: Node, mode: Mode) -> dict[str, Any]:
    waiting = Mode(mode.check, max(mode.lock_wait_s, LOCK_WAIT_S))
    ended = mutate(node, "recover", waiting, lambda: recover.plan_recover(node))
    done = mutate(node, "at-boot", waiting, lambda: left_engines.plan_clear_away(node))
    changed = ended["changed"] or done["changed"]
    proof = stopped.prove(node, 0, beside_engine=True).answer()
    return {**done, "changed": changed, "recovered": ended["recovered"], "proof": proof}
