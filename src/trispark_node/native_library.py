"""The built library of this machine, taken out of the agent's file, checked against the manifest and loaded.

It is loaded from memory: a file inside the agent has no path of its own, and a node may forbid to run what lies on its
disks (noexec).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import pkgutil
import platform
import zlib
from functools import cache
from typing import NamedTuple

from trispark_node.errors import AgentError

PACKAGE = "trispark_node"
UNREADABLE = (OSError, ImportError, EOFError, zlib.error)
"""Of a file inside the agent's own, which another agent may have replaced since this process began."""
DIRECTORY = "native"
MANIFEST = "manifest.json"
ABI_VERSION = 1
U64, I64, I32, U32 = ctypes.c_uint64, ctypes.c_int64, ctypes.c_int32, ctypes.c_uint32


class RowFields(ctypes.Structure):
    """ep_rows."""

    _fields_ = (
        ("checkpoint", I32),
        ("shard", I32),
        ("weight_at", U64),
        ("scale_at", U64),
        ("first", U64),
        ("end", U64),
        ("header_bytes", U64),
    )


class LimitFields(ctypes.Structure):
    """ep_limits."""

    _fields_ = (("memory_bytes", U64), ("bytes_s", U64), ("threads", U32))


class StateFields(ctypes.Structure):
    """ep_state."""

    _fields_ = (("done", U64), ("total", U64), ("direct_read", I32), ("direct_write", I32))


class ErrorFields(ctypes.Structure):
    """ep_error."""

    _fields_ = (
        ("code", I32),
        ("sys_errno", I32),
        ("role", I32),
        ("writing", I32),
        ("offset", I64),
        ("expected", I64),
        ("observed", I64),
    )


def _refused(where: str, expected: str, observed: str) -> AgentError:
    return AgentError(
        "TS-ENGRAM-LIBRARY",
        "the packing library cannot be used on this machine",
        where=where,
        expected=expected,
        observed=observed,
        remedy="run the verb again if the agent was replaced meanwhile, else ./trispark play install "
        "(lab: ./trispark lab up)",
    )


def member(name: str) -> bytes:
    """Content of a file below the package's `native`, also inside a zip. Raises UNREADABLE."""
    content = pkgutil.get_data(PACKAGE, f"{DIRECTORY}/{name}")
    if content is None:
        raise FileNotFoundError(f"{DIRECTORY}/{name} cannot be read")
    return content


def checked(machine: str) -> bytes:
    """The library for `machine`, its bytes being those of the manifest. Raises TS-ENGRAM-LIBRARY."""
    where = f"{DIRECTORY}/{MANIFEST}"
    try:
        listed: dict[str, dict[str, str]] = json.loads(member(MANIFEST))["libraries"]
        entry = listed.get(machine)
        if entry is None:
            raise _refused(where, f"one of the architectures {', '.join(listed)}", machine)
        name, expected = entry["file"], entry["sha256"]
    except (*UNREADABLE, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _refused(where, "a manifest of libraries by architecture", repr(error)) from error
    where = f"{DIRECTORY}/{name}"
    try:
        content = member(name)
    except UNREADABLE as error:
        raise _refused(where, "the library of the manifest", repr(error)) from error
    observed = hashlib.sha256(content).hexdigest()
    if observed != expected:
        raise _refused(where, f"sha256 {expected}", f"sha256 {observed}")
    return content


class Library(NamedTuple):
    """Loaded, with its functions typed, and the SHA-256 of its bytes."""

    functions: ctypes.CDLL
    sha256: str


def load(machine: str) -> Library:
    """Raises TS-ENGRAM-LIBRARY."""
    content = checked(machine)
    try:
        descriptor = os.memfd_create("libengram_pack.so", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            library = ctypes.CDLL(f"/proc/self/fd/{descriptor}")
        version = library.ep_abi_version()
    except (OSError, AttributeError) as error:
        raise _refused(f"{DIRECTORY}, in memory", f"a library that loads on {machine}", str(error)) from error
    if version != ABI_VERSION:
        raise _refused(f"{DIRECTORY}, in memory", f"interface {ABI_VERSION}", f"interface {version}")
    rows_at, limits_at = ctypes.POINTER(RowFields), ctypes.POINTER(LimitFields)
    job_at, error_at = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ErrorFields)
    state_at = ctypes.POINTER(StateFields)
    library.ep_pack.argtypes = (rows_at, ctypes.c_char_p, limits_at, ctypes.c_void_p, job_at, error_at)
    library.ep_hash.argtypes = (I32, U64, limits_at, ctypes.c_void_p, job_at, error_at)
    library.ep_compare.argtypes = (rows_at, limits_at, job_at, error_at)
    library.ep_wait.argtypes = (ctypes.c_void_p, U32, state_at)
    library.ep_end.argtypes = (ctypes.c_void_p, state_at, error_at)
    library.ep_blake3.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
    library.ep_blake3.restype = None
    return Library(library, hashlib.sha256(content).hexdigest())


@cache
def taken() -> Library:
    """The library of this machine. Raises TS-ENGRAM-LIBRARY.

    Once a process: the loader knows a library by its path, and the next one from memory might have the same. Processes
    that are forked later have it, too, and read nothing of the agent's file any more.
    """
    return load(platform.machine())


def loaded() -> ctypes.CDLL:
    """Its functions. Raises TS-ENGRAM-LIBRARY."""
    return taken().functions
