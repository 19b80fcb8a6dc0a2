"""Proof that nothing of a container runs any more, from the kernel instead of from Docker."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

_SHOWN_WORDS = 3
_SHOWN = 80


def all_pids(procfs: Path) -> list[int]:
    return sorted(int(entry.name) for entry in procfs.iterdir() if entry.name.isdecimal())


def of_container(procfs: Path, container_id: str) -> list[int]:
    """PIDs whose control group belongs to the container (cgroup v1 and v2, both drivers name it by the full id)."""
    return of_containers(procfs, (container_id,))


def of_containers(procfs: Path, container_ids: Collection[str]) -> list[int]:
    """The same of several containers."""
    return [pid for pid in all_pids(procfs) if is_in_container(procfs, pid, container_ids)]


def is_in_container(procfs: Path, pid: int, container_ids: Collection[str]) -> bool:
    """Whether the process's control group belongs to one of the containers; not when it has ended."""
    try:
        groups = (procfs / str(pid) / "cgroup").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return any(container_id in groups for container_id in container_ids)


def command(procfs: Path, pid: int) -> str:
    """The program and its first two arguments; no more, because later ones may hold keys. The kernel's name of a
    process that shows none."""
    directory = procfs / str(pid)
    try:
        words = (directory / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        shown = " ".join(word for word in words[:_SHOWN_WORDS] if word)
        shown = shown or f"[{(directory / 'comm').read_text(encoding='utf-8', errors='replace').strip()}]"
    except OSError:
        return "unknown command"
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def start_ticks(procfs: Path, pid: int) -> int:
    """When the process began, in clock ticks since the kernel's start. Raises OSError when there is none."""
    stat = (procfs / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    # The second field is the command in parentheses and may hold anything; counting begins behind it.
    return int(stat.rpartition(")")[2].split()[19])


def is_zombie(procfs: Path, pid: int) -> bool:
    """Whether the process has ended and nobody has asked after it. Raises OSError when there is none."""
    stat = (procfs / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return stat.rpartition(")")[2].split()[0] == "Z"


def resident_bytes(procfs: Path, pids: list[int]) -> int:
    """Memory that the processes hold, pages that they share counted for each; one that has ended counts nothing."""
    total = 0
    for pid in pids:
        try:
            lines = (procfs / str(pid) / "status").read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
    return total


def memory(procfs: Path) -> dict[str, int]:
    """{"memory_available_bytes", "memory_total_bytes"} from meminfo."""
    values = {}
    for line in (procfs / "meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024
    return {"memory_available_bytes": values["MemAvailable"], "memory_total_bytes": values["MemTotal"]}
