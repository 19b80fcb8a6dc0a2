"""Chooses the generation that a rollback goes to, from the nodes' own answers."""

from __future__ import annotations

from collections.abc import Mapping
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
    Only what every node holds can be a target. Raises TS-ROLLBACK-TARGET, TS-ROLLBACK-NODE (an answer is None).
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
    held = set.intersection(*(set(status["generations"]) for status in answers.values()))
    currents = {status["current"] for status in answers.values()}
    current = currents.pop() if len(currents) == 1 else None
    good = [generation for generation in _good(answers) if generation in held]
    if to and to != PREVIOUS:
        if to not in held:
            raise _no_target("not every node holds that generation", ", ".join(sorted(held)) or "none", to)
        return Target(to, "asked for", current)
    if to == PREVIOUS:
        good = [generation for generation in good if generation != current]
        if not good:
            raise _no_target("there is no good generation besides the current one", "an earlier good one", to)
        return Target(good[-1], "the last good generation before the current one", current)
    if good:
        same = " (it is the current one: it is started again)" if good[-1] == current else ""
        return Target(good[-1], f"the last good generation{same}", current)
    if baseline is not None and baseline in held:
        return Target(baseline, "the baseline: no generation is marked good on all nodes", current)
    raise _no_target("no node holds a good generation or the baseline", "one that all nodes hold", to)


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


def _no_target(what: str, expected: str, to: str) -> TrisparkError:
    return TrisparkError(
        "TS-ROLLBACK-TARGET",
        what,
        where="rollback.yml",
        expected=expected,
        observed=to or "the last good generation",
        remedy="see ./trispark status for what the nodes hold; stage_a.yml makes a good generation",
    )
