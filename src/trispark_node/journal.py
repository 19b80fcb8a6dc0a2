"""Write-ahead journal: the intent is on the disk before the effect, so that a later verb knows what was under way.

Each append reads it whole, so it is kept short: past `MOST_LINES` the newest entries and what is still needed of the
older ones become the journal, and the long one stays beside it as the previous journal, which no verb reads.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node.canonical import canonical_json
from trispark_node.clock import Clock
from trispark_node.disk import Disk
from trispark_node.errors import AgentError
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_regular

INTENT, DONE, FAILED = "intent", "done", "failed"
_LAST_SEQ = 2**53
"""No journal has so many lines; a damaged number beyond it must not become the next one's."""
MOST_LINES = 4000
KEPT_LINES = 1000
"""About 20 lines a boot: a hundred boots and their ends."""


@dataclass(frozen=True)
class Entry:
    """One line. `detail["intent"]` of a done or failed line is the `seq` of the line that it answers."""

    seq: int
    time: str
    verb: str
    phase: str
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class History:
    """All readable lines in order, and the numbers (from 1) of complete lines that are no entry."""

    entries: tuple[Entry, ...]
    damaged_lines: tuple[int, ...]

    def pending(self) -> list[Entry]:
        """Intents that neither ended nor were made up for: verbs are idempotent, so a later success of the same verb
        leaves nothing of an earlier attempt to do."""
        open_intents: dict[int, Entry] = {}
        for entry in self.entries:
            if entry.phase == INTENT:
                open_intents[entry.seq] = entry
                continue
            open_intents.pop(entry.detail["intent"], None)
            if entry.phase == DONE:
                open_intents = {seq: kept for seq, kept in open_intents.items() if kept.verb != entry.verb}
        return list(open_intents.values())

    def newest(self, count: int) -> list[Entry]:
        """The last `count` entries; of those before, what is pending, the intents that the last ones answer, and the
        last start, which tells `recover` whether a later one followed."""
        late = self.entries[-count:]
        needed = {entry.seq for entry in late} | {entry.seq for entry in self.pending()}
        needed |= {entry.detail["intent"] for entry in late if entry.phase != INTENT}
        needed |= {max((entry.seq for entry in self.entries if entry.verb == "start"), default=0)}
        return [entry for entry in self.entries if entry.seq in needed]


def _parse(line: bytes) -> Entry | None:
    try:
        value = parse_json(line)
        entry = Entry(value["seq"], value["time"], value["verb"], value["phase"], value["detail"])
    except (ValueError, KeyError, TypeError):
        return None
    typed = (
        _is_seq(entry.seq)
        and isinstance(entry.time, str)
        and isinstance(entry.verb, str)
        and isinstance(entry.detail, dict)
        and (entry.phase == INTENT or (entry.phase in (DONE, FAILED) and _is_seq(entry.detail.get("intent"))))
    )
    return entry if typed else None


def _is_seq(value: Any) -> bool:
    return type(value) is int and 0 < value <= _LAST_SEQ


def previous(path: Path) -> Path:
    """Where the journal before the last shortening is."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def _line(entry: Entry) -> bytes:
    fields = {"seq": entry.seq, "time": entry.time, "verb": entry.verb, "phase": entry.phase}
    return canonical_json({**fields, "detail": dict(entry.detail)})


class Journal:
    def __init__(self, path: Path, disk: Disk, clock: Clock) -> None:
        self._path = path
        self._disk = disk
        self._clock = clock

    def read(self) -> History:
        """A last line without its line end was never acknowledged and does not count. A damaged line in between is
        reported, never fatal: a bad sector in old history must not keep an engine from being stopped."""
        try:
            content = read_regular(self._path)
        except FileNotFoundError:
            return History((), ())
        entries: list[Entry] = []
        damaged: list[int] = []
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            entry = _parse(line)
            if entry is None:
                damaged.append(number)
            else:
                entries.append(entry)
        return History(tuple(entries), tuple(damaged))

    def append(self, verb: str, phase: str, detail: Mapping[str, Any]) -> int:
        """Append one entry durably and return its `seq`."""
        self._disk.make_directory(self._path.parent)
        with self._exclusive():
            history = self.read()
            if len(history.entries) + len(history.damaged_lines) >= MOST_LINES:
                with suppress(OSError):  # a full disk; the journal may be longer, but it may not lack this line
                    self._shorten(history)
            seq = max((entry.seq for entry in history.entries), default=0) + 1
            self._disk.append_line(self._path, _line(Entry(seq, self._clock.now(), verb, phase, detail)))
        return seq

    def _shorten(self, history: History) -> None:
        """Whenever it is cut off, the journal is the long one or the short one."""
        self._disk.link(self._path, previous(self._path))
        lines = [_line(entry) + b"\n" for entry in history.newest(KEPT_LINES)]
        self._disk.replace(self._path, b"".join(lines))

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Verbs of different lock areas share the journal; the lock is on its directory, held for one append."""
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def step(self, verb: str, detail: Mapping[str, Any], *, required: bool = True) -> Iterator[None]:
        """Intent before the body; done or failed after it. A killed process leaves the intent alone: pending.

        `required=False` is for stopping an engine: it goes on when the disk takes no more lines.
        """
        try:
            seq = self.append(verb, INTENT, detail)
        except OSError:
            if required:
                raise
            yield
            return
        try:
            yield
        except Exception as error:
            reason = error.id if isinstance(error, AgentError) else type(error).__name__
            with suppress(OSError):  # the body's error is the one to report; the intent stays pending
                self.append(verb, FAILED, {"intent": seq, "error": reason})
            raise
        try:
            self.append(verb, DONE, {"intent": seq})
        except OSError:
            if required:
                raise
