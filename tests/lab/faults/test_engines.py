"""Faults of engines and of what runs beside them: a rank that dies, hangs or is killed for memory, an engine that does
not end, what someone else left in our place, and what a person changed by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fault_lab import (
    BOOT,
    ROLLBACK,
    SERVING,
    STATE,
    Matrix,
    begin,
    boot_of,
    front,
    require_serving,
    require_stopped,
    running,
    shell,
    started,
    until,
)

pytestmark = pytest.mark.lab
HOLDER = (
    "import socket,time; s=socket.socket(); s.setsockopt(1,2,1); s.bind(('0.0.0.0',8888)); s.listen(); time.sleep(600)"
)
HOG = """
import time
held = bytearray(3 * 2**29)
held[::4096] = b'x' * len(held[::4096])
print('held', flush=True)
time.sleep(600)
"""


def pid_of(lab: Any, node: str) -> str:
    return shell(lab, node, "docker inspect -f '{{.State.Pid}}' trispark-engine").strip()


def status(lab: Any) -> dict[str, Any]:
    found: dict[str, Any] = front(lab, "status").said
    return found


@contextmanager
def process(lab: Any, node: str, program: str) -> Iterator[str]:
    """A foreign process on a node, ended by its id; the id as the node sees it."""
    pid = shell(lab, node, f'python3 -c "{program}" >/run/foreign.log 2>&1 & echo $!').strip()
    try:
        yield pid
    finally:
        lab.node(node, "kill", "-KILL", pid, check=False)


def test_a_rank_exits_after_it_was_ready(ready: Any, matrix: Matrix) -> None:
    promised = "status calls it BROKEN and names the rank; rollback serves again"
    with matrix.row("rank exits after ready", "docker kill of rank 1's engine", SERVING, promised) as row:
        shell(ready, "spark1", "docker kill trispark-engine")
        found = status(ready)
        assert found["fleet"]["state"] == "BROKEN"
        assert "rank 1 on spark1 has exited with 137" in found["fleet"]["reason"]
        ran = front(ready, "rollback")
        assert ran.rc == 0, ran.output[-2000:]
        require_serving(ready)
        row.seconds = ran.rollback["seconds"]
        row.observed = f"BROKEN, rank 1 named; serves again after {row.seconds:.1f} s"


def test_an_engine_that_does_not_end_is_killed_at_the_bound(ready: Any, matrix: Matrix) -> None:
    promised = "killed at site_rollback_stop_s, proven gone, the target serves"
    with matrix.row("stop hanging", "SIGSTOP to rank 2's engine: TERM does not reach it", SERVING, promised) as row:
        shell(ready, "spark2", f"kill -STOP {pid_of(ready, 'spark2')}")
        ran = front(ready, "rollback")
        assert ran.rc == 0, ran.output[-2000:]
        assert "killed after 4" in ran.output
        require_serving(ready)
        row.seconds = ran.rollback["seconds"]
        row.observed = f"killed after 4 s; serves again after {row.seconds:.1f} s"


def test_an_engine_is_killed_for_memory(ready: Any, matrix: Matrix) -> None:
    """The kernel's choice is the engine, as the fullest one it would be."""
    promised = "status names the rank that was killed; its log is kept; rollback serves again"
    injected = "the engine's container bounded below what a process in it takes, the engine first in the kernel's order"
    with matrix.row("OOM kill", injected, SERVING, promised) as row:
        boot = boot_of(ready.inspect("spark2"))
        pid = pid_of(ready, "spark2")
        shell(ready, "spark2", f"echo 1000 > /proc/{pid}/oom_score_adj")
        shell(ready, "spark2", "docker update --memory 400m --memory-swap 400m trispark-engine")
        hog = "x = bytearray(700 * 2**20); x[::4096] = b'x' * len(x[::4096])"
        ready.node("spark2", "docker", "exec", "trispark-engine", "python3", "-c", hog, check=False)
        until("the engine is killed", lambda: not running(ready.inspect("spark2")), 60)
        state = ready.inspect("spark2")["State"]
        assert state["ExitCode"] == 137
        assert "rank 2 on spark2 has exited with 137" in status(ready)["fleet"]["reason"]
        ran = front(ready, "rollback")
        assert ran.rc == 0, ran.output[-2000:]
        require_serving(ready)
        assert ready.node("spark2", "test", "-s", f"{STATE}/boots/{boot}/engine.log") == b""
        row.seconds = ran.rollback["seconds"]
        row.observed = f"rank 2 named with 137, log kept; serves again after {row.seconds:.1f} s"


