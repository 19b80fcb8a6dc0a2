"""Walks the boots of a stage one after the other, each as a child run of playbooks/boot.yml, and restores the baseline.

A boot is finished when a record of it exists; the records are the truth, the journal says what was begun. So a walk
whose controller was killed goes on at the exact boot. What a walk never does: repeat a finished boot; begin a boot a
third time; begin again a boot that took a node down; go on after two failed starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

from trispark import fleet_lock
from trispark.boot_plan import is_serving
from trispark.errors import TrisparkError
from trispark.walk_journal import Entry, History, Identities, Journal
from trispark.walk_plan import Slot, WalkPlan
from trispark.walk_slots import MAX_ATTEMPTS, MAX_FAILED_STARTS, Record, record_of, why_pointless
from trispark.walk_time import BootTimes, fits

RETURN_POLL_S: Final = 10.0
RESTORE: Final = "restore"
ROLLBACK: Final = "rollback"
Statuses = Mapping[str, Mapping[str, Any] | None]
State = Literal["complete", "stopped", "paused"]


@dataclass(frozen=True)
class BootRequest:
    """One boot as the child run gets it. `purpose` rollback: to the generation of that id which the nodes hold."""

    slot: int
    arm: str
    purpose: Literal["trial", "restore", "rollback"]
    value: str | None
    generation: str
    measure: bool
    check: bool = False


@dataclass(frozen=True)
class ChildEnd:
    """How a child run ended; `lines` are its failures, one line each."""

    ok: bool
    interrupted: bool
    lines: tuple[str, ...]
    seconds: float


class Children(Protocol):
    """The runs below a walk. `boot` returns when it has ended, whatever came of it."""

    def boot(self, request: BootRequest) -> ChildEnd: ...

    def statuses(self) -> Statuses:
        """{node: answer of `status`}, None for a node that did not answer.

        Raises TS-WALK-STATUS when the run says nothing of the nodes, and WalkInterrupted.
        """


class Clock(Protocol):
    """Time, given, so that tests can let it pass."""

    def now(self) -> datetime:
        """With a time zone."""

    def sleep(self, seconds: float) -> None: ...


class WalkInterrupted(Exception):
    """A signal ended a child run: the walk ends with it, and can be resumed."""


class WalkLocked(Exception):
    """Another command works on the fleet: nothing may be booted or restored any more. `line`: who, as the node said."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line


@dataclass(frozen=True)
class WalkEnd:
    """`complete`: every boot that there is to do was done; `stopped`: for good, with `reason`; `paused`: by the
    deadline. `restored`: the boot with which the site's baseline serves, None when that is not known; `begun`: whether
    a boot was begun, now or before the walk was resumed, after which the baseline has to be restored."""

    state: State
    reason: str
    restored: str | None
    begun: bool
    booted: int


