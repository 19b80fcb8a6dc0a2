"""Faults of controllers: killed, terminated, interrupted; two at once; one that died with the lock; and what an agent
that was interrupted left in its journal."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fault_lab import (
    BOOT,
    ROLLBACK,
    SERVING,
    STATE,
    TRIAL,
    Matrix,
    Row,
    begin,
    boot_of,
    docker,
    front,
    kill_group,
    last_good,
    require_one_generation,
    require_serving,
    require_stopped,
    shell,
    started,
    until,
)

pytestmark = pytest.mark.lab
SIGNALS = {
    "controller SIGKILL": signal.SIGKILL,
    "controller SIGTERM": signal.SIGTERM,
    "controller SIGINT": signal.SIGINT,
}
AGENT = f"{STATE}/bin/trispark-node"
RECORDED = "recover stops what has no record, records it as failed, and what was good serves again"


@contextmanager
def ended_in_the_middle(lab: Any, matrix: Matrix, name: str, phase: str, words: tuple[str, ...]) -> Iterator[Row]:
    """The command ends when an engine of a new boot has begun to run; that boot is recorded as failed once the
    recovery in the block is done."""
    sent = name.split()[1]
    with matrix.row(name, f"{sent} to the whole {words[-1]} when its first engine runs", phase, RECORDED) as row:
        before = boot_of(lab.inspect("spark1"))
        process = begin(lab, *words)
        until("a new engine runs", started(lab, "spark1", before), 120 * lab.patience, 0.02, process)
        left = boot_of(lab.inspect("spark1"))
        kill_group(process, SIGNALS[name])
        process.communicate(timeout=120 * lab.patience)
        require_one_generation(lab)
        yield row
        boot = require_serving(lab)
        assert boot != left
        record = json.loads(lab.node("spark0", "sh", "-c", f"cat {STATE}/records/*-{left}.json"))
        assert record["outcome"]["state"] == "failed"
        row.observed = f"boot {left} recorded as failed, {boot} serves"


def recovered(lab: Any, matrix: Matrix, *rows: Row) -> None:
    done = front(lab, "recover")
    assert done.rc == 0, done.output[-3000:]
    matrix.served(lab)
    for row in rows:
        row.seconds = done.seconds


def test_a_controller_is_ended_in_a_boot_and_in_its_recovery(ready: Any, matrix: Matrix) -> None:
    """SIGKILL in a boot; SIGTERM in the recovery from it, once its rollback starts engines."""
    with (
        ended_in_the_middle(ready, matrix, "controller SIGKILL", BOOT, ("play", "boot")) as killed,
        ended_in_the_middle(ready, matrix, "controller SIGTERM", ROLLBACK, ("recover",)) as terminated,
    ):
        recovered(ready, matrix, killed, terminated)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "phase", "words"),
    [
        ("controller SIGKILL", ROLLBACK, ("rollback",)),
        ("controller SIGTERM", ROLLBACK, ("rollback",)),
        ("controller SIGINT", ROLLBACK, ("rollback",)),
        ("controller SIGTERM", BOOT, ("play", "boot")),
        ("controller SIGINT", BOOT, ("play", "boot")),
        ("controller SIGKILL", TRIAL, ("play", "stage_c", "-e", "feature=wo_a")),
        ("controller SIGTERM", TRIAL, ("play", "stage_c", "-e", "feature=wo_a")),
        ("controller SIGINT", TRIAL, ("play", "stage_c", "-e", "feature=wo_a")),
    ],
)
def test_a_controller_ends_in_the_other_phases(
    ready: Any, matrix: Matrix, name: str, phase: str, words: tuple[str, ...]
) -> None:
    with ended_in_the_middle(ready, matrix, name, phase, words) as row:
        recovered(ready, matrix, row)


def test_two_operators_at_once(known: Any, matrix: Matrix) -> None:
    """The second command is refused within seconds by who holds the lock; the first one goes on."""
    promised = "the second is refused within seconds, naming who, pid and since when; the first ends well"
    with matrix.row("two operators", "a boot while a rollback goes on", ROLLBACK, promised) as row:
        before = boot_of(known.inspect("spark1"))
        first = begin(known, "rollback")
        until("the first has begun", started(known, "spark1", before), 120 * known.patience, 0.02, first)
        second = front(known, "play", "boot")
        assert second.rc == 3, second.output[-2000:]
        assert "TS-LOCK-HELD" in second.output
        assert "rollback of" in second.output
        output, _ = first.communicate(timeout=240 * known.patience)
        assert first.returncode == 0, output[-3000:]
        matrix.served(known)
        row.seconds = second.seconds
        row.observed = f"TS-LOCK-HELD, exit 3, after {second.seconds:.1f} s; the rollback serves"


def holds(lab: Any, reason: str) -> bool:
    """Whether a command with this reason has the fleet lock of rank 1."""
    held = lab.node("spark1", "cat", f"{STATE}/fleet-lock.json", check=False)
    return f'"reason":"{reason}"'.encode() in held


@pytest.mark.leaves_stopped
def test_the_holder_of_the_lock_has_died_and_the_next_one_is_interrupted(ready: Any, matrix: Matrix) -> None:
    """SIGKILL leaves the lock; the next command of the same host sees that the process is gone. It hears Ctrl-C as soon
    as it holds the lock, in the middle of a stop."""
    dead = "the next command takes the lock from the dead holder at once, the journal says so"
    interrupted = "it ends by itself and gives the lock back; the same command again stops what is left"
    with (
        matrix.row("dead lock holder", "SIGKILL to a command that holds the lock", SERVING, dead) as row,
        matrix.row("controller SIGINT", "SIGINT to a stop that has begun", SERVING, interrupted, mended=True) as ended,
    ):
        process = begin(ready, "play", "shards")
        until("it holds the lock", lambda: holds(ready, "shards"), 60, 0.02)
        kill_group(process)
        process.communicate(timeout=60)
        stop = begin(ready, "play", "stop")
        until("the next one holds it", lambda: holds(ready, "stop"), 60 * ready.patience, 0.02)
        kill_group(stop, signal.SIGINT)
        stop.communicate(timeout=60 * ready.patience)
        assert b'"lock-break"' in ready.node("spark1", "tail", "-n", "30", f"{STATE}/journal.jsonl")
        row.observed = "a stop took the lock at once, lock-break in the journal"
        ran = front(ready, "play", "stop")
        assert ran.rc == 0, ran.output[-2000:]
        require_stopped(ready, *ready.nodes)
        ended.seconds = ran.seconds
        ended.observed = f"exit {stop.returncode}; the same again stopped all ranks ({ran.seconds:.1f} s)"
        assert stop.returncode == 130, "it had not ended before it was interrupted"


@pytest.mark.slow
def test_a_rollback_breaks_the_lock_of_a_living_command(ready: Any, matrix: Matrix) -> None:
    promised = (
        "rollback takes the lock from it and says from whom; the other ends at its next step and restores nothing"
    )
    with matrix.row("two operators, one with an incident", "rollback while a boot goes on", BOOT, promised) as row:
        before = boot_of(ready.inspect("spark1"))
        first = begin(ready, "play", "boot")
        until("the boot has begun", started(ready, "spark1", before), 120 * ready.patience, 0.02, first)
        ran = front(ready, "rollback")
        output, _ = first.communicate(timeout=240 * ready.patience)
        assert ran.rc == 0, ran.output[-3000:]
        assert "the fleet lock was taken from boot" in ran.output
        assert first.returncode != 0
        boot = require_serving(ready)
        record = json.loads(ready.node("spark0", "sh", "-c", f"cat {STATE}/records/*-{boot}.json"))
        assert record["requested"]["broke_lock"].startswith("boot, pid ")
        row.seconds = ran.rollback["seconds"]
        row.observed = f"the boot ended ({'TS-LOCK-LOST' if 'TS-LOCK-LOST' in output else 'its engines gone'}); serves"


def test_a_prune_was_interrupted(ready: Any, matrix: Matrix) -> None:
    promised = "recover removes what was half removed; nothing that is kept is touched"
    injected = "a generation renamed for removal and the prune's intent without its end, on rank 0"
    with matrix.row("interrupted prune", injected, SERVING, promised) as row:
        kept = shell(ready, "spark0", f"ls {STATE}/generations").split()
        good = last_good(ready)
        old = "g00000000000000aa"
        shell(ready, "spark0", f"cp -a {STATE}/generations/{good} {STATE}/generations/.pruned-{old}")
        detail = {"generations": [old], "boots": [], "images": [], "keep": 10}
        intent = json.dumps({"detail": detail, "phase": "intent", "seq": 900_000, "time": "x", "verb": "prune"})
        shell(ready, "spark0", f"printf '%s\\n' '{intent}' >> {STATE}/journal.jsonl")
        ran = front(ready, "recover")
        assert ran.rc == 0, ran.output[-2000:]
        assert shell(ready, "spark0", f"ls -A {STATE}/generations").split() == kept
        assert front(ready, "status").said["nodes"]["spark0"]["pending"] == []
        require_serving(ready)
        row.seconds = ran.seconds
        row.observed = f"the half removed one is gone, {len(kept)} generations whole, after {ran.seconds:.1f} s"


FAKE = """#!/bin/sh
# libfaketime of this release fails a sleep until a time (clock_nanosleep), so not under verbs that wait for something.
case "$1" in
  lock-*|fence|stage|activate|site-set|good-mark|record-*|rollback-clear|generation-show) ;;
  *) exec %s.real "$@" ;;
