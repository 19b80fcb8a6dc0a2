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
    """`complete`: the whole list; `paused`: by the window or the deadline; `stopped`: before its end, see `reason` and
    `remedy`; `failed`: the whole list was walked, but trials broke before anything of them was begun."""

    state: Literal["complete", "paused", "stopped", "failed"]
    reason: str
    ends: tuple[EntryEnd, ...]
    remedy: str = ""


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
    _ends: dict[int, EntryEnd] = field(default_factory=dict)
    """By the place in the list."""

    def walk(self) -> CampaignEnd:
        """Raises TS-CAMPAIGN-*, TS-WALK-DAMAGED, and WalkInterrupted when a signal ended a child run."""
        self._require_begin()
        self._note("began", digest=self.campaign.digest)
        for index, entry in enumerate(self.campaign.entries):
            end = self._ended_before(index, entry)
            if end is not None:
                self._ends[index] = end
        for index, entry in enumerate(self.campaign.entries):
            if index in self._ends:
                self.say(f"{self._place(index)}: done before ({self._ends[index].trial})")
                continue
            # What was left in the middle is brought back first, whatever else there is.
            stopped = None if self._is_unfinished(index) else self._stopped()
            if stopped is None:
                self._ends[index] = self._trial(index, entry)
                stopped = self._stopped()
            if stopped is not None:
                return stopped
            if self._ends[index].state == "paused":
                self._note("paused", reason=self._ends[index].reason)
                return CampaignEnd("paused", self._ends[index].reason, self._in_order())
        failed = [end.label for end in self._in_order() if end.state == "failed"]
        if failed:
            return CampaignEnd("failed", f"these trials broke: {', '.join(failed)}", self._in_order())
        return self._stopped() or CampaignEnd("complete", "", self._in_order())

    def _stopped(self) -> CampaignEnd | None:
        """The end of the campaign when what is known by now stops it."""
        stop = stop_reason(self.campaign, self._in_order(), self._failed_starts())
        if stop is None:
            return None
        self._note("stopped", reason=stop.reason)
        return CampaignEnd("stopped", stop.reason, self._in_order(), stop.remedy)

    def _in_order(self) -> tuple[EntryEnd, ...]:
        return tuple(self._ends[index] for index in sorted(self._ends))

    def outline(self) -> list[str]:
        """What a walk would begin now, a line an entry. Writes nothing and starts nothing. Raises TS-CAMPAIGN-*."""
        self._require_begin()
        return [self._outline(index, entry) for index, entry in enumerate(self.campaign.entries)]

    def _outline(self, index: int, entry: CampaignEntry) -> str:
        place = self._place(index)
        trial = self._begun(index)
        if trial is not None:
            history = self._walk_history(trial)
            ended = history is not None and history.ended
            return f"{place}: done before ({trial})" if ended else f"{place}: would go on ({trial})"
        refusal = self._refusal(entry, "")
        if refusal is not None:
            return f"{place}: would be left out: {refusal}"
        plan = self.plan(entry, "")
        boots = f"{len(plan.slots)} boots, then the baseline {plan.site_baseline} again"
        deadline = closing(self.campaign, self.clock.now())
        if not fits(self.clock.now(), deadline, self.times, measured=True):
            return f"{place}: would wait, {self._too_late(deadline)}: {boots}"
        return f"{place}: would be begun: {boots}"

    def _ended_before(self, index: int, entry: CampaignEntry) -> EntryEnd | None:
        """The end of a trial that an earlier call walked to its end."""
        trial = self._begun(index)
        history = None if trial is None else self._walk_history(trial)
        return _end(entry, trial, history) if trial is not None and history is not None and history.ended else None

    def _is_unfinished(self, index: int) -> bool:
        """Whether an earlier call left a trial in the middle of its boots."""
        trial = self._begun(index)
        history = None if trial is None else self._walk_history(trial)
        return trial is not None and (history is None or history.unfinished)

    def _trial(self, index: int, entry: CampaignEntry) -> EntryEnd:
        """Begin the trial of an entry or go on with it."""
        place = self._place(index)
        deadline = closing(self.campaign, self.clock.now())
        trial = self._begun(index)
        if trial is None:
            trial = _moment(self.clock).trial_id
            refusal = self._refusal(entry, trial)
            if refusal is not None:
                self.say(f"{place}: left out: {refusal}")
                return EntryEnd(entry.label, trial, "refused", refusal)
            if not fits(self.clock.now(), deadline, self.times, measured=True):
                return self._paused(place, EntryEnd(entry.label, "", "paused", self._too_late(deadline)))
            self._note("entry_started", index=index, trial=trial, label=entry.label)
        ended = self.stages.stage(entry, trial, deadline, float(self.campaign.file.drain_s))
        if ended.interrupted:
            raise WalkInterrupted(trial)
        history = self._walk_history(trial)
        if history is not None and history.ended:
            end = _end(entry, trial, history)
            self._note("entry_ended", index=index, trial=trial, verdicts=list(end.verdicts))
            verdicts = ", ".join(end.verdicts) or "no verdict"
            self.say(f"{place}: {verdicts}{'; ' + end.reason if end.reason else ''}, {ended.seconds:.0f} s ({trial})")
            return end
        pause = ended.published.get("paused")
        if pause is not None:
            restored = bool(pause["restored"]) or not pause["begun"]
            reason = self._too_late(deadline) if restored else str(pause["reason"])
            return self._paused(place, EntryEnd(entry.label, trial, "paused", reason, restored=restored))
        why = "; ".join(ended.lines) or "the trial did not end"
        # A journal that cannot be read does not say that no boot was begun.
        unfinished = history is None or history.unfinished
        self._note("entry_failed", index=index, trial=trial, reason=why, unfinished=unfinished)
        self.say(f"{place}: failed: {why}")
        return EntryEnd(entry.label, trial, "failed", why, restored=not unfinished)

    def _paused(self, place: str, end: EntryEnd) -> EntryEnd:
        self.say(f"{place}: {end.reason}")
        return end

    def _too_late(self, deadline: datetime | None) -> str:
        until = "the deadline" if deadline is None else f"{deadline.astimezone(self.campaign.zone):%Y-%m-%d %H:%M %Z}"
        return f"no boot of it can end before {until}; the same campaign goes on later"

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

    def _failed_starts(self) -> int:
        """Boots of all trials of this campaign that did not start, in earlier calls too."""
        begun = {str(each.fields["trial"]) for each in self._begins()}
        return sum(history.failed_starts() for trial in begun if (history := self._walk_history(trial)) is not None)

    def _walk_history(self, trial: str) -> History | None:
        """What the trial's walk has done; None when its journal cannot be read."""
        try:
            return Journal(walks_directory(self.root, self.site) / trial).read()
        except TrisparkError:
            return None

    def _begins(self) -> list[Entry]:
        return [each for each in self.journal.read().entries if each.event == "entry_started"]

    def _begun(self, index: int) -> str | None:
        """The trial that was begun for an entry."""
        found = [each for each in self._begins() if each.fields["index"] == index]
        return str(found[-1].fields["trial"]) if found else None

    def _place(self, index: int) -> str:
        return f"entry {index + 1}/{len(self.campaign.entries)} {self.campaign.entries[index].label}"

    def _require_begin(self) -> None:
        self._require_same_list(self.journal.read())
        self._require_plans()

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

    def _require_plans(self) -> None:
        """Before anything is begun: a slip in the list is found now and not in the middle of the night."""
        wrong = []
        for index, entry in enumerate(self.campaign.entries):
            if self._begun(index) is None:
                try:
                    self.plan(entry, "")
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


def _end(entry: CampaignEntry, trial: str, history: History) -> EntryEnd:
    """What the journal of an ended walk says."""
    close = [each for each in history.entries if each.event == "ended"][-1].fields
    states = [each.fields.get("state") for each in history.entries if each.event == "slot_ended"]
    return EntryEnd(
        label=entry.label,
        trial=trial,
        state="ended",
        reason=str(close.get("reason") or ""),
        verdicts=tuple(map(str, close.get("verdicts") or ())),
        restored=bool(close.get("restored")),
        down=bool(history.nodes_down()),
        invalid=any(state not in ("valid", None) for state in states),
    )


def interrupted(name: str, trial: str) -> TrisparkError:
    """What a campaign says that a signal ended."""
    return TrisparkError(
        "TS-CAMPAIGN-INTERRUPTED",
        "the campaign was interrupted in the middle of a trial; what was recorded stays, nothing was restored",
        where=f"campaign {name}, trial {trial}",
        expected="its end",
        observed="a signal",
        remedy=f"run the same campaign again (-e campaign={name}), it goes on at the exact boot; "
        "playbooks/rollback.yml goes back to what was good",
    )


def _moment(clock: Clock) -> Moment:
    return Moment(clock.now().astimezone(UTC), Moment.current().token)
