"""Faults of nodes and of the way to them: gone, frozen, unreachable, cut from a peer, without Docker, rebooted.

With a node missing a fleet of three cannot serve. Promised is a bounded state: what answers is stopped and points at
the target, the state is DEGRADED and names the node, and it is completed when the node is back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import pytest
from fault_lab import (
    BOOT,
    BOUND_S,
    NEVER_OVER_S,
    ROLLBACK,
    SERVING,
    STATE,
    TRIAL,
    Matrix,
    begin,
    boot_of,
    current,
    docker,
    front,
    last_good,
    node_is_up,
    require_one_generation,
    require_serving,
    require_stopped,
    running,
    shell,
    started,
    until,
)

pytestmark = pytest.mark.lab
GONE = "spark2"


@dataclass(frozen=True)
class NodeFault:
    """How a node goes away and how it comes back."""

    name: str
    injected: str
    break_it: Callable[[Any], None]
    mend_it: Callable[[Any], None]


def _start(_lab: Any) -> None:
    docker("start", GONE)
    until(f"{GONE} is up", lambda: node_is_up(GONE), 60)


def _pause(_lab: Any) -> None:
    docker("pause", GONE)


def _unpause(_lab: Any) -> None:
    docker("unpause", GONE)


def _refuse(lab: Any) -> None:
    shell(lab, GONE, "iptables -I INPUT -p tcp --dport 22 -j REJECT --reject-with tcp-reset")


def _accept(lab: Any) -> None:
    shell(lab, GONE, "iptables -D INPUT -p tcp --dport 22 -j REJECT --reject-with tcp-reset")


FAULTS = {
    each.name: each
    for each in (
        NodeFault("node killed", f"docker kill {GONE}", lambda _lab: docker("kill", GONE), _start),
        NodeFault("node paused", f"docker pause {GONE}", _pause, _unpause),
        NodeFault("SSH refused", "iptables REJECT with a reset on port 22 of the node", _refuse, _accept),
        NodeFault(
            "SSH hanging",
            "SIGSTOP to every sshd of the node",
            lambda lab: shell(lab, GONE, "pkill -STOP -x sshd"),
            lambda lab: shell(lab, GONE, "pkill -CONT -x sshd"),
        ),
    )
}  # fmt: skip
DOCKER_GONE = NodeFault(
    "Docker Engine stopped",
    "the Engine's socket taken away on the node",
    lambda lab: shell(lab, GONE, "mv /run/docker.sock /run/docker.sock.away"),
    lambda lab: shell(lab, GONE, "mv /run/docker.sock.away /run/docker.sock"),
)
DOCKER_HANGS = NodeFault(
    "Docker Engine hanging",
    "SIGSTOP to dockerd of the node",
    lambda lab: shell(lab, GONE, "pkill -STOP -x dockerd"),
    lambda lab: shell(lab, GONE, "pkill -CONT -x dockerd"),
)
OTHERS = ("spark0", "spark1")
PROMISED = (
    "the others stopped and repointed within 20 s (never over 60), DEGRADED names the node; completed when it is back"
)


def bounded(row: Any, lab: Any, ran: Any) -> None:
    """DEGRADED, named, in time; the others are stopped and point at the target."""
    assert ran.rc == 4, ran.output[-2000:]
    assert ran.rollback["state"] == "DEGRADED", ran.output[-2000:]
    assert ran.rollback["missing"] == [GONE]
    assert "TS-ROLLBACK-DEGRADED" in ran.output
    require_stopped(lab, *OTHERS)
    target = ran.rollback["generation"]
    assert {current(lab, name) for name in OTHERS} == {target}
    row.seconds = ran.seconds
    row.observed = f"DEGRADED after {ran.rollback['stopped_and_repointed_s']:.1f} s, {GONE} named, the others stopped"
    assert ran.seconds <= NEVER_OVER_S
    assert ran.seconds <= BOUND_S * lab.patience, f"{ran.seconds:.1f} s"


def completed(row: Any, lab: Any) -> None:
    done = front(lab, "recover")
    assert done.rc == 0, done.output[-3000:]
    boot = require_serving(lab)
    row.observed += f"; back: recover completed it ({boot})"


@pytest.mark.parametrize("name", ["node killed", "SSH hanging"])
def test_a_node_is_gone_and_recover_completes_it(ready: Any, matrix: Matrix, name: str) -> None:
    fault = FAULTS[name]
    with matrix.row(fault.name, fault.injected, SERVING, PROMISED) as row:
        fault.break_it(ready)
        try:
            bounded(row, ready, front(ready, "rollback"))
        finally:
            fault.mend_it(ready)
        completed(row, ready)
        matrix.served(ready)


@pytest.mark.leaves_stopped
@pytest.mark.parametrize("name", ["node paused", "SSH refused"])
def test_a_node_is_gone_and_the_next_rollback_completes_it(ready: Any, matrix: Matrix, name: str) -> None:
    fault = FAULTS[name]
    with matrix.row(fault.name, fault.injected, SERVING, PROMISED, mended=True) as row:
        fault.break_it(ready)
        try:
            bounded(row, ready, front(ready, "rollback"))
        finally:
            fault.mend_it(ready)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_node_goes_in_the_middle_of_a_rollback(ready: Any, matrix: Matrix, name: str) -> None:
    """When the boot of the target has begun: the node has been stopped and repointed, and starts the new engine."""
    fault = FAULTS[name]
    promised = "the boot ends on every rank that answers, nothing serves half; recover brings the fleet back"
    with matrix.row(fault.name, fault.injected, ROLLBACK, promised) as row:
        before = boot_of(ready.inspect("spark0"))
        process = begin(ready, "rollback")
        until("the target's engine runs", started(ready, GONE, before), 60 * ready.patience, 0.1, process)
        fault.break_it(ready)
        try:
            output, _ = process.communicate(timeout=200 * ready.patience)
            assert process.returncode != 0, output[-2000:]
            assert GONE in output
            require_stopped(ready, *OTHERS)
            row.observed = f"exit {process.returncode}, {GONE} named, the others stopped"
        finally:
            fault.mend_it(ready)
            process.kill()
        completed(row, ready)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_node_goes_in_the_middle_of_a_boot(ready: Any, matrix: Matrix, name: str) -> None:
    fault = FAULTS[name]
    promised = "the boot is not valid and names the node, what answers is stopped; rollback brings the fleet back"
    with matrix.row(fault.name, fault.injected, BOOT, promised) as row:
        before = boot_of(ready.inspect("spark0"))
        process = begin(ready, "play", "boot")
        until("the new engine runs", started(ready, GONE, before), 60 * ready.patience, 0.1, process)
        fault.break_it(ready)
        try:
            output, _ = process.communicate(timeout=200 * ready.patience)
            assert process.returncode != 0, output[-2000:]
            require_stopped(ready, *OTHERS)
            row.observed = f"exit {process.returncode}, the others stopped"
        finally:
            fault.mend_it(ready)
            process.kill()
        done = front(ready, "rollback")
        assert done.rc == 0, done.output[-3000:]
        row.observed += f"; rollback serves again ({matrix.served(ready)})"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["node killed", "node paused"])
def test_a_node_goes_in_a_trial(ready: Any, matrix: Matrix, name: str) -> None:
    """In the candidate's boot. A node that crashed in a trial is a result: nothing starts a third time by itself."""
    fault = FAULTS[name]
    promised = "the trial ends, names the node, keeps its records and starts no third boot; the baseline serves again"
    with matrix.row(fault.name, fault.injected, TRIAL, promised) as row:
        before = boot_of(ready.inspect("spark0"))
        process = begin(ready, "play", "stage_c", "-e", "feature=wo_a")
        until("the baseline's engine runs", started(ready, GONE, before), 120 * ready.patience, 0.1, process)
        baseline = boot_of(ready.inspect(GONE))
        until("the candidate's engine runs", started(ready, GONE, baseline), 120 * ready.patience, 0.1, process)
        # All of them, or "the others are stopped" would be true before they were started.
        for each in OTHERS:
            until(f"it runs on {each}", started(ready, each, baseline), 60 * ready.patience, 0.1, process)
        fault.break_it(ready)
        try:
            until(
                "the others are stopped",
                lambda: not any(running(ready.inspect(each)) for each in OTHERS),
                120 * ready.patience,
            )
        finally:
            fault.mend_it(ready)
        output, _ = process.communicate(timeout=300 * ready.patience)
        require_one_generation(ready)
        serves = all(running(ready.inspect(each)) for each in ready.nodes)
        row.observed = f"exit {process.returncode}; the baseline {'serves' if serves else 'was not brought back'}"
        assert process.returncode != 0, output[-2000:]
        if not serves:
            completed(row, ready)


