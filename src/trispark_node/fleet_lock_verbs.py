"""Verbs `lock-take`, `lock-release` and `lock-show`: the border of the fleet lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trispark_node import fleet_lock, site_facts
from trispark_node.errors import AgentError, request_error
from trispark_node.fields import NOTHING, Fields
from trispark_node.fleet_lock_file import LEASE_S, LONGEST_LEASE_S
from trispark_node.fleet_owner import TOKEN, WORDS
from trispark_node.mutation import Mode
from trispark_node.node import Node


@dataclass(frozen=True)
class TakeRequest:
    """`why`: None where nothing is broken. `of`: the token that is broken, and no other one. `lease_s`: None for the
    site's."""

    why: str | None
    of: str | None
    lease_s: float | None

    @classmethod
    def parse(cls, fields: Fields) -> TakeRequest:
        breaks = fields.boolean("break", False)
        why = fields.optional_text("why", pattern=WORDS)
        if breaks and why is None:
            raise request_error(
                "why is missing", where="request.why", expected="why the lock is broken", observed=NOTHING
            )
        return cls(
            why=why if breaks else None,
            of=fields.optional_text("of", pattern=TOKEN),
            lease_s=fields.seconds("lease_s", high=LONGEST_LEASE_S) if fields.has("lease_s") else None,
        )


@dataclass(frozen=True)
class ReleaseRequest:
    """`why`: whoever holds it loses it for that; None for the own lock alone."""

    why: str | None

    @classmethod
    def parse(cls, fields: Fields) -> ReleaseRequest:
        return cls(fields.optional_text("why", pattern=WORDS))


def lock_take(node: Node, request: TakeRequest, mode: Mode) -> dict[str, Any]:
    """Check mode takes nothing and refuses nothing."""
    if mode.check:
        return {"changed": False, "broke": None}
    if mode.owner is None:
        raise request_error("owner is missing", where="request.owner", expected="who takes the lock", observed=NOTHING)
    lease_s = lease_of_site(node) if request.lease_s is None else request.lease_s
    return fleet_lock.take(node, mode.owner, lease_s, request.why, request.of)


def lease_of_site(node: Node) -> float:
    """Seconds, as the site says; the agent's own where the node was not told of it."""
    try:
        facts = site_facts.read(node)
    except AgentError:
        return LEASE_S
    return min(facts.lock_lease_s, LONGEST_LEASE_S) if facts is not None else LEASE_S


def lock_release(node: Node, request: ReleaseRequest, mode: Mode) -> dict[str, Any]:
    if mode.check:
        return {"changed": False, "broke": None}
    return fleet_lock.release(node, mode.owner, request.why)
