"""Progress of a playbook: a line for each phase; on a terminal also a live line with task, nodes and elapsed time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from trispark.cli.terminal import Terminal
from trispark.run_events import RunObserver


def note_lines(lines: tuple[str, ...]) -> list[str]:
    """A message of the playbook below its phases: a prefix for the first line, the others under it."""
    return [f"            {'> ' if number == 0 else '  '}{line}" for number, line in enumerate(lines)]


def phase_line(name: str, seconds: float) -> str:
    return f"  {seconds:6.1f} s  {name}"


class PlainProgress:
    """Lines only, for logs and pipes: a phase when it has ended, with its seconds."""

    def __init__(self, terminal: Terminal) -> None:
        self._say = terminal.say

    def phase_started(self, name: str) -> None:
        pass

    def task_started(self, name: str) -> None:
        pass

    def waiting_for(self, nodes: tuple[str, ...]) -> None:
        pass

    def note(self, lines: tuple[str, ...]) -> None:
        for line in note_lines(lines):
            self._say(line)

    def phase_ended(self, name: str, seconds: float) -> None:
        self._say(phase_line(name, seconds))


class LiveProgress:
    """The same lines above one live line: phase, task, nodes that have not answered, seconds of the phase."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now = now
        self._spinner = Spinner("dots")
        self._live = Live(self, console=console, refresh_per_second=5, transient=True)
        self._phase = ""
        self._task = ""
        self._nodes: tuple[str, ...] = ()
        self._since = self._task_since = now()

    def __enter__(self) -> LiveProgress:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def __rich__(self) -> Spinner | Text:
        line = self.line()
        if not line:
            return Text("")
        self._spinner.update(text=Text(line, no_wrap=True, overflow="ellipsis"))
        return self._spinner

    def line(self) -> str:
        """The live line as it is now; empty between phases."""
        if not self._phase:
            return ""
        now = self._now()
        parts = [f"{now - self._since:.0f} s  {self._phase}"]
        if self._task:
            parts.append(self._task)
        if self._nodes:
            parts.append(f"waiting for {', '.join(self._nodes)} ({now - self._task_since:.0f} s)")
        return " · ".join(parts)

    def phase_started(self, name: str) -> None:
        self._phase, self._task, self._nodes, self._since = name, "", (), self._now()

    def task_started(self, name: str) -> None:
        self._task, self._nodes, self._task_since = name, (), self._now()

    def waiting_for(self, nodes: tuple[str, ...]) -> None:
        self._nodes = nodes

    def note(self, lines: tuple[str, ...]) -> None:
        for line in note_lines(lines):
            self._console.print(Text(line), soft_wrap=True)

    def phase_ended(self, name: str, seconds: float) -> None:
        self._phase = ""
        self._console.print(Text(phase_line(name, seconds)), soft_wrap=True)


@contextmanager
def progress(terminal: Terminal) -> Iterator[RunObserver]:
    """Live on a terminal, plain elsewhere."""
    console = Console(file=terminal.out, highlight=False)
    if not console.is_terminal:
        yield PlainProgress(terminal)
        return
    with LiveProgress(console) as live:
        yield live
