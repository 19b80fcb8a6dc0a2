"""Opens regular files only. A FIFO or a device in a file's place must not make the agent wait for a writer."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_regular(path: Path, flags: int = 0) -> int:
    """A descriptor for reading. Raises OSError, EINVAL for anything but a regular file (links are followed)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, "no regular file", str(path))
    return descriptor


def read_regular(path: Path, flags: int = 0) -> bytes:
    """The whole content. Raises OSError as `open_regular` does."""
    with os.fdopen(open_regular(path, flags), "rb") as file:
        return file.read()


def read_bounded(path: Path, most: int, flags: int = 0) -> bytes:
    """The whole content. Raises OSError as `open_regular` does, EFBIG for more than `most` bytes."""
    with os.fdopen(open_regular(path, flags), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return content
