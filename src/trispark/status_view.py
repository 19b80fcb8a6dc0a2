"""Shows the state of the nodes as the agent reports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def without_answer(states: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """Nodes whose own entry says that they could not be reached."""
    return frozenset(node for node, state in states.items() if state.get("reachable") is False)


def with_problems(states: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """Nodes that name what is wrong with their own state, or whose agent refused or failed."""
    return frozenset(node for node, state in states.items() if state.get("problems") or state.get("error"))


def _intent(pending: object) -> str:
    """A journal intent without its end, in words."""
    if not isinstance(pending, Mapping):
        return str(pending)
    verb = str(pending.get("verb") or "an unnamed verb")
    return f"{verb} (since {pending['time']})" if pending.get("time") else verb


def status_lines(states: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """One line a node: current generation, engine, last good generation; then what is wrong or was left half done.

    A node that gave no answer has one line that says why.
    """
    for node in sorted(states):
        state = states[node]
        if state.get("reachable") is False:
            yield f"{node}  unreachable: {state['reason']}"
            continue
        if "error" in state:
            yield f"{node}  {state['error']}"
            continue
        engine = state.get("engine")
        if isinstance(engine, Mapping):
            ended = engine.get("exit_code") if engine.get("state") == "exited" else None
            stopped = "" if ended is None else f" with {ended}"
            running = (
                f"{engine.get('state')}{stopped}, boot {engine.get('boot_id')}, generation {engine.get('generation')}"
            )
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
    if any((state.get("engine") or {}).get("state") == "exited" for state in states.values()):
        yield "do: ./trispark play rollback goes back to the last good generation and keeps the logs of what has ended"
