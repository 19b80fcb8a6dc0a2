"""`status --watch`: looks again and again, and says what has changed since the look before.

A look is bounded (status.yml), so a node that does not answer is said to be gone within the bound and the interval.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from trispark.errors import TrisparkError
from trispark.fleet_state import States, at_work, judge, rollback_of, without_answer
from trispark.status_view import engine_words, node_notes, packed_words

INTERVAL_S: Final = 2.0
REPORTED_WITHIN_S: Final = 10.0
"""A dead engine, and a node that does not answer, at the usual interval."""
AGAIN_S: Final = 15.0
"""How long after a completion that failed the next one is tried."""

_FLEET: Final = "fleet"
_NOTED: Final = "noted"
"""Of a fact that is there or not."""
_SILENT: Final = "does not answer: "
_NODE: Final = re.compile(r"[ :]")
"""Ends the name of a node at the beginning of a fact's name."""


@dataclass(frozen=True)
class Look:
    """One look at all nodes. `interrupted`: a signal ended it; `failure`: why it says nothing of the nodes."""

    states: States
    interrupted: bool = False
    failure: str = ""


class Complete(Protocol):
    """Completes a rollback that waited for a node, when all nodes answer again."""

    def __call__(self, rollback: Mapping[str, Any]) -> list[str]:
        """Lines that say what it did. Raises TrisparkError when it could not: it is tried again a little later."""


class Screen(Protocol):
    """Where a watch says what it sees."""

    def changed(self, line: str) -> None:
        """One change, with its time."""

    def whole(self, states: States) -> None:
        """All that is known now, after each look."""


@dataclass(frozen=True)
class Timing:
    """`now` in seconds that only grow; `stamp` is the time of day that a change is shown with."""

    now: Callable[[], float]
    sleep: Callable[[float], None]
    stamp: Callable[[], str]


@dataclass(frozen=True)
class Watched:
    """How a watch ended: the last look's states, None when there was none, and whether a signal ended it."""

    states: States | None
    interrupted: bool


def watch(
    look: Callable[[], Look],
    screen: Screen,
    timing: Timing,
    *,
    interval_s: float = INTERVAL_S,
    for_s: float | None = None,
    complete: Complete | None = None,
) -> Watched:
    """Look every `interval_s` after the end of the look before, for `for_s` seconds, at least once; without end for
    None, until a signal (KeyboardInterrupt, or a look that was interrupted)."""
    end = None if for_s is None else timing.now() + for_s
    completion = _Completion(complete, timing)
    known: dict[str, str] | None = None
    states: States | None = None
    failure = ""
    try:
        while True:
            seen = look()
            if seen.interrupted:
                return Watched(states, True)
            if seen.failure != failure and (failure := seen.failure):
                screen.changed(f"{timing.stamp()}  no look: {failure}")
            if not seen.failure:
                states = seen.states
                found = remembered(known, facts(states))
                for line in changes(known, found):
                    screen.changed(f"{timing.stamp()}  {line}")
                known = found
                screen.whole(states)
                for line in completion.tried(states):
                    screen.changed(f"{timing.stamp()}  {line}")
            left = interval_s if end is None else min(interval_s, end - timing.now())
            if left <= 0:
                return Watched(states, False)
            timing.sleep(left)
            if end is not None and timing.now() >= end:
                return Watched(states, False)
    except KeyboardInterrupt:
        return Watched(states, True)


class _Completion:
    """Completes a rollback once when the nodes that it waited for are back. What fails then is left to a person: a boot
    that takes a node down would be begun again and again."""

    def __init__(self, complete: Complete | None, timing: Timing) -> None:
        self._complete = complete
        self._timing = timing
        self._not_before = 0.0
        self._silent = False
        self._given_up: set[tuple[str, int]] = set()

    def tried(self, states: States) -> list[str]:
        rollback = rollback_of(states)
        if without_answer(states) or any("error" in state for state in states.values()):
            self._silent = True
            return []
        if self._complete is None or rollback is None or self._timing.now() < self._not_before or at_work(states):
            return []
        which = (str(rollback.get("target")), int(rollback.get("epoch") or 0))
        if which in self._given_up or not (self._silent or rollback.get("missing")):
            return []
        try:
            self._silent = False
            return self._complete(rollback)
        except TrisparkError as error:
            if error.id == "TS-LOCK-HELD":
                self._silent = True
                self._not_before = self._timing.now() + AGAIN_S
            else:
                self._given_up.add(which)
            return [str(error)]


def facts(states: States) -> dict[str, str]:
    """{what: how it is}: all that a change is told of. What changes by itself, as memory, is none."""
    fleet = judge(states)
    found = {_FLEET: f"{fleet.name}: {fleet.reason}"}
    for node, state in sorted(states.items()):
        found.update({f"{node}{what}": text for what, text in _node_facts(state)})
    return found


def _node_facts(state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if state.get("reachable") is False:
        yield "", f"{_SILENT}{state.get('reason')}"
        return
    yield "", str(state.get("error") or "answers")
    if "error" in state:
        return
    engine = state.get("engine")
    boot = f" (boot {engine.get('boot_id')})" if isinstance(engine, Mapping) else ""
    yield " engine", f"{engine_words(state)}{boot}"
    yield " current", str(state.get("current") or "none")
    yield " epoch", str(state.get("epoch"))
    if isinstance(state.get("packed"), Mapping):
        yield " packed", packed_words(state["packed"])
    for note in node_notes(state):
        yield f": {note}", _NOTED


def remembered(before: Mapping[str, str] | None, after: Mapping[str, str]) -> dict[str, str]:
    """`after` with what nodes that do not answer now said before: it is not gone, and no news when they are back."""
    silent = {what for what, text in after.items() if text.startswith(_SILENT)}
    kept = {what: text for what, text in (before or {}).items() if _NODE.split(what)[0] in silent}
    return {**kept, **after}


def changes(before: Mapping[str, str] | None, after: Mapping[str, str]) -> Iterator[str]:
    """A line for each fact that is new, another one or gone; of the first look the fleet's state alone."""
    if before is None:
        yield after[_FLEET]
        return
    for what, text in after.items():
        old = before.get(what)
        if old == text:
            continue
        if what == _FLEET:
            yield text
        elif text == _NOTED:
            yield what
        else:
            yield f"{what}: {text}" if old is None else f"{what}: {text} (before: {old})"
    for what, text in before.items():
        if text == _NOTED and what not in after:
            yield f"no longer: {what}"
