"""Boot records as a verdict sees them, and whether the boots of a trial that are there have decided it already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trispark.bench_windows import window_metrics
from trispark.benchstats import summarize
from trispark.boot_validity import check_boot, failed_gates
from trispark.canonical import canonical_sha256
from trispark.decision_rules import DecisionRules
from trispark.errors import TrisparkError
from trispark.verdict import BootMetrics, Verdict, decide
from trispark.walk_plan import Slot, TrialOfWalk, WalkPlan

Record = Mapping[str, Any]


def boot_metrics(record: Record) -> BootMetrics:
    """One boot record (record_model.BootRecord); without measurements where it is not valid or has none."""
    bench = record.get("bench")
    valid = bool(record["outcome"]["state"] == "valid")
    given = None if not bench else {name: part for name, part in bench["input"].items() if name != "workloads"}
    return BootMetrics(
        boot_id=str(record["boot_id"]),
        valid=valid,
        metrics=measured_of(bench) if bench and valid else {},
        protocol=None if given is None else canonical_sha256(given),
        corpus=canonical_sha256(bench["input"]["workloads"]) if bench else None,
        checks=check_boot(record),
        failed_gates=failed_gates(record),
        prompt_tokens=_prompt_tokens(bench["requests"]) if bench else {},
    )


def _prompt_tokens(requests: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    by_tag: dict[str, list[Any]] = {}
    for request in requests:
        # A measurement that could not be read is recorded as it is, and then not even a tag is certain.
        by_tag.setdefault(str(request.get("tag")), []).append(request.get("prompt_tokens"))
    return {tag: sum(counts) for tag, counts in by_tag.items() if all(type(count) is int for count in counts)}


def measured_of(bench: Mapping[str, Any]) -> dict[str, float]:
    """All metrics of a recorded measurement: rates and times of the streams, waits, and the steps of its windows."""
    return {**summarize(bench).measured(), **window_metrics(bench.get("checks") or ())}


def rules_of(trial: TrialOfWalk) -> DecisionRules | None:
    """The rules of a trial's plan; None where it was planned without."""
    return None if trial.rules is None else DecisionRules.of(trial.rules)


def verdict_of(trial: TrialOfWalk, baseline: Sequence[Record], candidate: Sequence[Record]) -> Verdict:
    """The verdict over counted boots of both arms, in the order in which they ran. Raises TS-VERDICT-*."""
    return decide(
        [boot_metrics(each) for each in baseline], [boot_metrics(each) for each in candidate], rules_of(trial)
    )


def decided_at(walk: WalkPlan, trial: int, found: Mapping[int, Record]) -> int | None:
    """The first slot that a trial does not need any more, because a look before its last has ended it; else None.

    `found`: {slot: record} of the walk. Boots after that slot are not looked at, whether they were made or not.
    """
    rules = rules_of(walk.trials[trial])
    if rules is None or len(rules.looks) < 2:
        return None
    own = [slot for slot in walk.slots if trial in slot.trials and slot.counted]
    for look in rules.looks[:-1]:
        first, rest = own[: 2 * look.boots], own[2 * look.boots :]
        if not rest or not all(slot.slot in found for slot in first):
            return None
        arms = [[found[slot.slot] for slot in first if slot.arm == arm] for arm in ("baseline", "candidate")]
        try:
            verdict = verdict_of(walk.trials[trial], *arms)
        except TrisparkError:
            return None  # the end of the walk says why they cannot be compared
        if verdict.detail is not None and verdict.detail.ends:
            return rest[0].slot
    return None


def is_decided(walk: WalkPlan, slot: Slot, found: Mapping[int, Record]) -> bool:
    """Whether every trial that the boot is for was decided before it."""

    def before(trial: int) -> bool:
        at = decided_at(walk, trial, found)
        return at is not None and slot.counted and slot.slot >= at

    return all(before(trial) for trial in slot.trials)
