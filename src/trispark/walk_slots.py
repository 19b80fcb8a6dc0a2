"""What is known of the boots of a walk from its plan, its journal and the records; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from trispark.trial_metrics import is_decided
from trispark.walk_journal import History
from trispark.walk_plan import Slot, WalkPlan
from trispark.walk_time import BootTimes, fits

MAX_ATTEMPTS: Final = 2
MAX_FAILED_STARTS: Final = 2
Record = Mapping[str, Any]


def record_of(plan: WalkPlan, slot: int, records: Sequence[Record]) -> Record | None:
    """The newest record of the boot of a slot of this walk. `records`: oldest first."""
    found = [
        record
        for record in records
        if record["kind"] == "boot"
        and record["requested"]["trial"] == plan.walk
        and record["requested"].get("slot") == slot
    ]
    return found[-1] if found else None


def why_pointless(plan: WalkPlan, slot: Slot, records: Sequence[Record]) -> str | None:
    """Why a boot need not be made; None when it has to be.

    Every trial that it is for had a candidate that was not valid, so that it cannot end with KEEP, or was decided by
    the boots before it.
    """

    def lost(trial: int) -> bool:
        earlier = [each for each in plan.slots if each.slot < slot.slot and trial in each.trials]
        found = [record_of(plan, each.slot, records) for each in earlier if each.arm == "candidate"]
        return any(record is not None and record["outcome"]["state"] != "valid" for record in found)

    if all(lost(trial) for trial in slot.trials):
        return "an earlier boot of this candidate is not valid"
    found = {each.slot: record for each in plan.slots if (record := record_of(plan, each.slot, records)) is not None}
    return "the boots before it have decided the trial" if is_decided(plan, slot, found) else None


def goes_on(
    plan: WalkPlan,
    history: History,
    records: Sequence[Record],
    times: BootTimes,
    now: datetime,
    deadline: datetime | None,
) -> bool:
    """Whether a walk that is resumed now has a boot of its trials to begin; else it only brings the baseline back.

    Known without asking a node: a host that was started anew meanwhile can still end the walk before that boot.
    """
    if history.ended or history.stopped or history.nodes_down() or history.failed_starts() >= MAX_FAILED_STARTS:
        return False
    for slot in plan.slots:
        record = record_of(plan, slot.slot, records)
        if record is not None:
            if slot.arm == "baseline" and record["outcome"]["state"] != "valid":
                return False
        elif why_pointless(plan, slot, records) is None:
            return history.attempts(slot.slot) < MAX_ATTEMPTS and fits(now, deadline, times, measured=slot.counted)
    return False
