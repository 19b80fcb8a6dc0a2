"""How much memory this node has to give: the machine's, or that of the control group which a node in a container is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trispark_node import processes
from trispark_node.node import Node
from trispark_node.site_facts import CGROUP

_UNLIMITED = 2**60
"""cgroup v1 says `no limit` as a number near 2**63."""


@dataclass(frozen=True)
class Memory:
    """Bytes. `word`: why nothing is known, where `available` is None."""

    source: str
    available: int | None
    total: int | None
    word: str = ""

    def json(self) -> dict[str, Any]:
        return asdict(self)


def read(node: Node, source: str) -> Memory:
    """Never raises for what the kernel does not tell."""
    try:
        return _of_group(node.cgroups) if source == CGROUP else _of_machine(node.procfs)
    except (OSError, ValueError, LookupError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Memory(source, None, None, f"{source} cannot be read: {reason}")


def _of_machine(procfs: Path) -> Memory:
    found = processes.memory(procfs)
    return Memory("meminfo", found["memory_available_bytes"], found["memory_total_bytes"])


def _of_group(root: Path) -> Memory:
    """Page cache of files counts as available, as it does in MemAvailable: the kernel gives it back when it is needed;
    shared memory and what processes hold does not."""
    directory = root / "memory"
    found = _version_1(directory) if (directory / "memory.limit_in_bytes").exists() else _version_2(root)
    if found.limit >= _UNLIMITED:
        return Memory(CGROUP, None, None, "the node's control group has no memory limit")
    return Memory(CGROUP, max(0, min(found.limit, found.limit - found.used + found.given_back)), found.limit)


@dataclass(frozen=True)
class _Group:
    """Bytes. `given_back`: what of `used` the kernel takes from the group by itself when it needs it."""

    limit: int
    used: int
    given_back: int


def _version_1(directory: Path) -> _Group:
    """The lines `total_...` count the groups below, as the usage does; those without it do not."""
    files = _stat(directory, "total_inactive_file", "total_active_file")
    return _Group(_bytes(directory / "memory.limit_in_bytes"), _bytes(directory / "memory.usage_in_bytes"), files)


def _version_2(directory: Path) -> _Group:
    """Past `memory.high` the kernel holds processes back: nothing above it is memory to be had. Its usage counts
    directory entries and inodes, too, which it gives back like file pages."""
    given_back = _stat(directory, "inactive_file", "active_file", "slab_reclaimable")
    limit = min(_bytes(directory / "memory.max"), _bytes(directory / "memory.high"))
    return _Group(limit, _bytes(directory / "memory.current"), given_back)


def _bytes(path: Path) -> int:
    text = path.read_text(encoding="ascii").strip()
    return _UNLIMITED if text == "max" else int(text)


def _stat(directory: Path, *names: str) -> int:
    lines = (directory / "memory.stat").read_text(encoding="ascii").splitlines()
    values = dict(line.split(maxsplit=1) for line in lines if line.strip())
    return sum(int(values[name]) for name in names)
