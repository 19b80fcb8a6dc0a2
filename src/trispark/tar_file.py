"""One tar.gz for one person: the same content gives the same bytes, and a file that is there is never replaced."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PRIVATE_FILE: Final = 0o600


def packed(top: str, members: Mapping[str, bytes]) -> bytes:
    """A tar.gz of `members` below the directory `top`, without times, owners and the archive's own name."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in sorted(members.items()):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size = len(data)
            entry.mode = PRIVATE_FILE
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def write_new(target: Path, data: bytes) -> None:
    """The whole file or none, for this user alone. Raises FileExistsError for a name that is taken, else OSError."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
