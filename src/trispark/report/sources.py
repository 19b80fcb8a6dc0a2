"""Finds the records of what a report is asked of, and refuses those that are not what was recorded."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from trispark.campaign_run import campaigns_directory
from trispark.errors import TrisparkError
from trispark.older_records import listed, with_older
from trispark.records import RecordCache, record_hash
from trispark.report.chains import Chain, Chains
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
    ended: str | None = None
    """Why there is no record of it although its walk has ended: it ended before anything of it was tried."""

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

    What was recorded on nodes that were made anew since is found by its id (trispark.older_records).
    Raises TS-REPORT-UNKNOWN with what is near, TS-REPORT-RECORD naming a record that was edited, TS-REPORT-LOST for a
    trial that left records which are not here, TS-RECORD-CHAIN, -SCHEMA and -READ for a copy that is damaged,
    TS-WALK-DAMAGED for a journal.
    """
    chains = Chains(cache)
    by_number = {str(record["seq"]): str(record["id"]) for record in chains.own.records if record["kind"] == "trial"}
    campaigns = sorted(path.parent.name for path in campaigns_directory(root, site).glob(f"*/{JOURNAL_FILE}"))
    walks = _walks(root, site, chains)
    name = by_number.get(key, key)
    if name not in chains.own.trials:
        names = list(dict.fromkeys(each for chain in chains.all for each in chain.trials))
        name = _named(name, list(dict.fromkeys([*names, *walks, *campaigns])), chains)
    if (chain := chains.of_trial(name)) is not None:
        return Asked("trial", name, site, (_of_record(chain.trials[name], chain),))
    if name in walks:
        found = _of_walk(root, site, name, chains)
        return Asked("trial" if len(found) == 1 else "sweep", name, site, found)
    history = Journal(campaigns_directory(root, site) / name).read()
    entries = _entries(root, site, history, chains)
    return Asked("campaign", name, site, tuple(each for entry in entries for each in entry.trials), entries)


def _named(key: str, names: Sequence[str], chains: Chains) -> str:
    """The one of `names` that is `key` or alone begins so. Raises TS-REPORT-UNKNOWN."""
    if key in names:
        return key
    begun = [name for name in names if key and name.startswith(key)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise TrisparkError(
            "TS-REPORT-UNKNOWN",
            "this beginning of a name is ambiguous, several trials or campaigns begin so",
            where=str(chains.own.cache.directory),
            expected=f"one of {listed(sorted(begun))}",
            observed=key[:80],
            remedy="give more of the name, or a number of ./trispark records list",
        )
    raise _unknown(key, names, chains)


def _walks(root: Path, site: str, chains: Chains) -> list[str]:
    """Ids of walks that left a record or were begun."""
    found = {name for chain in chains.all for name in chain.walks}
    begun = (path.name for path in walks_directory(root, site).glob("*") if path.is_dir())
    return sorted(found.union(name for name in begun if WALK_ID.fullmatch(name)))


def _of_walk(root: Path, site: str, walk: str, chains: Chains) -> tuple[TrialSource, ...]:
    """Raises TS-REPORT-LOST where the journal knows of records that no chain has."""
    chain = chains.of_walk(walk)
    own = [record for record in chain.records if record.get("requested", {}).get("trial") == walk]
    ended = [record for record in own if record["kind"] == "trial"]
    if ended:
        return tuple(_of_record(record, chain) for record in ended)
    history = Journal(walks_directory(root, site) / walk).read()
    _require_records(history, walk, own, chains)
    reason = next((str(each.fields.get("reason") or "") for each in history.entries if each.event == "ended"), None)
    return (TrialSource(walk, walk, None, (), tuple(record for record in own if record["kind"] == "boot"), reason),)


def _require_records(history: History, walk: str, own: Sequence[Record], chains: Chains) -> None:
    """`own`: the records of this walk, none of them a trial's."""
    trials = [str(name) for each in history.entries if each.event == "ended" for name in each.fields.get("records", ())]
    boots = [str(each.fields["record"]) for each in history.entries if each.event == "slot_ended"]
    if trials or (boots and not own):
        raise TrisparkError(
            "TS-REPORT-LOST",
            "the trial has ended, and its records are not here" if trials else "the trial's records are not here",
            where=", ".join(str(chain.cache.directory) for chain in chains.all),
            expected=f"records of {listed(trials or boots)}, of which the journal of {walk} tells",
            observed="a trial's record in none of them" if own else "no record of it in any of them",
            remedy="put the records back from a copy of yours (./trispark records export makes one); nodes that were "
            "made anew do not have them",
        )


def _of_record(record: Record, chain: Chain) -> TrialSource:
    by_number = {int(each["seq"]): each for each in chain.records if each["kind"] == "boot"}
    judged = []
    for boot in record["boots"]:
        found = by_number.get(int(boot["seq"]))
        observed = "no record" if found is None else record_hash(found)
        if found is None or observed != boot["hash"]:
            where = f"record {boot['seq']} ({boot['boot_id']}) of trial {record['id']}"
            raise chain.another(where, str(boot["hash"]), observed)
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


def _entries(root: Path, site: str, history: History, chains: Chains) -> tuple[EntrySource, ...]:
    """By place in the list; of an entry that was begun again, the last. One whose records are gone says so."""
    begun = {int(each.fields["index"]): each for each in history.entries if each.event == "entry_started"}
    entries = []
    for _, each in sorted(begun.items()):
        walk = str(each.fields["trial"])
        after = [one for one in history.entries if one.fields.get("trial") == walk]
        ended = [one for one in after if one.event == "entry_ended"]
        failed = [one for one in after if one.event == "entry_failed"]
        reason = str(failed[-1].fields.get("reason", "")) if failed and not ended else ""
        trials: tuple[TrialSource, ...] = ()
        try:
            trials = tuple(one for one in _of_walk(root, site, walk, chains) if one.records)
        except TrisparkError as error:
            if error.id != "TS-REPORT-LOST":
                raise
            reason = str(error)
        state: Literal["ended", "under way", "failed"] = "ended" if ended else "failed" if failed else "under way"
        entries.append(EntrySource(str(each.fields["label"]), walk, state, reason, trials))
    return tuple(entries)


def _unknown(key: str, names: Sequence[str], chains: Chains) -> TrisparkError:
    known = sorted(set(names), reverse=True)
    numbered = [each for each in chains.own.found if str(each["seq"]) == key]
    boots = [*numbered, *(each for chain in chains.all for each in chain.found if each["id"] == key)]
    near = difflib.get_close_matches(key, known, n=NEAR, cutoff=0.4)
    expected = "a trial's id or number, or a campaign's name"
    if boots:
        of = boots[0]["requested"].get("trial")
        remedy = f"./trispark report {of}" if of else f"./trispark records show {key} shows that boot"
    else:
        remedy = (
            "./trispark records list"
            if known
            else "there are no trials yet: ./trispark play stage_c -e feature=wo_a runs one"
        )
    error = TrisparkError(
        "TS-REPORT-UNKNOWN",
        "that is a boot, and reports are of trials and campaigns"
        if boots
        else "no trial and no campaign has this name",
        where=str(chains.own.cache.directory),
        expected=expected + (f", near: {', '.join(near)}" if near else ""),
        observed=key[:80] or "nothing",
        remedy=remedy,
    )
    return error if boots else with_older(error, [chain.cache for chain in chains.older])
