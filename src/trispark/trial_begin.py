"""What a stage's playbook is to do, decided before a node is asked: a new trial, or how one that was begun goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from trispark.errors import TrisparkError
from trispark.plan import Ground, read_boots
from trispark.play_variables import refuse_misspelled
from trispark.records import RecordCache
from trispark.site import Site, load_site
from trispark.site_time import read_time
from trispark.stage_playbook import playbook_of
from trispark.stages import entry
from trispark.walk_journal import Journal
from trispark.walk_plan import (
    WalkPlan,
    kept_walk,
    plan_walk,
    require_feature,
    require_same_walk,
    walks_directory,
    was_begun,
)
from trispark.walk_run import require_need
from trispark.walk_slots import goes_on
from trispark.walk_time import boot_times


@dataclass(frozen=True)
class TrialAsked:
    """What a person, or a campaign, asked for; texts as they were given, empty for what was not.

    `resume`: id of a trial that was begun; `trial`: of a new one, or of one that may have been begun; `agreed`: ids of
    plans; `boots`: counted boots an arm; `misplaced`: names of variables that look like catalog keys; `names`: of all
    other variables; `seen_site`: the site's variables as the playbook sees them.
    """

    root: Path
    site: str
    stage: str
    feature: str = ""
    value: str = ""
    resume: str = ""
    trial: str = ""
    agreed: str = ""
    deadline: str = ""
    drain: str = ""
    boots: str = ""
    misplaced: Sequence[str] = ()
    names: Sequence[str] = ()
    seen_site: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class TrialBegin:
    """`refused`: why a begun trial cannot go on, so that it is only brought back; empty when it can.

    `boots`: whether a boot of the trial may begin; else the nodes need no preparation and production no drain.
    `deadline`: in UTC, None for none; `drain_s`: how long running requests may take to end, 0 for no drain.
    """

    walk: str
    feature: str
    value: str
    resumed: bool
    refused: str
    boots: bool
    deadline: datetime | None
    drain_s: float
    lines: list[str]


def begin_trial(asked: TrialAsked, now: datetime, new_id: str) -> TrialBegin:
    """Reads only. `new_id`: of a trial that was given none.

    Raises TS-PLAY-VARIABLE, TS-DRAIN-SECONDS, TS-TIME-*, TS-WALK-*, TS-SITE-*, and why the trial cannot be planned,
    except for one whose boots were begun: that one is brought back.
    """
    refuse_misspelled(playbook_of(asked.stage), asked.names)
    drain_s = _seconds(asked.drain)
    walk = asked.resume or (asked.trial if was_begun(asked.root, asked.site, asked.trial) else "")
    records = RecordCache(asked.root / ".trispark" / asked.site / "records").list()
    if not walk:
        ground, plan = _planned(
            asked, asked.trial or new_id, asked.feature, asked.value, asked.agreed, read_boots(asked.boots)
        )
        require_need(ground.catalog, plan, records)
        return TrialBegin(
            walk=plan.walk,
            feature=asked.feature,
            value=asked.value,
            resumed=False,
            refused="",
            boots=True,
            deadline=_deadline(asked.deadline, ground.site),
            drain_s=drain_s,
            lines=_lines(ground, plan, records),
        )
    kept = kept_walk(asked.root, asked.site, walk)
    require_feature(kept, asked.stage, asked.feature, asked.value, asked.agreed, read_boots(asked.boots))
    history = Journal(walks_directory(asked.root, asked.site) / walk).read()
    refused = ""
    try:
        ground, plan = _planned(asked, walk, kept.feature, kept.value or "", "", kept.boots)
        require_same_walk(kept, plan)
        site, lines = ground.site, _lines(ground, plan, records)
    except TrisparkError as error:
        if not history.unfinished:
            raise
        refused = str(error)
        site = load_site(asked.root / "inventory" / asked.site, images="optional")
        lines = [f"trial {walk} cannot go on, what it has begun is brought back: {refused}"]
    deadline = _deadline(asked.deadline, site)
    boots = not refused and goes_on(kept, history, records, boot_times(site, records), now, deadline)
    return TrialBegin(
        walk=walk,
        feature=kept.feature,
        value=kept.value or "",
        resumed=True,
        refused=refused,
        boots=boots,
        deadline=deadline,
        drain_s=drain_s if boots else 0.0,
        lines=lines,
    )


def _planned(
    asked: TrialAsked, walk: str, feature: str, value: str, agreed: str, boots: int | None
) -> tuple[Ground, WalkPlan]:
    ground = Ground.load(asked.root, asked.site).for_stage(asked.stage)
    ground.catalog.refuse_misplaced(dict.fromkeys(asked.misplaced, "-e or a variable of the inventory"))
    ground.site.refuse_other_values(asked.seen_site or {})
    return ground, plan_walk(ground, walk, asked.stage, feature, value, agreed, boots)


def _lines(ground: Ground, plan: WalkPlan, records: Sequence[Mapping[str, Any]]) -> list[str]:
    criteria = entry(ground.catalog, plan.stage, plan.site_baseline, records)
    return [*plan.lines(), *(judged.line() for judged in criteria)]


def _deadline(text: str, site: Site) -> datetime | None:
    return read_time(text, site.time_zone, "-e deadline") if text else None


def _seconds(text: str) -> float:
    try:
        found = float(text or 0)
        if not math.isfinite(found) or found < 0:
            raise ValueError
    except ValueError:
        raise TrisparkError(
            "TS-DRAIN-SECONDS",
            "this is no time to wait for running requests",
            where="-e drain_deadline_s",
            expected="seconds, 0 for no drain",
            observed=text[:80],
            remedy="write a number, such as 600",
        ) from None
    return found
