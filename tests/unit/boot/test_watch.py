"""A lost rank ends the wait of all ranks."""

from __future__ import annotations

import pytest

from trispark.watch import Board, watch


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def answers(clock: Clock, *states: str):
    """An agent that takes each wait's whole time, and gives these states in turn, the last one for ever."""
    left = list(states)

    def ask(seconds: float):
        clock.now += seconds
        state = left.pop(0) if len(left) > 1 else left[0]
        return {
            "state": state,
            "exit_code": 3 if state == "exited" else None,
            "last_log": f"at {state}",
            "log_tail": ["x"],
        }

    return ask


def test_ready_ends_the_wait(tmp_path) -> None:
    clock = Clock()
    seen = watch(answers(clock, "starting", "starting", "ready"), Board(tmp_path), 0, 60, 0.5, clock, clock.pause)
    assert (seen.state, seen.seconds, seen.lost_rank) == ("ready", 1.5, None)


@pytest.mark.parametrize("state", ["exited", "absent"])
def test_the_own_rank_lost_is_said_with_its_last_line(tmp_path, state) -> None:
    clock = Clock()
    seen = watch(answers(clock, "starting", state), Board(tmp_path), 1, 60, 0.5, clock, clock.pause)
    assert (seen.lost_rank, seen.by_peer, seen.log_tail) == (1, False, ["x"])
    assert "rank 1" in seen.line()
    assert f"at {state}" in seen.line()


@pytest.mark.parametrize("state", ["exited", "absent", "lost"])
def test_another_rank_lost_ends_the_wait_within_one_interval(tmp_path, state) -> None:
    clock = Clock()
    Board(tmp_path).post(2, state, "rank 2 fell over")
    seen = watch(answers(clock, "starting"), Board(tmp_path), 0, 3600, 15, clock, clock.pause)
    assert (seen.lost_rank, seen.by_peer, seen.seconds) == (2, True, 15)
    assert "rank 2 fell over" in seen.line()


def test_the_deadline_is_kept_and_told_to_the_others(tmp_path) -> None:
    clock = Clock()
    seen = watch(answers(clock, "starting"), Board(tmp_path), 0, 2, 0.5, clock, clock.pause)
    assert (seen.lost_rank, seen.seconds) == (0, 2)
    assert Board(tmp_path).others(1) == {0: {"state": "lost", "detail": "at starting"}}


def test_no_wait_is_longer_than_what_the_deadline_has_left(tmp_path) -> None:
    clock = Clock()
    seen = watch(answers(clock, "starting"), Board(tmp_path), 0, 100, 300, clock, clock.pause)
    assert (seen.lost_rank, seen.seconds) == (0, 100)


def test_a_node_that_does_not_answer_is_lost_for_the_others(tmp_path) -> None:
    def ask(_seconds: float):
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        watch(ask, Board(tmp_path), 1, 60, 0.5, Clock(), Clock().pause)
    assert Board(tmp_path).others(0) == {1: {"state": "lost", "detail": "no route"}}


def test_a_rank_that_dies_after_it_was_ready_ends_the_wait(tmp_path) -> None:
    """Rank 0 takes long; rank 1 is ready at once and then exits: its watcher is still there and says so."""
    clock = Clock()
    Board(tmp_path).post(0, "starting", "")
    seen = watch(answers(clock, "ready", "ready", "exited"), Board(tmp_path), 1, 3600, 10, clock, clock.pause)
    assert (seen.lost_rank, seen.by_peer) == (1, False)
    assert seen.seconds < 60
    assert Board(tmp_path).others(0)[1]["state"] == "exited"


def test_a_ready_rank_waits_for_the_others_that_have_begun(tmp_path) -> None:
    clock = Clock()
    board = Board(tmp_path)
    board.post(0, "starting", "")
    left = ["starting", "starting", "ready"]

    def pause(seconds: float) -> None:
        clock.now += seconds
        board.post(0, left.pop(0), "")

    assert watch(answers(clock, "ready"), board, 1, 60, 1, clock, pause).state == "ready"
    assert left == []


def test_a_ready_rank_does_not_hide_behind_a_lost_one(tmp_path) -> None:
    """Rank 0 may be ready and rank 2 dead at the same moment: rank 2's own watcher says so."""
    clock = Clock()
    assert watch(answers(clock, "ready"), Board(tmp_path), 0, 60, 0.5, clock, clock.pause).lost_rank is None
    assert watch(answers(clock, "exited"), Board(tmp_path), 2, 60, 0.5, clock, clock.pause).lost_rank == 2
