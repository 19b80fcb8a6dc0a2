"""What leaves or is cleared from the controller's copy: an archive of records and kept logs, and old logs."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.records import RecordCache
from trispark.tar_file import packed, write_new

BOOT_ID: Final = re.compile(r"b[0-9]{8}T[0-9]{6}Z-[0-9a-f]+")
MANIFEST: Final = "MANIFEST.json"


@dataclass(frozen=True)
class KeptLog:
    """The controller's copies of one boot's logs."""

    boot_id: str
    directory: Path
    files: tuple[Path, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(path.lstat().st_size for path in self.files)


def kept_logs(directory: Path) -> list[KeptLog]:
    """Boots with kept logs below a site's `boots/`, oldest first. What does not look like ours is not among them."""
    if not directory.is_dir():
        return []
    found = []
    for path in sorted(directory.iterdir()):
        if BOOT_ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            files = tuple(file for file in sorted(path.rglob("*")) if file.is_file() and not file.is_symlink())
            found.append(KeptLog(path.name, path, files))
    return found


def logs_to_prune(directory: Path, keep: int) -> list[KeptLog]:
    """All but the newest `keep` boots' logs. A boot's id begins with its time."""
    logs = kept_logs(directory)
    return logs[: max(len(logs) - keep, 0)]


def prune_logs(logs: list[KeptLog]) -> None:
    """Remove these logs. Raises TS-RECORD-PRUNE naming the first that stays."""
    for log in logs:
        try:
            shutil.rmtree(log.directory)
        except OSError as error:
            raise TrisparkError(
                "TS-RECORD-PRUNE",
                "a kept log cannot be removed",
                where=str(log.directory),
                expected="a directory that this user can remove",
                observed=str(error),
                remedy="mend what the line names, then prune again",
            ) from None


def export_records(site: str, cache: RecordCache, logs: list[KeptLog], target: Path) -> dict[str, Any]:
    """Write records and kept logs as one archive; the same content gives the same bytes. Returns its manifest.

    The chain is verified first (TS-RECORD-CHAIN, -SCHEMA, -READ). Raises TS-RECORD-EXPORT when the target is there
    already or cannot be written.
    """
    head = cache.verify()
    members: dict[str, bytes] = {}
    for record in cache.list():
        path = cache.path(record)
        members[f"records/{path.name}"] = _read(path)
    for log in logs:
        for path in log.files:
            members[f"boots/{log.boot_id}/{path.relative_to(log.directory).as_posix()}"] = _read(path)
    manifest = {
        "schema_version": 1,
        "site": site,
        "head": head,
        "records": len(cache.list()),
        "files": {name: sha256(data).hexdigest() for name, data in sorted(members.items())},
    }
    content = json.dumps(manifest, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    _write(target, packed(f"trispark-{site}", {MANIFEST: content.encode("utf-8"), **members}))
    return manifest


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _not_written(path, "a readable file", str(error)) from None


def _write(target: Path, data: bytes) -> None:
    try:
        write_new(target, data)
    except FileExistsError:
        raise _not_written(target, "a name that is free", "a file is there already") from None
    except OSError as error:
        raise _not_written(target, "a directory that this user can write", str(error)) from None


def _not_written(where: Path, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-RECORD-EXPORT",
        "the archive cannot be written",
        where=str(where),
        expected=expected,
        observed=observed,
        remedy="give another place with --to",
    )
