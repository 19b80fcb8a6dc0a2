"""From the boots of a trial to its verdict and its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trispark import __version__
from trispark.allowlist import Allowlist
from trispark.benchstats import summarize
from trispark.canonical import canonical_sha256
from trispark.drift import declared_names, require_no_drift
from trispark.errors import TrisparkError
from trispark.project import project_state
from trispark.records import RecordCache, build_trial_record, record_hash
from trispark.resolve import Resolution, compare, restore
from trispark.verdict import BootMetrics, decide


def record_trial(
    root: Path,
    site: str,
    allowlist: Allowlist,
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

    `restored_boot` is the boot that runs afterwards; the baseline counts as restored only when that was a valid boot of
    it. Raises TS-TRIAL-ARM when a boot is not of the planned generation, TS-TRIAL-INPUT when the boots did not
    measure the same, TS-TRIAL-DRIFT when they differ in more than the planned change, TS-RECORD-*.
    """
    candidate = restore(plan["resolved"])
    baseline = restore(plan["baseline_resolved"])
    arms = [("baseline", baseline, cache.show(boot)) for boot in baseline_boots]
    arms += [("candidate", candidate, cache.show(boot)) for boot in candidate_boots]
    for arm, planned, record in arms:
        _require_arm(arm, planned, record)
    _require_same_input([record for _, _, record in arms])
    difference = compare(baseline, candidate)
    arms.sort(key=lambda entry: int(entry[2]["seq"]))
    require_no_drift([(arm, record) for arm, _, record in arms], declared_names(difference))
    verdict = decide(
        *([_metrics(record) for arm, _, record in arms if arm == name] for name in ("baseline", "candidate"))
    )
    last = cache.show(restored_boot)
    restored = last["outcome"]["state"] == "valid" and last["resolved"]["generation"] == baseline.id
    ended = now.astimezone(UTC)
    return build_trial_record(
        record_id=str(plan["requested"]["trial"]),
        site=site,
        project=project_state(root, __version__),
        requested={**plan["requested"], "purpose": "trial"},
        baseline=baseline,
        candidate=candidate,
        difference=difference,
        allowlist=allowlist,
        boots=[
            {
                "arm": arm,
                "boot_id": record["boot_id"],
                "generation": record["resolved"]["generation"],
                "seq": record["seq"],
                "hash": record_hash(record),
                "valid": record["outcome"]["state"] == "valid",
            }
            for arm, _, record in arms
        ],
        verdict=verdict,
        restored=baseline.id if restored else None,
        timings={
            "started_at": plan["time"],
            "ended_at": f"{ended:%Y-%m-%dT%H:%M:%SZ}",
            "phases": {"total": round(now.timestamp() - float(plan["started"]), 2)},
        },
        previous=previous,
    )


def _require_arm(arm: str, planned: Resolution, record: Mapping[str, Any]) -> None:
    found = record["resolved"]["generation"]
    if found != planned.id:
        raise TrisparkError(
            "TS-TRIAL-ARM",
            f"a boot of the {arm} did not run the planned configuration",
            where=str(record["boot_id"]),
            expected=planned.id,
            observed=found,
            remedy="do not edit the project during a trial; run it again",
        )


def _require_same_input(records: Sequence[Mapping[str, Any]]) -> None:
    inputs = {canonical_sha256(record["bench"]["input"]): record["boot_id"] for record in records if record["bench"]}
    if len(inputs) > 1:
        raise TrisparkError(
            "TS-TRIAL-INPUT",
            "the boots of the trial did not measure the same work",
            where=", ".join(sorted(inputs.values())),
            expected="the same prompts, repetitions, tokens and load client",
            observed=f"{len(inputs)} different inputs",
            remedy="do not edit prompts or the site during a trial; run it again",
        )


def _metrics(record: Mapping[str, Any]) -> BootMetrics:
    bench = record.get("bench")
    return BootMetrics(
        boot_id=str(record["boot_id"]),
        valid=record["outcome"]["state"] == "valid",
        metrics=summarize(bench).metrics() if bench else {},
    )
