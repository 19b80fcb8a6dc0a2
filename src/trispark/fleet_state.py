"""What the nodes' own answers mean together: one state of the fleet, why, and what to do about it.

`states` is {node: the agent's answer to `status` with `reachable`, or `reason` or `error` in its place}. Every key of
an answer may be absent: agents of an older version, and nodes in trouble, say less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trispark.moot import moot_rollbacks

States = Mapping[str, Mapping[str, Any]]

SERVING: Final = "SERVING"
STARTING: Final = "STARTING"
STOPPED: Final = "STOPPED"
DEGRADED: Final = "DEGRADED"
BROKEN: Final = "BROKEN"
NAMES: Final[Mapping[str, str]] = {
    SERVING: "one boot runs on every rank and the head answers; by canary where it could be asked",
    STARTING: "every rank's engine runs and the head is not ready yet",
    STOPPED: "no engine on any node",
    DEGRADED: "a node does not answer, or a rollback waits for one",
    BROKEN: "what runs cannot serve, or is not known",
}
"""Each state and what it means."""
_CONSISTENT: Final = (SERVING, STOPPED)

RECOVER: Final = "./trispark recover completes the rollback that waited for a node"
ROLLBACK: Final = "./trispark rollback goes back to the last good generation and keeps the logs of what has ended"


@dataclass(frozen=True)
class Fleet:
    """`name`: one of NAMES. `reason`: what or why, for a person; it stays as it is while nothing changes. `health`: how
    it is known that the ranks serve together, other words at each look. `faults`: how many differences and problems
    there are, which a state that is consistent in itself may have too. `do`: commands."""

    name: str
    reason: str
    health: str
    faults: int
    do: tuple[str, ...]

    @property
    def line(self) -> str:
        """The first line of a status."""
        health = f", {self.health}" if self.health else ""
        faults = f"; {self.faults} to look at below" if self.faults else ""
        return f"{self.name}: {self.reason}{health}{faults}"

    def as_dict(self) -> dict[str, Any]:
        """As it is published."""
        return {
            "state": self.name,
            "reason": self.reason,
            "health": self.health,
            "faults": self.faults,
            "do": list(self.do),
        }

    @property
    def consistent(self) -> bool:
        """Serving or stopped, and nothing that a person has to look at: exit status 0."""
        return self.name in _CONSISTENT and not self.faults


def without_answer(states: States) -> frozenset[str]:
    """Nodes that could not be reached or did not answer in time."""
    return frozenset(node for node, state in states.items() if state.get("reachable") is False)


def judge(states: States) -> Fleet:
    """The first that holds, from what hides most to what hides nothing."""
    silent = sorted(without_answer(states))
    answering = {node: state for node, state in states.items() if node not in silent}
    faults = sum(1 for _ in _faults(states))
    for look in (_waiting_rollback, _nothing_known, _engines):
        found = look(answering, silent)
        if found is not None:
            name, reason, health, do = found
            hints = (*do, *(hint for applies, hint in _HINTS if applies(states)))
            return Fleet(name, reason, health, faults, tuple(dict.fromkeys(hints)))
    raise AssertionError("the last look always finds something")


_Found = tuple[str, str, str, tuple[str, ...]]


def rollback_of(states: States) -> Mapping[str, Any] | None:
    """The rollback that is not complete on some node: {"target", "epoch", "missing", "since"}; the newest by epoch."""
    found = [state["rollback"] for state in states.values() if isinstance(state.get("rollback"), Mapping)]
    return max(found, key=lambda each: int(each.get("epoch") or 0), default=None)


def at_work(states: States) -> str:
    """The command that holds the fleet lock and lives, in words; empty when there is none."""
    for state in states.values():
        holder = (state.get("lock") or {}).get("holder")
        if isinstance(holder, Mapping) and holder.get("alive"):
            return f"{holder.get('reason')} of {holder.get('user')} on {holder.get('host')}, pid {holder.get('pid')}"
    return ""


def _moot(states: States, silent: list[str]) -> bool:
    """As trispark.recovery judges it: what is fenced anew, or serves, waits for nothing."""
    if silent:
        return False
    known = {
        str(engine["boot_id"]): str(engine["record"])
        for state in states.values()
        if (engine := state.get("engine")) and engine.get("record")
    }
    pending = {node for node, state in states.items() if state.get("rollback")}
    return pending <= moot_rollbacks(states, len(states), known)


def _waiting_rollback(answering: States, silent: list[str]) -> _Found | None:
    rollback = rollback_of(answering)
    if rollback is None or _moot(answering, silent):
        return None
    busy = at_work(answering)
    if busy and not silent:
        going = "./trispark status --watch says how it ends"
        return STARTING, f"the rollback to {rollback.get('target')} goes on: {busy}", "", (going,)
    waited = ", ".join(map(str, rollback.get("missing") or silent))
    since = f" since {rollback['since']}" if rollback.get("since") else ""
    what = f"waits for {waited}" if waited else "did not end with a boot that serves"
    reason = f"the rollback to {rollback.get('target')} {what}{since}"
    if silent:
        return DEGRADED, f"{reason}; no answer from {', '.join(silent)}", "", (_RETURN,)
    return DEGRADED, f"{reason}; all nodes answer", "", (RECOVER if waited else ROLLBACK,)


_RETURN: Final = "./trispark status --watch says when it is back; on the node: sudo trispark-node status </dev/null"


def _nothing_known(answering: States, silent: list[str]) -> _Found | None:
    if not answering:
        return DEGRADED, f"no node answers: {', '.join(silent) or 'none was asked'}", "", (_RETURN,)
    if not silent:
        return None
    _, reason, _, _ = _engines(answering, silent)
    return DEGRADED, f"no answer from {', '.join(silent)}; of the others: {reason}", "", (_RETURN,)


def _engines(answering: States, silent: list[str]) -> _Found:
    """Of the nodes that answer; never None."""
    broken = [*_troubles(answering)]
    running = {node: state["engine"] for node, state in answering.items() if _engine(state)}
    if broken:
        return BROKEN, "; ".join(broken), "", (ROLLBACK,) if running else ()
    if not running:
        current = {str(state.get("current") or "none") for state in answering.values()}
        return STOPPED, f"no engine on any node, current {', '.join(sorted(current))}", "", _start(current)
    head = next((state for state in answering.values() if (_engine(state) or {}).get("rank") == 0), None)
    one = next(iter(running.values()))
    what = f"generation {one.get('generation')}, boot {one.get('boot_id')}, epoch {one.get('epoch')}"
    slow = [_rank(node, engine) for node, engine in running.items() if engine.get("health") != "ready"]
    if head is None:
        return (SERVING if not slow else STARTING), what, "", ()
    return _serving(what, head, slow)


def _serving(what: str, head: Mapping[str, Any], slow: list[str]) -> _Found:
    canary = head.get("canary") or {}
    why = str(canary.get("why") or "")
    if canary.get("ok") is True:
        timed = f" in {canary['seconds']:.2f} s" if isinstance(canary.get("seconds"), (int, float)) else ""
        return SERVING, what, why or f"healthy by canary{timed}", ()
    if canary.get("ok") is False:
        said = head["engine"].get("health")
        return BROKEN, f"{what}: /health of the head says {said}, a completion fails: {why}", "", (ROLLBACK,)
    if head["engine"].get("health") == "ready" and not slow:
        return SERVING, what, why or "no canary was asked", ()
    return STARTING, f"{what}: not ready: {', '.join(slow)}", "", ("./trispark status --watch says when it serves",)


def _start(current: Iterable[str]) -> tuple[str, ...]:
    return () if "none" in current else ("./trispark play site boots the site's baseline",)


def _engine(state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    engine = state.get("engine")
    return engine if isinstance(engine, Mapping) else None


def _rank(node: str, engine: Mapping[str, Any]) -> str:
    rank = engine.get("rank")
    return node if rank is None else f"rank {rank} on {node}"


def _troubles(answering: States) -> Iterator[str]:
    """Why no request can be served by what the nodes run, or why that is not known."""
    for node, state in answering.items():
        if "error" in state:
            yield f"the agent of {node} refuses or fails"
        elif "engine" in (state.get("unknown") or ()):
            yield f"the Docker Engine of {node} does not tell what runs"
    engines = {node: _engine(state) for node, state in answering.items() if "error" not in state}
    for node, engine in engines.items():
        status = engine.get("state") if engine else "running"
        if engine and status == "exited":
            yield f"the engine of {_rank(node, engine)} has exited with {engine.get('exit_code')}"
        elif engine and status != "running":
            yield f"the engine of {_rank(node, engine)} is {status}"
    some = {node: engine for node, engine in engines.items() if engine}
    known = {node for node in engines if "engine" not in (answering[node].get("unknown") or ())}
    without = sorted(known - set(some))
    if some and without:
        yield f"no engine on {', '.join(without)}"
    if len({(engine.get("boot_id"), engine.get("epoch")) for engine in some.values()}) > 1:
        boots = ", ".join(f"{engine.get('boot_id')} on {node}" for node, engine in some.items())
        yield f"engines of different boots: {boots}"


def _faults(states: States) -> Iterator[str]:
    """Everything that a person has to look at, beside the engines themselves."""
    for state in states.values():
        yield from map(str, state.get("problems") or ())
        yield from map(str, state.get("drift") or ())
        yield from map(str, state.get("foreign") or ())
        yield from map(str, state.get("others") or ())
        if state.get("packed") and False in state["packed"].values():
            yield "packed"
    yield from disagreements(states)


def disagreements(states: States) -> Iterator[str]:
    """In what the nodes that answer differ from each other and should not."""
    reads: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
        "current": lambda state: state.get("current"),
        "epoch": lambda state: state.get("epoch"),
        "newest record": lambda state: (state.get("record_head") or {}).get("id"),
    }
    keys = {"current": "current", "epoch": "epoch", "newest record": "record_head"}
    for what, read in reads.items():
        found = {node: read(state) for node, state in states.items() if keys[what] in state}
        if len({str(value) for value in found.values()}) > 1:
            yield f"{what}: " + ", ".join(f"{node} {value or 'none'}" for node, value in sorted(found.items()))


def _any(states: States, test: Callable[[Mapping[str, Any]], object]) -> bool:
    return any(test(state) for state in states.values())


def _drifts(state: Mapping[str, Any]) -> list[str]:
    return [str(each.get("what")) for each in state.get("drift") or () if isinstance(each, Mapping)]


_HINTS: Final[tuple[tuple[Callable[[States], bool], str], ...]] = (
    (
        lambda states: _any(states, lambda state: any(each.startswith("shard ") for each in _drifts(state))),
        "./trispark engram verify reads the shards; ./trispark engram pack --repair replaces what is wrong",
    ),
    (
        lambda states: _any(states, lambda state: any(not each.startswith("shard ") for each in _drifts(state))),
        "./trispark play verify judges what runs by its gates; a boot (./trispark play boot) brings it back",
    ),
    (
        lambda states: _any(states, lambda state: state.get("foreign")),
        "./trispark play adopt looks at a container of someone else and can take it over",
    ),
)
"""By symptom, whatever the state."""
