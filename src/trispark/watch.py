"""Watches all ranks at once while they start, and stops waiting as soon as one is lost.

Each rank has a watcher of its own, all run at the same time. A watcher asks its node's agent for short waits and posts
what it saw on a board, a directory of the boot on the controller; it reads the other ranks' posts there. So a dead
rank 2 ends the wait on ranks 0 and 1 within one interval, although they themselves look as if they were starting.
A watcher whose rank is ready goes on until the others that have begun are ready, too, so that a rank that dies after
it was ready is noticed. Watchers that run one after the other do not wait for ranks whose watcher has not begun.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

READY: Final = "ready"
LOST: Final = ("exited", "absent", "lost")


@dataclass(frozen=True)
class Board:
    """One file a rank, replaced in one step, so that a reader never sees half of it."""

    directory: Path

    def post(self, rank: int, state: str, detail: str) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        target = self.directory / f"rank{rank}.json"
        temporary = target.with_suffix(".tmp")
        temporary.write_text(json.dumps({"state": state, "detail": detail}), encoding="utf-8")
        temporary.replace(target)

    def others(self, rank: int) -> dict[int, dict[str, str]]:
        """{rank: {"state", "detail"}} of the other ranks' last posts."""
        found = {}
        for path in self.directory.glob("rank*.json"):
            other = int(path.stem.removeprefix("rank"))
            if other != rank:
                found[other] = json.loads(path.read_text(encoding="utf-8"))
        return found


@dataclass(frozen=True)
class Watched:
    """How the wait of one rank ended. `lost_rank` is None when it is ready; `by_peer`: another rank is the cause."""

    state: str
    seconds: float
    last_log: str
    lost_rank: int | None = None
    observed: str = ""
    by_peer: bool = False
    log_tail: list[str] = field(default_factory=list)

    def line(self) -> str:
        """The failure in one line."""
        return (
            f"boot.ready: the engine of rank {self.lost_rank} did not become ready; expected: ready; "
            f"observed: {self.observed}; last line: {self.last_log or 'none'}; do: read the kept log of that rank"
        )


def watch(
    ask: Callable[[float], Mapping[str, Any]],
    board: Board,
    rank: int,
    deadline_s: float,
    interval_s: float,
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> Watched:
    """Wait for one rank. `ask(seconds)` is the agent's verb `wait`, never for longer than the deadline has left; what
    it raises is posted as lost and raised on.

    A rank that is ready answers at once, so between two questions for the others' sake `pause(seconds)` is called.
    """
    began = clock()
    board.post(rank, "starting", "")
    while True:
        try:
            seen = ask(min(interval_s, max(deadline_s - (clock() - began), 0.0)))
        except Exception as error:
            board.post(rank, "lost", str(error))
            raise
        state, last = str(seen["state"]), str(seen.get("last_log") or "")
        tail = list(seen.get("log_tail") or [])
        seconds = round(clock() - began, 2)
        board.post(rank, state, last)
        others = board.others(rank)
        # Past the deadline the others' own watchers say what they lack; this rank is ready.
        if state == READY and (seconds >= deadline_s or all(post["state"] == READY for post in others.values())):
            return Watched(state, seconds, last)
        if state in LOST:
            return Watched(state, seconds, last, rank, f"{state}, exit code {seen.get('exit_code')}", log_tail=tail)
        for other, post in sorted(others.items()):
            if post["state"] in LOST:
                observed = f"{post['state']} while rank {rank} was starting"
                return Watched(state, seconds, post["detail"], other, observed, by_peer=True, log_tail=tail)
        if seconds >= deadline_s:
            board.post(rank, "lost", last)
            return Watched(state, seconds, last, rank, f"not ready after {seconds} s", log_tail=tail)
        if state == READY:
            pause(interval_s)
