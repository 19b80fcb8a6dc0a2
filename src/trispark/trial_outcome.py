"""From the boots of a trial to its verdict and its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trispark import __version__
from trispark.benchstats import summarize
from trispark.boot_plan import Project
from trispark.project import project_state
from trispark.records import RecordCache, build_trial_record, record_hash
from trispark.resolve import compare, resolve, restore
from trispark.verdict import BootMetrics, decide


def record_trial(
    project: Project,
    plan: Mapping[str, Any],
    cache: RecordCache,
    *,
    baseline_boots: Sequence[str],
    candidate_boots: Sequence[str],
    restored_boot: str,
    previous: Mapping[str, Any] | None,
    now: datetime,
) -> dict[str, Any]:
    """The checked record of a trial from the records of its boots. `plan`: the candidate's validated plan.

    `restored_boot` is the boot that runs afterwards; its generation counts as restored only when that boot was valid.
    Raises TS-RECORD-*.
    """
    arms = [("baseline", cache.show(boot)) for boot in baseline_boots]
    arms += [("candidate", cache.show(boot)) for boot in candidate_boots]
    verdict = decide(*([_metrics(record) for arm, record in arms if arm == name] for name in ("baseline", "candidate")))
    baseline = resolve(project.site, project.catalog, None, None, project.root)
    candidate = restore(plan["resolved"], project.catalog, project.root)
    last = cache.show(restored_boot)
    ended = now.astimezone(UTC)
    return build_trial_record(
        record_id=str(plan["requested"]["trial"]),
        site=project.site.name,
        project=project_state(project.root, __version__),
        requested={**plan["requested"], "purpose": "trial"},
        baseline=baseline,
        candidate=candidate,
        difference=compare(baseline, candidate),
        allowlist=project.catalog.allowlist,
        boots=[
            {
                "arm": arm,
                "boot_id": record["boot_id"],
                "generation": record["resolved"]["generation"],
                "seq": record["seq"],
                "hash": record_hash(record),
                "valid": record["outcome"]["state"] == "valid",
            }
            for arm, record in sorted(arms, key=lambda pair: int(pair[1]["seq"]))
        ],
        verdict=verdict,
        restored=last["resolved"]["generation"] if last["outcome"]["state"] == "valid" else None,
        timings={
            "started_at": plan["time"],
            "ended_at": f"{ended:%Y-%m-%dT%H:%M:%SZ}",
            "phases": {"total": round(now.timestamp() - float(plan["started"]), 2)},
        },
        previous=previous,
    )


def _metrics(record: Mapping[str, Any]) -> BootMetrics:
    bench = record.get("bench")
    return BootMetrics(
        boot_id=str(record["boot_id"]),
        valid=record["outcome"]["state"] == "valid",
        metrics=summarize(bench).metrics() if bench else {},
    )
