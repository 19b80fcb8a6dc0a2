"""Shows the state of the nodes as the agent reports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def node_states(published: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The per-node answers that playbooks/status.yml published, by node name."""
    status = published.get("status")
    found = status.get("nodes", status) if isinstance(status, Mapping) else published.get("nodes")
    if not isinstance(found, Mapping):
        return {}
    return {str(node): dict(state) for node, state in found.items() if isinstance(state, Mapping)}


def without_answer(states: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """Nodes whose own entry says that they could not be reached."""
    return frozenset(node for node, state in states.items() if state.get("reachable") is False)


def with_problems(states: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """Nodes that answered and name what is wrong with their own state."""
    return frozenset(node for node, state in states.items() if state.get("problems"))


def _intent(pending: object) -> str:
    """A journal intent without its end, in words."""
    if not isinstance(pending, Mapping):
        return str(pending)
    verb = str(pending.get("verb") or "an unnamed verb")
    return f"{verb} (since {pending['time']})" if pending.get("time") else verb


def status_lines(states: Mapping[str, Mapping[str, Any]], unreachable: frozenset[str]) -> Iterator[str]:
    """One line a node: current generation, engine, last good generation; then what is wrong or was left half done."""
    for node in sorted({*states, *unreachable}):
        if node in unreachable:
            reason = states.get(node, {}).get("reason")
            yield f"{node}  unreachable" + (f": {reason}" if reason else "")
            continue
        state = states[node]
        engine = state.get("engine")
        if isinstance(engine, Mapping):
            running = f"{engine.get('state')}, boot {engine.get('boot_id')}, generation {engine.get('generation')}"
        else:
            running = "no engine"
        good = state.get("good")
        last = good[-1] if isinstance(good, list) and good else None
        good_id = last.get("generation") if isinstance(last, Mapping) else None
        problems = list(state.get("problems") or ())
        if not problems or "current" in state or "engine" in state:
            yield f"{node}  current {state.get('current') or 'none'}; {running}; last good {good_id or 'none'}"
        baseline = state.get("baseline")
        if isinstance(baseline, Mapping):
            yield f"{node}  baseline promoted by {baseline.get('record')}"
        for foreign in state.get("foreign") or ():
            yield f"{node}  not ours, in our place: {foreign}"
        for problem in problems:
            yield f"{node}  damaged: {problem}"
        for pending in state.get("pending") or ():
            yield f"{node}  begun and not ended: {_intent(pending)}"