esac
export LD_PRELOAD=%s FAKETIME=+1h FAKETIME_DONT_FAKE_MONOTONIC=1
exec %s.real "$@"
"""


def test_the_clock_of_a_node_is_wrong_by_an_hour(known: Any, matrix: Matrix) -> None:
    """The agent of rank 2 sees another time of day; leases are counted by the kernel's own clock."""
    promised = "no lease expires and none holds too long: a second command is refused, rollback serves"
    with matrix.row("clock wrong by an hour", "libfaketime +1h under the agent of rank 2", ROLLBACK, promised) as row:
        library = shell(known, "spark2", "ls /usr/lib/*/faketime/libfaketime.so.1").split()[0]
        shell(known, "spark2", f"mv {AGENT} {AGENT}.real")
        known.node(
            "spark2", "sh", "-c", f"cat > {AGENT} && chmod 755 {AGENT}", data=(FAKE % (AGENT, library, AGENT)).encode()
        )
        try:
            before = boot_of(known.inspect("spark1"))
            going = begin(known, "rollback")
            until("it has begun", started(known, "spark1", before), 120 * known.patience, 0.02, going)
            second = front(known, "play", "boot")
            assert "TS-LOCK-HELD" in second.output, second.output[-1500:]
            output, _ = going.communicate(timeout=240 * known.patience)
            assert going.returncode == 0, output[-3000:]
            matrix.served(known)
        finally:
            shell(known, "spark2", f"mv {AGENT}.real {AGENT}")
        row.observed = "the lock held, the rollback served"