@pytest.mark.slow
@pytest.mark.leaves_stopped
@pytest.mark.parametrize("fault", [DOCKER_GONE, DOCKER_HANGS], ids=lambda fault: fault.name)
def test_a_docker_engine_does_not_answer(ready: Any, matrix: Matrix, fault: NodeFault) -> None:
    promised = "that node is named, nothing is called stopped that is not proven; the others are stopped and repointed"
    with matrix.row(fault.name, fault.injected, SERVING, promised, mended=True) as row:
        fault.break_it(ready)
        try:
            ran = front(ready, "rollback")
            assert ran.rc != 0
            assert ran.rollback["state"] in ("DEGRADED", "FAILED"), ran.output[-2000:]
            assert GONE in ran.output
            require_stopped(ready, *OTHERS)
            row.seconds = ran.seconds
            says = shorten(ran.rollback["nodes"][GONE], 100, placeholder=" ...")
            row.observed = f"{ran.rollback['state']} after {ran.seconds:.1f} s: {says}"
            assert ran.seconds <= NEVER_OVER_S * ready.patience
        finally:
            fault.mend_it(ready)


@pytest.mark.leaves_stopped
def test_one_edge_of_the_triangle_is_cut(known: Any, matrix: Matrix) -> None:
    promised = "nothing serves unjudged: the canary fails or the rollback's boot does; mended, the same rollback serves"
    network = "trispark-lab-pair12"
    injected = f"docker network disconnect {network} spark1"
    with matrix.row("one edge of the triangle cut", injected, ROLLBACK, promised, mended=True) as row:
        docker("network", "disconnect", network, "spark1")
        try:
            ran = front(known, "rollback")
            assert ran.rc != 0, ran.output[-2000:]
            require_stopped(known, *known.nodes)
            row.seconds = ran.seconds
            row.observed = f"the boot is not valid, every rank stopped, after {ran.seconds:.1f} s"
        finally:
            docker("network", "connect", "--ip", "10.77.3.11", network, "spark1")


