"""One playbook run at a time may change the lab of a checkout: `up` and `down` take a lease for the whole run.

A playbook reads the lab with one module and changes it with others, each a process of its own, so the lease belongs to
the ansible-playbook process above them and ends with it. The file names that process; its start time tells it from a
later one with the same id.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from trispark.errors import TrisparkError

PLAYBOOK_PROGRAM = "ansible-playbook"


@dataclass(frozen=True)
class Process:
    """One process: `started` is its start in clock ticks since boot, as /proc shows it; `parent` is 0 at the top."""

    pid: int
    started: int
    parent: int
    command: str


Look = Callable[[int], Process | None]


def look(pid: int) -> Process | None:
    """The process of this id from /proc, None where there is none (or only a zombie that nobody has waited for)."""
    directory = Path("/proc") / str(pid)
    try:
        # The name in parentheses may hold spaces; the fields after it are: state, parent, ... start time as the 20th.
        fields = (directory / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        if fields[0] in ("Z", "X"):
            return None
        return Process(pid, int(fields[19]), int(fields[1]), command)
    except (OSError, IndexError, ValueError):
        return None


def owner_of(pid: int, look: Look = look) -> Process | None:
    """The uppermost ansible-playbook above `pid` (its workers carry the same command), else the process itself."""
    own = each = look(pid)
    found = None
    while each is not None:
        if any(Path(word).name == PLAYBOOK_PROGRAM for word in each.command.split()[:4]):
            found = each
        each = look(each.parent) if each.parent > 0 else None
    return found or own


def take_lease(path: Path, pid: int | None = None, look: Look = look) -> None:
    """Make the run above `pid` (this process) the holder of `path`; TS-LAB-BUSY while another run holds it."""
    owner = owner_of(os.getpid() if pid is None else pid, look)
    if owner is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as stream:
        # Held for this look and this line only; the lease is what is written.
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        holder = _holder(stream.read(), look)
        if holder is not None and (holder.pid, holder.started) != (owner.pid, owner.started):
            raise TrisparkError(
                "TS-LAB-BUSY",
                "another run changes the lab of this checkout",
                where=str(path),
                expected="one run at a time",
                observed=f"process {holder.pid}: {holder.command[:120]}",
                remedy="wait for it or end it, then try again",
            )
        stream.truncate(0)
        stream.write(json.dumps(asdict(owner)) + "\n")


def _holder(text: str, look: Look) -> Process | None:
    """The process that the file names, when it still is the same one."""
    try:
        noted = json.loads(text)
        found = look(int(noted["pid"]))
        return found if found is not None and found.started == int(noted["started"]) else None
    except (ValueError, KeyError, TypeError):
        return None
