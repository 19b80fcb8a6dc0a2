"""From what the tasks of a boot left behind to its outcome and its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from trispark.allowlist import Allowlist
from trispark.gate_result import GateResult
from trispark.measurement import Measured, measurement_problem, read_measurement
from trispark.project import ProjectState
from trispark.records import build_boot_record
from trispark.resolve import restore

GOOD_PURPOSES: Final = ("serve", "rollback")
ALL_RANKS: Final = "boot.ranks"
"""What a rank says that stopped because another one had not come as far."""
Facts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Failure:
    """The first cause of a failed boot: which check, on which node, in one line."""

    check_id: str
    node: str
    line: str


def first_failure(plan: Mapping[str, Any], facts: Facts) -> Failure | None:
    """The cause of a failed boot; None only when every rank reports the whole way.

    That a rank gave up because another was lost is not the cause; that a node reports nothing at all is one.
    """
    found: list[tuple[int, Failure]] = []
    for node in sorted(plan["nodes"]):
        fact = facts.get(node) or {}
        failure = fact.get("failure") or {}
        result = failure.get("result") or {}
        line = " ".join(str(result.get("msg") or "").split())
        if line:
            others = line.startswith(f"{ALL_RANKS}:")
            check_id = ALL_RANKS if others else str(result.get("check_id") or "TS-BOOT-TASK")
            named = others or result.get("check_id")
            shown = line if named else f"TS-BOOT-TASK: {failure.get('task') or 'a task'}: {line}"
            found.append((1 if others or result.get("by_peer") else 0, Failure(check_id, node, shown)))
        missing = _missing(plan, fact)
        if missing:
            shown = f"TS-BOOT-NODE: {node} did not report {missing}; do: see whether it can be reached, then boot again"
            found.append((2, Failure("TS-BOOT-NODE", node, shown)))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _missing(plan: Mapping[str, Any], fact: Mapping[str, Any]) -> str | None:
    """The first part of the way that this node did not report."""
    if not (fact.get("watch") or {}).get("state"):
        return "its engine as ready"
    if not fact.get("observation"):
        return "what it runs"
    if not (fact.get("gates") or {}).get("gates"):
        return "judged gates"
    if plan.get("bench") and not fact.get("after_load"):
        return "what it runs after the measurement"
    return None


def record_boot(
    project: ProjectState,
    site: str,
    allowlist: Allowlist,
    plan: Mapping[str, Any],
    facts: Facts,
    previous: Mapping[str, Any] | None,
    now: datetime,
) -> dict[str, Any]:
    """The checked record of a boot.

    facts  {node: {"watch", "observation", "after_load", "gates", "gates_after", "identities", "bench", "failure"}}; a
           node that was lost may be missing. The observation after the measurement is recorded when there is one, and
           with it the hashes that were made before.
    """
    resolution = restore(plan["resolved"])
    gates = _gates(facts)
    measured = read_measurement(plan, facts)
    ready = [float(fact["watch"]["seconds"]) for fact in facts.values() if (fact.get("watch") or {}).get("seconds")]
    phases = {"total": round(now.timestamp() - float(plan["started"]), 2)}
    if ready:
        phases["start_to_ready"] = round(max(ready), 2)
    return build_boot_record(
        record_id=str(plan["boot_id"]),
        site=site,
        resolution=replace(resolution, changed_keys=tuple(sorted(plan.get("changed") or {}))),
        allowlist=allowlist,
        project=project,
        requested=plan["requested"],
        boot_id=str(plan["boot_id"]),
        epoch=int(plan["epoch"]),
        observations={node: fact.get("after_load") or fact.get("observation") for node, fact in facts.items()},
        identities=_identities(facts),
        timings={"started_at": plan["time"], "ended_at": f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}", "phases": phases},
        gates=gates,
        bench=measured.recorded(plan["bench"]) if measured.output is not None else None,
        summary=measured.summary,
        outcome=_outcome(plan, gates, first_failure(plan, facts), measured),
        previous=previous,
        provenance=plan.get("provenance") or (),
    )


def _identities(facts: Facts) -> Mapping[str, Any]:
    """Every node carries the same hashes of all nodes; the first ones are taken."""
    return next((each["identities"] for each in facts.values() if each.get("identities")), {})


def _outcome(
    plan: Mapping[str, Any], gates: list[GateResult], failure: Failure | None, measured: Measured
) -> dict[str, Any]:
    bad = [gate for gate in gates if not gate.ok]
    if bad:
        return {"state": "invalid", "reason": bad[0].line(), "good": False}
    problem = measurement_problem(plan, measured) if plan.get("bench") and gates else None
    if failure is not None:
        reason = f"{failure.line}; {problem}" if problem and failure.check_id == "TS-BOOT-NODE" else failure.line
        return {"state": "invalid" if gates else "failed", "reason": reason, "good": False}
    if problem:
        return {"state": "invalid", "reason": problem, "good": False}
    return {"state": "valid", "reason": "all gates passed", "good": plan["purpose"] in GOOD_PURPOSES}


def _gates(facts: Facts) -> list[GateResult]:
    """The gates before and after the measurement. Every node carries the same lists; the first one is taken."""
    results: list[GateResult] = []
    for part in ("gates", "gates_after"):
        for fact in facts.values():
            found = (fact.get(part) or {}).get("gates")
            if found:
                results += [GateResult(**gate) for gate in found]
                break
    return results
