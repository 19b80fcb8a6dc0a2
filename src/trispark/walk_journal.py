"""What a walk was about to do and what came of it: one JSON object a line, on the disk before anything follows from it.

Events: `began` (the walk, or its resumption), `slot_started` (with the start of every host, see the agent's `status`),
`slot_ended` (the record that a boot left), `slot_unrecorded` (it left none), `node_down`, `stopped`, `paused`, `ended`.
The last slot of a walk, one above those of its plan, is the boot that restores the site's baseline.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark_node.plain_json import parse_json

JOURNAL_FILE: Final = "journal.jsonl"
Identities = Mapping[str, str | None]


@dataclass(frozen=True)
class Entry:
    """One line. `time` is UTC; `fields` what the event carries."""

    event: str
    time: str
    fields: Mapping[str, Any]

    @property
    def slot(self) -> int | None:
        found = self.fields.get("slot")
        return found if isinstance(found, int) else None


@dataclass(frozen=True)
class History:
    """All lines so far, oldest first."""

    entries: tuple[Entry, ...]

    def of_slot(self, slot: int, *events: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.slot == slot and (not events or entry.event in events)]

    def attempts(self, slot: int) -> int:
        """How often the boot of this slot was begun."""
        return len(self.of_slot(slot, "slot_started"))

    def failed_starts(self) -> int:
        """Boots that did not become ready, and those that left no record for another reason than their controller's
        end."""
        return sum(
            entry.event == "slot_unrecorded" or (entry.event == "slot_ended" and entry.fields.get("state") == "failed")
            for entry in self.entries
        )

    def last_start(self, slot: int | None = None) -> Entry | None:
        """The last boot that was begun, of this slot where one is given."""
        found = [entry for entry in self.entries if entry.event == "slot_started" and slot in (None, entry.slot)]
        return found[-1] if found else None

    def nodes_down(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.event == "node_down"]

    @property
    def began(self) -> str | None:
        """When the walk began, UTC."""
        return next((entry.time for entry in self.entries if entry.event == "began"), None)

    @property
    def ended(self) -> bool:
        return any(entry.event == "ended" for entry in self.entries)

    @property
    def unfinished(self) -> bool:
        """Whether a boot was begun and the walk has not ended: the baseline may have to be brought back."""
        return self.last_start() is not None and not self.ended

    @property
    def stopped(self) -> str | None:
        """Why the walk was stopped for good; None while it may go on."""
        found = [entry for entry in self.entries if entry.event == "stopped"]
        return str(found[-1].fields.get("reason")) if found else None


class Journal:
    """The journal of one walk."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / JOURNAL_FILE

    def write(self, event: str, time: str, **fields: Any) -> None:
        """Append one line; it is on the disk when this returns. What an interrupted write left is cut off first."""
        self.path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        fresh = not self.path.exists()
        line = json.dumps({"event": event, "time": time, **fields}, ensure_ascii=False, sort_keys=True).encode()
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            os.ftruncate(descriptor, content.rfind(b"\n") + 1)
            os.lseek(descriptor, 0, os.SEEK_END)
            data = line + b"\n"
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if fresh:
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def read(self) -> History:
        """All complete lines. Raises TS-WALK-DAMAGED for one that the walk did not write."""
        try:
            lines = self.path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return History(())
        return History(tuple(self._entry(number, line) for number, line in enumerate(lines, start=1)))

    def _entry(self, number: int, line: bytes) -> Entry:
        try:
            fields = dict(parse_json(line))
            event, time = fields.pop("event"), fields.pop("time")
            if not isinstance(event, str) or not isinstance(time, str):
                raise TypeError("event and time are texts")
        except (KeyError, TypeError, ValueError) as error:
            raise TrisparkError(
                "TS-WALK-DAMAGED",
                "the journal of a trial cannot be read",
                where=f"{self.path} line {number}",
                expected="what the walk wrote",
                observed=f"{type(error).__name__}: {error}"[:200],
                remedy="start the trial anew; its boots stay recorded",
            ) from None
        return Entry(event, time, fields)
