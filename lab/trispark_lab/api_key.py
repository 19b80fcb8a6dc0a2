"""The API key: read from a file that only its owner can read, compared in constant time."""

import hmac
import os
import stat
from pathlib import Path

from .errors import EngineError

OPEN_PATHS = ("/health", "/metrics")
"""Served without a key, for probes and scrapers."""
MAX_KEY_BYTES = 4096


def read_key(path: Path) -> str:
    """The key in `path`. EngineError TS-ENGINE-APIKEY when the file is not private or holds no key."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _error(path, "a readable file", error.strerror or str(error)) from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            raise _error(path, "a regular file with mode 0600", f"mode {stat.S_IMODE(status.st_mode):04o}")
        content = file.read(MAX_KEY_BYTES + 1)
    try:
        key = content.decode().strip()
    except UnicodeDecodeError:
        key = ""
    if not key or len(content) > MAX_KEY_BYTES or any(char.isspace() or not char.isprintable() for char in key):
        raise _error(path, "one line with a key", f"{len(content)} bytes that are no key")
    return key


def authorised(header: str | None, key: str) -> bool:
    """Whether an Authorization header carries the key."""
    scheme, _, given = (header or "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), key.encode())


def _error(path: Path, expected: str, observed: str) -> EngineError:
    return EngineError(
        "TS-ENGINE-APIKEY",
        "API key can not be used",
        where=str(path),
        expected=expected,
        observed=observed,
        remedy="write the key to a file of the engine's user and set its mode to 0600",
    )
