"""Walks a campaign: each entry is a child run of its stage's playbook, which walks the boots of its trial.

What was begun is in `.trispark/<site>/campaigns/<name>/journal.jsonl` before it begins, so the same campaign started
again goes on: a trial that has ended is not repeated, one that was under way goes on at its exact boot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from trispark.boot_plan import Moment
from trispark.campaign import Campaign, CampaignEntry, EntryEnd, closing, stop_reason
from trispark.errors import TrisparkError
from trispark.walk import Clock, WalkInterrupted
from trispark.walk_journal import Entry, History, Journal
from trispark.walk_plan import PLAN_FILE, WalkPlan, kept_walk, walks_directory
from trispark.walk_time import BootTimes, fits


@dataclass(frozen=True)
class StageEnd:
    """How a child run of a stage's playbook ended. `published`: what it handed on; `lines`: its failures."""

    interrupted: bool
    lines: tuple[str, ...]
    published: Mapping[str, Any]
    seconds: float


class Stages(Protocol):
    """The runs below a campaign."""

    def stage(self, entry: CampaignEntry, trial: str, deadline: datetime | None, drain_s: float) -> StageEnd: ...


@dataclass(frozen=True)
class CampaignEnd:
    """`complete`: the whole list; `paused`: by the window or the deadline; `stopped`: see `reason`."""

    state: Literal["complete", "paused", "stopped"]
    reason: str
    ends: tuple[EntryEnd, ...]


