"""Chooses the generation that a rollback goes to, from the nodes' own answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trispark.errors import TrisparkError

PREVIOUS: Final = "previous"


@dataclass(frozen=True)
class Target:
    """A generation that all nodes hold, and why it was chosen."""

    generation: str
    reason: str
    current: str | None


def choose(statuses: Mapping[str, Mapping[str, Any] | None], to: str, baseline: str | None) -> Target:
    """The target of a rollback.

    `to` empty: the newest generation that passed its gates outside a trial on all nodes, else `baseline`;
    `previous`: the good one before that, other than the current; a generation id: that one.

    Only what is whole on every node can be a target. A good one that is not is passed over and named: whoever rolls
    back wants an engine that serves, and the next good one passes the same gates. One that was asked for by its id is
    refused, naming the next good one. Raises TS-ROLLBACK-TARGET, TS-ROLLBACK-NODE (an answer is None).
    """
    silent = sorted(node for node, status in statuses.items() if not status)
    if silent or not statuses:
        raise TrisparkError(
            "TS-ROLLBACK-NODE",
            "a node did not answer, nothing was touched",
            where=", ".join(silent) or "all nodes",
            expected="all ranks, a serving group needs each of them",
            observed=f"answers from {', '.join(sorted(set(statuses) - set(silent))) or 'no node'}",
            remedy="bring the node back and roll back again; ./trispark play stop stops the ranks that answer",
        )
    answers = {node: status for node, status in statuses.items() if status}
    currents = {status["current"] for status in answers.values()}
    current = currents.pop() if len(currents) == 1 else None
    good = [generation for generation in reversed(_good(answers)) if to != PREVIOUS or generation != current]
    flaws = {generation: _flaws(answers, generation) for generation in (*good, *filter(None, (to, baseline)))}
    whole = [generation for generation in good if not flaws[generation]]
    if to and to != PREVIOUS:
        if flaws[to]:
            raise _no_target("not every node holds that generation whole", f"{to}, {flaws[to]}", whole)
        return Target(to, "asked for", current)
    newer = good[: good.index(whole[0])] if whole else good
    passed = [f"{generation}, {flaws[generation]}" for generation in newer]
    over = f"; passed over: {'; '.join(passed)}" if passed else ""
    if whole:
        before = " before the current one" if to == PREVIOUS else ""
        same = " (it is the current one: it is started again)" if whole[0] == current else ""
        return Target(whole[0], f"the last good generation{before}{same}{over}", current)
    if to == PREVIOUS:
        raise _no_target(
            "there is no good generation besides the current one that every node holds whole", "; ".join(passed), []
        )
    if baseline is not None and not flaws[baseline]:
        return Target(baseline, f"the baseline: no whole generation is marked good on all nodes{over}", current)
    if baseline is not None:
        passed.append(f"the baseline {baseline}, {flaws[baseline]}")
    raise _no_target("not every node holds a good generation or the baseline whole", "; ".join(passed), [])


def _flaws(answers: Mapping[str, Mapping[str, Any]], generation: str) -> str:
    """On which nodes it is not there or not what was staged, and why; empty where it is whole on all."""
    found = []
    for node, status in sorted(answers.items()):
        damaged = (status.get("damaged") or {}).get(generation)
        if generation not in status["generations"]:
            found.append(f"not on {node}")
        elif damaged:
            found.append(f"damaged on {node} ({damaged})")
    return ", ".join(found)


def _good(statuses: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Generations that are good on every node, oldest first, by the first node's order of marking."""
    lists = [[entry["generation"] for entry in status["good"]] for status in statuses.values()]
    common = set.intersection(*(set(names) for names in lists))
    newest_last: list[str] = []
    for generation in lists[0]:
        if generation in common:
            if generation in newest_last:
                newest_last.remove(generation)
            newest_last.append(generation)
    return newest_last


def _no_target(what: str, observed: str, good: Sequence[str]) -> TrisparkError:
    return TrisparkError(
        "TS-ROLLBACK-TARGET",
        what,
        where="rollback.yml",
        expected="one that all nodes hold as it was staged",
        observed=observed or "none",
        remedy=f"-e rollback_to={good[0]} is the last good one that is whole"
        if good
        else "see ./trispark status for what the nodes hold; stage_a.yml makes a good generation",
    )
