"""What came of the first half of a rollback, stopping and repointing, on each node; and the line it ends with when the
fleet cannot serve: DEGRADED while nodes are missing, FAILED where a node that answers did not come so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from trispark.errors import TrisparkError

READY: Final = "READY"
DEGRADED: Final = "DEGRADED"
FAILED: Final = "FAILED"
State = Literal["READY", "DEGRADED", "FAILED"]


@dataclass(frozen=True)
class NodeState:
    """`reached`: stopped and repointed. `words`: what happened there, in words."""

    node: str
    reached: bool
    missing: bool
    words: str

    def line(self) -> str:
        return f"{self.node}  {self.words}"


@dataclass(frozen=True)
class Retreat:
    """All nodes after the first half. `seconds`: since the rollback began; `broke`: whose fleet lock was taken away;
    `planned`: nothing was done, it is what would be."""

    target: str
    state: State
    nodes: tuple[NodeState, ...]
    seconds: float
    broke: str = ""
    planned: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(each.node for each in self.nodes if each.missing)

    def lines(self) -> list[str]:
        found = [each.line() for each in self.nodes]
        if self.planned:
            return found
        if self.broke:
            found.append(f"the fleet lock was taken from {self.broke}; that command ends at its next step")
        if self.state == READY:
            return [*found, f"stopped and repointed on all nodes after {self.seconds:.1f} s"]
        return [*found, f"{self.state} after {self.seconds:.1f} s: {self.serves}"]

    @property
    def serves(self) -> str:
        """A serving group needs each of its ranks; where none was stopped it may serve on."""
        if any(each.reached for each in self.nodes):
            return "nothing serves"
        return "no node was changed, what ran before may still serve"

    def failure_line(self) -> str:
        """Empty when the boot can begin."""
        if self.state == READY:
            return ""
        if self.planned:
            return self._would_end()
        others = [each for each in self.nodes if not each.reached]
        done = [each.node for each in self.nodes if each.reached]
        observed = "; ".join(f"{each.node}: {each.words}" for each in others)
        if self.state == DEGRADED:
            return str(
                TrisparkError(
                    "TS-ROLLBACK-DEGRADED",
                    f"DEGRADED: stopped and repointed to {self.target}: {', '.join(done) or 'no node'}; {self.serves}",
                    where=", ".join(self.missing),
                    expected="all ranks, they serve together or not at all",
                    observed=observed,
                    remedy="bring the node back; ./trispark status --watch or the next changing verb then completes it",
                )
            )
        return str(
            TrisparkError(
                "TS-ROLLBACK-FAILED",
                "a node that answers could not be stopped and repointed",
                where=", ".join(each.node for each in others),
                expected=f"no engine, and {self.target} current",
                observed=observed,
                remedy=f"do what its line says, then roll back again; done: {', '.join(done) or 'no node'}",
            )
        )

    def _would_end(self) -> str:
        return str(
            TrisparkError(
                "TS-ROLLBACK-PLAN",
                f"the rollback would end {self.state}",
                where=", ".join(each.node for each in self.nodes if not each.reached),
                expected="all nodes, and that each can be stopped",
                observed="; ".join(f"{each.node}: {each.words}" for each in self.nodes if not each.reached),
                remedy="nothing was done; ./trispark rollback does it all the same on the nodes that answer",
            )
        )

    def published(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "planned": self.planned,
            "generation": self.target,
            "missing": list(self.missing),
            "stopped_and_repointed_s": self.seconds,
            "nodes": {each.node: each.words for each in self.nodes},
            "verified": False,
            "broke_lock": self.broke or None,
        }


def judge(
    target: str,
    results: Mapping[str, Mapping[str, Any]],
    missing: Mapping[str, str],
    seconds: float,
    *,
    planned: bool = False,
) -> Retreat:
    """`results`: what the task with the agent's verb `rollback` registered, by node; `missing`: {node: why} of those
    that were not even asked; `planned`: in check mode."""
    states = [_state(node, results.get(node) or {}, missing.get(node)) for node in sorted({*results, *missing})]
    failed = any(not each.reached and not each.missing for each in states)
    state: State = FAILED if failed else DEGRADED if any(each.missing for each in states) else READY
    broke = [found for result in results.values() if (found := (result.get("answer") or {}).get("broke"))]
    holder = _holder(broke[0]) if broke else ""
    return Retreat(target, state, tuple(states), round(seconds, 2), holder, planned)


def _holder(lock: Mapping[str, Any]) -> str:
    """Without user and host: the line goes into records, too."""
    return f"{lock['reason']}, pid {lock['pid']}, since {lock['since']}"


def _state(node: str, result: Mapping[str, Any], missing: str | None) -> NodeState:
    if missing is not None:
        return NodeState(node, False, True, f"missing: {missing}")
    answer = result.get("answer") or {}
    if answer.get("ok"):
        return NodeState(node, True, False, _did(answer))
    said = " ".join(str(result.get("msg") or "no answer").split())
    if answer.get("repointed"):
        said = f"stopped and repointed, but: {said}"
    if result.get("unreachable") or result.get("check_id") == "TS-AGENT-LATE":
        return NodeState(node, False, True, f"missing: lost while it was stopped: {said}")
    return NodeState(node, False, False, said)


def _did(answer: Mapping[str, Any]) -> str:
    if "seconds" not in answer:
        return f"would be stopped and repointed to {answer['generation']}" if answer["changed"] else "is there already"
    stop = answer.get("stop") or {}
    if not stop.get("log"):
        how = "nothing ran"
    elif stop.get("killed"):
        how = f"killed after {stop['seconds']} s"
    else:
        how = f"stopped in {stop['seconds']} s, exit code {stop['exit_code']}"
    before = answer.get("previous")
    moved = f"current {answer['generation']}" + (" as before" if before == answer["generation"] else "")
    return f"{how}; {moved}; epoch {answer['epoch']}"
