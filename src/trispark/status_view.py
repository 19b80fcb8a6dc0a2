"""Shows the state of the fleet on one screen: what it is, a line a node, what is wrong, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from trispark.fleet_state import SERVING, STARTING, Fleet, States, disagreements, judge, rollback_of

GIB: Final = 2**30
_ALL: Final = "all nodes"


def status_lines(states: States) -> Iterator[str]:
    """All lines: the fleet's state, the nodes in columns, then what is wrong or left half done, then what to do.

    A node that gave no answer has one line that says why.
    """
    fleet = judge(states)
    yield fleet.line
    yield from node_lines(states)
    yield from _notes(states, fleet)
    yield from do_lines(fleet)


def do_lines(fleet: Fleet) -> Iterator[str]:
    """Commands by symptom."""
    for hint in fleet.do:
        yield f"do: {hint}"


def node_lines(states: States) -> Iterator[str]:
    """One line a node, columns below each other."""
    rows = {node: _cells(states[node]) for node in sorted(states)}
    columns = [name for name in _COLUMNS if any(name in cells for cells in rows.values())]
    width = {name: max(len(cells.get(name, "")) for cells in rows.values()) for name in columns}
    names = max(map(len, rows), default=0)
    for node, cells in rows.items():
        if "said" in cells:
            yield f"{node:<{names}}  {cells['said']}"
        else:
            yield "  ".join(
                [f"{node:<{names}}", *(f"{cells.get(name, ''):<{width[name]}}" for name in columns)]
            ).rstrip()


_COLUMNS: Final = ("engine", "packed", "memory")


def _cells(state: Mapping[str, Any]) -> dict[str, str]:
    if state.get("reachable") is False:
        return {"said": f"no answer: {state.get('reason')}"}
    if "error" in state:
        return {"said": str(state["error"])}
    cells = {"engine": engine_words(state)}
    if isinstance(state.get("packed"), Mapping) and state["packed"]:
        cells["packed"] = packed_words(state["packed"])
    memory = _memory(state)
    if memory:
        cells["memory"] = memory
    return cells


def engine_words(state: Mapping[str, Any]) -> str:
    """What the node runs, in a few words."""
    engine = state.get("engine")
    if not isinstance(engine, Mapping):
        return "engine not known" if "engine" in (state.get("unknown") or ()) else "no engine"
    rank = "" if engine.get("rank") is None else f"rank {engine['rank']} "
    status = str(engine.get("state"))
    if status == "exited":
        status = f"exited with {engine.get('exit_code')}"
    elif status == "running" and engine.get("health") not in (None, "ready"):
        status = f"running, {engine['health']}"
    return f"{rank}{status}"


def packed_words(packed: Mapping[str, Any]) -> str:
    """`packed yes`, or which layers are not."""
    bad = [layer for layer, state in packed.items() if state is False]
    unseen = [layer for layer, state in packed.items() if state is None]
    if bad:
        return f"NOT packed: layer {', '.join(bad)}"
    return f"packed not seen: layer {', '.join(unseen)}" if unseen else "packed yes"


def _memory(state: Mapping[str, Any]) -> str:
    memory, engine = state.get("memory"), state.get("engine")
    parts = []
    if isinstance(engine, Mapping) and engine.get("resident_bytes"):
        parts.append(f"engine {engine['resident_bytes'] / GIB:.1f}")
    if isinstance(memory, Mapping) and memory.get("available_bytes") is not None:
        total = memory.get("total_bytes")
        whole = f" of {total / GIB:.1f}" if total else ""
        parts.append(f"free {memory['available_bytes'] / GIB:.1f}{whole}")
    return f"{', '.join(parts)} GiB" if parts else ""


def _notes(states: States, fleet: Fleet) -> Iterator[str]:
    """What several nodes say alike is said once; what runs, only where the first line does not say it."""
    said: dict[str, list[str]] = {}
    for node in sorted(states):
        runs = () if fleet.name in (SERVING, STARTING) else _runs(states[node])
        for note in (*runs, *_holds(states[node]), *node_notes(states[node])):
            said.setdefault(note, []).append(node)
    answering = [node for node, state in states.items() if state.get("reachable") is not False]
    for note, nodes in said.items():
        who = _ALL if len(nodes) > 1 and len(nodes) == len(answering) else ", ".join(nodes)
        yield f"{who}  {note}"
    for each in disagreements(states):
        yield f"nodes differ  {each}"
    rollback = rollback_of(states)
    if rollback is not None:
        yield f"rollback  to {rollback.get('target')} (epoch {rollback.get('epoch')}), not complete"


def _runs(state: Mapping[str, Any]) -> Iterator[str]:
    engine = state.get("engine")
    if isinstance(engine, Mapping):
        yield f"engine of boot {engine.get('boot_id')}, generation {engine.get('generation')}"


def _holds(state: Mapping[str, Any]) -> Iterator[str]:
    """Which generation is current, which was good last, and the epoch, as far as the node says so."""
    parts = []
    if "current" in state:
        parts.append(f"current {state['current'] or 'none'}")
    if isinstance(state.get("good"), list):
        last = state["good"][-1] if state["good"] else None
        parts.append(f"last good {(last.get('generation') if isinstance(last, Mapping) else None) or 'none'}")
    if "epoch" in state:
        parts.append(f"epoch {state['epoch']}")
    if parts:
        yield ", ".join(parts)


def node_notes(state: Mapping[str, Any]) -> Iterator[str]:
    """What is to be said of one node beside its line."""
    for each in state.get("drift") or ():
        yield f"differs: {each.get('what')}: expected {each.get('expected')}, observed {each.get('observed')}"
    for other in state.get("others") or ():
        yield f"another engine of ours: {other.get('name')} is {other.get('state')}, boot {other.get('boot_id')}"
    for foreign in state.get("foreign") or ():
        yield f"not ours, in our place: {foreign}"
    for problem in state.get("problems") or ():
        yield f"damaged: {problem}"
    for generation, wrong in sorted((state.get("damaged") or {}).items()):
        yield f"generation {generation} cannot be gone back to: {wrong}"
    for pending in state.get("pending") or ():
        yield f"begun and not ended: {_intent(pending)}"
    holder = (state.get("lock") or {}).get("holder")
    if isinstance(holder, Mapping):
        yield f"lock: {lock_words(holder)}"
    baseline = state.get("baseline")
    if isinstance(baseline, Mapping):
        yield f"baseline promoted by {baseline.get('record')}"
    verdict = state.get("last_verdict")
    if isinstance(verdict, Mapping):
        value = "" if verdict.get("value") is None else f"={verdict['value']}"
        yield f"last verdict: {verdict.get('feature')}{value}: {verdict.get('verdict')} ({verdict.get('id')})"
    boot = state.get("last_boot")
    if isinstance(boot, Mapping) and boot.get("state") != "valid":
        yield f"last boot: {boot.get('boot_id')} was {boot.get('state')}: {boot.get('reason')}"


def lock_words(holder: Mapping[str, Any]) -> str:
    """Who holds the fleet lock and whether the lease still holds."""
    alive = "" if holder.get("alive", True) else ", its lease has ended"
    since = f" since {holder['since']}" if holder.get("since") else ""
    return (
        f"{holder.get('reason')} of {holder.get('user')} on {holder.get('host')}, pid {holder.get('pid')}{since}{alive}"
    )


def _intent(pending: object) -> str:
    """A journal intent without its end, in words."""
    if not isinstance(pending, Mapping):
        return str(pending)
    verb = str(pending.get("verb") or "an unnamed verb")
    return f"{verb} (since {pending['time']})" if pending.get("time") else verb
