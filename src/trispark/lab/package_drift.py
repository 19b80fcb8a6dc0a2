"""Says where packages of the lab's root file systems have other versions than Dockerfiles/images.lock.yml recorded.

They come from a mirror that goes on, so the digests of lab images do as well. What is installed is read from the cached
tars, once for each tar and lock; after that a look costs two `stat` and a hash of the lock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from trispark.errors import TrisparkError
from trispark.images.lock_file import LOCK
from trispark.lab.bases import Recipe, base_tar
from trispark.lab.files import write_atomic
from trispark.lab.layout import Paths

MOST_NAMED: Final = 5
KEPT: Final = "package-drift.json"
ARCHITECTURES: Final[Mapping[str, str]] = {"x86_64": "amd64", "aarch64": "arm64"}


def drift_line(paths: Paths, recipes: Mapping[str, Recipe], machine: str) -> str | None:
    """One line for a person; None where all is as recorded, or nothing is here to compare (bases that were pulled).

    Neither a tar nor a lock that cannot be read hinders the lab: the line says so.
    """
    tars = {name: base_tar(paths, recipe) for name, recipe in sorted(recipes.items())}
    try:
        there = {name: tar for name, tar in tars.items() if tar.is_file()}
        return _line(_drifts(paths, there, machine)) if there else None
    except TrisparkError as error:
        why = f"{error.id}: {error.what}"
    except OSError as error:
        why = str(error)
    return f"packages of the lab's images cannot be compared with {LOCK}: {why}"


def _drifts(paths: Paths, tars: Mapping[str, Path], machine: str) -> dict[str, list[str]]:
    """{entry of the lock: a line for each package}, without entries that are as recorded."""
    lock = paths.repo / LOCK
    content = lock.read_bytes() if lock.is_file() else b""
    stats = [(tar.name, stat.st_size, stat.st_mtime_ns) for tar in tars.values() if (stat := tar.stat())]
    of = hashlib.sha256(json.dumps([machine, hashlib.sha256(content).hexdigest(), stats]).encode()).hexdigest()
    kept = paths.cache / KEPT
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        found = json.loads(kept.read_text(encoding="utf-8"))
        if found["of"] == of:
            return {str(name): [str(line) for line in lines] for name, lines in found["drifts"].items()}
    drifts = _compared(paths.repo, tars, machine)
    with suppress(OSError):  # looked at again the next time
        write_atomic(kept, json.dumps({"of": of, "drifts": drifts}) + "\n")
    return drifts


def _compared(repo: Path, tars: Mapping[str, Path], machine: str) -> dict[str, list[str]]:
    from trispark.images.lock_check import version_drift
    from trispark.images.lock_file import load_lock
    from trispark.images.lock_model import VersionsEntry
    from trispark.images.root_inventory import inventory_of

    drifts: dict[str, list[str]] = {}
    for name, entry in load_lock(repo).entries.items():
        if (
            not isinstance(entry, VersionsEntry)
            or entry.base not in tars
            or entry.architecture != ARCHITECTURES.get(machine)
        ):
            continue
        installed = {each.name: each.version for each in inventory_of(tars[entry.base]).packages}
        if lines := version_drift(entry, installed):
            drifts[name] = lines
    return drifts


def _line(drifts: Mapping[str, Sequence[str]]) -> str | None:
    lines = sorted({line for each in drifts.values() for line in each})
    if not lines:
        return None
    more = f"; and {len(lines) - MOST_NAMED} more" if len(lines) > MOST_NAMED else ""
    return (
        f"packages of the lab's images have other versions than recorded: {'; '.join(lines[:MOST_NAMED])}{more}; "
        f"see ./trispark images lock --check {' '.join(sorted(drifts))}"
    )
