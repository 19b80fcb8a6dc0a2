"""Shows the controller's copies of a site's records (trispark.records.RecordCache)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trispark.records import RecordCache


def record_cache(repo: Path, site: str) -> RecordCache:
    """Where the records of a site are kept on the controller."""
    # Here, because it brings pydantic, jinja2 and the catalog, which the verbs of the lab start without.
    from trispark.records import RecordCache

    return RecordCache(repo / ".trispark" / site / "records")


def record_paths(cache: RecordCache, repo: Path) -> list[str]:
    """The copies' files, relative to the project, oldest first."""
    return [str(cache.path(record).relative_to(repo)) for record in cache.list()]


def summary(cache: RecordCache, record: Mapping[str, Any], repo: Path) -> dict[str, Any]:
    """Number, id, kind, outcome (a boot's state or a trial's verdict) and file of a record."""
    outcome = record.get("outcome") or {}
    return {
        "seq": record["seq"],
        "id": record["id"],
        "kind": record["kind"],
        "outcome": outcome.get("state") or outcome.get("verdict"),
        "path": str(cache.path(record).relative_to(repo)),
    }
