"""Verb `fence`: the fleet's epoch as this node knows it. It only grows; an engine of another epoch does not start.

An epoch holds for the start of the host in which it was fenced: what a node was told before it went down is old when it
is back, whatever its files say.
"""

from __future__ import annotations

from dataclasses import dataclass

from trispark_node.canonical import canonical_json
from trispark_node.containers import ROLE_ENGINE, identity, own
from trispark_node.errors import AgentError
from trispark_node.fields import NAME, Fields
from trispark_node.mutation import Plan
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_regular


@dataclass(frozen=True)
class Epoch:
    """`boot_id`: the boot for which the epoch was taken, None when the fence named none. `host_boot`: the start of the
    host in which it was fenced; None when an older agent fenced it, which counts as this one until the next fence."""

    number: int
    boot_id: str | None
    host_boot: str | None = None


@dataclass(frozen=True)
class FenceRequest:
    epoch: int
    boot_id: str | None

    @classmethod
    def parse(cls, fields: Fields) -> FenceRequest:
        return cls(fields.integer("epoch", low=1), fields.optional_text("boot_id", pattern=NAME))


def read(node: Node) -> Epoch:
    """Epoch 0 on a node that was never fenced."""
    path = node.layout.epoch
    content = b""
    try:
        content = read_regular(path)
        fields = Fields(parse_json(content), str(path))
        return Epoch(
            fields.integer("epoch", low=1),
            fields.optional_text("boot_id", pattern=NAME),
            fields.optional_text("host_boot"),
        )
    except FileNotFoundError:
        return Epoch(0, None)
    except (OSError, ValueError, AttributeError, AgentError) as error:
        observed = error.strerror if isinstance(error, OSError) else content[:80].decode("utf-8", "replace")
        raise AgentError(
            "TS-AGENT-DAMAGED",
            "the epoch file cannot be read",
            where=str(path),
            expected='{"boot_id": ..., "epoch": n, "host_boot": ...}',
            observed=observed or "an empty file",
            remedy="boot or roll back: ./trispark rollback fences this node anew",
        ) from error


@dataclass(frozen=True)
class Least:
    """`epoch`: what the node was fenced with, or the least that it may have been; `damage`: why that is all there is,
    empty for a file that was read."""

    epoch: Epoch
    damage: str = ""


def read_or_least(node: Node) -> Least:
    """For whoever fences: a damaged file must not keep that from a node. Then no epoch counts but those of the engine
    containers on the node, ended ones too, and the fence is of no boot."""
    try:
        return Least(read(node))
    except AgentError as error:
        labels = [who.epoch for container in own(node.docker, ROLE_ENGINE) if (who := identity(container)) is not None]
        return Least(Epoch(max(labels, default=0), None), str(error))


def stale(where: str, expected: str, observed: str) -> AgentError:
    return AgentError(
        "TS-AGENT-EPOCH",
        "the epoch is not this node's",
        where=where,
        expected=expected,
        observed=observed,
        remedy="read the epoch of every node (trispark-node status) and fence all of them with a greater one",
    )


def write(node: Node, wanted: Epoch) -> None:
    """Durably, the old one or the new one whatever happens in between."""
    content = {"boot_id": wanted.boot_id, "epoch": wanted.number, "host_boot": wanted.host_boot}
    node.disk.replace(node.layout.epoch, canonical_json(content) + b"\n")


def of_another_host_boot(stored: Epoch, here: str) -> AgentError:
    return AgentError(
        "TS-AGENT-EPOCH",
        "the epoch was fenced before this node's last start",
        where="start",
        expected=f"epoch {stored.number} fenced in this start of the host, {here}",
        observed=f"fenced in {stored.host_boot}",
        remedy="boot again: each boot fences all nodes with a new epoch",
    )


def plan_fence(node: Node, request: FenceRequest) -> Plan:
    least = read_or_least(node)
    stored = least.epoch
    wanted = Epoch(request.epoch, request.boot_id, node.boot_identity)
    same = (stored.number, stored.boot_id) == (wanted.number, wanted.boot_id)
    if same and stored.boot_id is not None and stored.host_boot in (None, wanted.host_boot):
        return Plan(None, {"epoch": stored.number})
    if wanted.number <= stored.number:
        owner = f" for boot {stored.boot_id}" if stored.boot_id else ""
        raise stale(str(node.layout.epoch), f"more than {stored.number}{owner}", str(wanted.number))

    def apply() -> dict[str, object]:
        write(node, wanted)
        return {}

    return Plan(
        apply,
        {"epoch": wanted.number, **({"replaced": least.damage} if least.damage else {})},
        {"from": stored.number, "to": wanted.number, "boot_id": wanted.boot_id},
        (f"epoch {stored.number}\n", f"epoch {wanted.number}\n"),
    )
