"""Verb `recover`: ends what an agent that died had begun, so that the journal and the node say the same.

Each interrupted verb ends in one of two states, the one before it or the one after it:
    stop, rollback, prune, at-boot    are carried out to their end: going on is the safe way
    start             a container that never ran is removed; one that runs is left, `status` names its boot
    stage, oneshot    what lies half made is removed
    activate, fence, record-append, good-mark and the rest that change one file in one step: as they are, and the
                      journal then says which of the two it is
What is long and has a way of its own to go on (packing, mounting, taking over, restoring) is left to that verb and
named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trispark_node import (
    baseline,
    engine,
    epoch,
    generations,
    good,
    left_engines,
    oneshot,
    provenance,
    prune,
    records,
    rollback,
)
from trispark_node.containers import ROLE_ENGINE, identity, own
from trispark_node.errors import AgentError
from trispark_node.journal import DONE, FAILED, Entry
from trispark_node.lock import is_held
from trispark_node.mutation import Plan
from trispark_node.node import Node

FINISHED, UNDONE, LEFT = "finished", "undone", "left"
OWN_WAY = {"image-ensure": "image", "engram": "engram", "share": "share", "oneshot": "disk"}
"""Verbs that take up themselves what they left, and the lock that they hold while they work."""
BY_ITSELF = ("adopt", "adopt-back", "restore")
"""The same verb, repeated, goes on: it needs what the person asked for."""


@dataclass(frozen=True)
class Ended:
    """One interrupted verb and how it was ended; `why` for what was left."""

    entry: Entry
    outcome: str
    why: str = ""

    def json(self) -> dict[str, Any]:
        return {
            "seq": self.entry.seq,
            "verb": self.entry.verb,
            "time": self.entry.time,
            "outcome": self.outcome,
            "why": self.why,
        }


def plan_recover(node: Node, most_stop_s: float = math.inf) -> Plan:
    """Reads the journal under the node's lock: no other changing verb is at work, so what is open was interrupted.
    `most_stop_s`: no engine gets more time to end, whatever the interrupted verb gave it."""
    history = node.journal.read()
    pending = history.pending()
    last_start = max((entry.seq for entry in history.entries if entry.verb == "start"), default=0)
    busy = [entry for entry in pending if _at_work(node, entry)]
    todo = [_within(entry, most_stop_s) for entry in pending if entry not in busy]
    waiting = [Ended(entry, LEFT, "it is at work now").json() for entry in busy]
    if not todo:
        return Plan(None, {"recovered": waiting})

    def apply() -> dict[str, Any]:
        ended = [_end(node, entry, last_start) for entry in todo]
        for each in ended:
            if each.outcome == LEFT:
                continue
            answers = {"intent": each.entry.seq, "by": "recover"}
            if each.outcome == FINISHED:
                node.journal.append(each.entry.verb, DONE, answers)
            else:
                node.journal.append(each.entry.verb, FAILED, {**answers, "error": "interrupted"})
        return {"recovered": [*waiting, *(each.json() for each in ended)]}

    names = [f"{entry.verb} ({entry.seq})" for entry in todo]
    return Plan(
        apply,
        {"recovered": waiting},
        {"intents": [entry.seq for entry in todo]},
        ("".join(f"begun and not ended: {name}\n" for name in names), ""),
        journal_required=False,
    )


def _within(entry: Entry, stop_s: float) -> Entry:
    given = entry.detail.get("deadline_s")
    if isinstance(given, (int, float)) and given > stop_s:
        return replace(entry, detail={**entry.detail, "deadline_s": stop_s})
    return entry


def _at_work(node: Node, entry: Entry) -> bool:
    area = OWN_WAY.get(entry.verb)
    return area is not None and is_held(node.layout.lock(area))


def _end(node: Node, entry: Entry, last_start: int) -> Ended:
    """`last_start`: number of the last start's intent."""
    if entry.verb == "recover":
        return Ended(entry, FINISHED)
    if entry.verb in ("stop", "rollback") and last_start > entry.seq:
        return Ended(entry, UNDONE, "an engine was started after it")
    if entry.verb in BY_ITSELF:
        return Ended(entry, LEFT, f"repeat {entry.verb}, it goes on where it was")
    try:
        return Ended(entry, _ENDS.get(entry.verb, _one_step)(node, entry))
    except AgentError as error:
        return Ended(entry, LEFT, str(error))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Ended(entry, UNDONE, f"its intent cannot be read ({type(error).__name__}); see the node's status")


