"""The verb `status`, once or with `--watch`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trispark.cli import exit_codes
from trispark.cli.play import Player
from trispark.cli.terminal import Terminal
from trispark.errors import TrisparkError
from trispark.fleet_state import States, judge, without_answer
from trispark.reporting import node_states
from trispark.status_view import status_lines
from trispark.status_watch import Complete, Look, Screen, Timing, watch

if TYPE_CHECKING:
    from rich.live import Live


def exit_of(states: States) -> int:
    """4 where a node does not answer, 1 where the state is neither serving nor stopped, or something is wrong, else
    0."""
    if without_answer(states):
        return exit_codes.UNREACHABLE
    return exit_codes.OK if judge(states).consistent else exit_codes.FAILED


def as_json(site: str, status: str, states: States, unreachable: frozenset[str]) -> dict[str, Any]:
    """What `--json` prints: all that the nodes said."""
    return {
        "site": site,
        "status": status,
        "fleet": judge(states).as_dict() if states else None,
        "nodes": states,
        "unreachable": sorted(unreachable),
    }


def run_status(player: Player, *, json: bool) -> int:
    """One look; the exit status."""
    terminal = player.terminal
    result = player.play("status")
    states = node_states(result.published)
    for node in sorted(result.unreachable - states.keys()):
        terminal.say(f"{node}  unreachable")
    unreachable = result.unreachable | without_answer(states)
    if json:
        terminal.json(as_json(player.site, result.status, states, unreachable))
    if unreachable:
        return exit_codes.UNREACHABLE
    return exit_codes.of_run(result) or exit_of(states)


def run_watch(
    player: Player,
    *,
    interval_s: float,
    for_s: float | None,
    json: bool,
    complete: Complete | None = None,
    timing: Timing | None = None,
) -> int:
    """Looks until Ctrl-C or for `for_s` seconds. `complete`: what completes a rollback that waited for a node."""
    timing = timing or Timing(time.monotonic, time.sleep, lambda: time.strftime("%H:%M:%S"))
    with _screen(player.terminal) as screen:
        watched = watch(_looks(player), screen, timing, interval_s=interval_s, for_s=for_s, complete=complete)
    states = watched.states or {}
    if json:
        status = "interrupted" if watched.interrupted else "successful" if watched.states else "failed"
        player.terminal.json(as_json(player.site, status, states, without_answer(states)))
    if watched.interrupted:
        return exit_codes.INTERRUPTED
    return exit_of(states) if watched.states else exit_codes.FAILED


def completer(player: Player) -> Complete:
    """Completes a rollback by the playbook that every changing verb begins with."""

    def complete(rollback: Mapping[str, Any]) -> list[str]:
        from trispark.run_events import error_lines

        result = player.run_quietly("recover")
        done = result.published.get("rollback") or {}
        if result.ok and done.get("verified"):
            return [f"rollback to {done['generation']} is complete: it serves again, after {done['seconds']} s"]
        lines = error_lines(result.failures)
        raise TrisparkError(
            "TS-RECOVER-WATCH",
            f"the rollback to {rollback.get('target')} could not be completed",
            where="playbooks/recover.yml",
            expected="it serves on all ranks and passes its gates",
            observed=lines[0] if lines else f"the run ended {result.status}",
            remedy="do what the line names; the watch tries again, ./trispark rollback does it now",
        )

    return complete


def _looks(player: Player) -> Callable[[], Look]:
    def look() -> Look:
        result = player.run_quietly("status")
        # A watch makes a run every few seconds; kept, they would push out those that tell of what went wrong.
        if result.directory.parent == player.repo / ".trispark" / "runs":
            shutil.rmtree(result.directory, ignore_errors=True)
        if result.status == "interrupted":
            return Look({}, interrupted=True)
        states = node_states(result.published)
        failure = "" if states else "; ".join(failure.message for failure in result.failures) or "ansible said nothing"
        return Look(states, failure=failure)

    return look


class _Lines:
    """For logs and pipes: all at first, then changes."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._shown = False

    def changed(self, line: str) -> None:
        self._terminal.say(line)

    def whole(self, states: States) -> None:
        if not self._shown:
            self._shown = True
            for line in status_lines(states):
                self._terminal.say(f"  {line}")


class _LiveView:
    """On a terminal: changes above, and below them all that is known now."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def changed(self, line: str) -> None:
        from rich.text import Text

        self._live.console.print(Text(line), soft_wrap=True)

    def whole(self, states: States) -> None:
        from rich.text import Text

        self._live.update(Text("\n".join(status_lines(states))), refresh=True)


@contextmanager
def _screen(terminal: Terminal) -> Iterator[Screen]:
    # Here, because the verbs that work offline start without it.
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=terminal.out, highlight=False)
    if not console.is_terminal:
        yield _Lines(terminal)
        return
    with Live(Text("looking"), console=console, auto_refresh=False) as live:
        yield _LiveView(live)
