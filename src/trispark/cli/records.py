"""Shows, compares, replays, exports the controller's copies of a site's records (trispark.records.RecordCache)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trispark.cli import verb
from trispark.cli.verb import JsonOption, SiteOption
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
    from trispark.records import FIRST_BOOT

    head = cache.head()
    if head is None:
        raise TrisparkError(
            "TS-RECORD-NONE",
            "there are no records to export",
            where=str(cache.directory),
            expected="one at least",
            observed="none",
            remedy=FIRST_BOOT,
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


def records_list(
    older: Annotated[bool, typer.Option("--older", help="Also those of nodes that were made anew.")] = False,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """All cached records, oldest first."""
    from trispark.records import FIRST_BOOT

    terminal, name = verb.begin(site, changing=False)
    found, chains = summaries(record_cache(verb.REPO, name), verb.REPO, older=older)
    for one in found:
        terminal.say(f"{one['seq']:>5}  {one['id']}  {one['kind'] or '-'}  {one['outcome'] or '-'}  {one['path']}")
    if not found:
        what = "no records yet" if older or not chains else "no records yet of these nodes"
        terminal.say(f"{what}: {FIRST_BOOT}")
    if chains and not older:
        terminal.say(f"records of nodes that were made anew (--older lists them): {', '.join(chains)}")
    if as_json:
        terminal.json({"site": name, "records": found, "older": chains})


def records_show(
    record: Annotated[str, typer.Argument(help="A number or id of `records list`.")],
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """One record: indented, or as one line with --json."""
    terminal, name = verb.begin(site, changing=False)
    from trispark.older_records import find_record

    chain, found = find_record(record_cache(verb.REPO, name), record)
    if as_json:
        terminal.json({"site": name, "path": summary(chain, found, verb.REPO)["path"], "record": found})
    else:
        terminal.say(json.dumps(found, ensure_ascii=False, indent=2))


def records_diff(
    first: Annotated[str, typer.Argument(help="A number or id of `records list`.")],
    second: Annotated[str, typer.Argument(help="Another one of the same kind.")],
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """What differs in what was asked for, resolved and observed; ports, times and counters are no difference."""
    terminal, name = verb.begin(site, changing=False, offline=True)
    lines, form = compared(record_cache(verb.REPO, name), first, second)
    for line in lines:
        terminal.say(line)
    if as_json:
        terminal.json({"site": name, **form})


def records_replay(
    record: Annotated[str, typer.Argument(help="A number or id of `records list`.")],
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """The plan and the command that repeat a boot or trial; refused when a pinned input is gone or differs."""
    terminal, name = verb.begin(site, changing=False, offline=True)
    found = replayed(verb.REPO, name, record)
    for line in replay_lines(found):
        terminal.say(line)
    if as_json:
        terminal.json({"site": name, **found})


def records_verify(site: SiteOption = None, as_json: JsonOption = False) -> None:
    """Check every cached record by the published schema, and the hash chain; the first broken one is named."""
    terminal, name = verb.begin(site, changing=False, offline=True)
    cache = record_cache(verb.REPO, name)
    head = cache.verify()
    count = len(cache.list())
    newest = f", the newest is {head['seq']} ({head['id']}) with {head['hash'][:12]}" if head else ""
    terminal.say(f"{count} records are whole{newest}")
    if as_json:
        terminal.json({"site": name, "records": count, "head": head})


def records_export(
    to: Annotated[Path | None, typer.Option("--to", help="A new file; below .trispark without it.")] = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Records and kept logs as one tar.gz for you alone; the same records give the same bytes."""
    from trispark.record_archive import export_records, kept_logs

    terminal, name = verb.begin(site, changing=False, offline=True)
    cache = record_cache(verb.REPO, name)
    target = export_target(verb.REPO, name, cache, to)
    manifest = export_records(name, cache, kept_logs(kept_boot_logs(verb.REPO, name)), target)
    terminal.say(f"{manifest['records']} records, {len(manifest['files'])} files in {target}")
    if as_json:
        terminal.json({"site": name, "path": str(target), "manifest": manifest})


def records_prune(
    keep: Annotated[int, typer.Option("--keep", min=0, help="How many boots' logs stay.")],
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without it they are only named.")] = False,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the controller's kept logs of all but the newest boots. Records and the nodes' own logs stay."""
    from trispark.record_archive import logs_to_prune, prune_logs

    terminal, name = verb.begin(site, changing=yes, offline=True)
    logs = logs_to_prune(kept_boot_logs(verb.REPO, name), keep)
    lines = list(prune_lines(logs, done=yes))
    if yes:
        prune_logs(logs)
    for line in lines:
        terminal.say(line)
    if as_json:
        removed = [{"boot": log.boot_id, "files": len(log.files)} for log in logs]
        terminal.json({"site": name, "removed" if yes else "would_remove": removed})
