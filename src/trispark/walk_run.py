"""Runs one walk on the real site: takes the lock, plans from what the nodes hold, walks, says what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from trispark.benchstats import summarize
from trispark.catalog import Catalog
from trispark.errors import TrisparkError
from trispark.host.locks import alone
from trispark.host.state import private_directory, state_directory
from trispark.plan import Ground
from trispark.preflight import refuse_damage, require_nodes
from trispark.promoted import on_nodes, write_cache
from trispark.record_chain import leading_head
from trispark.records import RecordCache
from trispark.staleness import unmet_need
from trispark.walk import Clock, WalkEnd, Walker
from trispark.walk_child import Playbooks, SystemClock, child_deadline_s
from trispark.walk_journal import Journal
from trispark.walk_plan import (
    WalkPlan,
    keep_walk,
    kept_walk,
    plan_walk,
    require_same_walk,
    walks_directory,
    was_begun,
)
from trispark.walk_time import boot_times

LOCK_FILE: Final = "walk.lock"


@dataclass(frozen=True)
class Walk:
    """What `trispark_walk` was asked for. `statuses`: answers of the nodes; `agreed`: ids of plans; `arguments`: for
    the child runs; with `check` nothing is started."""

    root: Path
    site: str
    stage: str
    feature: str
    value: str
    walk: str
    agreed: str
    statuses: Mapping[str, Mapping[str, Any]]
    deadline: datetime | None
    arguments: Sequence[str]
    check: bool


def run_walk(asked: Walk, say: Callable[[str], None], clock: Clock | None = None) -> WalkEnd:
    """Begin the walk, or go on with it where one with its id was begun.

    Raises TS-WALK-*, TS-PLAN-*, TS-PREFLIGHT-*, TS-BASELINE-*, TS-RECORD-FORK before anything is started, and
    WalkInterrupted.
    """
    root, site = asked.root, asked.site
    lock = private_directory(state_directory(root) / site) / LOCK_FILE
    with alone(lock, error_id="TS-WALK-BUSY", doing="trial", wait_s=0, say=lambda _line: None):
        cache = RecordCache(root / ".trispark" / site / "records")
        ground = _ground(asked, cache)
        plan = plan_walk(ground, asked.walk, asked.stage, asked.feature, asked.value or None, asked.agreed)
        directory = walks_directory(root, site) / asked.walk
        if was_begun(root, site, asked.walk):
            plan = _resumed(kept_walk(root, site, asked.walk), plan, Journal(directory), asked.check)
        else:
            require_need(ground.catalog, plan, cache.list())
            if not asked.check:
                keep_walk(directory, plan)
        if asked.check:
            return _would_walk(plan, say)
        walker = Walker(
            plan=plan,
            journal=Journal(directory),
            records=cache.list,
            children=Playbooks(root, plan, asked.arguments, child_deadline_s(ground.site)),
            clock=clock or SystemClock(),
            say=say,
            times=boot_times(ground.site, cache.list()),
            statuses=asked.statuses,
            deadline=asked.deadline,
            return_s=ground.site.start_deadline_s,
        )
        return walker.walk()


def _resumed(kept: WalkPlan, now: WalkPlan, journal: Journal, check: bool) -> WalkPlan:
    """The plan to go on with. One that has changed ends the walk: what it has begun is only brought back.

    Raises TS-PLAN-CHANGED where nothing is to be brought back.
    """
    try:
        require_same_walk(kept, now)
    except TrisparkError as error:
        history = journal.read()
        if check or history.ended or history.last_start() is None:
            raise
        if history.stopped is None:
            journal.write("stopped", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", reason=str(error))
    return kept


def require_need(catalog: Catalog, plan: WalkPlan, records: Sequence[Mapping[str, Any]]) -> None:
    """Raises TS-FEATURE-NEED when the newest valid boot of the baseline did not measure what the feature needs."""
    measured: dict[str, float] | None = None
    for record in records:
        baseline = record["kind"] == "boot" and record["resolved"]["generation"] == plan.trials[0].baseline
        if baseline and record["outcome"]["state"] == "valid" and record["bench"] is not None:
            measured = summarize(record["bench"]).measured()
    problem = unmet_need(plan.feature, measured, catalog)
    if problem is not None:
        raise problem


def _ground(asked: Walk, cache: RecordCache) -> Ground:
    """What is planned from, with the baseline that the nodes hold; refused before anything is started."""
    promoted = on_nodes(asked.statuses)
    if not asked.check:
        write_cache(asked.root, asked.site, promoted)
    ground = Ground.load(asked.root, asked.site)
    require_nodes(ground.site, asked.statuses)
    for node, status in sorted(asked.statuses.items()):
        refuse_damage(node, status)
    # A fork would be found after a boot otherwise, which then had no record.
    leading_head({node: status.get("record_head") for node, status in asked.statuses.items()}, cache)
    return ground


def _would_walk(plan: WalkPlan, say: Callable[[str], None]) -> WalkEnd:
    for slot in plan.slots:
        say(f"slot {slot.slot + 1}/{len(plan.slots) + 1} {slot.label}: {slot.generation} would be booted ({slot.why})")
    say(f"slot {len(plan.slots) + 1}/{len(plan.slots) + 1} baseline: {plan.site_baseline} would be restored")
    return WalkEnd("paused", "check mode starts no boot", None, 0)
