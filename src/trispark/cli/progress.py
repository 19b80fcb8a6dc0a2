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

    def note(self, text: str) -> None:
        self._say(f"            {text}")

    def phase_ended(self, name: str, seconds: float) -> None:
        self._say(f"  {seconds:6.1f} s  {name}")


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
        self._since = now()

    def __enter__(self) -> LiveProgress:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def __rich__(self) -> Spinner | Text:
        if not self._phase:
            return Text("")
        parts = [f"{self._now() - self._since:.0f} s  {self._phase}"]
        if self._task:
            parts.append(self._task)
        if self._nodes:
            parts.append(f"waiting for {', '.join(self._nodes)}")
        text = Text(" · ".join(parts), no_wrap=True, overflow="ellipsis")
        self._spinner.update(text=text)
        return self._spinner

    def phase_started(self, name: str) -> None:
        self._phase, self._task, self._nodes, self._since = name, "", (), self._now()

    def task_started(self, name: str) -> None:
        self._task, self._nodes = name, ()

    def waiting_for(self, nodes: tuple[str, ...]) -> None:
        self._nodes = nodes

    def note(self, text: str) -> None:
        self._console.print(Text(f"            {text}"), soft_wrap=True)

    def phase_ended(self, name: str, seconds: float) -> None:
        self._phase = ""
        self._console.print(Text(f"  {seconds:6.1f} s  {name}"), soft_wrap=True)


@contextmanager
def progress(terminal: Terminal) -> Iterator[RunObserver]:
    """Live on a terminal, plain elsewhere."""
    console = Console(file=terminal.out, highlight=False)
    if not console.is_terminal:
        yield PlainProgress(terminal)
        return
    with LiveProgress(console) as live:
        yield live
