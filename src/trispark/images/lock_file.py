"""Dockerfiles/images.lock.yml: read, written in one canonical form, and changed by one process at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from trispark.errors import TrisparkError
from trispark.host.locks import alone
from trispark.host.state import state_directory
from trispark.images.lock_model import AnyEntry, LockFile
from trispark.plainyaml import check_model, read_yaml

LOCK: Final = "Dockerfiles/images.lock.yml"
SCHEMA_ID: Final = "TS-IMAGES-SCHEMA"
HEADER: Final = """\
# Written by `./trispark images lock --update NAME`; do not edit. What each entry is for is declared in images.yml
# beside this. ./trispark images lock --check compares it with the package index and the registry.
"""


def load_lock(root: Path) -> LockFile:
    """Raises TS-YAML-*, TS-IMAGES-SCHEMA; TS-IMAGES-HAND for a file that is not in the written form."""
    path = root / LOCK
    lock = check_model(LockFile, read_yaml(path), str(path), SCHEMA_ID)
    if path.read_text(encoding="utf-8") != dump(lock):
        raise TrisparkError(
            "TS-IMAGES-HAND",
            "the lock was changed by hand",
            where=str(path),
            expected="the form in which lock --update writes it",
            observed="another order, other blanks or comments",
            remedy="restore it from git; then ./trispark images lock --update NAME",
        )
    return lock


def dump(lock: LockFile) -> str:
    """The one text of a lock: entries and keys sorted, kinds first, nothing that is absent."""
    entries = {name: _sorted(entry) for name, entry in sorted(lock.entries.items())}
    body = yaml.safe_dump(
        {"schema_version": lock.schema_version, "entries": entries},
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=10_000,
    )
    return HEADER + body


def _sorted(entry: AnyEntry) -> dict[str, Any]:
    fields = dict(sorted(entry.model_dump(mode="json", exclude_none=True).items()))
    ordered = {key: dict(sorted(value.items())) if isinstance(value, dict) else value for key, value in fields.items()}
    return {"kind": entry.kind, **ordered}


@contextmanager
def changing(root: Path) -> Iterator[None]:
    """Holds the right to change the lock. Raises TS-IMAGES-BUSY at once where another process has it."""
    lock = state_directory(root) / "images-lock.lock"
    with alone(lock, error_id="TS-IMAGES-BUSY", doing="change of the images' lock", wait_s=0, say=lambda _: None):
        yield


def write_lock(root: Path, lock: LockFile) -> bool:
    """True when the file changed; it is the old or the new one at any moment. For holders of `changing`."""
    path = root / LOCK
    text = dump(lock)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    handle, name = tempfile.mkstemp(prefix=".images.lock-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return True
