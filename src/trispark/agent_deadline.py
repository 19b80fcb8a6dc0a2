"""How long one call of a node's agent may take, and what ends it.

The node ends the agent (`timeout`, TERM and then KILL), so that nothing goes on there behind the controller's back. A
little later the controller stops waiting by itself: a process that waits in the kernel cannot be ended by anybody, and
a connection may have died without a word.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NamedTuple

KILL_AFTER_S: Final = 10
"""Between TERM and KILL on the node."""
CONTROLLER_S: Final = 30
"""How much longer than the node the controller waits: for KILL, and for making the connection."""
LATE: Final = "TS-AGENT-LATE"
"""Id of the error of a call that took too long."""
AGENT_SHARE: Final = 0.8
"""Of a call with a bound of its own: what the agent gets, before it is told to end."""
STEPS: Final = "steps"
"""The verb of several verbs in one call, and where its request has them."""
LATE_STATUS: Final = (124, 137)
"""Of `timeout`: after TERM, after KILL."""
_OF_REQUEST: Final = ("deadline_s", "timeout_s", "lock_wait_s", "wait_s")


class Bound(NamedTuple):
    """Seconds for the verb's own work, and how often it may spend the time that its request gives."""

    own_s: float
    times: int = 1


DEADLINES: Final[Mapping[str, Bound]] = {
    "version": Bound(60),
    "steps": Bound(10),
    "host": Bound(120),
    "status": Bound(300),
    "image-ensure": Bound(4 * 3600),  # tens of GB; the agent bounds the registry's silence
    "engram": Bound(6 * 3600),  # packs tens of GB from a network file system
    "engram verify": Bound(1800),
    "engram inspect": Bound(1800),
    "engram-job": Bound(60),
    "engram-job start": Bound(2400),  # it looks at every shard in samples, and the job does once more
    "engram-job stop": Bound(120),
    "share": Bound(300, 3),  # a look, an unmount and a mount
    "site-set": Bound(120),
    "stage": Bound(300),
    "provenance-store": Bound(120),
    "generation-show": Bound(120),
    "activate": Bound(120),
    "fence": Bound(120),
    "can-start": Bound(300),
    "start": Bound(600),
    "stop": Bound(600),
    "rollback": Bound(60),
    "rollback-clear": Bound(120),
    "recover": Bound(600),
    "prove-stopped": Bound(120),
    "survey": Bound(300),
    "adopt": Bound(600),
    "adopt-back": Bound(600),
    "wait": Bound(150),
    "observe": Bound(300),
    "parity": Bound(300),
    "request": Bound(60),
    "request-batch": Bound(60),
    "oneshot": Bound(300),
    "good-mark": Bound(120),
    "baseline-show": Bound(120),
    "baseline-set": Bound(120),
    "lock-take": Bound(60),
    "lock-release": Bound(60),
    "lock-show": Bound(60),
    "record-append": Bound(300),
    "record-list": Bound(300),
    "record-show": Bound(300),
    "record-head": Bound(300),
    "prune": Bound(1800),  # a generation's engine state may be many files, an image tens of GB
    "at-boot": Bound(1200),
    "boot-log": Bound(300),
    "save-log": Bound(600),
    "backup": Bound(300),
    "restore": Bound(600),
    "support": Bound(20),
    "uninstall": Bound(300),
}
"""Each verb of the agent, or a verb and its `action`. Not how long it takes: when nobody believes in it any more."""
UNKNOWN: Final = Bound(60)
"""Of a verb that the agent does not have, either: it says so."""


def deadline_s(verb: str, request: Mapping[str, Any]) -> float:
    """Seconds after which the node ends this call; requests of a batch run at the same time, so the longest counts,
    and steps one after the other."""
    if verb == STEPS:
        return DEADLINES[STEPS].own_s + sum(deadline_s(each["verb"], each["request"]) for each in request[STEPS])
    bound = DEADLINES.get(f"{verb} {request.get('action')}") or DEADLINES.get(verb, UNKNOWN)
    given = max([_given(request), *(_given(each) for each in request.get("requests") or ())])
    return bound.own_s + bound.times * given


class CallBound(NamedTuple):
    """Seconds: when the node ends the agent (TERM, then KILL), and when the controller stops waiting for the call."""

    node_s: float
    kill_after_s: float
    whole_s: float


def of_call(verb: str, request: Mapping[str, Any], within_s: float | None = None) -> CallBound:
    """The bounds of one call. `within_s` bounds the call from its beginning to its end, the connection included: for
    whoever would sooner know that a node does not answer than wait for it. The node is then told to end the agent a
    little earlier, so that a node that answers says what was late."""
    if within_s is None:
        own_s = deadline_s(verb, request)
        return CallBound(own_s, KILL_AFTER_S, own_s + KILL_AFTER_S + CONTROLLER_S)
    if within_s <= 0:
        raise ValueError(f"a call cannot end within {within_s:g} s")
    return CallBound(AGENT_SHARE * within_s, 0.1 * within_s, within_s)


def _given(request: Mapping[str, Any]) -> float:
    return sum(float(request.get(name) or 0) for name in _OF_REQUEST)


class Late(BaseException):
    """The time has passed. No Exception: Ansible's connections try again after any of those."""


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Raises Late inside when it takes longer; the main thread only, as in a worker of Ansible.

    By the process's one alarm, as Ansible bounds a whole task; a task's own `timeout` is put back with what is left.
    """

    def on_alarm(_number: int, _frame: FrameType | None) -> None:
        raise Late

    handler = signal.signal(signal.SIGALRM, on_alarm)
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if outer:
            signal.setitimer(signal.ITIMER_REAL, max(outer - (seconds - left), 0.001))
