"""A campaign: a declared list of trials, walked one after the other inside a maintenance window.

The list is `inventory/<site>/campaigns/<name>.yml`, or `experiments/campaigns/<name>.yml` for every site. What this
file decides is pure: when no boot may begin any more, and when the whole list stops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from trispark.allowlist import format_value
from trispark.catalog import Raw
from trispark.errors import TrisparkError
from trispark.plainyaml import Strict, check_model, read_yaml
from trispark.site import Site

SHARED_DIRECTORY: Final = "experiments/campaigns"
NAME: Final = r"[a-z0-9][a-z0-9_-]{0,63}"
CLOCK: Final = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
MAX_FAILED_STARTS: Final = 2
"""After so many boots of one campaign that did not start, it stops."""
UTC_ZONE: Final = "UTC"


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


class Window(Strict):
    """Local times of the site: production may be stopped from `begin` on, and serves again by `back_by`."""

    begin: Annotated[str, Field(pattern=CLOCK)] | None = None
    back_by: Annotated[str, Field(pattern=CLOCK)]

    @model_validator(mode="after")
    def _open(self) -> Window:
        if self.begin == self.back_by:
            raise ValueError(f"begin and back_by are both {self.begin}, the window would be empty")
        return self


class CampaignFile(Strict):
    """One campaign. `deadline`: local time of the site, after which nothing of it may be under way; `window`: instead
    of the site's own (site_unattended_window); `drain_s`: how long running requests may take to end before production
    is stopped."""

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
        if self.deadline is not None:
            try:
                datetime.fromisoformat(self.deadline)
            except ValueError:
                raise ValueError(f"{self.deadline} is no ISO 8601 time") from None
        return self


@dataclass(frozen=True)
class Campaign:
    """A campaign file, checked. `digest`: of its bytes."""

    name: str
    path: Path
    digest: str
    file: CampaignFile
    zone: ZoneInfo
    window: Window | None

    @property
    def entries(self) -> tuple[CampaignEntry, ...]:
        return self.file.entries

    @property
    def deadline(self) -> datetime | None:
        """The absolute one, in UTC."""
        if self.file.deadline is None:
            return None
        found = datetime.fromisoformat(self.file.deadline)
        return (found if found.tzinfo is not None else found.replace(tzinfo=self.zone)).astimezone(UTC)


def load_campaign(root: Path, site: Site, name: str) -> Campaign:
    """The site's own campaign of this name before the shared one.

    Raises TS-CAMPAIGN-UNKNOWN with the list of those there are, TS-CAMPAIGN-SCHEMA, TS-CAMPAIGN-ZONE, TS-YAML-*.
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
    file = check_model(CampaignFile, read_yaml(path), str(path.relative_to(root)), "TS-CAMPAIGN-SCHEMA")
    own_window = site.unattended_window
    zone_name = own_window.time_zone if own_window is not None else UTC_ZONE
    window = file.window
    if window is None and own_window is not None:
        window = Window(begin=own_window.begin, back_by=own_window.back_by)
    return Campaign(
        name=name,
        path=path,
        digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        file=file,
        zone=_zone(zone_name, site),
        window=window,
    )


def _zone(name: str, site: Site) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise TrisparkError(
            "TS-CAMPAIGN-ZONE",
            f"this machine does not know the time zone {name}",
            where=f"{site.path}: site_unattended_window",
            expected="a name of the tz database, such as Europe/Berlin",
            observed=f"{type(error).__name__}: {error}"[:120],
            remedy="install the package tzdata, or correct the name",
        ) from None


def closing(campaign: Campaign, now: datetime) -> datetime | None:
    """When everything of the campaign must be over, production serving again; None for no limit.

    Outside the window that is `now` itself: no boot may begin, what was left half done is only brought back.
    """
    limits = [] if campaign.deadline is None else [campaign.deadline]
    if campaign.window is not None:
        found = _open_window(campaign.window, campaign.zone, now)
        limits.append(now if found is None else found)
    return min(limits, default=None)


def _open_window(window: Window, zone: ZoneInfo, now: datetime) -> datetime | None:
    """The end of the window that is open at `now`, None when it is shut; it may have begun the day before."""
    today = now.astimezone(zone).date()
    for day in (today + timedelta(days=offset) for offset in (-1, 0, 1)):
        over_midnight = window.begin is not None and window.back_by < window.begin
        end = _at(day + timedelta(days=1 if over_midnight else 0), window.back_by, zone)
        begun = window.begin is None or _at(day, window.begin, zone) <= now
        if begun and now < end:
            return end
    return None


def _at(day: date, text: str, zone: ZoneInfo) -> datetime:
    """That local time in UTC, so that times compare over a change of the clocks; of one that comes twice the first."""
    return datetime.combine(day, time.fromisoformat(text), zone).astimezone(UTC)


@dataclass(frozen=True)
class EntryEnd:
    """How a trial of the list ended. `down`: it took a node down; `verdicts` of its records."""

    label: str
    trial: str
    state: Literal["ended", "paused", "refused"]
    reason: str
    verdicts: tuple[str, ...] = ()
    restored: bool = True
    down: bool = False
    failed_starts: int = 0
    invalid: bool = False


def stop_reason(campaign: Campaign, ends: Sequence[EntryEnd]) -> str | None:
    """Why the campaign stops after the trials that have ended so far; None to go on."""
    for end in ends:
        if end.state == "ended" and not end.restored:
            return f"{end.label}: the baseline does not serve again"
    failed = sum(end.failed_starts for end in ends)
    if failed >= MAX_FAILED_STARTS:
        return f"{failed} boots did not start"
    for end in ends:
        found = {
            StopOn.NODE_DOWN: end.down,
            StopOn.INVALID_BOOT: end.invalid,
            StopOn.KEEP: "KEEP" in end.verdicts,
            StopOn.REJECT: "REJECT" in end.verdicts,
        }
        for cause in campaign.file.stop_on:
            if found[cause]:
                return f"{end.label}: {end.reason or cause.value} (stop_on: {cause.value})"
    return None


def published(campaign: Campaign, ends: Sequence[EntryEnd], state: str, reason: str) -> Mapping[str, Any]:
    """What the playbook hands to its caller."""
    done = {end.label for end in ends if end.state != "paused"}
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
