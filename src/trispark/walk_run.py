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
from trispark.plan import Ground, read_boots
from trispark.preflight import refuse_damage, require_nodes
from trispark.promoted import on_nodes, write_cache
from trispark.record_chain import heads_of, leading_head
from trispark.records import RecordCache
from trispark.site import Site, load_site
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
    """What `trispark_walk` was asked for. `statuses`: answers of the nodes; `agreed`: ids of plans; `refused`: why a
    trial that was begun cannot be planned any more, empty when it can; `arguments`: for the child runs; with `check`
    nothing is started; `boots`: counted boots an arm, empty for as many as the site says."""

    root: Path
    site: str
    stage: str
    feature: str
    value: str
    walk: str
    agreed: str
    refused: str
    statuses: Mapping[str, Mapping[str, Any]]
    deadline: datetime | None
    arguments: Sequence[str]
    check: bool
    boots: str = ""


def run_walk(asked: Walk, say: Callable[[str], None], clock: Clock | None = None) -> WalkEnd:
    """Begin the walk, or go on with it where one with its id was begun.

    A begun one that cannot be planned any more, or only otherwise, is ended: what it has begun is only brought back.
    Raises TS-WALK-*, TS-PLAN-*, TS-SITE-*, TS-PREFLIGHT-*, TS-BASELINE-*, TS-RECORD-FORK before anything is started,
    and what `Walker.walk` raises.
    """
    root, name = asked.root, asked.site
    lock = private_directory(state_directory(root) / name) / LOCK_FILE
    with alone(lock, error_id="TS-WALK-BUSY", doing="trial", wait_s=0, say=lambda _line: None):
        cache = RecordCache(root / ".trispark" / name / "records")
        site = _require_nodes(asked, cache)
        journal = Journal(walks_directory(root, name) / asked.walk)
        plan, refused = _plan(asked, journal, cache)
        if asked.check:
            return _would_walk(plan, refused, say)
        if refused and journal.read().stopped is None:
            journal.write("stopped", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", reason=refused)
        walker = Walker(
            plan=plan,
            journal=journal,
            records=cache.list,
            children=Playbooks(root, plan, asked.arguments, child_deadline_s(site)),
            clock=clock or SystemClock(),
            say=say,
            times=boot_times(site, cache.list()),
            statuses=asked.statuses,
            deadline=asked.deadline,
            return_s=site.start_deadline_s,
        )
        return walker.walk()


def _plan(asked: Walk, journal: Journal, cache: RecordCache) -> tuple[WalkPlan, str]:
    """The plan, and why a begun walk must not go on with it; a new one is kept before it is begun.

    Raises why it cannot be planned where nothing is to be brought back.
    """
    if not was_begun(asked.root, asked.site, asked.walk):
        ground, plan = _planned(asked, asked.agreed, read_boots(asked.boots))
        require_need(ground.catalog, plan, cache.list())
        if not asked.check:
            keep_walk(journal.path.parent, plan)
        return plan, ""
    kept = kept_walk(asked.root, asked.site, asked.walk)
    history = journal.read()
    if asked.refused and history.unfinished:
        return kept, asked.refused
    try:
        require_same_walk(kept, _planned(asked, "", kept.boots)[1])
    except TrisparkError as error:
        if not history.unfinished:
            raise
        return kept, str(error)
    return kept, ""


def _planned(asked: Walk, agreed: str, boots: int | None) -> tuple[Ground, WalkPlan]:
    ground = Ground.load(asked.root, asked.site).for_stage(asked.stage)
    return ground, plan_walk(ground, asked.walk, asked.stage, asked.feature, asked.value or None, agreed, boots)


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


def _require_nodes(asked: Walk, cache: RecordCache) -> Site:
    """The site, whose nodes can do what follows; refused before anything is started.

    The controller's copy of the promoted baseline, from which is planned, becomes the one that the nodes hold.
    """
    promoted = on_nodes(asked.statuses)
    if not asked.check:
        write_cache(asked.root, asked.site, promoted)
    site = load_site(asked.root / "inventory" / asked.site, images="optional")
    require_nodes(site, asked.statuses)
    for node, status in sorted(asked.statuses.items()):
        refuse_damage(node, status)
    # A fork would be found after a boot otherwise, which then had no record.
    leading_head(heads_of(asked.statuses), cache)
    return site


def _would_walk(plan: WalkPlan, refused: str, say: Callable[[str], None]) -> WalkEnd:
    count = len(plan.slots) + 1
    if refused:
        say(f"trial {plan.walk} would end: {refused}")
    for slot in () if refused else plan.slots:
        say(f"slot {slot.slot + 1}/{count} {slot.label}: {slot.generation} would be booted ({slot.why})")
    say(f"slot {count}/{count} baseline: {plan.site_baseline} would be restored")
    return WalkEnd("paused", "check mode starts no boot", None, False, 0)
