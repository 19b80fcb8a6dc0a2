"""What happens before the command line is imported. Standard library only, and as little of it as possible."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path


def without_plugins() -> None:
    """pydantic looks for plugins of others in every installed package, which takes longer than to plan a trial."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def keep_compiled(root: Path) -> bool:
    """Where Python was told to write no bytecode, keep it below ``.trispark/pycache``; whether that is done.

    Compiling pydantic, typer and this project anew takes longer than a second, at every start. Nothing is written
    beside the sources, which is what PYTHONDONTWRITEBYTECODE is for; a cache directory that was named is left alone.
    """
    if not sys.dont_write_bytecode or sys.pycache_prefix is not None:
        return False
    cache = root / ".trispark" / "pycache"
    try:
        for directory in (cache.parent, cache):
            directory.mkdir(mode=0o700, exist_ok=True)
        status = cache.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        return False
    sys.pycache_prefix = str(cache)
    sys.dont_write_bytecode = False
    return True