def test_a_node_is_rebooted_in_the_middle_of_an_activation(ready: Any, matrix: Matrix) -> None:
    """The intent is in the journal and the link was not replaced; the node starts again and its boot unit recovers."""
    promised = "after the start nothing is pending, no older engine runs, its old epoch starts nothing; rollback serves"
    injected = "an activation's intent in the journal without its end, then docker restart of the node"
    with matrix.row("node rebooted in the middle of an activation", injected, SERVING, promised) as row:
        target = last_good(ready)
        detail = {"from": None, "to": target}
        intent = json.dumps({"detail": detail, "phase": "intent", "seq": 900_000, "time": "x", "verb": "activate"})
        shell(ready, "spark1", f"printf '%s\\n' '{intent}' >> {STATE}/journal.jsonl")
        epoch = shell(ready, "spark1", f"cat {STATE}/epoch")
        docker("restart", "--time", "2", "spark1")
        until("spark1 is up", lambda: node_is_up("spark1"), 60)
        until(
            "the boot unit has recovered",
            lambda: b'"by":"recover"' in ready.node("spark1", "tail", "-n", "5", f"{STATE}/journal.jsonl"),
            60 * ready.patience,
        )
        assert shell(ready, "spark1", f"cat {STATE}/epoch") == epoch, "the node takes no epoch by itself"
        until("no older engine is left", lambda: ready.inspect("spark1") is None, 60 * ready.patience)
        ran = front(ready, "rollback")
        assert ran.rc == 0, ran.output[-2000:]
        boot = matrix.served(ready)
        row.seconds = ran.seconds
        row.observed = f"recovered at its start, the ended engine removed with its log; rollback serves ({boot})"
