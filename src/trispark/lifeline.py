"""Ends a process when the one that started it has ended, whatever ended that one; the kernel sees to it (Linux).

`python -I lifeline.py PARENT SIGNAL COMMAND ...` replaces itself by COMMAND, which gets SIGNAL (a number) when its
parent ends. PARENT is the id that the parent must still have. Imports nothing of this project, so that it starts bare.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send `number` to this process when its parent ends; at once when that is no longer `parent`.

    It holds for the process alone, not for what it starts, and survives an exec.
    """
    # A kernel that refuses it leaves the process as it was before; it is asked for nothing else.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def die_with_controller(number: int = signal.SIGKILL) -> None:
    """The same for a process that multiprocessing made, as ansible-playbook makes one for each task of a host."""
    import multiprocessing  # not needed where this file is started bare

    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with_parent(parent.pid, number)


def tied(command: Sequence[str], number: int = signal.SIGTERM) -> list[str]:
    """A command line that runs `command` as a child of this process and ends with it."""
    return [sys.executable, "-I", str(Path(__file__).resolve()), str(os.getpid()), str(int(number)), *command]


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]), int(sys.argv[2]))
    try:
        os.execvp(sys.argv[3], sys.argv[3:])
    except OSError as error:
        print(f"{sys.argv[3]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)
