"""What the page cache holds of a file, and how it is emptied of it."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path


def cached_bytes(path: Path) -> int:
    """Bytes of the pages that the page cache holds; looking at them brings none in. The file must be this user's."""
    size = path.stat().st_size
    if size == 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        place = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if place == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap", str(path))
    pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
    failed = libc.mincore(ctypes.c_void_p(place), ctypes.c_size_t(size), pages)
    number = ctypes.get_errno()
    libc.munmap(ctypes.c_void_p(place), ctypes.c_size_t(size))
    if failed:
        raise OSError(number, "mincore", str(path))
    # A page that is there is 1; the other bits mean nothing.
    return bytes(pages).translate(_LOWEST_BIT).count(1) * mmap.PAGESIZE


_LOWEST_BIT = bytes(number & 1 for number in range(256))


def drop(path: Path) -> None:
    """Write the file to the disk and empty the page cache of it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
