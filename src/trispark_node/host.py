"""Verb `host`: the node's own facts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node import processes
from trispark_node.errors import AgentError, request_error
from trispark_node.fields import Fields
from trispark_node.node import Node


@dataclass(frozen=True)
class HostRequest:
    paths: tuple[str, ...]

    @classmethod
    def parse(cls, fields: Fields) -> HostRequest:
        paths = fields.texts("paths", [])
        for path in paths:
            if not path.startswith("/"):
                raise request_error(
                    "a path is not absolute", where="request.paths", expected="absolute paths", observed=path
                )
        return cls(paths)


def host(node: Node, request: HostRequest) -> dict[str, Any]:
    name = os.uname()
    return {
        "hostname": name.nodename,
        "kernel": name.release,
        **processes.memory(node.procfs),
        "disk": {path: _disk(path) for path in request.paths},
        "docker": node.docker.server(),
        "addresses": _addresses(),
    }


def _disk(path: str) -> dict[str, Any]:
    """The file system of `path`. While the path does not exist that of its nearest existing parent, where it would be
    made; a link is followed first, also one that leads to nothing yet."""
    place = Path(os.path.realpath(path))
    exists = place.exists()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    return {"free_bytes": usage.free, "total_bytes": usage.total, "exists": exists}


def _addresses() -> dict[str, list[str]]:
    """{interface: [IPv4 and IPv6 addresses]} as iproute2 reports them."""
    try:
        listed = subprocess.run(["ip", "-j", "address"], capture_output=True, text=True, timeout=10, check=True)
        rows = json.loads(listed.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise AgentError(
            "TS-AGENT-ADDRESSES",
            "the node's addresses cannot be read",
            where="ip -j address",
            expected="JSON",
            observed=str(error),
            remedy="install iproute2 on the node",
        ) from error
    return {row["ifname"]: [item["local"] for item in row.get("addr_info", ()) if "local" in item] for row in rows}
