"""Failures that no verb foresees, as errors of the agent."""

from __future__ import annotations

import errno
import os
import traceback

from trispark_node.errors import AgentError
from trispark_node.layout import STATE_FILE_MODE
from trispark_node.node import Node


def os_error(verb: str, error: OSError) -> AgentError:
    """The operating system refused a step: a full disk, a read-only file system, a missing permission."""
    remedies = {
        errno.ENOSPC: "make room on this file system",
        errno.EDQUOT: "make room within the quota",
        errno.EROFS: "see why the file system is read-only (dmesg)",
        errno.EACCES: "run the agent as root",
        errno.EPERM: "run the agent as root",
    }
    number = error.errno or 0
    return AgentError(
        "TS-AGENT-SPACE" if number in (errno.ENOSPC, errno.EDQUOT) else "TS-AGENT-OS",
        f"{verb} was stopped by the operating system",
        where=str(error.filename or "a file of the agent"),
        expected="the step to succeed",
        observed=f"{errno.errorcode.get(number, number)}: {error.strerror or error}",
        remedy=remedies.get(number, "see the file and the node's log"),
    )


def internal_error(node: Node, verb: str, error: Exception) -> AgentError:
    """TS-AGENT-INTERNAL; the traceback of the exception that is being handled is kept below `run/`."""
    path = node.layout.run / f"traceback-{os.getpid()}.txt"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(f"{node.clock.now()} {verb}\n{_traceback(error)}", encoding="utf-8")
        path.chmod(STATE_FILE_MODE)
        where = str(path)
    except OSError as failed:
        where = f"no traceback kept ({failed.strerror})"
    return AgentError(
        "TS-AGENT-INTERNAL",
        "the agent has a defect",
        where=where,
        expected="an answer",
        observed=f"{type(error).__name__}: {error}",
        remedy="report it with the traceback; the journal says what was under way",
    )


def _traceback(error: Exception) -> str:
    try:
        return traceback.format_exc()
    except Exception:  # source lines come from the agent's file, which another agent may have replaced
        places = "".join(
            f"  {frame.f_code.co_filename}:{line} {frame.f_code.co_name}\n"
            for frame, line in traceback.walk_tb(error.__traceback__)
        )
        return f"{places}{type(error).__name__}: {error}\n"
