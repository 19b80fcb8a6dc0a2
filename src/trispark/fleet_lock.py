"""Who this command is to the nodes' fleet lock, and whether the command that holds it lives on this very host.

A command is the ansible-playbook at the top with all that it starts: the runs below it get its token by TRISPARK_LOCK.
"""

from __future__ import annotations

import getpass
import hashlib
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError

VARIABLE: Final = "TRISPARK_LOCK"
AREA: Final = "TS-LOCK-"
LOST: Final = "TS-LOCK-LOST"
HELD: Final = "TS-LOCK-HELD"
TAKE: Final = "lock-take"
_TOKEN: Final = re.compile(r"([0-9a-f]{16})-(\d+)-(\d+)")
_PROC: Final = Path("/proc")
_LONGEST: Final = 120
_BREAKS: Final = "rollback"
"""The playbook that takes the lock from whoever has it, where a person began it."""

Call = Callable[[str, Mapping[str, Any]], dict[str, Any]]
"""Verb and request to the task's result, as trispark.agent_call.call_agent gives it."""


def owner() -> dict[str, Any]:
    """The `owner` of each request to an agent."""
    token = os.environ.get(VARIABLE, "")
    given = _TOKEN.fullmatch(token)
    reason = _playbook()
    named = {
        "token": token or _own_token(_top()),
        "host": _words(os.uname().nodename),
        "pid": int(given[2]) if given else _top(),
        "user": _words(_user()),
        "reason": _words(reason),
    }
    return {**named, "breaks": True} if reason == _BREAKS and not inherited() else named


def inherited() -> bool:
    """Whether this run is a part of another command, which gives the lock back itself."""
    return bool(os.environ.get(VARIABLE))


def handed_on() -> dict[str, str]:
    """What the environment of a child run says of the lock: nothing where no playbook runs here yet."""
    if inherited() or multiprocessing.parent_process() is None:
        return {}
    return {VARIABLE: _own_token(_top())}


def look(call: Call) -> dict[str, Any]:
    """What one node says of the lock, without taking it: the result of the call, or TS-LOCK-HELD where another command
    is at work. So a command that must not begin here leaves no trace on nodes of which the other has not been heard."""
    result = call("lock-show", {})
    holder = (result.get("answer") or {}).get("holder")
    if not holder or not holder["alive"] or holder["token"] == owner()["token"] or has_ended(holder["token"]):
        return result
    lease = "a call of it is at work" if holder["busy"] else f"its lease ends in {holder['lease_left_s']:.0f} s"
    error = TrisparkError(
        HELD,
        "another command works on this fleet",
        where="lock-show",
        expected="no other command, or one whose lease has ended",
        observed=f"{holder['reason']} of {holder['user']} on {holder['host']}, pid {holder['pid']}, since "
        f"{holder['since']}; {lease}",
        remedy="wait until it has ended; or ./trispark rollback, which breaks the lock",
    )
    answer = {"lock": {"holder": holder}}
    return {"failed": True, "changed": False, "msg": str(error), "check_id": HELD, "answer": answer}


def take(call: Call, lease_s: float | None = None, why: str = "") -> dict[str, Any]:
    """Take the lock on one node; with `why` from whoever has it. The result of the call. `lease_s`: None for what the
    node knows as the site's.

    From a command of this host whose process has ended it is taken at once; the node's journal says so.
    """
    request: dict[str, Any] = {"break": True, "why": _words(why)} if why else {}
    if lease_s is not None:
        request["lease_s"] = lease_s
    result = call(TAKE, request)
    if not held_by_the_dead(result):
        return result
    token = _holder(result)
    return call(TAKE, {**request, "break": True, "why": "its process has ended", "of": token})


def held_by_the_dead(result: Mapping[str, Any]) -> bool:
    """Whether a call was refused for a command of this host whose process has ended."""
    return result.get("check_id") == HELD and has_ended(_holder(result))


def _holder(result: Mapping[str, Any]) -> str:
    return str(result["answer"]["lock"]["holder"]["token"])


def release(call: Call) -> dict[str, Any]:
    """Give it back on one node; nothing where it is another command's, or of the command above."""
    return {"changed": False} if inherited() else call("lock-release", {})


def has_ended(token: str) -> bool:
    """Whether the command was one of this host and its process is gone; no when that cannot be seen."""
    found = _TOKEN.fullmatch(token)
    if found is None or found[1] != host_id():
        return False
    pid = int(found[2])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # of another user
        pass
    try:
        state, ticks = _stat(pid)
    except (OSError, ValueError):
        return False
    return state == "Z" or ticks != int(found[3])


@cache
def host_id() -> str:
    """Of this boot of the kernel and this space of process ids: where a number means the same process. No secret."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    space = (_PROC / "self/ns/pid").readlink()
    return hashlib.sha256(f"{boot} {space}".encode()).hexdigest()[:16]


def _top() -> int:
    """ansible-playbook forks a worker for each task of a host."""
    parent = multiprocessing.parent_process()
    return parent.pid if parent is not None and parent.pid is not None else os.getpid()


@cache
def _own_token(pid: int) -> str:
    return f"{host_id()}-{pid}-{_stat(pid)[1]}"


def _stat(pid: int) -> tuple[str, int]:
    """State of a process and its start in clock ticks since the kernel's. Raises OSError, ValueError."""
    stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20:
        raise ValueError("no stat of a process")
    return fields[0], int(fields[19])


def _playbook() -> str:
    """The name of the playbook that runs here; of anything else the program's."""
    context = sys.modules.get("ansible.context")
    arguments = context.CLIARGS.get("args") if context is not None else None
    return Path(str(arguments[0])).stem if arguments else Path(sys.argv[0] or "python").stem


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without an entry
        return str(os.getuid())


def _words(text: str) -> str:
    """As the agent takes it: one line of ASCII, of a bounded length."""
    plain = "".join(each if each.isprintable() else "?" for each in text)
    return plain.encode("ascii", "replace").decode()[:_LONGEST] or "unknown"
