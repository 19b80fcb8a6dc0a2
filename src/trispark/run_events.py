"""Folds the events of one ansible-playbook run into phases, failures and published results.

Pure: it reads the event dictionaries of ansible-runner (callback ``awx_display``) and no clock, so recorded events give
the same answer as a live run. Seconds come from the events' own ``created`` times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol

_TS_ID = re.compile(r"TS-[A-Z0-9]+-[A-Z0-9]+")
_CHECK_ID: Final = re.compile(r"boot\.[a-z_]+: |[a-z][a-z0-9_]*\.[A-Za-z0-9_.-]+( on rank [0-9]+)?: expected ")
"""How the line of a gate begins, and that of a rank that did not become ready."""
_ANSIBLE_PREFIX = re.compile(r"^(?:[A-Z][^:]{0,40}: ){1,3}(?=TS-[A-Z0-9]+-[A-Z0-9]+)")
_MAX_NOTES = 400
WALK_PREFIX = "walk: "
"""How a line begins that a walk shows while its task goes on."""
WORK_PREFIX = "work: "
"""The same of work on a node that takes long."""


@dataclass(frozen=True)
class FailedEvent:
    """One task that failed on one node. ``check_id`` is empty unless the module gave one."""

    node: str
    task: str
    message: str
    check_id: str = ""
    unreachable: bool = False

    @property
    def has_id(self) -> bool:
        return _TS_ID.match(self.message) is not None

    @property
    def said(self) -> str:
        """The message, with the task's name before it where it names no error and no check itself."""
        named = self.has_id or _CHECK_ID.match(self.message) is not None
        return self.message if named else f"{self.task}: {self.message}"


@dataclass(frozen=True)
class PlaySeconds:
    """How long a play took, in seconds of the run's own event times."""

    name: str
    seconds: float


class RunObserver(Protocol):
    """What a display is told while a run goes on."""

    def phase_started(self, name: str) -> None: ...

    def task_started(self, name: str) -> None: ...

    def waiting_for(self, nodes: tuple[str, ...]) -> None: ...

    def note(self, lines: tuple[str, ...]) -> None:
        """One message of the playbook, one line at least."""

    def phase_ended(self, name: str, seconds: float) -> None: ...


class QuietObserver:
    """Shows nothing."""

    def phase_started(self, name: str) -> None:
        pass

    def task_started(self, name: str) -> None:
        pass

    def waiting_for(self, nodes: tuple[str, ...]) -> None:
        pass

    def note(self, lines: tuple[str, ...]) -> None:
        pass

    def phase_ended(self, name: str, seconds: float) -> None:
        pass


def _seconds(created: object) -> float | None:
    if not isinstance(created, str):
        return None
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def failure_message(res: Mapping[str, Any]) -> str:
    """The message of a failed result: of the first failed item of a loop, else ``msg``, else what the command said."""
    for item in res.get("results") or ():
        if isinstance(item, Mapping) and (item.get("failed") or item.get("unreachable")):
            return failure_message(item)
    message = _one_line(res.get("msg") or "")
    # A command's own message is "non-zero return code", that of a module which broke is no better; its last words are.
    if message in ("", "non-zero return code") or message.startswith("Module result deserialization failed"):
        for stream in ("stderr", "module_stderr", "stdout", "module_stdout", "censored"):
            lines = [line for line in str(res.get(stream) or "").splitlines() if line.strip()]
            if lines:
                message = f"{message}: {_one_line(lines[-1])}" if message else _one_line(lines[-1])
                break
    # Ansible puts words of its own ("Task failed: ...") before a module's message.
    message = _ANSIBLE_PREFIX.sub("", message)
    return message or "failed without a message"


