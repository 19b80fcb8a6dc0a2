"""Lets an installed agent run from compiled copies of its modules instead of compiling them at each call.

Python compiles what it imports from a zipapp anew every time, which is most of the agent's start. The first call
unpacks the agent once below its own `run/`, under the hash of its sources, and later calls import from there. The
agent stays one file: without the copy, or when it cannot be made, the file itself is used.
"""

from __future__ import annotations

import compileall
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

INPUT_NAME = "trispark-node.input"
PREFIX = "agent-"


def prefer_compiled(archive: Path) -> Path | None:
    """Put the compiled copy of `archive` first on the module path and return it; None when there is none.

    Only for an agent at `<root>/bin/`, and only a copy that nobody but this user can have written.
    """
    root = archive.resolve().parent.parent
    if archive.resolve().parent.name != "bin" or not zipfile.is_zipfile(archive):
        return None
    try:
        copy = _copy_of(archive, root / "run")
    except OSError:
        return None
    status = copy.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        return None
    sys.path.insert(0, str(copy))
    return copy


def _copy_of(archive: Path, run: Path) -> Path:
    with zipfile.ZipFile(archive) as members:
        name = f"{PREFIX}{members.read(INPUT_NAME).decode()[:16]}-{sys.implementation.cache_tag}"
        copy = run / name
        if copy.is_dir():
            return copy
        run.mkdir(mode=0o700, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=run))
        try:
            members.extractall(scratch)
            compileall.compile_dir(scratch, quiet=2, workers=1)
            scratch.rename(copy)
        except OSError:
            shutil.rmtree(scratch, ignore_errors=True)
            if not copy.is_dir():  # another call may have made it in the meantime
                raise
    for older in run.glob(f"{PREFIX}*"):
        if older != copy:
            shutil.rmtree(older, ignore_errors=True)
    return copy
