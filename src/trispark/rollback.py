"""Chooses the generation of a rollback from the nodes' own answers, and says in two lines what will be done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trispark.agent_deadline import AGENT_SHARE
from trispark.errors import TrisparkError
from trispark_node.rollback import proof_s

GOOD: Final = "good"
BASELINE: Final = "baseline"
PREVIOUS: Final = "previous"
WORDS: Final = (GOOD, BASELINE, PREVIOUS)
BESIDE_S: Final = 10.0
"""Of a node's call beside the engine's end and the proof: KILL, the kept log, files."""
_SHORTEST_ID: Final = 5
"""Of the beginning of a generation's id that a person may type in its place."""


@dataclass(frozen=True)
class Target:
    """A generation that all nodes that answered hold, why it was chosen, and {node: why} of those that did not answer.

    `current`: what is current on all of those that answered, None when they differ.
    """

    generation: str
    reason: str
    current: str | None
    missing: Mapping[str, str] = field(default_factory=dict)


def choose(
    statuses: Mapping[str, Mapping[str, Any] | None],
    to: str,
    baseline: str | None,
    silent: Mapping[str, str] | None = None,
    unknown: str = "",
) -> Target:
    """The target of a rollback.

    `to` empty or `good`: the newest generation that passed its gates outside a trial on all nodes, else `baseline`;
    `baseline`: the site's; `previous`: the good one before the current; else a generation's id or its beginning.
    `silent` says why a node has no answer, `unknown` why there is no baseline.

    Only what is whole on every node that answers, and could be started there, can be a target. A good one that is not
    is passed over and named: whoever rolls back wants an engine that serves, and the next good one passes the same
    gates. One that was asked for is refused, naming the next good one. Nodes that do not answer are no obstacle: they
    are brought to the target when they are back. Raises TS-ROLLBACK-TARGET, TS-ROLLBACK-NODE (no node answers).
    """
    why = silent or {}
    missing = {node: why.get(node) or "no answer" for node, status in sorted(statuses.items()) if not status}
    answers = {node: status for node, status in statuses.items() if status}
    if not answers:
        raise TrisparkError(
            "TS-ROLLBACK-NODE",
            "no node answers, nothing was touched",
            where=", ".join(missing) or "all nodes",
            expected="one node at least",
            observed="; ".join(f"{node}: {text}" for node, text in missing.items()) or "no node",
            remedy="see the network between this machine and the nodes; on a node itself: sudo trispark-node rollback",
        )
    currents = {status["current"] for status in answers.values()}
    current = currents.pop() if len(currents) == 1 else None
    wanted = _meant(to, answers, baseline, unknown)
    good = [generation for generation in reversed(_good(answers)) if to != PREVIOUS or generation != current]
    flaws = {generation: _flaws(answers, generation) for generation in (*good, *filter(None, (wanted, baseline)))}
    whole = [generation for generation in good if not flaws[generation]]
    if wanted is not None:
        if flaws[wanted]:
            raise _no_target("not every node holds that generation whole", f"{wanted}, {flaws[wanted]}", whole)
        return Target(wanted, "the baseline, as asked for" if to == BASELINE else "asked for", current, missing)
    newer = good[: good.index(whole[0])] if whole else good
    passed = [f"{generation}, {flaws[generation]}" for generation in newer]
    over = f"; passed over: {'; '.join(passed)}" if passed else ""
    if whole:
        before = " before the current one" if to == PREVIOUS else ""
        same = " (it is the current one: it is started again)" if whole[0] == current else ""
        return Target(whole[0], f"the last good generation{before}{same}{over}", current, missing)
    if to == PREVIOUS:
        raise _no_target(
            "there is no good generation besides the current one that every node holds whole", "; ".join(passed), []
        )
    if baseline is not None and not flaws[baseline]:
        return Target(
            baseline, f"the baseline: no whole generation is marked good on all nodes{over}", current, missing
        )
    if baseline is not None:
        passed.append(f"the baseline {baseline}, {flaws[baseline]}")
    elif unknown:
        passed.append(f"the baseline, whose id cannot be told: {unknown}")
    raise _no_target("not every node holds a good generation or the baseline whole", "; ".join(passed), [])


def _meant(to: str, answers: Mapping[str, Mapping[str, Any]], baseline: str | None, unknown: str) -> str | None:
    """The one generation that was asked for; None for a choice among the good ones."""
    if to in ("", GOOD, PREVIOUS):
        return None
    if to == BASELINE:
        if baseline is None:
            raise _no_target("the baseline's id cannot be told from this tree and the nodes", unknown, [])
        return baseline
    held = sorted({generation for status in answers.values() for generation in status["generations"]})
    found = [generation for generation in held if generation.startswith(to)] if len(to) >= _SHORTEST_ID else []
    if len(found) > 1 and to not in found:
        raise _no_target("several generations begin like that", ", ".join(found), [])
    return found[0] if len(found) == 1 else to


def _flaws(answers: Mapping[str, Mapping[str, Any]], generation: str) -> str:
    """On which nodes it is not there, not what was staged or could not be started, and why; empty where all is well."""
    found = []
    for node, status in sorted(answers.items()):
        damaged = (status.get("damaged") or {}).get(generation)
        unstartable = (status.get("unstartable") or {}).get(generation)
        if generation not in status["generations"]:
            found.append(f"not on {node}")
        elif damaged:
            found.append(f"damaged on {node} ({damaged})")
        elif unstartable:
            found.append(f"cannot start on {node} ({unstartable})")
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
        remedy=f"./trispark rollback --to {good[0]}, the last good one that is whole"
        if good
        else "see ./trispark status for what the nodes hold; stage_a.yml makes a good generation, play stop only stops",
    )


def call_s(stop_s: float) -> float:
    """How long the call of a node may take that fences, stops, repoints and proves; the connection included, as
    agent_deadline.of_call takes it."""
    return (stop_s + proof_s(stop_s) + BESIDE_S) / AGENT_SHARE


def plan_lines(
    target: Target, statuses: Mapping[str, Mapping[str, Any] | None], stop_s: float, boot_s: float | None
) -> list[str]:
    """What will happen, in two lines: where to and why; what is stopped, within what time, and how it ends.

    `boot_s`: how long boots took, None when it is not known.
    """
    running = sorted(node for node, status in statuses.items() if status and status.get("engine"))
    stops = f"stops the engine of {', '.join(running)}" if running else "no engine has to be stopped"
    within = f" within {stop_s:g} s a step" if running else ""
    if target.missing:
        gone = ", ".join(f"{node} ({why})" for node, why in target.missing.items())
        then = f"makes it current where it can and ends DEGRADED, nothing serves: missing {gone}"
    else:
        about = "" if boot_s is None else f", about {boot_s:.0f} s"
        then = f"boots it on all ranks, gates and canary{about}"
    return [
        f"from {target.current or 'differing generations'} to {target.generation}: {target.reason}",
        f"{stops}{within}; then {then}",
    ]
