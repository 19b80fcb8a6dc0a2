"""``.trispark``: everything that this checkout keeps on the controller, for its user's eyes only.

Records, logs, keys and events lie below it. What containers mount from it is opened by path through Docker, which needs
no way through this directory; the trees themselves are made readable where they are made (``trispark.lab.files``).
"""

from __future__ import annotations

from pathlib import Path

PRIVATE_UMASK = 0o077
PRIVATE_MODE = 0o700
PUBLIC_UMASK = 0o022
"""For programs that write outside ``.trispark``: apt, mmdebstrap, pip in ``.venv``, dockerd."""


def private_directory(path: Path) -> Path:
    """Make ``path``, or take group and others their access to it where an earlier version made it."""
    path.mkdir(parents=True, mode=PRIVATE_MODE, exist_ok=True)
    if path.stat().st_mode & 0o777 != PRIVATE_MODE:
        path.chmod(PRIVATE_MODE)
    return path


def state_directory(repo: Path) -> Path:
    """``.trispark`` of a checkout, there and private."""
    return private_directory(repo / ".trispark")