@dataclass
class Walker:
    """One walk. `records` reads the controller's copies, oldest first; `statuses` are the nodes' answers at its begin;
    `return_s` is how long a node that went down is waited for before the baseline is restored."""

    plan: WalkPlan
    journal: Journal
    records: Callable[[], Sequence[Record]]
    children: Children
    clock: Clock
    say: Callable[[str], None]
    times: BootTimes
    statuses: Statuses
    deadline: datetime | None = None
    return_s: float = 600.0
    _booted: int = 0
    _proved: str | None = None
    """Id of the record that the last child run left; None when it left none."""
    _known: dict[str, str | None] = field(default_factory=dict)

    def walk(self) -> WalkEnd:
        """Raises WalkInterrupted, TS-WALK-STATUS, and what reading records or journal raises; what was begun is brought
        back first where that can be done, and the walk can be resumed. Raises TS-LOCK-LOST and TS-LOCK-HELD without
        that: what serves is another command's now. A walk from which the lock was taken is stopped for good."""
        self._known = identities(self.statuses)
        self._note("began", identities=self._known)
        try:
            return self._walk()
        except WalkLocked as locked:
            if fleet_lock.LOST in locked.line and self.journal.read().stopped is None:
                self._note("stopped", reason=locked.line)
            raise _locked(self.plan.walk, locked.line) from None

    def _walk(self) -> WalkEnd:
        try:
            reason = self.journal.read().stopped or self._walk_slots()
        except TrisparkError as error:
            self.say(f"the trial cannot go on: {error}")
            with suppress(TrisparkError):
                self._restore()
            raise
        if reason is not None and self.journal.read().stopped is None and not isinstance(reason, _Pause):
            self._note("stopped", reason=reason)
        restored = self._restore()
        state: State = "complete" if reason is None else "stopped"
        if isinstance(reason, _Pause):
            self._note("paused", reason=str(reason))
            state = "paused"
        return WalkEnd(state, str(reason or ""), restored, self._is_begun(), self._booted)

    # -- the slots of the plan

    def _walk_slots(self) -> str | None:
        """None when all is done, else why not."""
        for slot in self.plan.slots:
            record = self._record(slot.slot)
            if record is not None:
                reason = self._take(slot, record, known=True)
            elif (pointless := why_pointless(self.plan, slot, self.records())) is not None:
                self._line(slot, f"left out: {pointless}")
                continue
            else:
                reason = self._boot(slot)
            if reason is not None:
                return reason
        return None

    def _boot(self, slot: Slot) -> str | None:
        """Begin the boot of a slot until there is a record of it; why the walk ends here, None to go on."""
        while True:
            reason = self._refusal(slot)
            if reason is not None:
                return reason
            if not fits(self.clock.now(), self.deadline, self.times, measured=slot.counted):
                return _Pause(f"boot {slot.slot} ({slot.label}) cannot end before {self.deadline:%Y-%m-%d %H:%M %Z}")
            ended = self._run(
                BootRequest(
                    slot.slot, slot.arm, "trial", slot.value, slot.generation, measure=slot.counted, check=slot.check
                )
            )
            record = self._record(slot.slot)
            if record is not None:
                self._proved = record["id"]
                return self._take(slot, record, known=False, seconds=ended.seconds)
            why = _why(ended, None)
            self._note("slot_unrecorded", slot=slot.slot, reason=why)
            self._line(slot, f"no record: {why}", ended.seconds)
            reason = self._node_down(slot.slot, slot.label)
            if reason is None and "TS-PLAN-CHANGED" in why:
                reason = why  # it would be refused again
            if reason is not None:
                return reason

    def _refusal(self, slot: Slot) -> str | None:
        """Why the boot of this slot must not begin (again)."""
        history = self.journal.read()
        for down in history.nodes_down():
            return _down_reason(down)
        start = history.last_start(slot.slot)
        if start is not None:
            went = changed_hosts(start.fields.get("identities") or {}, self._known)
            if went:
                return self._note_down(slot.slot, slot.label, went)
        if history.failed_starts() >= MAX_FAILED_STARTS:
            return f"{MAX_FAILED_STARTS} boots did not start"
        if history.attempts(slot.slot) >= MAX_ATTEMPTS:
            return f"boot {slot.slot} ({slot.label}) was begun {MAX_ATTEMPTS} times and left no record"
        return None

    def _take(self, slot: Slot, record: Record, *, known: bool, seconds: float | None = None) -> str | None:
        """Draw the conclusions from a recorded boot; why the walk ends with it, None to go on."""
        state, reason = record["outcome"]["state"], record["outcome"]["reason"]
        history = self.journal.read()
        if not history.of_slot(slot.slot, "slot_ended"):
            self._note("slot_ended", slot=slot.slot, record=record["id"], state=state)
        outcome = state if state == "valid" else f"{state}: {reason}"
        self._line(slot, f"{outcome}, done before ({record['id']})" if known else outcome, seconds)
        if state == "valid":
            return None
        down = self._node_down(slot.slot, slot.label) if not known else self._known_down(slot, history)
        if down is not None:
            return down
        if slot.arm == "baseline":
            return f"the boot of the baseline is {state}: {reason}"
        if self.journal.read().failed_starts() >= MAX_FAILED_STARTS:
            return f"{MAX_FAILED_STARTS} boots did not start, the last one: {reason}"
        return None

    def _known_down(self, slot: Slot, history: History) -> str | None:
        """The same for a boot that was recorded before this walk was resumed: only the last one can be the cause."""
        for down in history.nodes_down():
            return _down_reason(down)
        start = history.last_start(slot.slot)
        if start is None or start != history.last_start():
            return None
        went = changed_hosts(start.fields.get("identities") or {}, self._known)
        return self._note_down(slot.slot, slot.label, went) if went else None

    # -- nodes that went down

    def _node_down(self, slot: int, label: str) -> str | None:
        """After a boot that did not end well: whether it took a node down."""
        self.statuses = {}  # what was seen before the boot says nothing when this look fails
        self.statuses = self.children.statuses()
        found = identities(self.statuses)
        went = changed_hosts(self._known, found)
        silent = self._silent(self.statuses)
        self._known.update({node: seen for node, seen in found.items() if seen is not None})
        if not went and not silent:
            return None
        return self._note_down(slot, label, went or silent)

    def _note_down(self, slot: int, label: str, nodes: Sequence[str]) -> str:
        entry = {"slot": slot, "label": label, "nodes": list(nodes)}
        self._note("node_down", **entry)
        return _down_reason(Entry("node_down", "", entry))

    # -- the way back

    def _restore(self) -> str | None:
        """The boot with which the site's baseline serves, None when it does not.

        The second attempt goes back to the generation that the nodes hold, which needs nothing of the project's tree.
        """
        slot = len(self.plan.slots)
        waited_until = self.clock.now().timestamp() + self.return_s
        for purpose in (RESTORE, ROLLBACK):
            last = self._last_boot()
            if last is not None and self._serves(last):
                return str(last["id"])
            if not self._is_begun() or not self._await_nodes(waited_until):
                return None
            ended = self._run(BootRequest(slot, "baseline", purpose, None, self.plan.site_baseline, measure=False))
            record = self._last_boot()
            new = record is not None and (last is None or record["id"] != last["id"])
            state = record["outcome"]["state"] if record is not None and new else "no record"
            why = "" if state == "valid" else f": {_why(ended, record if new else None)}"
            self.say(f"{self._place(slot)} {purpose} baseline: {state}{why}, {ended.seconds:.0f} s")
            if record is not None and new:
                self._proved = record["id"]
                self._note("slot_ended", slot=slot, record=record["id"], state=state)
            else:
                self._note("slot_unrecorded", slot=slot, reason=why.removeprefix(": "))
        last = self._last_boot()
        if last is not None and self._serves(last):
            return str(last["id"])
        self.say(f"the baseline {self.plan.site_baseline} does not serve again")
        return None

    def _is_begun(self) -> bool:
        return self.journal.read().last_start() is not None

    def _serves(self, last: Record) -> bool:
        """Whether the newest boot of the site is a valid one of the baseline, and serves as far as is known."""
        if last["outcome"]["state"] != "valid" or last["resolved"]["generation"] != self.plan.site_baseline:
            return False
        if last["id"] == self._proved:
            return True
        answers = {node: answer for node, answer in self.statuses.items() if answer}
        return is_serving(answers, self.plan.site_baseline, len(self._known))

    def _await_nodes(self, until: float) -> bool:
        """Wait for nodes that do not answer; without all of them nothing can be booted."""
        if not self.journal.read().nodes_down():
            return True
        while True:
            late = self.clock.now().timestamp() >= until
            try:
                silent = self._silent(self.children.statuses())
            except TrisparkError:
                if late:
                    raise
            else:
                if not silent:
                    return True
                if late:
                    self.say(f"restore: {', '.join(silent)} did not come back, the baseline is not restored")
                    return False
            self.clock.sleep(RETURN_POLL_S)

    def _silent(self, statuses: Statuses) -> tuple[str, ...]:
        """Nodes of the site that did not answer."""
        return tuple(node for node in sorted(self._known) if not statuses.get(node))

    # -- one child run, and what is known of it

    def _run(self, request: BootRequest) -> ChildEnd:
        self._note("slot_started", slot=request.slot, identities=self._known, generation=request.generation)
        self._proved = None
        ended = self.children.boot(request)
        self._booted += 1
        if ended.interrupted:
            raise WalkInterrupted(f"boot {request.slot}")
        for line in ended.lines:
            if fleet_lock.AREA in line:
                raise WalkLocked(line)
        return ended

    def _record(self, slot: int) -> Record | None:
        return record_of(self.plan, slot, self.records())

    def _last_boot(self) -> Record | None:
        found = [record for record in self.records() if record["kind"] == "boot"]
        return found[-1] if found else None

    def _note(self, event: str, **fields: Any) -> None:
        self.journal.write(event, f"{self.clock.now().astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}", **fields)

    def _place(self, slot: int) -> str:
        return f"slot {slot + 1}/{len(self.plan.slots) + 1}"

    def _line(self, slot: Slot, outcome: str, seconds: float | None = None) -> None:
        """One line a boot: place, arm, label, outcome, seconds, and how long the rest will take."""
        left = [each for each in self.plan.slots if each.slot > slot.slot]
        rest = sum(self.times.of(measured=each.counted) for each in left) + self.times.plain_s
        spent = "" if seconds is None else f", {seconds:.0f} s"
        name = slot.arm if slot.label == slot.arm else f"{slot.arm} {slot.label}"
        name += "" if slot.counted else " (not counted)"
        self.say(f"{self._place(slot.slot)} {name}: {outcome}{spent}; about {_duration(rest)} left")


