"""The end of a walk: the record of each of its trials, kept by the controller first, and what each node lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trispark.allowlist import Allowlist
from trispark.catalog import load_catalog
from trispark.errors import TrisparkError
from trispark.record_chain import behind, heads_of, leading_head
from trispark.records import RecordCache
from trispark.reporting import RecordedTrial, Report, record_path, report_lines, trials
from trispark.stage_playbook import is_confirmation
from trispark.stages import exit_of
from trispark.trial_outcome import record_trial, trials_to_record
from trispark.walk_journal import Journal
from trispark.walk_plan import kept_walk, walks_directory


@dataclass(frozen=True)
class WalkConclusion:
    """`append`: {node: records to append in order}; `added`: how many records are new."""

    append: dict[str, list[dict[str, Any]]]
    report: Report
    added: int


def conclude(
    root: Path,
    site: str,
    walk: str,
    *,
    stopped: str,
    restored: str | None,
    statuses: Mapping[str, Mapping[str, Any] | None],
    now: datetime | None = None,
) -> WalkConclusion:
    """Build and keep the records that are not there yet. A controller that is killed here does the rest when resumed.

    `statuses`: {node: answer of `status`}, None for no answer. A catalog that was broken meanwhile hinders no verdict:
    it is recorded with every value withheld. Raises TS-WALK-*, TS-RECORD-*.
    """
    heads = heads_of(statuses)
    plan = kept_walk(root, site, walk)
    journal = Journal(walks_directory(root, site) / walk)
    history = journal.read()
    cache = RecordCache(root / ".trispark" / site / "records")
    moment = now or datetime.now(UTC)
    time = f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    known = {str(record["id"]): record for record in cache.list() if record["kind"] == "trial"}
    allowlist, criteria = _of_the_catalog(root, plan.stage, plan.site_baseline)
    found: list[RecordedTrial] = []
    added = 0
    for boots in trials_to_record(plan, history, cache.list(), stopped):
        record = known.get(boots.trial.record)
        if record is None:
            record = record_trial(
                root,
                allowlist,
                plan,
                boots,
                cache,
                restored_boot=restored,
                began=history.began or time,
                previous=leading_head(heads, cache),
                now=moment,
            )
            cache.add(record)
            added += 1
        own = [cache.show(boot["boot_id"]) for boot in record["boots"]]
        paths = [record_path(cache, each, root) for each in own]
        found.append(RecordedTrial(record, record_path(cache, record, root), own, paths, boots.invalid))
    if not history.ended:
        outcomes = [entry.record["outcome"] for entry in found]
        journal.write(
            "ended",
            time,
            records=[entry.record["id"] for entry in found],
            verdicts=[outcome["verdict"] for outcome in outcomes],
            restored=restored is not None,
            reason=stopped,
        )
    report = trials(walk, found, stopped, restored=restored is not None)
    report.lines.extend(criteria(cache.list()))
    unknown = [node for node in statuses if node not in heads]
    if unknown:
        report.lines.append(f"{', '.join(unknown)}: records not known; the next boot gives what is lacking")
    report.lines.extend(report_lines(found))
    lacking = behind(statuses, heads, cache)
    report.lines.extend(str(problem) for problem in lacking.waiting.values())
    return WalkConclusion(dict(lacking.appends), report, added)


def _of_the_catalog(
    root: Path, stage: str, baseline: str
) -> tuple[Allowlist, Callable[[Sequence[Mapping[str, Any]]], list[str]]]:
    """Which values may be recorded, and from records the lines of the stage's exit criteria."""
    try:
        catalog = load_catalog(root)
    except TrisparkError as error:
        unread = f"exit criteria of the stage: not judged: {error}"
        return Allowlist.nothing(), lambda _records: [unread]
    if is_confirmation(stage):
        return catalog.allowlist, lambda _records: []
    return catalog.allowlist, lambda records: [each.line() for each in exit_of(catalog, stage, baseline, records)]
