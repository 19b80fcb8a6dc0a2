"""A campaign: a declared list of trials, walked one after the other inside a maintenance window.

The list is `inventory/<site>/campaigns/<name>.yml`, or `experiments/campaigns/<name>.yml` for every site. What this
file decides is pure: when no boot may begin any more, and when the whole list stops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from trispark.allowlist import format_value
from trispark.catalog import Raw
from trispark.errors import TrisparkError
from trispark.fleet_lock import AREA
from trispark.plainyaml import Strict, check_model, read_yaml
from trispark.site import Site
from trispark.site_time import Window, read_time, zone_named

SHARED_DIRECTORY: Final = "experiments/campaigns"
MAX_FAILED_STARTS: Final = 2
"""After so many boots of one campaign that did not start, it stops."""
OF_A_TRIAL: Final = frozenset({"deadline", "drain_deadline_s", "feature", "plan", "resume", "trial_id", "value"})
"""Variables of the stages' playbooks: a campaign gives them to each trial itself."""
ROLL_BACK: Final = "playbooks/rollback.yml brings back what was good"
GO_ON: Final = "the same campaign again goes on"
REST: Final = "the rest of the list can be walked under another name"


class StopOn(StrEnum):
    """What else ends a campaign before its list does. A baseline that is not restored always does."""

    NODE_DOWN = "node_down"
    INVALID_BOOT = "invalid_boot"
    KEEP = "keep"
    REJECT = "reject"


class CampaignEntry(Strict):
    """One trial, or of a sweep without `value` one a value."""

    stage: Annotated[str, Field(pattern=r"^[a-g]$")]
    feature: str
    value: Raw | None = None

    @property
    def value_text(self) -> str:
        return "" if self.value is None else format_value(self.value)

    @property
    def label(self) -> str:
        """`c wo_a`, `b block_size=5`."""
        return f"{self.stage} {self.feature}" + (f"={self.value_text}" if self.value is not None else "")


class CampaignFile(Strict):
    """One campaign. `deadline`: after it nothing of the campaign may be under way; `window`: instead of the site's own
    (site_unattended_window); `drain_s`: how long running requests may take to end before production is stopped.

    Times are local times of the window's zone, else of the site's.
    """

    schema_version: Literal[1]
    summary: str
    entries: tuple[CampaignEntry, ...] = Field(min_length=1)
    deadline: str | None = None
    window: Window | None = None
    drain_s: Annotated[float | int, Field(ge=0, le=86400)] = 600
    stop_on: tuple[StopOn, ...] = (StopOn.NODE_DOWN,)

    @model_validator(mode="after")
    def _sane(self) -> CampaignFile:
        labels = [entry.label for entry in self.entries]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is there twice")
        return self


@dataclass(frozen=True)
class Campaign:
    """A campaign file, checked. `digest`: of its bytes; `zone`: of the window; `deadline`: in UTC."""

    name: str
    path: Path
    digest: str
    file: CampaignFile
    zone: tzinfo
    window: Window | None
    deadline: datetime | None

    @property
    def entries(self) -> tuple[CampaignEntry, ...]:
        return self.file.entries


def load_campaign(root: Path, site: Site, name: str) -> Campaign:
    """The site's own campaign of this name before the shared one.

    Raises TS-CAMPAIGN-UNKNOWN with the list of those there are, TS-CAMPAIGN-SCHEMA, TS-TIME-*, TS-YAML-*.
    """
    own, shared = root / "inventory" / site.name / "campaigns", root / SHARED_DIRECTORY
    known = sorted({path.stem for place in (own, shared) for path in place.glob("*.yml")})
    if name not in known:
        raise TrisparkError(
            "TS-CAMPAIGN-UNKNOWN",
            "there is no such campaign" if name else "no campaign given",
            where=f"{own.relative_to(root)}/, {SHARED_DIRECTORY}/",
            expected=f"one of {', '.join(known)}" if known else "a file NAME.yml in one of them",
            observed=name or "nothing",
            remedy=f"-e campaign={known[0]}" if known else "write one, docs/reference.md says how",
        )
    path = next(place / f"{name}.yml" for place in (own, shared) if (place / f"{name}.yml").is_file())
    where = str(path.relative_to(root))
    file = check_model(CampaignFile, read_yaml(path), where, "TS-CAMPAIGN-SCHEMA")
    window = file.window or site.unattended_window
    zone = (None if window is None else window.time_zone) or site.time_zone
    return Campaign(
        name=name,
        path=path,
        digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        file=file,
        zone=UTC if window is None else zone_named(zone, f"{where} window"),
        window=window,
        deadline=None if file.deadline is None else read_time(file.deadline, zone, f"{where} deadline"),
    )