class _Pause(str):
    """A reason to go on later."""


def _why(ended: ChildEnd, record: Record | None) -> str:
    """In the words of the record where there is one, else of the first failures of the child run."""
    if record is not None:
        return str(record["outcome"]["reason"])
    return "; ".join(ended.lines[:2]) or "the boot left no record"


def identities(statuses: Statuses) -> dict[str, str | None]:
    """{node: start of its host}, None where it is not known."""
    return {node: (answer or {}).get("host_boot") for node, answer in sorted(statuses.items())}


def changed_hosts(before: Identities, now: Identities) -> tuple[str, ...]:
    """Nodes whose host was started anew in between; one whose start is not known both times says nothing."""
    return tuple(sorted(node for node, old in before.items() if old is not None and now.get(node) not in (None, old)))


def _down_reason(entry: Entry) -> str:
    nodes = ", ".join(map(str, entry.fields.get("nodes") or ()))
    return f"boot {entry.slot} ({entry.fields.get('label')}) took {nodes} down; it is never tried again"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _locked(walk: str, line: str) -> TrisparkError:
    where, expected = f"trial {walk}", "the fleet lock until its end"
    if fleet_lock.LOST in line:
        return TrisparkError(
            "TS-LOCK-LOST",
            "the fleet lock was taken from this trial, which ended there and restored nothing",
            where,
            expected,
            line,
            f"see ./trispark status; the same playbook with -e resume={walk} brings the baseline back and records it",
        )
    return TrisparkError(
        "TS-LOCK-HELD",
        "another command works on the fleet, so the trial ended there and restored nothing",
        where,
        expected,
        line,
        f"wait until that has ended; then the same playbook with -e resume={walk} goes on",
    )


def interrupted(walk: str) -> TrisparkError:
    """What a walk says that a signal ended."""
    return TrisparkError(
        "TS-WALK-INTERRUPTED",
        "the trial was interrupted in the middle of a boot; what was recorded stays, nothing was restored",
        where=f"trial {walk}",
        expected="its end",
        observed="a signal",
        remedy=f"the same playbook with -e resume={walk} goes on; playbooks/rollback.yml goes back to what was good",
    )