def test_a_log_without_end_fills_nothing_and_hinders_nothing(ready: Any, matrix: Matrix) -> None:
    promised = "status within its bounds, the stop keeps the log, rollback serves again"
    with matrix.row("log without end", "150 MB written to the log of rank 1's engine", SERVING, promised) as row:
        boot = boot_of(ready.inspect("spark1"))
        line = "dd if=/dev/zero bs=1M count=150 2>/dev/null | tr '\\\\0' 'x' | fold -w 4000 > /proc/1/fd/1"
        ready.node("spark1", "docker", "exec", "trispark-engine", "sh", "-c", line)
        looked = front(ready, "status")
        assert looked.said["fleet"]["state"] == "SERVING", looked.output[-2000:]
        ran = front(ready, "rollback")
        assert ran.rc == 0, ran.output[-2000:]
        require_serving(ready)
        size = int(shell(ready, "spark1", f"stat -c %s {STATE}/boots/{boot}/engine.log"))
        row.seconds = ran.rollback["seconds"]
        row.observed = (
            f"status in {looked.seconds:.1f} s, log of {size >> 20} MiB kept, serves after {row.seconds:.1f} s"
        )
        shell(ready, "spark1", f"rm {STATE}/boots/{boot}/engine.log")


def test_a_container_of_someone_else_has_our_name(ready: Any, matrix: Matrix) -> None:
    promised = "left alone and named, nothing is called stopped there; gone, the same rollback serves"
    injected = "a running container named trispark-engine without our labels"
    with matrix.row("stale container with our name and no label", injected, SERVING, promised) as row:
        image = ready.inspect("spark2")["Config"]["Image"]
        shell(ready, "spark2", "docker rm -f trispark-engine")
        shell(ready, "spark2", f"docker run -d --name trispark-engine --network none --entrypoint sleep {image} 600")
        try:
            ran = front(ready, "rollback")
            assert ran.rc != 0
            assert "TS-AGENT-FOREIGN" in ran.output
            assert running(ready.inspect("spark2")), "it is left alone"
            require_stopped(ready, "spark0", "spark1")
            row.seconds = ran.seconds
            row.observed = f"{ran.rollback['state']}: TS-AGENT-FOREIGN on spark2, left alone"
        finally:
            shell(ready, "spark2", "docker rm -f trispark-engine")
        again = front(ready, "rollback")
        assert again.rc == 0, again.output[-2000:]
        require_serving(ready)


def test_a_port_is_taken(ready: Any, matrix: Matrix) -> None:
    promised = "the process is named with its PID and left alone, no engine starts; gone, the same rollback serves"
    with matrix.row("port in use", "a foreign process listens on the API port of rank 2", ROLLBACK, promised) as row:
        stopped = front(ready, "play", "stop")
        assert stopped.rc == 0, stopped.output[-2000:]
        with process(ready, "spark2", HOLDER) as pid:
            until("it listens", lambda: b":22B8 " in ready.node("spark2", "cat", "/proc/net/tcp"), 30)
            ran = front(ready, "rollback")
            assert ran.rc != 0
            assert "TS-AGENT-PORT-LEFT" in ran.output
            assert f"PID {pid}" in ran.output
            require_stopped(ready, *ready.nodes)
            assert ready.node("spark2", "kill", "-0", pid) == b""
        row.observed = f"TS-AGENT-PORT-LEFT with PID {pid}, nothing started"
        row.seconds = ran.seconds
        again = front(ready, "rollback")
        assert again.rc == 0, again.output[-2000:]
        require_serving(ready)


def test_a_foreign_process_holds_the_memory(ready: Any, matrix: Matrix) -> None:
    promised = "the memory that did not come back is named with both numbers, no engine starts; gone, rollback serves"
    with matrix.row("foreign process", "a process that holds 1.5 GiB of the node", ROLLBACK, promised) as row:
        with process(ready, "spark1", HOG):
            until("it holds the memory", lambda: b"held" in ready.node("spark1", "cat", "/run/foreign.log"), 60)
            ran = front(ready, "rollback")
            assert ran.rc != 0
            assert "TS-AGENT-MEMORY-LEFT" in ran.output, ran.output[-2000:]
            require_stopped(ready, *ready.nodes)
        row.observed = f"TS-AGENT-MEMORY-LEFT on spark1 after {ran.seconds:.1f} s, nothing started"
        row.seconds = ran.seconds
        again = front(ready, "rollback")
        assert again.rc == 0, again.output[-2000:]
        require_serving(ready)


CREATE = """
import http.client, json, socket, sys

class Engine(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/docker.sock")

def post(path, body=None):
    engine.request("POST", path, body, {"Content-Type": "application/json"})
    answer = engine.getresponse()
    said = answer.read()
    assert answer.status in (201, 204), said
    return said

engine = Engine("docker")
made = json.loads(post("/containers/create?name=trispark-engine", sys.stdin.read()))
post("/containers/%s/start" % made["Id"])
"""
CONFIG = ("Cmd", "Env", "Labels", "Entrypoint", "WorkingDir", "StopSignal", "Healthcheck", "Image")


