"""Judges the entry and exit criteria of a stage (experiments/stages.yml) by the site's records.

They are shown, not enforced: a trial begins with a boot of the baseline whose gates are the same, and ends without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trispark.catalog import Catalog
from trispark.catalog_model import Criterion

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Judged:
    """One criterion. `when`: entry or exit; `observed` is what the records have; `open`: of an exit that is not met,
    what the stage goes on with."""

    when: str
    says: str
    met: bool
    observed: str
    open: str = ""

    def line(self) -> str:
        """For a person."""
        if self.open:
            return self.open
        return f"{self.when}: {self.says}: {'met' if self.met else 'not met'} ({self.observed})"


def entry(catalog: Catalog, stage: str, baseline: str, records: Sequence[Record]) -> list[Judged]:
    """What should be so before the stage begins. `baseline`: the site's, by generation; `records`: oldest first."""
    letter = catalog.stage_letter(stage)
    return [_judge("entry", each, catalog, letter, baseline, records) for each in catalog.stages[letter].entry]


def exit_of(catalog: Catalog, stage: str, baseline: str, records: Sequence[Record]) -> list[Judged]:
    """What is so when the stage has ended."""
    letter = catalog.stage_letter(stage)
    return [_judge("exit", each, catalog, letter, baseline, records) for each in catalog.stages[letter].exit]


def _judge(
    when: str, criterion: Criterion, catalog: Catalog, stage: str, baseline: str, records: Sequence[Record]
) -> Judged:
    if criterion.id == "baseline_measured":
        return _baseline_measured(when, criterion, baseline, records)
    return _verdicts(when, criterion, catalog, stage, records)


def _baseline_measured(when: str, criterion: Criterion, baseline: str, records: Sequence[Record]) -> Judged:
    """A valid, measured boot of the baseline of now, with packed rows in every layer of every rank."""
    found = [
        record
        for record in records
        if record["kind"] == "boot" and record["resolved"]["generation"] == baseline and record["bench"] is not None
    ]
    if not found:
        return Judged(when, criterion.says, False, f"no measured boot of {baseline}")
    last = found[-1]
    valid = last["outcome"]["state"] == "valid"
    packed = all(
        rank["engram"] and all(layer["packed"] for layer in rank["engram"]) for rank in last["observed"]["ranks"]
    )
    observed = f"{last['boot_id']} {last['outcome']['state']}" + ("" if packed else ", not packed on every rank")
    return Judged(when, criterion.says, valid and packed, observed)


def _verdicts(when: str, criterion: Criterion, catalog: Catalog, stage: str, records: Sequence[Record]) -> Judged:
    """Every named feature, or every one of the stage that can be tried, has a trial's record."""
    names = criterion.features or tuple(
        name
        for name in catalog.features_of(stage)
        if catalog.features[name].available and catalog.features[name].tried and not catalog.features[name].control
    )
    verdicts: dict[str, str] = {}
    for record in records:
        if record["kind"] == "trial" and record["requested"]["feature"] in names:
            verdicts[record["requested"]["feature"]] = record["outcome"]["verdict"]
    observed = ", ".join(f"{name} {verdicts.get(name, 'not tried')}" for name in names) or "nothing can be tried"
    untried = [name for name in names if name not in verdicts]
    goes_on = f"stage {stage} goes on: not tried yet: {', '.join(untried)}" if when == "exit" and untried else ""
    return Judged(when, criterion.says, not untried, observed, goes_on)
