"""The demo: the lab, stage A, the trial of wo_a, an incident and the way back, on this machine's three lab nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trispark.cli import exit_codes
from trispark.cli.play import Player
from trispark.cli.records import record_cache, record_paths
from trispark.errors import TrisparkError

if TYPE_CHECKING:
    from trispark.runner import RunResult

FEATURE = "wo_a"
VERDICTS = ("KEEP", "REJECT", "INCONCLUSIVE")


@dataclass
class DemoReport:
    """What `demo --json` prints. A part stays empty until its playbook has published it."""

    stage_a: dict[str, Any] = field(default_factory=dict)
    trial: dict[str, Any] = field(default_factory=dict)
    rollback: dict[str, Any] = field(default_factory=dict)
    records: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        def only(part: dict[str, Any], *names: str) -> dict[str, Any]:
            return {name: part.get(name) for name in names}

        return {
            "stage_a": only(self.stage_a, "packed_ok", "boot_id", "c1_tok_s", "c4_tok_s"),
            "trial": only(self.trial, "feature", "verdict"),
            "rollback": only(self.rollback, "seconds", "verified"),
            "records": self.records,
            "wall_s": self.wall_s,
        }

    def unverified(self) -> list[str]:
        """What is missing for "everything verified", each with its observed value; empty when nothing is."""

        def positive(value: object) -> bool:
            return isinstance(value, int | float) and not isinstance(value, bool) and value > 0

        wants = (
            ("stage_a.packed_ok", self.stage_a.get("packed_ok"), lambda value: value is True),
            ("stage_a.boot_id", self.stage_a.get("boot_id"), bool),
            ("stage_a.c1_tok_s", self.stage_a.get("c1_tok_s"), positive),
            ("stage_a.c4_tok_s", self.stage_a.get("c4_tok_s"), positive),
            ("trial.feature", self.trial.get("feature"), lambda value: value == FEATURE),
            ("trial.verdict", self.trial.get("verdict"), lambda value: value in VERDICTS),
            ("rollback.seconds", self.rollback.get("seconds"), positive),
            ("rollback.verified", self.rollback.get("verified"), lambda value: value is True),
            ("records", len(self.records), lambda value: value > 0),
        )
        return [f"{name}={value!r}" for name, value, good in wants if not good(value)]


class DemoEnd(Exception):
    """A playbook of the demo did not succeed; its errors are printed already."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(result.playbook)
        self.result = result


def published_records(published: dict[str, Any]) -> list[str]:
    """Record paths in the order written: the list ``records``, and ``record`` of each part that was published."""
    listed = published.get("records")
    paths = list(listed) if isinstance(listed, list) else []
    for part in published.values():
        if isinstance(part, dict) and isinstance(part.get("record"), str):
            paths.append(part["record"])
    return [str(path) for path in dict.fromkeys(paths)]


class Demo:
    """One demo. ``prepare`` makes the machine ready and may install and start Docker Engine."""

    def __init__(
        self,
        repo: Path,
        player: Player,
        prepare: Callable[[], None],
        *,
        keep: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repo = repo
        self._player = player
        self._terminal = player.terminal
        self._prepare = prepare
        self._keep = keep
        self._now = now
        self._seconds: list[tuple[str, float]] = []
        self.report = DemoReport()

    def run(self) -> int:
        """Exit status; 0 only when everything was verified."""
        started = self._now()
        cache = record_cache(self._repo, self._player.site)
        before = set(record_paths(cache, self._repo))
        status = exit_codes.OK
        lab_touched = False
        try:
            self._timed("prepare this machine", self._prepare)
            lab_touched = True
            self._play("make the lab", "lab_up")
            self._play("stage A: shards, boot, gates, C1 and C4", "stage_a")
            self._play(f"stage C: trial of {FEATURE}", "stage_c", {"feature": FEATURE})
            self._play("incident: rank 1 dies", "demo_incident")
            self._play("rollback", "rollback")
        except TrisparkError as error:
            self._terminal.error(str(error))
            status = exit_codes.of_error(error)
        except DemoEnd as end:
            status = exit_codes.of_run(end.result)
        # All that is new, also the records of boots that a playbook does not name, such as the restored baseline's.
        new = [path for path in record_paths(cache, self._repo) if path not in before]
        self.report.records = sorted({*self.report.records, *new})
        missing = self.report.unverified()
        if status == exit_codes.OK and missing:
            self._terminal.error(f"TS-DEMO-UNVERIFIED: the playbooks ended, but not verified: {', '.join(missing)}")
            status = exit_codes.FAILED
        if lab_touched:
            # Playbooks before the one that refused have made and changed the lab.
            status = exit_codes.FAILED if status == exit_codes.REFUSED else status
            status = self._end_lab(status)
        self.report.wall_s = round(self._now() - started, 1)
        self._summary()
        return status

    def _timed(self, title: str, action: Callable[[], object]) -> None:
        self._terminal.say(title)
        began = self._now()
        try:
            action()
        finally:
            self._seconds.append((title, self._now() - began))

    def _play(self, title: str, name: str, extra: dict[str, Any] | None = None) -> None:
        def play() -> None:
            result = self._player.play(name, extra)
            if not result.ok:
                raise DemoEnd(result)
            for part in ("stage_a", "trial", "rollback"):
                found = result.published.get(part)
                if isinstance(found, dict):
                    setattr(self.report, part, found)
            for path in published_records(result.published):
                if path not in self.report.records:
                    self.report.records.append(path)

        self._timed(title, play)

    def _end_lab(self, status: int) -> int:
        if self._keep:
            self._terminal.say("the lab stays (--keep); ./trispark lab down removes it")
            return status
        if status == exit_codes.INTERRUPTED:
            self._terminal.error("the lab stays as the interrupt left it; ./trispark lab down removes it")
            return status
        reason = "" if status == exit_codes.OK else " (also after a failure; --keep would leave it)"
        try:
            self._play(f"remove the lab{reason}", "lab_down")
        except DemoEnd as end:
            return status or exit_codes.of_run(end.result)
        return status

    def _summary(self) -> None:
        say = self._terminal.say
        say()
        for title, seconds in self._seconds:
            say(f"{seconds:7.1f} s  {title}")
        say(f"{self.report.wall_s:7.1f} s  in all")
        for path in self.report.records:
            say(f"record     {path}")
        if trial := self.report.trial.get("id"):
            say(f"report: ./trispark report {trial}")
