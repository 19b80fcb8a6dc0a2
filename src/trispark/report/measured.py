"""What a report takes from the boot records of one trial, worked out once for all of its sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trispark.benchstats import summarize
from trispark.boot_validity import Check, check_boot
from trispark.decision_rules import DecisionRules
from trispark.errors import TrisparkError
from trispark.report.page import Arm
from trispark.report.sources import TrialSource
from trispark.trial_metrics import boot_metrics
from trispark.verdict import BootMetrics

Record = Mapping[str, Any]
ARMS: Final[tuple[Arm, ...]] = ("baseline", "candidate")
MOST_FREE: Final = 6
"""Metrics that are drawn where no rules say which ones count."""


@dataclass(frozen=True)
class BootRow:
    """One boot. `counted`: it is one of the verdict's; `metrics`: None where its measurement cannot be read."""

    record: Record
    arm: Arm
    counted: bool
    metrics: BootMetrics | None
    checks: tuple[Check, ...]

    @property
    def valid(self) -> bool:
        return bool(self.record["outcome"]["state"] == "valid")

    @property
    def values(self) -> Mapping[str, float]:
        """By metric; none where it is not valid."""
        return {} if self.metrics is None else self.metrics.metrics

    @property
    def id(self) -> str:
        return str(self.record["boot_id"])


@dataclass(frozen=True)
class Measured:
    """One trial. `boots` by number; `metrics`: those that the trial watches, else the first few that were measured."""

    source: TrialSource
    boots: tuple[BootRow, ...]
    rules: DecisionRules | None
    metrics: tuple[str, ...]

    @property
    def record(self) -> Record | None:
        return self.source.record

    @property
    def outcome(self) -> Mapping[str, Any]:
        """Of the trial's record; empty while there is none."""
        return {} if self.record is None else dict(self.record["outcome"])

    @property
    def detail(self) -> Mapping[str, Any] | None:
        found = self.outcome.get("detail")
        return None if found is None else dict(found)

    def of_arm(self, arm: Arm, *, counted: bool = True) -> list[BootRow]:
        """Boots of an arm; those of the verdict, or all."""
        return [boot for boot in self.boots if boot.arm == arm and (boot.counted or not counted)]

    def values(self, metric: str, arm: Arm) -> list[tuple[str, float]]:
        """(boot id, value) of the boots of an arm that have it, in order."""
        return [(boot.id, boot.values[metric]) for boot in self.of_arm(arm) if metric in boot.values]

    def floor(self, metric: str) -> float | None:
        """The site's floor, as the rules of the plan have it."""
        primaries = () if self.rules is None else self.rules.primaries
        return next((each.floor for each in primaries if each.metric == metric), None)


def measured(source: TrialSource) -> Measured:
    """From the records of one trial. While it has not ended, its valid boots that a trial asked for are shown."""
    counted = {str(boot["boot_id"]): arm for arm, boot in source.judged}
    boots = []
    for record in source.records:
        if record["kind"] != "boot":
            continue
        arm = counted.get(str(record["boot_id"])) or str(record["requested"].get("arm") or "baseline")
        found = _metrics(record)
        valid = found is not None and bool(found.metrics)
        asked = source.record is None and record["requested"]["purpose"] == "trial" and valid
        known: Arm = "candidate" if arm == "candidate" else "baseline"
        in_it = str(record["boot_id"]) in counted or asked
        boots.append(BootRow(record, known, in_it, found, check_boot(record)))
    given = None if source.record is None else source.record["outcome"].get("rules")
    rules = None if given is None else _rules(given)
    names = sorted({name for boot in boots if boot.counted for name in boot.values})
    watched = [each.metric for each in rules.watched] if rules is not None else names[:MOST_FREE]
    return Measured(source, tuple(boots), rules, tuple(name for name in watched if name in names))


def _metrics(record: Record) -> BootMetrics | None:
    try:
        return boot_metrics(record)
    except TrisparkError:
        return None


def waits_of(record: Record) -> Mapping[str, Mapping[str, Any]]:
    """{phase: {layer: EngramWait}} of a boot's measurement; empty where there is none."""
    try:
        return summarize(record["bench"]).engram_wait if record["bench"] else {}
    except TrisparkError:
        return {}


def _rules(given: Mapping[str, Any]) -> DecisionRules | None:
    """None for rules of another version, which this one cannot read."""
    try:
        return DecisionRules.of(given)
    except ValueError:
        return None
