"""What each node is told of its site, so that it can act when no controller is there (the agent's verb `site-set`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.site import Site, load_site
from trispark_node.site_facts import SCHEMA_VERSION

_GIB: Final = 2**30


def node_requests(site: Site) -> dict[str, dict[str, Any]]:
    """{node: request of `site-set`}. No part of a generation: another value here changes no id."""
    by_rank = sorted(site.nodes, key=lambda node: node.rank)
    threshold = site.stopped_memory_gib
    common: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "site": site.name,
        "world_size": site.world_size,
        "nodes": [node.name for node in by_rank],
        "ports": [site.api_port, *site.rendezvous_ports],
        "memory": {
            "source": site.memory_source,
            "available_bytes": None if threshold is None else round(threshold * _GIB),
        },
        "stop_deadline_s": float(site.stop_deadline_s),
        "lock_lease_s": float(site.lock_lease_s),
        "keep_generations": site.keep_generations,
        "keep_boots": site.keep_boots,
        "images": list(site.images),
    }
    return {node.name: {**common, "node": node.name, "rank": node.rank} for node in by_rank}


def node_requests_if_readable(root: Path, site_name: str) -> dict[str, dict[str, Any]]:
    """The same from the site's files; empty where they cannot be read, because a rollback needs nothing of the tree:
    the nodes then go on with what they were told before."""
    try:
        return node_requests(load_site(root / "inventory" / site_name, images="optional"))
    except (TrisparkError, OSError):
        return {}