def start_by_hand(lab: Any, odd: str, image: str = "", env: str = "") -> None:
    """All ranks anew as they were, and as a person would start them; `odd` with another image or a variable more."""
    bodies = {}
    for name in lab.nodes:
        state = lab.inspect(name)
        bodies[name] = {**{key: state["Config"][key] for key in CONFIG}, "HostConfig": state["HostConfig"]}
    if image:
        bodies[odd]["Image"] = image
    if env:
        bodies[odd]["Env"] = [*bodies[odd]["Env"], env]
    for name in lab.nodes:
        shell(lab, name, "docker rm -f trispark-engine >/dev/null")
    for name in reversed(lab.nodes):
        lab.node(name, "python3", "-c", CREATE, data=json.dumps(bodies[name]).encode())
    asked = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8888/health', timeout=5).status)"
    until("the head is ready", lambda: lab.node("spark0", "python3", "-c", asked, check=False).strip() == b"200", 60)


def test_the_environment_was_changed_by_hand(ready: Any, matrix: Matrix) -> None:
    promised = "status names the variable as drift; rollback serves what was staged"
    injected = "all ranks started anew by hand as they were, rank 2 with one variable more"
    with matrix.row("env drift by hand", injected, SERVING, promised) as row:
        start_by_hand(ready, "spark2", env="BY_HAND=1")
        drift = status(ready)["nodes"]["spark2"]["drift"]
        assert any("BY_HAND" in each["what"] + each["observed"] for each in drift), drift
        ran = front(ready, "rollback")
        assert ran.rc == 0, ran.output[-2000:]
        require_serving(ready)
        assert not any("BY_HAND" in each for each in ready.inspect("spark2")["Config"]["Env"])
        row.seconds = ran.rollback["seconds"]
        row.observed = f"drift named on spark2; serves as staged after {row.seconds:.1f} s"


def test_one_node_runs_another_image(ready: Any, matrix: Matrix) -> None:
    """As in the field: the same name, other bits, one rank."""
    promised = "status names the image as drift, verify refuses the rank; rollback serves the digest that was staged"
    injected = "all ranks started anew by hand, rank 1 from a commit of the engine's image"
    with matrix.row("wrong digest on one node", injected, SERVING, promised) as row:
        image = ready.inspect("spark1")["Config"]["Image"]
        shell(ready, "spark1", "docker commit trispark-engine by-hand:latest >/dev/null")
        start_by_hand(ready, "spark1", image="by-hand:latest")
        drift = status(ready)["nodes"]["spark1"]["drift"]
        assert any("image" in each["what"] for each in drift), drift
        verified = front(ready, "play", "verify")
        assert verified.rc != 0
        assert "identity.image" in verified.output, verified.output[-1500:]
        ran = front(ready, "rollback")
        assert ran.rc == 0, ran.output[-2000:]
        require_serving(ready)
        assert ready.inspect("spark1")["Config"]["Image"] == image
        shell(ready, "spark1", "docker rmi -f by-hand:latest >/dev/null")
        row.seconds = ran.rollback["seconds"]
        row.observed = f"drift and gate name rank 1; serves the staged digest after {row.seconds:.1f} s"


def test_an_engine_hangs_while_it_starts(ready: Any, matrix: Matrix) -> None:
    promised = "the boot ends at its deadline on every rank, the rank is named, logs kept; rollback serves"
    injected = "SIGSTOP to rank 1's engine as soon as it runs; a deadline of 7 s"
    with matrix.row("engine hangs in start", injected, BOOT, promised) as row:
        before = boot_of(ready.inspect("spark1"))
        going = begin(ready, "play", "rollback", "-e", "site_start_deadline_s=7")
        until("the engine runs", started(ready, "spark1", before), 60 * ready.patience, 0.02)
        shell(ready, "spark1", f"kill -STOP {pid_of(ready, 'spark1')}")
        output, _ = going.communicate(timeout=200 * ready.patience)
        assert going.returncode != 0
        assert "boot.ready" in output, output[-2000:]
        require_stopped(ready, *ready.nodes)
        ran = front(ready, "rollback")
        assert ran.rc == 0, ran.output[-2000:]
        require_serving(ready)
        row.observed = "boot.ready at the deadline, every rank stopped; rollback serves"


def test_the_image_is_missing_on_one_node(ready: Any, matrix: Matrix) -> None:
    promised = (
        "what cannot start is no target: refused with the node's name before anything is touched; images mends it"
    )
    with matrix.row(
        "image missing", "docker rmi of the engine's image on rank 2, engine stopped", ROLLBACK, promised
    ) as row:
        image = ready.inspect("spark2")["Config"]["Image"]
        assert front(ready, "play", "stop").rc == 0
        shell(ready, "spark2", f"docker rmi -f $(docker inspect -f '{{{{.Id}}}}' {image}) >/dev/null")
        ran = front(ready, "rollback")
        assert ran.rc != 0
        assert "TS-ROLLBACK-TARGET" in ran.output, ran.output[-2000:]
        assert "cannot start on spark2" in ran.output
        row.seconds = ran.seconds
        row.observed = f"TS-ROLLBACK-TARGET names spark2 and the image after {ran.seconds:.1f} s"
        assert front(ready, "play", "images").rc == 0
        again = front(ready, "rollback")
        assert again.rc == 0, again.output[-2000:]
        require_serving(ready)
