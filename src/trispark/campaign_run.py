"""Runs one campaign on the real site, with the playbooks of its stages as children."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from trispark.campaign import GO_ON, Campaign, CampaignEntry, load_campaign, published
from trispark.campaign_walk import CampaignEnd, CampaignWalker, StageEnd
from trispark.errors import TrisparkError
from trispark.host.locks import alone
from trispark.host.state import private_directory, state_directory
from trispark.plan import Ground
from trispark.records import RecordCache
from trispark.reporting import Report
from trispark.runner import run_playbook
from trispark.walk import Clock
from trispark.walk_child import SystemClock, child_end
from trispark.walk_journal import Journal
from trispark.walk_plan import WalkPlan, plan_walk
from trispark.walk_time import boot_times

LOCK_FILE: Final = "campaign.lock"


@dataclass(frozen=True)
class StagePlaybooks:
    """The stages' playbooks on one site. `arguments`: what `walk_child.child_arguments` gave."""

    root: Path
    site: str
    campaign: Campaign
    arguments: Sequence[str]

    def stage(self, entry: CampaignEntry, trial: str, deadline: datetime | None, drain_s: float) -> StageEnd:
        limit = "" if deadline is None else deadline.astimezone(self.campaign.zone).isoformat(timespec="seconds")
        result = run_playbook(
            self.root,
            f"stage_{entry.stage}",
            site=self.site,
            extra={
                "feature": entry.feature,
                "value": entry.value_text,
                "trial_id": trial,
                "deadline": limit,
                "drain_deadline_s": f"{drain_s:g}",
            },
            arguments=self.arguments,
        )
        end = child_end(result)
        return StageEnd(end.interrupted, end.lines, result.published, end.seconds)


def campaigns_directory(root: Path, site: str) -> Path:
    """Where the controller keeps the journals of a site's campaigns."""
    return root / ".trispark" / site / "campaigns"


def campaign_at(root: Path, site_name: str, name: str) -> tuple[Ground, Campaign]:
    """The campaign and what its trials are planned from. Raises TS-CAMPAIGN-*, TS-SITE-*, TS-CATALOG-*, TS-YAML-*."""
    ground = Ground.load(root, site_name)
    return ground, load_campaign(root, ground.site, name)


def run_campaign(
    root: Path,
    site: str,
    name: str,
    arguments: Sequence[str],
    say: Callable[[str], None],
    clock: Clock | None = None,
) -> tuple[Campaign, CampaignEnd]:
    """Begin the campaign, or go on with it. Raises TS-CAMPAIGN-*, what `campaign_at` raises, and WalkInterrupted."""
    with _alone(root, site):
        walker = _walker(root, site, name, arguments, say, clock)
        return walker.campaign, walker.walk()


def outline_campaign(root: Path, site: str, name: str, clock: Clock | None = None) -> list[str]:
    """What `run_campaign` would begin, a line an entry; starts nothing and writes nothing but its lock. Raises the
    same."""
    with _alone(root, site):
        return _walker(root, site, name, (), lambda _line: None, clock).outline()


def _alone(root: Path, site: str) -> AbstractContextManager[None]:
    lock = private_directory(state_directory(root) / site) / LOCK_FILE
    return alone(lock, error_id="TS-CAMPAIGN-BUSY", doing="campaign", wait_s=0, say=lambda _line: None)


def _walker(
    root: Path, site: str, name: str, arguments: Sequence[str], say: Callable[[str], None], clock: Clock | None
) -> CampaignWalker:
    ground, campaign = campaign_at(root, site, name)

    def plan(entry: CampaignEntry, trial: str) -> WalkPlan:
        return plan_walk(ground, trial, entry.stage, entry.feature, entry.value_text or None)

    return CampaignWalker(
        root=root,
        site=site,
        campaign=campaign,
        journal=Journal(campaigns_directory(root, site) / name),
        stages=StagePlaybooks(root, site, campaign, arguments),
        clock=clock or SystemClock(),
        say=say,
        times=boot_times(ground.site, RecordCache(root / ".trispark" / site / "records").list()),
        plan=plan,
    )


def report(campaign: Campaign, end: CampaignEnd) -> Report:
    """For people and for the caller. A list that is paused or has ended is no failure; one that was stopped is, and so
    is one of which a trial broke."""
    lines = [f"campaign {campaign.name}: {end.state}" + (f": {end.reason}" if end.reason else "")]
    lines += [f"{each.label}: {', '.join(each.verdicts) or each.state}" for each in end.ends]
    result: Mapping[str, Any] = published(campaign, end.ends, end.state, end.reason)
    broken = [f"{each.label}: {each.reason}" for each in end.ends if each.state == "failed"]
    failure = ""
    if end.state == "stopped":
        failure = _failure(
            "TS-CAMPAIGN-STOPPED", "the campaign stopped before its end", campaign, end.reason, end.remedy
        )
    elif broken:
        failure = _failure(
            "TS-CAMPAIGN-FAILED",
            "trials of the campaign broke before anything of them was begun",
            campaign,
            " | ".join(broken),
            f"mend what the line names; then {GO_ON}",
        )
    return Report(lines, dict(result), failure)


def _failure(error_id: str, what: str, campaign: Campaign, observed: str, remedy: str) -> str:
    where = f"campaign {campaign.name}"
    return str(TrisparkError(error_id, what, where, "the end of every trial of the list", observed, remedy))
