"""Times as a site's files and a command line give them: a maintenance window, a deadline, and the zone of both."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from trispark.errors import TrisparkError
from trispark.plainyaml import Strict

Clock = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
ZoneName = Annotated[str, Field(pattern=r"^[A-Za-z]+(/[A-Za-z0-9_+-]+)*$")]
_NAMED: Final = "a name of the tz database, such as Europe/Berlin"


class Window(Strict):
    """Production may be stopped from `begin` on (None: at any time), and serves again by `back_by`.

    Both are local times of `time_zone`; None is the zone of the site.
    """

    begin: Clock | None = None
    back_by: Clock
    time_zone: ZoneName | None = None

    @model_validator(mode="after")
    def _open(self) -> Window:
        if self.begin == self.back_by:
            raise ValueError(f"begin and back_by are both {self.begin}, the window would be empty")
        return self


class SiteWindow(Window):
    """The window of a site, whose zone is the site's."""

    begin: Clock
    time_zone: ZoneName


def zone_named(name: str | None, where: str) -> ZoneInfo:
    """Raises TS-TIME-ZONE for None, where nothing says which zone is meant, and for a name that nobody knows here."""
    if name is None:
        raise TrisparkError(
            "TS-TIME-ZONE",
            "nothing says in which time zone this is",
            where=where,
            expected=f"{_NAMED}, or an offset after the time, such as +00:00",
            observed="no time zone, and the site has no site_unattended_window",
            remedy="add it there, or declare site_unattended_window",
        )
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise TrisparkError(
            "TS-TIME-ZONE",
            f"this machine does not know the time zone {name}",
            where=where,
            expected=_NAMED,
            observed=f"{type(error).__name__}: {error}"[:120],
            remedy="install the package tzdata, or correct the name",
        ) from None


def read_time(text: str, zone: str | None, where: str) -> datetime:
    """An ISO 8601 time, in UTC. One that says no zone is local time of `zone`. Raises TS-TIME-FORMAT, TS-TIME-ZONE."""
    try:
        found = datetime.fromisoformat(text.strip())
        if found.tzinfo is None:
            found = found.replace(tzinfo=zone_named(zone, f"{where} {text}"))
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise TrisparkError(
            "TS-TIME-FORMAT",
            "this is no time",
            where=where,
            expected="ISO 8601, such as 2026-01-02T06:00 or 2026-01-02T06:00+01:00",
            observed=text[:120],
            remedy="write it so",
        ) from None