@dataclass
class CampaignWalker:
    """One run of a campaign. `plan` gives the walk that an entry would begin, refused or not (TrisparkError)."""

    root: Path
    site: str
    campaign: Campaign
    journal: Journal
    stages: Stages
    clock: Clock
    say: Callable[[str], None]
    times: BootTimes
    plan: Callable[[CampaignEntry, str], WalkPlan]
    _ends: list[EntryEnd] = field(default_factory=list)

    def walk(self) -> CampaignEnd:
        """Raises TS-CAMPAIGN-*, TS-WALK-DAMAGED, and WalkInterrupted when a signal ended a child run."""
        history = self.journal.read()
        self._require_same_list(history)
        self._require_plans(history)
        self._note("began", digest=self.campaign.digest)
        count = len(self.campaign.entries)
        for index, entry in enumerate(self.campaign.entries):
            trial = self._begun(history, index)
            if trial is not None and self._walk_history(trial).ended:
                self._ends.append(self._end(entry, trial))
                self.say(f"entry {index + 1}/{count} {entry.label}: done before ({trial})")
            else:
                pause = self._trial(index, entry, trial)
                if pause is not None:
                    return CampaignEnd("paused", pause, tuple(self._ends))
            reason = stop_reason(self.campaign, self._ends)
            if reason is not None:
                self._note("stopped", reason=reason)
                return CampaignEnd("stopped", reason, tuple(self._ends))
        return CampaignEnd("complete", "", tuple(self._ends))

    def _trial(self, index: int, entry: CampaignEntry, begun: str | None) -> str | None:
        """Begin the trial of an entry or go on with it; why the campaign pauses here, None to go on."""
        place = f"entry {index + 1}/{len(self.campaign.entries)} {entry.label}"
        deadline = closing(self.campaign, self.clock.now())
        trial = begun or _moment(self.clock).trial_id
        if begun is None:
            refusal = self._refusal(entry, trial)
            if refusal is not None:
                self._ends.append(EntryEnd(entry.label, trial, "refused", refusal))
                self.say(f"{place}: left out: {refusal}")
                return None
            if not fits(self.clock.now(), deadline, self.times, measured=True):
                return self._pause(place, deadline)
            self._note("entry_started", index=index, trial=trial, label=entry.label)
        ended = self.stages.stage(entry, trial, deadline, float(self.campaign.file.drain_s))
        if ended.interrupted:
            raise WalkInterrupted(trial)
        history = self._walk_history(trial)
        if history.ended:
            end = self._end(entry, trial)
            self._ends.append(end)
            self._note("entry_ended", index=index, trial=trial, verdicts=list(end.verdicts))
            verdicts = ", ".join(end.verdicts) or "no verdict"
            self.say(f"{place}: {verdicts}{'; ' + end.reason if end.reason else ''}, {ended.seconds:.0f} s ({trial})")
            return None
        if "paused" in ended.published:
            self._ends.append(EntryEnd(entry.label, trial, "paused", str(ended.published["paused"]["reason"])))
            return self._pause(place, deadline)
        why = "; ".join(ended.lines) or "the trial did not end"
        self._note("entry_failed", index=index, trial=trial, reason=why)
        self.say(f"{place}: {why}")
        self._ends.append(EntryEnd(entry.label, trial, "refused", why, failed_starts=1))
        return None

    def _pause(self, place: str, deadline: datetime | None) -> str:
        until = "the deadline" if deadline is None else f"{deadline.astimezone(self.campaign.zone):%Y-%m-%d %H:%M %Z}"
        reason = f"no boot of it can end before {until}; the same campaign goes on later"
        self._note("paused", reason=reason)
        self.say(f"{place}: {reason}")
        return reason

    def _refusal(self, entry: CampaignEntry, trial: str) -> str | None:
        """Why a trial must not begin: it cannot be planned, or its candidate took a node down before."""
        try:
            plan = self.plan(entry, trial)
        except TrisparkError as error:
            return str(error)
        for candidate in plan.trials:
            found = self._took_down(candidate.candidate)
            if found is not None:
                return f"{candidate.label} took a node down in trial {found}"
        return None

    def _took_down(self, generation: str) -> str | None:
        """The trial in which a boot of this generation took a node down; None when there is none."""
        for path in sorted(walks_directory(self.root, self.site).glob(f"*/{PLAN_FILE}")):
            downs = Journal(path.parent).read().nodes_down()
            if not downs:
                continue
            slots = {slot.slot: slot.generation for slot in kept_walk(self.root, self.site, path.parent.name).slots}
            if generation in {slots.get(down.slot) for down in downs if down.slot is not None}:
                return path.parent.name
        return None

    def _end(self, entry: CampaignEntry, trial: str) -> EntryEnd:
        """What the journal of an ended walk says."""
        history = self._walk_history(trial)
        close = [each for each in history.entries if each.event == "ended"][-1].fields
        invalid = [
            each
            for each in history.entries
            if each.event == "slot_ended" and each.fields.get("state") not in ("valid", None)
        ]
        return EntryEnd(
            label=entry.label,
            trial=trial,
            state="ended",
            reason=str(close.get("reason") or ""),
            verdicts=tuple(map(str, close.get("verdicts") or ())),
            restored=bool(close.get("restored")),
            down=bool(history.nodes_down()),
            failed_starts=history.failed_starts(),
            invalid=bool(invalid),
        )

    def _walk_history(self, trial: str) -> History:
        return Journal(walks_directory(self.root, self.site) / trial).read()

    @staticmethod
    def _begun(history: History, index: int) -> str | None:
        found = [each for each in history.entries if each.event == "entry_started" and each.fields["index"] == index]
        return str(found[-1].fields["trial"]) if found else None

    def _require_same_list(self, history: History) -> None:
        first: Entry | None = next((each for each in history.entries if each.event == "began"), None)
        if first is not None and first.fields.get("digest") != self.campaign.digest:
            raise TrisparkError(
                "TS-CAMPAIGN-CHANGED",
                "the list of the campaign was changed after it had begun",
                where=str(self.campaign.path),
                expected=str(first.fields.get("digest"))[:12],
                observed=self.campaign.digest[:12],
                remedy="give the changed list another name, or take the change back",
            )

    def _require_plans(self, history: History) -> None:
        """Before anything is begun: a slip in the list is found now and not in the middle of the night."""
        wrong = []
        for index, entry in enumerate(self.campaign.entries):
            if self._begun(history, index) is None:
                try:
                    self.plan(entry, _moment(self.clock).trial_id)
                except TrisparkError as error:
                    wrong.append(f"entry {index + 1} ({entry.label}): {error}")
        if wrong:
            raise TrisparkError(
                "TS-CAMPAIGN-ENTRY",
                "trials of the campaign cannot be run",
                where=str(self.campaign.path),
                expected="entries that can be planned on this site",
                observed=" | ".join(wrong),
                remedy="correct the list; nothing was begun",
            )

    def _note(self, event: str, **fields: Any) -> None:
        self.journal.write(event, f"{self.clock.now().astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}", **fields)


def _moment(clock: Clock) -> Moment:
    return Moment(clock.now().astimezone(UTC), Moment.current().token)
