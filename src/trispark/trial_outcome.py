"""From the boots of a walk to the verdicts and records of its trials."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trispark import __version__
from trispark.allowlist import Allowlist
from trispark.canonical import canonical_sha256
from trispark.drift import declared_names, require_no_drift
from trispark.errors import TrisparkError
from trispark.project import project_state
from trispark.records import RecordCache, build_trial_record, record_hash
from trispark.resolve import Resolution, compare, restore
from trispark.trial_metrics import decided_at, verdict_of
from trispark.verdict import INCONCLUSIVE, REJECT, Verdict
from trispark.walk_journal import History
from trispark.walk_plan import TrialOfWalk, WalkPlan

Record = Mapping[str, Any]


@dataclass(frozen=True)
class TrialBoots:
    """What came of one trial of a walk: its counted boots, and of all of its boots those that are not valid.

    `ended`: why it has not all of its boots, None when it has.
    """

    trial: TrialOfWalk
    baseline: tuple[Record, ...]
    candidate: tuple[Record, ...]
    ended: str | None
    invalid: tuple[Record, ...] = ()


def trials_to_record(walk: WalkPlan, history: History, records: Sequence[Record], stopped: str) -> list[TrialBoots]:
    """The trials of a walk that has ended: those of which something was begun.

    A trial of which only the shared boot of the baseline was made was not tried, and gets no record. `records`: the
    controller's copies, oldest first; `stopped`: why the walk did not make all boots, empty when it did.
    """
    found = {
        int(record["requested"]["slot"]): record
        for record in records
        if record["kind"] == "boot"
        and record["requested"]["trial"] == walk.walk
        and record["requested"].get("slot") is not None
        and record["requested"]["purpose"] == "trial"
    }
    result: list[TrialBoots] = []
    for index, trial in enumerate(walk.trials):
        end = decided_at(walk, index, found)
        own = [slot for slot in walk.slots if index in slot.trials and (end is None or slot.slot < end)]
        begun = [slot for slot in own if slot.slot in found or history.attempts(slot.slot)]
        if not begun or not (len(walk.trials) == 1 or any(slot.arm == "candidate" for slot in begun)):
            continue
        arms: dict[str, list[Record]] = {"baseline": [], "candidate": []}
        for slot in own:
            if slot.counted and slot.slot in found:
                arms[slot.arm].append(found[slot.slot])
        missing = [slot for slot in own if slot.slot not in found]
        invalid = [found[slot.slot] for slot in own if slot.slot in found and not _valid(found[slot.slot])]
        ended = None
        if missing:
            left_out = f"{invalid[0]['boot_id']} is not valid, the boots after it were left out" if invalid else ""
            ended = stopped or left_out or "not all boots were made"
        result.append(TrialBoots(trial, tuple(arms["baseline"]), tuple(arms["candidate"]), ended, tuple(invalid)))
    return result


def _valid(record: Record) -> bool:
    return bool(record["outcome"]["state"] == "valid")


def record_trial(
    root: Path,
    allowlist: Allowlist,
    walk: WalkPlan,
    boots: TrialBoots,
    cache: RecordCache,
    *,
    restored_boot: str | None,
    began: str,
    previous: Mapping[str, Any] | None,
    now: datetime,
) -> dict[str, Any]:
    """The checked record of one trial of a walk.

    `restored_boot` is the boot with which the site's baseline serves afterwards, None when it does not; `began` is when
    the walk began, UTC. Boots that cannot be compared end the trial without a decision, the reason is the error's line
    (`incomparable`). Raises TS-RECORD-*.
    """
    trial = boots.trial
    baseline, candidate = (restore(walk.resolved[name]) for name in (trial.baseline, trial.candidate))
    arms = [("baseline", baseline, record) for record in boots.baseline]
    arms += [("candidate", candidate, record) for record in boots.candidate]
    arms.sort(key=lambda entry: int(entry[2]["seq"]))
    difference = compare(baseline, candidate)
    verdict = _verdict(boots, incomparable(arms, declared_names(difference)))
    ended = now.astimezone(UTC)
    started = datetime.fromisoformat(began)
    return build_trial_record(
        record_id=trial.record,
        site=walk.site,
        project=project_state(root, __version__),
        requested={
            "stage": walk.stage,
            "feature": walk.feature,
            "value": trial.value,
            "arm": "candidate",
            "purpose": "trial",
            "trial": walk.walk,
        },
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
                "valid": _valid(record),
            }
            for arm, _, record in arms
        ],
        verdict=verdict,
        rules=trial.rules,
        plan=trial.plan,
        confirms=walk.confirms,
        restored=_restored(walk, cache, restored_boot),
        timings={
            "started_at": began,
            "ended_at": f"{ended:%Y-%m-%dT%H:%M:%SZ}",
            "phases": {"total": round(max(0.0, (ended - started).total_seconds()), 2)},
        },
        previous=previous,
    )


def _verdict(boots: TrialBoots, problem: str | None) -> Verdict:
    """`problem`: why the boots cannot be compared. A trial that has not all of its boots decides nothing, except that a
    candidate which fails its gates beside a sound baseline is rejected."""
    if problem is not None:
        return Verdict(INCONCLUSIVE, problem, {}, "INCOMPARABLE")
    try:
        verdict = verdict_of(boots.trial, boots.baseline, boots.candidate)
    except TrisparkError as error:
        return Verdict(INCONCLUSIVE, str(error), {}, "INCOMPARABLE")
    if boots.ended is None or (verdict.verdict, verdict.code) == (REJECT, "UNSAFE"):
        return verdict
    return replace(verdict, verdict=INCONCLUSIVE, reason=boots.ended, code="ENDED")


def incomparable(arms: Sequence[tuple[str, Resolution, Record]], declared: Collection[str]) -> str | None:
    """Why the boots of a trial cannot be compared, as one line; None when they can.

    TS-TRIAL-ARM: a boot is not of the planned generation; TS-TRIAL-INPUT: the boots did not measure the same;
    TS-TRIAL-DRIFT: they differ in more than the planned change.
    """
    try:
        for arm, planned, record in arms:
            _require_arm(arm, planned, record)
        _require_same_input([record for _, _, record in arms])
        require_no_drift([(arm, record) for arm, _, record in arms], declared)
    except TrisparkError as error:
        return str(error)
    return None


def _restored(walk: WalkPlan, cache: RecordCache, boot: str | None) -> str | None:
    """The site's baseline, when that boot is a valid one of it."""
    if boot is None:
        return None
    last = cache.show(boot)
    return walk.site_baseline if _valid(last) and last["resolved"]["generation"] == walk.site_baseline else None


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
