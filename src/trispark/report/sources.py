"""Finds the records of what a report is asked of, and refuses those that are not what was recorded."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from trispark.campaign_run import campaigns_directory
from trispark.errors import TrisparkError
from trispark.records import RecordCache, record_hash
from trispark.walk_journal import JOURNAL_FILE, History, Journal
from trispark.walk_plan import WALK_ID, walks_directory

Record = Mapping[str, Any]
NEAR: Final = 3


@dataclass(frozen=True)
class TrialSource:
    """One trial. `record` is None while it has not ended; `judged`: its counted boots with their arm, in order;
    `others`: boots of the same walk that do not count, or not yet."""

    key: str
    walk: str
    record: Record | None
    judged: tuple[tuple[str, Record], ...]
    others: tuple[Record, ...]

    @property
    def records(self) -> tuple[Record, ...]:
        """All of it, by number."""
        found = [*(boot for _, boot in self.judged), *self.others, *([] if self.record is None else [self.record])]
        return tuple(sorted(found, key=lambda record: int(record["seq"])))


@dataclass(frozen=True)
class EntrySource:
    """An entry of a campaign, as its journal has it. `trials`: none where it was left before its first boot."""

    label: str
    walk: str
    state: Literal["ended", "under way", "failed"]
    reason: str
    trials: tuple[TrialSource, ...]


@dataclass(frozen=True)
class Asked:
    """What a report is of: one trial, all trials of a walk (a sweep), or a campaign with its entries."""

    kind: Literal["trial", "sweep", "campaign"]
    name: str
    site: str
    trials: tuple[TrialSource, ...]
    entries: tuple[EntrySource, ...] = ()


def find(root: Path, site: str, cache: RecordCache, key: str) -> Asked:
    """What `key` names: the id, number or beginning of the id of a trial, the id of a walk, the name of a campaign.

    Raises TS-REPORT-UNKNOWN with what is near, TS-REPORT-RECORD naming a record that was edited,
    TS-RECORD-CHAIN, -SCHEMA and -READ for a copy that is damaged, TS-WALK-DAMAGED for a campaign's journal.
    """
    records = _unedited(cache)
    trials = {str(record["id"]): record for record in records if record["kind"] == "trial"}
    walks = _walks(root, site, records)
    campaigns = sorted(path.parent.name for path in campaigns_directory(root, site).glob(f"*/{JOURNAL_FILE}"))
    by_number = {str(record["seq"]): str(record["id"]) for record in trials.values()}
    name = by_number.get(key, key)
    names = [*trials, *walks, *campaigns]
    if name not in names:
        begun = [each for each in dict.fromkeys(names) if key and each.startswith(key)]
        if len(begun) != 1:
            raise _unknown(key, names, records, cache)
        name = begun[0]
    if name in trials:
        asked = Asked("trial", name, site, (_of_record(trials[name], records),))
    elif name in walks:
        found = _of_walk(name, records)
        asked = Asked("trial" if len(found) == 1 else "sweep", name, site, found)
    else:
        history = Journal(campaigns_directory(root, site) / name).read()
        entries = _entries(history, records)
        asked = Asked("campaign", name, site, tuple(each for entry in entries for each in entry.trials), entries)
    return asked


def _unedited(cache: RecordCache) -> list[dict[str, Any]]:
    """All records, once their chain holds. A record that its follower knows by another hash is named itself."""
    try:
        cache.verify()
    except TrisparkError as error:
        if error.id != "TS-RECORD-CHAIN":
            raise
        records = cache.list()
        for record, after in itertools.pairwise(records):
            observed, known = record_hash(record), after["previous"] or {}
            if known.get("seq") == record["seq"] and known.get("hash") != observed:
                where = f"record {record['seq']} ({record['id']})"
                raise _another(where, f"{known.get('hash')}, by record {after['seq']}", observed) from None
        raise
    return cache.list()


def _walks(root: Path, site: str, records: Sequence[Record]) -> list[str]:
    """Ids of walks that left a record or were begun."""
    found = {str(name) for record in records if (name := record.get("requested", {}).get("trial"))}
    begun = (path.name for path in walks_directory(root, site).glob("*") if path.is_dir())
    return sorted(found.union(name for name in begun if WALK_ID.fullmatch(name)))


def _of_walk(walk: str, records: Sequence[Record]) -> tuple[TrialSource, ...]:
    own = [record for record in records if record.get("requested", {}).get("trial") == walk]
    ended = [record for record in own if record["kind"] == "trial"]
    if ended:
        return tuple(_of_record(record, records) for record in ended)
    return (TrialSource(walk, walk, None, (), tuple(record for record in own if record["kind"] == "boot")),)


def _of_record(record: Record, records: Sequence[Record]) -> TrialSource:
    by_number = {int(each["seq"]): each for each in records if each["kind"] == "boot"}
    judged = []
    for boot in record["boots"]:
        found = by_number.get(int(boot["seq"]))
        observed = "no record" if found is None else record_hash(found)
        if found is None or observed != boot["hash"]:
            raise _another(
                f"record {boot['seq']} ({boot['boot_id']}) of trial {record['id']}", str(boot["hash"]), observed
            )
        judged.append((str(boot["arm"]), found))
    walk = str(record["requested"]["trial"])
    counted = {int(boot["seq"]) for boot in record["boots"]}
    # Of a sweep, boots of its other values are left out: they are in the reports of those.
    generations = {record["resolved"]["baseline"], record["resolved"]["candidate"]}
    others = [
        each
        for seq, each in by_number.items()
        if each["requested"].get("trial") == walk
        and seq < int(record["seq"])
        and seq not in counted
        and each["resolved"]["generation"] in generations
    ]
    return TrialSource(str(record["id"]), walk, record, tuple(judged), tuple(others))


def _entries(history: History, records: Sequence[Record]) -> tuple[EntrySource, ...]:
    """By place in the list; of an entry that was begun again, the last."""
    begun = {int(each.fields["index"]): each for each in history.entries if each.event == "entry_started"}
    entries = []
    for _, each in sorted(begun.items()):
        walk = str(each.fields["trial"])
        after = [one for one in history.entries if one.fields.get("trial") == walk]
        ended = [one for one in after if one.event == "entry_ended"]
        failed = [one for one in after if one.event == "entry_failed"]
        trials = tuple(one for one in _of_walk(walk, records) if one.records)
        reason = str(failed[-1].fields.get("reason", "")) if failed and not ended else ""
        state: Literal["ended", "under way", "failed"] = "ended" if ended else "failed" if failed else "under way"
        entries.append(EntrySource(str(each.fields["label"]), walk, state, reason, trials))
    return tuple(entries)


def _another(where: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-REPORT-RECORD",
        "a record was edited, so there is no report of it",
        where=where,
        expected=expected,
        observed=observed,
        remedy="move the controller's copy away; the nodes hold all records, and the next boot fetches them",
    )


def _unknown(key: str, names: Iterable[str], records: Sequence[Record], cache: RecordCache) -> TrisparkError:
    known = sorted(set(names), reverse=True)
    boots = [each for each in records if each["kind"] == "boot" and key in (each["id"], str(each["seq"]))]
    near = [name for name in known if key and name.startswith(key)][:NEAR]
    near = near or difflib.get_close_matches(key, known, n=NEAR, cutoff=0.4)
    expected = "a trial's id or number, or a campaign's name"
    if boots:
        of = boots[0]["requested"].get("trial")
        remedy = f"./trispark report {of}" if of else f"./trispark records show {key} shows that boot"
    else:
        remedy = "./trispark records list" if known else "there are no trials yet: ./trispark play stage_c runs one"
    return TrisparkError(
        "TS-REPORT-UNKNOWN",
        "that is a boot, and reports are of trials and campaigns"
        if boots
        else "no trial and no campaign has this name",
        where=str(cache.directory),
        expected=expected + (f", near: {', '.join(near)}" if near else ""),
        observed=key[:80] or "nothing",
        remedy=remedy,
    )