def test_the_registry_is_down_and_a_journal_is_cut(known: Any, matrix: Matrix) -> None:
    """With the registry all else is gone that a rollback must not need: git, the build, benchmark and report."""
    none_needed = "a rollback needs none of them"
    injected = "the registry paused; adapters, Dockerfiles, experiments and .git of the project hidden from the command"
    half_line = "the half line counts as never written; status and rollback work"
    cut = "the last 9 bytes of rank 2's journal gone"
    with (
        matrix.row("registry down", injected, ROLLBACK, none_needed) as row,
        matrix.row("journal cut in the middle of a line", cut, ROLLBACK, half_line) as journal,
    ):
        shell(known, "spark2", f"truncate -s -9 {STATE}/journal.jsonl")
        looked = front(known, "status")
        assert looked.said["nodes"]["spark2"]["problems"] == []
        hidden = ("adapters", "Dockerfiles", "experiments", "native", "molecule", ".git")
        docker("pause", "trispark-lab-registry")
        try:
            ran = front(known, "rollback", hidden=hidden)
        finally:
            docker("unpause", "trispark-lab-registry")
        assert ran.rc == 0, ran.output[-3000:]
        matrix.served(known)
        lines = known.node("spark2", "cat", f"{STATE}/journal.jsonl").splitlines()
        assert all(json.loads(line) for line in lines)
        row.seconds = journal.seconds = ran.rollback["seconds"]
        row.observed = f"serves again after {row.seconds:.1f} s without any of them"
        journal.observed = f"status without a problem, serves again after {row.seconds:.1f} s, every line whole"
