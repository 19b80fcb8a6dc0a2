"""Programs that use the packing library in a process of their own, and what is refused to one."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PLACES = [str(ROOT / "src"), str(ROOT / "tests" / "support")]


def program(code: str, *arguments: object) -> list[str]:
    """The command line, with the agent and this module on its path."""
    prelude = f"import sys; sys.path[:0] = {_PLACES!r}\n"
    return [sys.executable, "-W", "error", "-c", prelude + code, *(str(argument) for argument in arguments)]


def run_program(
    code: str, *arguments: object, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    argv = program(code, *arguments)
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **(environment or {})}
    )


_OPENAT = {"x86_64": 257, "aarch64": 56}


def refuse_direct_opens() -> None:
    """Every later openat of this process with O_DIRECT ends with EINVAL; all else is allowed."""
    machine = os.uname().machine
    answer = 0x00050000 | errno.EINVAL
    steps = (
        (0x20, 0, 0, 0),  # the number of the system call
        (0x15, 0, 3, _OPENAT[machine]),
        (0x20, 0, 0, 32),  # the lower half of its third argument, the flags
        (0x45, 0, 1, os.O_DIRECT),
        (0x06, 0, 0, answer),
        (0x06, 0, 0, 0x7FFF0000),
    )
    code = b"".join(struct.pack("<HBBI", *step) for step in steps)
    held = ctypes.create_string_buffer(code, len(code))
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(held)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(filters)), 0, 0):
        raise OSError(ctypes.get_errno(), "no filter")
