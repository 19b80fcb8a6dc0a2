"""Proof that nothing of a container runs any more, from the kernel instead of from Docker."""

from __future__ import annotations

from pathlib import Path


def of_container(procfs: Path, container_id: str) -> list[int]:
    """PIDs whose control group belongs to the container (cgroup v1 and v2, both drivers name it by the full id)."""
    found = []
    for entry in procfs.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            groups = (entry / "cgroup").read_text(encoding="ascii", errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if container_id in groups:
            found.append(int(entry.name))
    return sorted(found)


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