def refuse_variables(given: Collection[str]) -> None:
    """Raises TS-CAMPAIGN-VARIABLE when `given`, names of variables, has one that a campaign gives to its trials."""
    found = sorted(OF_A_TRIAL & set(given))
    if found:
        raise TrisparkError(
            "TS-CAMPAIGN-VARIABLE",
            "variables of a trial were given to a campaign, which has trials of its own",
            where="-e or a variable of the inventory",
            expected="campaign alone; what holds for its trials is in the list",
            observed=", ".join(found),
            remedy="leave them out; a campaign that was begun goes on when it is started again",
        )


def closing(campaign: Campaign, now: datetime) -> datetime | None:
    """When everything of the campaign must be over, production serving again; None for no limit.

    Outside the window that is `now` itself: no boot may begin, what was left half done is only brought back.
    """
    limits = [] if campaign.deadline is None else [campaign.deadline]
    if campaign.window is not None:
        found = _open_window(campaign.window, campaign.zone, now)
        limits.append(now if found is None else found)
    return min(limits, default=None)


def _open_window(window: Window, zone: tzinfo, now: datetime) -> datetime | None:
    """The end of the window that is open at `now`, None when it is shut; it may have begun the day before."""
    today = now.astimezone(zone).date()
    for day in (today + timedelta(days=offset) for offset in (-1, 0, 1)):
        over_midnight = window.begin is not None and window.back_by < window.begin
        end = _at(day + timedelta(days=1 if over_midnight else 0), window.back_by, zone)
        begun = window.begin is None or _at(day, window.begin, zone) <= now
        if begun and now < end:
            return end
    return None


def _at(day: date, text: str, zone: tzinfo) -> datetime:
    """That local time in UTC, so that times compare over a change of the clocks; of one that comes twice the first."""
    return datetime.combine(day, time.fromisoformat(text), zone).astimezone(UTC)


@dataclass(frozen=True)
class EntryEnd:
    """How a trial of the list ended. `ended`: with its records; `paused`: it goes on later; `refused`: it was left out;
    `failed`: it broke before its end, `reason` says how.

    `restored` is False when a boot of it was begun and the baseline is not known to serve again; `down`: it took a node
    down; `verdicts` of its records.
    """

    label: str
    trial: str
    state: Literal["ended", "paused", "refused", "failed"]
    reason: str
    verdicts: tuple[str, ...] = ()
    restored: bool = True
    down: bool = False
    invalid: bool = False


@dataclass(frozen=True)
class Stop:
    """Why a campaign stops before its list ends, and what to do."""

    reason: str
    remedy: str


def stop_reason(campaign: Campaign, ends: Sequence[EntryEnd], failed_starts: int) -> Stop | None:
    """Whether the campaign stops after the trials that have ended so far; None to go on.

    `failed_starts`: boots of all its trials that did not start.
    """
    for end in ends:
        if end.restored:
            continue
        reason = f"{end.label}: the baseline does not serve again"
        if end.state == "failed":
            reason = f"{end.label} broke in the middle of its boots, production may be down: {end.reason}"
        return Stop(reason, f"{ROLL_BACK}; then {REST if end.state == 'ended' else GO_ON}")
    for end in ends:
        if end.state == "failed" and AREA in end.reason:
            return Stop(f"{end.label}: another command works on the fleet: {end.reason}", GO_ON)
    if failed_starts >= MAX_FAILED_STARTS:
        return Stop(f"{failed_starts} boots did not start", f"look at the logs of the trials; {REST}")
    for end in ends:
        found = {
            StopOn.NODE_DOWN: end.down,
            StopOn.INVALID_BOOT: end.invalid,
            StopOn.KEEP: "KEEP" in end.verdicts,
            StopOn.REJECT: "REJECT" in end.verdicts,
        }
        for cause in campaign.file.stop_on:
            if found[cause]:
                return Stop(
                    f"{end.label}: {end.reason or cause.value} (stop_on: {cause.value})", f"look at that trial; {REST}"
                )
    return None


def published(campaign: Campaign, ends: Sequence[EntryEnd], state: str, reason: str) -> Mapping[str, Any]:
    """What the playbook hands to its caller. `left`: trials that the same campaign still has before it."""
    done = {end.label for end in ends if end.state in ("ended", "refused")}
    return {
        "campaign": {
            "name": campaign.name,
            "state": state,
            "reason": reason,
            "entries": [
                {
                    "label": end.label,
                    "trial": end.trial,
                    "state": end.state,
                    "verdicts": list(end.verdicts),
                    "reason": end.reason,
                }
                for end in ends
            ],
            "left": [entry.label for entry in campaign.entries if entry.label not in done],
        }
    }
