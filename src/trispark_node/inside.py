"""Opens files as a process with another root directory sees them, without running anything there.

`/proc/<pid>/root` is a container's root. A link inside it means a place inside it: followed by the kernel from here, an
absolute one would lead to this node's own files.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

MOST_LINKS = 40
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Neither a link nor a FIFO in a file's place makes the agent go elsewhere, or wait."""


def open_inside(root: Path, path: str) -> int:
    """A descriptor for reading of the regular file or directory `path` below `root`; links are followed inside of it.

    Raises OSError: ENOENT, ELOOP, EINVAL for what is neither.
    """
    left = _parts(path)
    opened = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    links = 0
    try:
        while left:
            name = left.pop(0)
            if name == "..":
                if len(opened) > 1:
                    os.close(opened.pop())
                continue
            mode = os.stat(name, dir_fd=opened[-1], follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink(name, dir_fd=opened[-1])
                if target.startswith("/"):
                    while len(opened) > 1:
                        os.close(opened.pop())
                left = _parts(target) + left
                continue
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise OSError(errno.EINVAL, "no regular file", path)
            opened.append(os.open(name, READ, dir_fd=opened[-1]))
        return opened.pop()
    finally:
        for descriptor in opened:
            with suppress(OSError):
                os.close(descriptor)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
