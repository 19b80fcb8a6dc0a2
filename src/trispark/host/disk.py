"""Free disk, asked before anything is written."""

from __future__ import annotations

from pathlib import Path

from trispark.errors import TrisparkError
from trispark.host.machine import LocalMachine, Machine


def ensure_disk(path: Path, needed: int, machine: Machine | None = None) -> None:
    """Raise TS-HOST-DISK unless the file system of ``path`` has ``needed`` bytes free."""
    free = (machine or LocalMachine()).free_bytes(path)
    if free < needed:
        raise TrisparkError(
            id="TS-HOST-DISK",
            what="too little free disk",
            where=str(path),
            expected=f"{needed / 1e9:.1f} GB free",
            observed=f"{free / 1e9:.1f} GB free",
            remedy="free some disk there (`docker system df` shows what Docker holds) and try again",
        )
