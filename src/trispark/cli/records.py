"""Shows, compares, replays, exports the controller's copies of a site's records (trispark.records.RecordCache)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trispark.errors import TrisparkError

if TYPE_CHECKING:
    from trispark.record_archive import KeptLog
    from trispark.records import RecordCache


def record_cache(repo: Path, site: str) -> RecordCache:
    """Where the records of a site are kept on the controller."""
    # Here, because the verbs of the lab start without it.
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


def summaries(cache: RecordCache, repo: Path, *, older: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """(summaries of all records, oldest first, directories of the older chains). `older`: with those of their records,
    which come first and have `older` set."""
    from trispark.older_records import older_caches

    chains = older_caches(cache)
    found = [
        {**summary(chain, record, repo), "older": True}
        for chain in reversed(chains if older else [])
        for record in chain.list()
    ]
    found += [summary(cache, record, repo) for record in cache.list()]
    return found, [str(chain.directory.relative_to(repo)) for chain in chains]


def checked(cache: RecordCache, key: str) -> tuple[RecordCache, dict[str, Any]]:
    """(its chain, the record) with this number or id, also of an older chain, of the published shape, so that its parts
    can be relied on."""
    from trispark.older_records import find_record
    from trispark.records import validate_record

    chain, record = find_record(cache, key)
    validate_record(record)
    return chain, record


def compared(cache: RecordCache, first: str, second: str) -> tuple[list[str], dict[str, Any]]:
    """(lines, JSON form) of what differs between two records. Raises TS-RECORD-UNKNOWN, -SCHEMA, -KIND."""
    from trispark.record_diff import diff_lines, diff_records

    records = [checked(cache, key)[1] for key in (first, second)]
    differences = diff_records(*records)
    names = " and ".join(f"{record['seq']} ({record['id']})" for record in records)
    form = {
        part: [{"name": drift.name, "first": drift.first, "second": drift.second} for drift in drifts]
        for part, drifts in differences.items()
    }
    return [f"records {names}", *diff_lines(differences)], {
        "first": records[0]["id"],
        "second": records[1]["id"],
        "differences": form,
    }


def replayed(repo: Path, site: str, key: str) -> dict[str, Any]:
    """What `record_replay.replay` gives, with the command as one line. Raises TS-RECORD-REPLAY, -UNKNOWN, -SCHEMA."""
    from trispark.record_replay import replay

    chain, record = checked(record_cache(repo, site), key)
    found = replay(repo, site, record, chain.list())
    return {**found, "command": shlex.join(["./trispark", *found["command"]])}


def replay_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The plan and the command that repeats the boot or trial of a record."""
    from trispark.cli.plan import plan_lines

    yield from plan_lines(found["plan"])
    arm = f" ({found['arm']})" if found["kind"] == "boot" else ""
    yield f"{found['record']} can be repeated: every pinned input is the same{arm}"
    yield from (f"  note        {note}" for note in found["notes"])
    yield f"  {found['command']}"


def kept_boot_logs(repo: Path, site: str) -> Path:
    """Where the controller keeps the logs of failed boots."""
    return repo / ".trispark" / site / "boots"


def export_target(repo: Path, site: str, cache: RecordCache, to: Path | None) -> Path:
    """The file asked for, or one below ``.trispark`` that is named by the newest record."""
    if to is not None:
        return to if to.is_absolute() else Path.cwd() / to
    head = cache.head()
    if head is None:
        raise TrisparkError(
            "TS-RECORD-NONE",
            "there are no records to export",
            where=str(cache.directory),
            expected="one at least",
            observed="none",
            remedy="boot something first",
        )
    directory = repo / ".trispark" / site / "export"
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    return directory / f"{site}-{head['seq']}-{head['hash'][:12]}.tar.gz"


def prune_lines(logs: list[KeptLog], *, done: bool) -> Iterator[str]:
    """What is or would be removed."""
    for log in logs:
        yield f"{log.boot_id}  {len(log.files)} files, {log.size} bytes"
    if not logs:
        yield "no kept log is older than those to keep"
    elif done:
        yield f"removed the logs of {len(logs)} boots; their records stay"
    else:
        yield f"would remove the logs of {len(logs)} boots, --yes removes them; their records stay"