@dataclass
class RunEvents:
    """State of one run. Feed each event to :meth:`add`, then call :meth:`close`."""

    observer: RunObserver = field(default_factory=QuietObserver)
    plays: list[PlaySeconds] = field(default_factory=list)
    failures: list[FailedEvent] = field(default_factory=list)
    unreachable: set[str] = field(default_factory=set)
    stats: dict[str, dict[str, int]] = field(default_factory=dict)
    published: dict[str, Any] = field(default_factory=dict)
    changed: bool = False
    pid: int | None = None
    last_play: str = ""
    last_task: str = ""
    tasks: int = 0
    _play_started: float | None = None
    _now: float | None = None
    _waiting: set[str] = field(default_factory=set)
    _note_lines_left: int = _MAX_NOTES
    _noted: set[tuple[str, ...]] = field(default_factory=set)

    def add(self, event: Mapping[str, Any]) -> None:
        """Take one event of ansible-runner; kinds that say nothing of interest are skipped."""
        now = _seconds(event.get("created"))
        self._now = now if now is not None else self._now
        pid = event.get("pid")
        if isinstance(pid, int) and pid > 0:
            self.pid = pid
        data = _mapping(event.get("event_data"))
        match event.get("event"):
            case "playbook_on_play_start":
                self._start_play(_one_line(data.get("name") or data.get("play") or "play"))
            case "playbook_on_task_start" | "playbook_on_handler_task_start":
                self._start_task(_one_line(data.get("task") or data.get("name") or "task"))
            case "runner_on_start":
                self._waiting.add(str(data.get("host")))
                self._show_waiting()
            case "runner_on_ok":
                self._finish_host(data)
                self._result(data)
            case "runner_on_skipped":
                self._finish_host(data)
            case "runner_on_failed":
                self._finish_host(data)
                if not data.get("ignore_errors"):
                    self._fail(data, unreachable=False)
            case "runner_on_unreachable":
                self._finish_host(data)
                self.unreachable.add(str(data.get("host")))
                self._fail(data, unreachable=True)
            case "playbook_on_stats":
                self._stats(data)
            case "verbose":
                line = str(event.get("stdout") or "").rstrip()
                for prefix in (WALK_PREFIX, WORK_PREFIX):
                    if line.startswith(prefix):
                        self.observer.note((line.removeprefix(prefix),))

    def close(self) -> None:
        """End the play that is still open; a run that was interrupted has no closing event."""
        if self.last_play and self._play_started is not None:
            seconds = max(0.0, (self._now or self._play_started) - self._play_started)
            self.plays.append(PlaySeconds(self.last_play, round(seconds, 3)))
            self.observer.phase_ended(self.last_play, seconds)
        self._play_started = None

    def _start_play(self, name: str) -> None:
        self.close()
        self.last_play = name
        self.last_task = ""
        self._play_started = self._now if self._now is not None else 0.0
        self._waiting.clear()
        self.observer.phase_started(name)

    def _start_task(self, name: str) -> None:
        self.last_task = name
        self.tasks += 1
        self._waiting.clear()
        self._noted.clear()
        self.observer.task_started(name)

    def _show_waiting(self) -> None:
        self.observer.waiting_for(tuple(sorted(self._waiting)))

    def _finish_host(self, data: Mapping[str, Any]) -> None:
        self._waiting.discard(str(data.get("host")))
        self._show_waiting()

    def _result(self, data: Mapping[str, Any]) -> None:
        res = _mapping(data.get("res"))
        self.changed = self.changed or bool(res.get("changed"))
        # The summary of a loop carries its items as results, and as message nothing but that it ended.
        if data.get("task_action") in ("debug", "ansible.builtin.debug") and "results" not in res:
            self._note(tuple(self._note_lines(res.get("msg"))[: self._note_lines_left]))

    def _note(self, lines: tuple[str, ...]) -> None:
        """Show a message of the task once, whatever the number of nodes that say the same."""
        if lines and lines not in self._noted:
            self._noted.add(lines)
            self._note_lines_left -= len(lines)
            self.observer.note(lines)

    @staticmethod
    def _note_lines(message: object) -> list[str]:
        parts = [part for part in (message if isinstance(message, list) else [message]) if isinstance(part, str)]
        return [line.rstrip() for part in parts for line in part.splitlines() if line.strip()]

    def _fail(self, data: Mapping[str, Any], *, unreachable: bool) -> None:
        res = _mapping(data.get("res"))
        self.changed = self.changed or bool(res.get("changed"))
        self.failures.append(
            FailedEvent(
                node=str(data.get("host")),
                task=_one_line(data.get("task") or self.last_task),
                message=failure_message(res),
                check_id=str(res.get("check_id") or ""),
                unreachable=unreachable,
            )
        )

    def _stats(self, data: Mapping[str, Any]) -> None:
        for kind in ("ok", "changed", "dark", "failures", "ignored", "rescued", "skipped", "processed"):
            counts = _mapping(data.get(kind))
            self.stats[kind] = {str(host): int(count) for host, count in counts.items()}
        self.published = dict(_mapping(_mapping(data.get("artifact_data")).get("trispark")))


def error_lines(failures: list[FailedEvent], limit: int = 8) -> list[str]:
    """The lines that a person reads: the same message of several nodes once; failures with a TS- id win over others."""
    with_id = [failure for failure in failures if failure.has_id]
    nodes: dict[tuple[str, str], list[str]] = {}
    for failure in with_id or failures:
        message = failure.said
        prefix = "unreachable" if failure.unreachable else ""
        nodes.setdefault((prefix, message), []).append(failure.node)
    lines = []
    for (prefix, message), hosts in nodes.items():
        names = ", ".join(sorted(set(hosts)))
        where = "" if names == "localhost" else f"{names}: "
        lines.append(f"{where}{prefix + ': ' if prefix else ''}{message}")
    if len(lines) > limit:
        lines = [*lines[:limit], f"... and {len(lines) - limit} more, see the run's events"]
    return lines
