"""Reads the controller's cache of a site's records, ``.trispark/<site>/records/<seq>-<id>.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark.errors import TrisparkError


@dataclass(frozen=True)
class CachedRecord:
    """One record as its file gives it. ``seq`` is -1 where the file name has none."""

    seq: int
    id: str
    path: Path
    content: dict[str, Any]

    def summary(self) -> dict[str, Any]:
        """Kind, outcome and generation where the record has them at its top or in its outcome."""
        outcome = self.content.get("outcome")
        state = outcome.get("state") or outcome.get("verdict") if isinstance(outcome, dict) else outcome
        return {
            "seq": self.seq,
            "id": self.id,
            "kind": self.content.get("kind"),
            "outcome": state,
            "path": str(self.path),
        }


def cached_records(repo: Path, site: str) -> list[CachedRecord]:
    """All cached records by their numbers. Raises TS-RECORD-UNREADABLE for a file that is no JSON object."""
    found = []
    for path in (repo / ".trispark" / site / "records").glob("*.json"):
        number, _, name = path.stem.partition("-")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise _unreadable(path.relative_to(repo), str(error)) from error
        if not isinstance(content, dict):
            raise _unreadable(path.relative_to(repo), type(content).__name__)
        seq = int(number) if number.isdigit() else -1
        found.append(CachedRecord(seq, name if seq >= 0 else path.stem, path.relative_to(repo), content))
    return sorted(found, key=lambda record: (record.seq, record.id))


def find_record(records: list[CachedRecord], wanted: str) -> CachedRecord:
    """By number, id, or the beginning of an id that only one record has. Raises TS-RECORD-UNKNOWN."""
    exact = [record for record in records if wanted in (record.id, str(record.seq), record.path.stem)]
    matches = exact or [record for record in records if wanted and record.id.startswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    raise TrisparkError(
        id="TS-RECORD-UNKNOWN",
        what=f"no single record {wanted}",
        expected="a number or id of `./trispark records list`",
        observed=f"{len(matches)} records match" if records else "no records are cached for this site",
    )


def _unreadable(path: Path, observed: str) -> TrisparkError:
    return TrisparkError(
        id="TS-RECORD-UNREADABLE",
        what="a cached record is no JSON object",
        where=str(path),
        observed=observed,
        remedy="remove the file; the nodes hold the record and the next boot fetches it again",
    )
