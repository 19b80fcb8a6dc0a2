"""One judged check of a boot, as every judge gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class GateResult:
    """One judged check. `rank` is None for a check of the whole fleet."""

    check_id: str
    rank: int | None
    ok: bool
    expected: str
    observed: str
    remedy: str = ""

    def line(self) -> str:
        """`check_id, rank r: expected ...; observed ...; do: ...`."""
        place = "" if self.rank is None else f" on rank {self.rank}"
        text = f"{self.check_id}{place}: expected {self.expected}; observed {self.observed}"
        return text if self.ok or not self.remedy else f"{text}; do: {self.remedy}"

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def failed_line(bad: Sequence[GateResult], plan: Mapping[str, Any]) -> str:
    """The first of the failed gates, and where the others can be read: a look that is no boot leaves no record."""
    first, more = bad[0].line(), len(bad) - 1
    if not more:
        return first
    boot = f"./trispark records show {plan['boot_id']} has them"
    place = "the events of this run have them" if plan["purpose"] == "verify" else boot
    return f"{first} (and {more} more: {place})"
