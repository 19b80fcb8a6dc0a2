"""Who listens on a TCP port of this node, from the kernel's tables.

The engine's container uses the node's network, as the agent does, so the agent's own `net/tcp` is the right one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from trispark_node import processes

_LISTEN = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True)
class Listener:
    """`pids`: processes that hold the socket; empty when none of this node's is seen to."""

    port: int
    pids: tuple[int, ...]


def listening(procfs: Path, ports: Collection[int]) -> list[Listener]:
    """Each of `ports` that something listens on, in their order. Raises OSError when the table cannot be read."""
    inodes = _inodes(procfs / "net/tcp")
    try:
        for port, found in _inodes(procfs / "net/tcp6").items():
            inodes.setdefault(port, set()).update(found)
    except FileNotFoundError:  # a kernel without IPv6
        pass
    wanted = {port: inodes[port] for port in sorted(set(ports)) if port in inodes}
    if not wanted:
        return []
    owners = _owners(procfs, set().union(*wanted.values()))
    return [
        Listener(port, tuple(sorted({pid for inode in found for pid in owners.get(inode, ())})))
        for port, found in wanted.items()
    ]


def _inodes(table: Path) -> dict[int, set[str]]:
    """{port: inodes of the sockets that listen on it}; a row that is none is passed over."""
    found: dict[int, set[str]] = {}
    for line in table.read_text(encoding="ascii", errors="replace").splitlines()[1:]:
        columns = line.split()
        if len(columns) < 10 or columns[3] != _LISTEN:
            continue
        port = columns[1].rpartition(":")[2]
        if re.fullmatch("[0-9A-Fa-f]{4}", port):
            found.setdefault(int(port, 16), set()).add(columns[9])
    return found


def _owners(procfs: Path, inodes: Collection[str]) -> dict[str, list[int]]:
    """{inode: PIDs}; processes that end meanwhile, or whose descriptors may not be seen, are passed over."""
    found: dict[str, list[int]] = {}
    for pid in processes.all_pids(procfs):
        try:
            descriptors = list((procfs / str(pid) / "fd").iterdir())
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                match = _SOCKET.fullmatch(str(descriptor.readlink()))
            except OSError:
                continue
            if match and match[1] in inodes:
                found.setdefault(match[1], []).append(pid)
    return found
