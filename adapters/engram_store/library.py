"""The built library of this machine, checked against the manifest before it is loaded."""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
from functools import cache
from pathlib import Path
from typing import Any

from .errors import Code, StoreError

LIBRARIES = Path(__file__).resolve().parent / "lib"
MANIFEST = "manifest.json"
ABI_VERSION = 1
LATENCY_BUCKETS = 32
U64, I32, U32 = ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint32


class ErrorFields(ctypes.Structure):
    """es_error."""

    _fields_ = (
        ("code", I32),
        ("sys_errno", I32),
        ("offset", ctypes.c_int64),
        ("expected", ctypes.c_int64),
        ("observed", ctypes.c_int64),
        ("text", ctypes.c_char * 5120),
    )


class OptionFields(ctypes.Structure):
    """es_options."""

    _fields_ = (
        ("backend", I32),
        ("depth", U32),
        ("threads", U32),
        ("ways", U32),
        ("cache_bytes", U64),
        ("layer", U64),
        ("first", U64),
        ("end", U64),
        ("total", U64),
    )


class InfoFields(ctypes.Structure):
    """es_info."""

    _fields_ = (
        ("backend", I32),
        ("direct", I32),
        ("file_bytes", U64),
        ("sets", U64),
        ("slots", U64),
        ("why", ctypes.c_char * 256),
    )


class CounterFields(ctypes.Structure):
    """es_counters."""

    _fields_ = (
        ("calls", U64),
        ("lookups", U64),
        ("hits", U64),
        ("reads", U64),
        ("bytes", U64),
        ("latency", U64 * LATENCY_BUCKETS),
    )


def _refused(what: str, where: Path, expected: str, observed: str) -> StoreError:
    return StoreError(Code.LIBRARY, f"{what}; where: {where}; expected: {expected}; observed: {observed}")


def checked_path(machine: str, libraries: Path = LIBRARIES) -> Path:
    """Where the library for `machine` lies, its bytes being those of the manifest. Raises StoreError (LIBRARY)."""
    manifest_path = libraries / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(manifest_path.read_text(encoding="utf-8"))
        listed: dict[str, dict[str, str]] = manifest["libraries"]
        entry = listed.get(machine)
        if entry is None:
            raise _refused("no library was built for this architecture", manifest_path, ", ".join(listed), machine)
        path = libraries / entry["file"]
        expected = entry["sha256"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _refused(
            "the manifest cannot be read", manifest_path, "libraries by architecture", repr(error)
        ) from error
    try:
        observed = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise _refused("the library cannot be read", path, "a file", str(error)) from error
    if observed != expected:
        raise _refused("the library is not the one of the manifest", path, f"sha256 {expected}", f"sha256 {observed}")
    return path


def load(machine: str, libraries: Path = LIBRARIES) -> ctypes.CDLL:
    """The library with its functions typed. Raises StoreError (LIBRARY)."""
    path = checked_path(machine, libraries)
    try:
        library = ctypes.CDLL(str(path))
        version = library.es_abi_version()
    except (OSError, AttributeError) as error:
        raise _refused("the library cannot be loaded", path, f"a library for {machine}", str(error)) from error
    if version != ABI_VERSION:
        raise _refused("the library has another interface", path, f"version {ABI_VERSION}", f"version {version}")
    error_at = ctypes.POINTER(ErrorFields)
    options_at, handle_at = ctypes.POINTER(OptionFields), ctypes.POINTER(U64)
    library.es_open_packed.argtypes = (ctypes.c_char_p, options_at, ctypes.c_int, handle_at, error_at)
    library.es_open_checkpoint.argtypes = (ctypes.c_char_p, U64, U64, options_at, ctypes.c_int, handle_at, error_at)
    library.es_fetch.argtypes = (U64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, error_at)
    library.es_describe.argtypes = (U64, ctypes.POINTER(InfoFields), error_at)
    library.es_count.argtypes = (U64, ctypes.POINTER(CounterFields), error_at)
    library.es_close.argtypes = (U64, error_at)
    library.es_serve.argtypes = (ctypes.c_void_p,)
    library.es_serve.restype = None
    return library


@cache
def loaded() -> ctypes.CDLL:
    """The library of this machine, loaded once."""
    return load(platform.machine())


def available() -> str | None:
    """None when the library can be used here, else one line that says why not."""
    try:
        loaded()
    except StoreError as error:
        return str(error)
    return None
