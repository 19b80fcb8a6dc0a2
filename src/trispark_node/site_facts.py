"""Verb `site-set`: what this node must know of its site when no controller is there to tell.

`site.json` is written by each boot before it stages, and by the installation. It is no part of a generation: a changed
one changes no id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trispark_node.canonical import canonical_json
from trispark_node.errors import AgentError, request_error
from trispark_node.fields import NAME, Fields
from trispark_node.mutation import Plan
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_bounded

SCHEMA_VERSION = 1
MEMINFO, CGROUP = "meminfo", "cgroup"
"""Where the available memory is read: of the whole machine, or of the control group that this node is."""
MAX_BYTES = 65536
_SITE_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
_SOURCE = re.compile(f"{MEMINFO}|{CGROUP}")


@dataclass(frozen=True)
class MemoryRule:
    """`available_bytes`: what must be available when no engine runs; None is not judged."""

    source: str
    available_bytes: int | None


@dataclass(frozen=True)
class SiteFacts:
    """`nodes` in the order of their ranks; `ports`: those that an engine of this site listens on; `images`: the site's,
    which stay on the node whatever else is removed."""

    site: str
    node: str
    rank: int
    world_size: int
    nodes: tuple[str, ...]
    ports: tuple[int, ...]
    memory: MemoryRule
    stop_deadline_s: float
    lock_lease_s: float
    keep_generations: int
    keep_boots: int
    images: tuple[str, ...] = ()

    @classmethod
    def parse(cls, fields: Fields) -> SiteFacts:
        """Raises TS-AGENT-REQUEST. The caller asks `fields` whether it is done."""
        fields.integer("schema_version", low=SCHEMA_VERSION, high=SCHEMA_VERSION)
        memory = fields.inner("memory")
        facts = cls(
            site=fields.text("site", pattern=_SITE_NAME),
            node=fields.text("node", pattern=NAME),
            rank=fields.integer("rank", high=63),
            world_size=fields.integer("world_size", low=1, high=64),
            nodes=fields.texts("nodes"),
            ports=tuple(sorted(set(fields.integers("ports", low=1, high=65535)))),
            memory=MemoryRule(
                memory.text("source", pattern=_SOURCE),
                memory.integer("available_bytes") if memory.has("available_bytes") else None,
            ),
            stop_deadline_s=fields.seconds("stop_deadline_s", high=3600),
            lock_lease_s=fields.seconds("lock_lease_s", high=86400),
            keep_generations=fields.integer("keep_generations", low=1, high=10000),
            keep_boots=fields.integer("keep_boots", low=1, high=100000),
            images=fields.texts("images", []),
        )
        memory.anything("available_bytes")
        memory.done()
        if len(facts.nodes) != facts.world_size or facts.nodes[facts.rank : facts.rank + 1] != (facts.node,):
            raise request_error(
                "the node is not where its rank says",
                where=f"{fields.where}.nodes",
                expected=f"{facts.world_size} nodes, {facts.node} at place {facts.rank}",
                observed=", ".join(facts.nodes) or "none",
            )
        return facts

    def json(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def read(node: Node) -> SiteFacts | None:
    """None on a node that was never told. Raises TS-AGENT-DAMAGED."""
    path = node.layout.site
    try:
        content = read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _damaged(str(path), error.strerror or str(error)) from error
    try:
        fields = Fields(parse_json(content), str(path))
        facts = SiteFacts.parse(fields)
        fields.done()
    except (ValueError, TypeError, AttributeError, AgentError) as error:
        observed = error.observed if isinstance(error, AgentError) else content[:80].decode("utf-8", "replace")
        raise _damaged(str(path), observed or "an empty file") from error
    return facts


def _damaged(where: str, observed: str) -> AgentError:
    return AgentError(
        "TS-AGENT-DAMAGED",
        "what the node knows of its site cannot be read",
        where=where,
        expected="what site-set wrote",
        observed=observed,
        remedy="the next boot or installation writes it again; nothing else is lost",
    )


def plan_set(node: Node, wanted: SiteFacts) -> Plan:
    """A damaged file is replaced: this verb is the way out."""
    try:
        present = read(node)
        before = _lines(present.json()) if present is not None else "site unknown\n"
    except AgentError:
        present, before = None, "site damaged\n"
    result = {"site": wanted.site, "node": wanted.node}
    if present == wanted:
        return Plan(None, result)

    def apply() -> dict[str, Any]:
        node.disk.replace(node.layout.site, canonical_json(wanted.json()) + b"\n")
        return {}

    return Plan(apply, result, result, (before, _lines(wanted.json())))


def _lines(values: Mapping[str, Any]) -> str:
    return "".join(f"{key} {canonical_json(value).decode()}\n" for key, value in sorted(values.items()))
