"""From what the tasks of a boot left behind to its outcome and its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from trispark import __version__
from trispark.benchstats import BenchSummary, summarize
from trispark.boot_plan import Project
from trispark.gates import GateResult
from trispark.project import project_state
from trispark.records import build_boot_record
from trispark.resolve import restore

GOOD_PURPOSES: Final = ("serve", "rollback")
Facts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Failure:
    """The first cause of a failed boot: which check, on which node, in one line."""

    check_id: str
    node: str
    line: str


def first_failure(facts: Facts) -> Failure | None:
    """The cause among what the nodes' tasks report; that a rank gave up because another was lost is not it."""
    found: list[tuple[int, Failure]] = []
    for node, fact in sorted(facts.items()):
        failure = fact.get("failure") or {}
        result = failure.get("result") or {}
        line = str(result.get("msg") or "")
        if not failure or not line:
            continue
        check_id = str(result.get("check_id") or line.partition(":")[0])
        task = str(failure.get("task") or "")
        shown = " ".join(line.split()) if result.get("check_id") else f"TS-BOOT-TASK: {task}: {' '.join(line.split())}"
        found.append((1 if result.get("by_peer") else 0, Failure(check_id, node, shown)))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def record_boot(
    project: Project,
    plan: Mapping[str, Any],
    facts: Facts,
    previous: Mapping[str, Any] | None,
    now: datetime,
) -> dict[str, Any]:
    """The checked record of a boot. `facts`: {node: {"watch", "observation", "gates", "bench", "failure"}}."""
    resolution = restore(plan["resolved"], project.catalog, project.root)
    failure = first_failure(facts)
    gates = _gates(facts)
    bench, summary = _bench(facts)
    changed = tuple(sorted(plan.get("changed") or {}))
    phases = {"total": round(now.timestamp() - float(plan["started"]), 2)}
    ready = [float(fact["watch"]["seconds"]) for fact in facts.values() if (fact.get("watch") or {}).get("seconds")]
    if ready:
        phases["start_to_ready"] = round(max(ready), 2)
    return build_boot_record(
        record_id=str(plan["boot_id"]),
        site=project.site.name,
        resolution=replace(resolution, changed_keys=changed or resolution.changed_keys),
        allowlist=project.catalog.allowlist,
        project=project_state(project.root, __version__),
        requested=plan["requested"],
        boot_id=str(plan["boot_id"]),
        epoch=int(plan["epoch"]),
        observations={node: fact.get("observation") for node, fact in facts.items()},
        timings={"started_at": plan["time"], "ended_at": f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}", "phases": phases},
        gates=gates,
        bench=bench,
        summary=summary,
        outcome=_outcome(plan, gates, failure),
        previous=previous,
    )


def _outcome(plan: Mapping[str, Any], gates: list[GateResult], failure: Failure | None) -> dict[str, Any]:
    bad = [gate for gate in gates if not gate.ok]
    if failure is None and gates and not bad:
        return {"state": "valid", "reason": "all gates passed", "good": plan["purpose"] in GOOD_PURPOSES}
    if bad:
        return {"state": "invalid", "reason": bad[0].line(), "good": False}
    reason = failure.line if failure else "no gate was judged"
    judged = bool(gates)
    return {"state": "invalid" if judged else "failed", "reason": reason, "good": False}


def _gates(facts: Facts) -> list[GateResult]:
    """Every node carries the same list; the first that has one is taken."""
    for fact in facts.values():
        found = (fact.get("gates") or {}).get("gates")
        if found:
            return [GateResult(**gate) for gate in found]
    return []


def _bench(facts: Facts) -> tuple[dict[str, Any] | None, BenchSummary | None]:
    for fact in facts.values():
        answer = (fact.get("bench") or {}).get("answer") or {}
        output = answer.get("output")
        if output:
            return output, summarize(output)
    return None, None