def _one_step(node: Node, entry: Entry) -> str:
    """A change that is one rename: it is there or not, and a repeated verb sees which. What its temporary name holds is
    written over by the next one."""
    return UNDONE


def _as_it_is(reached: Callable[[Node, Mapping[str, Any]], bool]) -> Callable[[Node, Entry], str]:
    """A change of one step, of which its intent says what it was to reach."""
    return lambda node, entry: FINISHED if reached(node, entry.detail) else UNDONE


def _fenced(node: Node, detail: Mapping[str, Any]) -> bool:
    stored = epoch.read(node)
    return (stored.number, stored.boot_id) == (detail["to"], detail["boot_id"])


def _marked(node: Node, detail: Mapping[str, Any]) -> bool:
    return any(
        (mark.generation, mark.boot_id) == (detail["generation"], detail["boot_id"]) for mark in good.read(node).marks
    )


def _appended(node: Node, detail: Mapping[str, Any]) -> bool:
    return any(stored.head() == dict(detail) for stored in records.chain(node))


def _promoted(node: Node, detail: Mapping[str, Any]) -> bool:
    found: str = baseline.name_of(baseline.read(node))
    return found == str(detail["to"])


def _prune(node: Node, entry: Entry) -> str:
    prune.carry_on(node, entry.detail)
    return FINISHED


def _at_boot(node: Node, entry: Entry) -> str:
    _carry_out(left_engines.plan_clear_away(node))
    return FINISHED


def _oneshot(node: Node, entry: Entry) -> str:
    oneshot.remove_leftovers(node, str(entry.detail["name"]))
    return UNDONE


def _stage(node: Node, entry: Entry) -> str:
    generations.remove_leftovers(node)
    generation = str(entry.detail.get("generation"))
    whole = generation in generations.staged(node) and generations.damage(node, generation) is None
    return FINISHED if whole else UNDONE


def _start(node: Node, entry: Entry) -> str:
    boot = entry.detail.get("boot_id")
    outcome = UNDONE
    for container in own(node.docker, ROLE_ENGINE):
        who = identity(container)
        if who is None or who.boot_id != boot:
            continue
        if container.status == "created":
            node.docker.remove(container.id)
        else:
            outcome = FINISHED
    return outcome


def _stop(node: Node, entry: Entry) -> str:
    _carry_out(engine.plan_stop(node, engine.StopRequest(float(entry.detail.get("deadline_s", 15.0)), cut_log=True)))
    return FINISHED


def _rollback(node: Node, entry: Entry) -> str:
    _carry_out(rollback.plan_rollback(node, rollback.again(entry.detail)))
    return FINISHED


def _carry_out(plan: Plan) -> None:
    if plan.apply is not None:
        plan.apply()


_ENDS: dict[str, Callable[[Node, Entry], str]] = {
    "activate": _as_it_is(lambda node, detail: generations.current(node) == detail["to"]),
    "at-boot": _at_boot,
    "baseline-set": _as_it_is(_promoted),
    "fence": _as_it_is(_fenced),
    "good-mark": _as_it_is(_marked),
    "oneshot": _oneshot,
    "provenance-store": _as_it_is(provenance.stored),
    "prune": _prune,
    "record-append": _as_it_is(_appended),
    "rollback": _rollback,
    "rollback-clear": _as_it_is(lambda node, _detail: not rollback.is_there(node)),
    "stage": _stage,
    "start": _start,
    "stop": _stop,
}
