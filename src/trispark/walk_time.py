"""How long a boot takes at a site, from its own records or as the site declares; and whether one still fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from trispark.site import Site

NEWEST: Final = 5
"""Of so many newest boots the longest counts: a deadline is not met on average."""


@dataclass(frozen=True)
class BootTimes:
    """Seconds of a measured boot and of one without measurement, such as the one that restores the baseline."""

    measured_s: float
    plain_s: float

    def of(self, *, measured: bool) -> float:
        return self.measured_s if measured else self.plain_s


def boot_times(site: Site, records: Sequence[Mapping[str, Any]]) -> BootTimes:
    """From the newest valid boots in `records`, else what the site declares, else its deadlines.

    A boot without measurement is taken to need no longer than a measured one where none was seen.
    """
    declared = site.boot_minutes
    otherwise = declared * 60 if declared is not None else site.start_deadline_s + site.stop_deadline_s
    measured = _longest(records, measured=True)
    plain = _longest(records, measured=False)
    longest = measured if measured is not None else otherwise
    return BootTimes(longest, plain if plain is not None else longest)


def _longest(records: Sequence[Mapping[str, Any]], *, measured: bool) -> float | None:
    seconds = [
        float(record["timings"]["phases"]["total"])
        for record in records
        if record["kind"] == "boot"
        and record["outcome"]["state"] == "valid"
        and (record["bench"] is not None) is measured
        and "total" in record["timings"]["phases"]
    ]
    return max(seconds[-NEWEST:], default=None)


def fits(now: datetime, deadline: datetime | None, times: BootTimes, *, measured: bool) -> bool:
    """Whether a boot that begins now and the restored baseline after it are done before the deadline."""
    if deadline is None:
        return True
    return now + timedelta(seconds=times.of(measured=measured) + times.plain_s) <= deadline
