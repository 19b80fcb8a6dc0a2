"""Faults of engines and of what runs beside them: a rank that dies, hangs or is killed for memory, an engine that does
not end, what someone else left in our place, and what a person changed by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
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
    current,
    front,
    last_good,
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
        matrix.served(ready)
        row.seconds = ran.rollback["seconds"]
        row.observed = f"BROKEN, rank 1 named; serves again after {row.seconds:.1f} s"


def test_one_engine_does_not_end_and_another_one_wrote_without_end(ready: Any, matrix: Matrix) -> None:
    hangs = "killed at site_rollback_stop_s, proven gone, the target serves"
    long = "status within its bounds, the stop keeps the log, rollback serves again"
    stop = "SIGSTOP to rank 2's engine: TERM does not reach it; rank 1's has a long log"
    write = "30 MB written to the log of rank 1's engine, then rank 2's does not end"
    with (
        matrix.row("log without end", write, SERVING, long) as wrote,
        matrix.row("stop hanging", stop, SERVING, hangs) as row,
    ):
        boot = boot_of(ready.inspect("spark1"))
        line = "dd if=/dev/zero bs=1M count=30 2>/dev/null | tr '\\\\0' 'x' | fold -w 4000 > /proc/1/fd/1"
        ready.node("spark1", "docker", "exec", "trispark-engine", "sh", "-c", line)
        looked = front(ready, "status")
        assert looked.said["fleet"]["state"] == "SERVING", looked.output[-2000:]
        shell(ready, "spark2", f"kill -STOP {pid_of(ready, 'spark2')}")
        ran = front(ready, "rollback")
        assert ran.rc == 0, ran.output[-2000:]
        assert "killed after 4" in ran.rollback["nodes"]["spark2"], ran.rollback
        matrix.served(ready)
        size = int(shell(ready, "spark1", f"stat -c %s {STATE}/boots/{boot}/engine.log"))
        assert size > 25 << 20
        shell(ready, "spark1", f"rm {STATE}/boots/{boot}/engine.log")
        row.seconds = wrote.seconds = ran.rollback["seconds"]
        row.observed = f"killed after 4 s; serves again after {row.seconds:.1f} s"
        wrote.observed = (
            f"status in {looked.seconds:.1f} s, log of {size >> 20} MiB kept, serves after {row.seconds:.1f} s"
        )


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
        matrix.served(ready)
        assert ready.node("spark2", "test", "-s", f"{STATE}/boots/{boot}/engine.log") == b""
        row.seconds = ran.rollback["seconds"]
        row.observed = f"rank 2 named with 137, log kept; serves again after {row.seconds:.1f} s"


@pytest.mark.leaves_stopped
def test_two_nodes_are_each_in_the_way(ready: Any, matrix: Matrix) -> None:
    """At once, so that each has to be told from the other."""
    ours_not = (
        "left alone and named, nothing is called stopped there; gone, the same rollback serves",
        "a running container named trispark-engine without our labels on rank 2, while rank 1 gives no root",
    )
    no_root = (
        "the node is named with what lacks; the others are stopped and repointed, where nothing else is in the way",
        "sudo of Ansible's user taken away on rank 1, while a foreign container stands on rank 2",
    )
    with (
        matrix.row("stale container with our name and no label", ours_not[1], SERVING, ours_not[0], mended=True) as row,
        matrix.row("permission denied", no_root[1], SERVING, no_root[0], mended=True) as denied,
    ):
        image = ready.inspect("spark2")["Config"]["Image"]
        before = boot_of(ready.inspect("spark1"))
        shell(ready, "spark2", "docker rm -f trispark-engine")
        shell(ready, "spark2", f"docker run -d --name trispark-engine --network none --entrypoint sleep {image} 600")
        shell(ready, "spark1", "mv /etc/sudoers.d/trispark /run/sudoers-aside")
        try:
            ran = front(ready, "rollback")
            said = ran.rollback["nodes"]
            assert ran.rc != 0
            assert ran.rollback["state"] in ("DEGRADED", "FAILED")
            assert "TS-AGENT-FOREIGN" in said["spark2"]
            assert running(ready.inspect("spark2")), "it is left alone"
            assert "stopped" not in said["spark1"]
            assert "sudo" in said["spark1"]
            assert boot_of(ready.inspect("spark1")) == before, "nobody could touch it"
            require_stopped(ready, "spark0")
            assert {current(ready, name) for name in ("spark0", "spark2")} == {ran.rollback["generation"]}
        finally:
            shell(ready, "spark1", "mv /run/sudoers-aside /etc/sudoers.d/trispark")
            shell(ready, "spark2", "docker rm -f trispark-engine")
        row.seconds = denied.seconds = ran.seconds
        row.observed = f"{ran.rollback['state']}: TS-AGENT-FOREIGN on spark2, left alone"
        says = shorten(said["spark1"], 90, placeholder=" ...")
        denied.observed = f"{ran.rollback['state']}, spark0 stopped and repointed; spark1: {says}"


@pytest.mark.leaves_stopped
def test_foreign_processes_hold_a_port_and_the_memory(stopped: Any, matrix: Matrix) -> None:
    taken = "the process is named with its PID and left alone, no engine starts; gone, the same rollback serves"
    full = "the memory that did not come back is named with both numbers, no engine starts; gone, rollback serves"
    port = "a foreign process listens on the API port of rank 2, while another one holds the memory of rank 1"
    memory = "a process that holds 1.5 GiB of rank 1, while another one has the API port of rank 2"
    with (
        matrix.row("port in use", port, ROLLBACK, taken, mended=True) as row,
        matrix.row("foreign process", memory, ROLLBACK, full, mended=True) as hog,
        process(stopped, "spark1", HOG) as holder,
        process(stopped, "spark2", HOLDER) as pid,
    ):
        until("it listens", lambda: b":22B8 " in stopped.node("spark2", "cat", "/proc/net/tcp"), 30)
        until("it holds the memory", lambda: b"held" in stopped.node("spark1", "cat", "/run/foreign.log"), 60)
        ran = front(stopped, "rollback")
        said = ran.rollback["nodes"]
        assert ran.rc != 0
        assert "TS-AGENT-PORT-LEFT" in said["spark2"], said
        assert f"PID {pid}" in said["spark2"], said
        assert "TS-AGENT-MEMORY-LEFT" in said["spark1"], said
        require_stopped(stopped, *stopped.nodes)
        assert stopped.node("spark2", "kill", "-0", pid) == b""
        assert stopped.node("spark1", "kill", "-0", holder) == b""
        row.observed = f"TS-AGENT-PORT-LEFT with PID {pid} on spark2, nothing started"
        hog.observed = f"TS-AGENT-MEMORY-LEFT on spark1 after {ran.seconds:.1f} s, nothing started"
        row.seconds = hog.seconds = ran.seconds


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


def start_by_hand(lab: Any, images: dict[str, str], variables: dict[str, str]) -> None:
    """All ranks anew as they were, and as a person would start them, but for these images and variables more."""
    bodies = {}
    for name in lab.nodes:
        state = lab.inspect(name)
        config = {key: state["Config"][key] for key in CONFIG}
        config["Image"] = images.get(name, config["Image"])
        config["Env"] = [*config["Env"], *filter(None, [variables.get(name)])]
        bodies[name] = {**config, "HostConfig": state["HostConfig"]}
    for name in lab.nodes:
        shell(lab, name, "docker rm -f trispark-engine >/dev/null")
    for name in reversed(lab.nodes):
        lab.node(name, "python3", "-c", CREATE, data=json.dumps(bodies[name]).encode())
    asked = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8888/health', timeout=5).status)"
    until("the head is ready", lambda: lab.node("spark0", "python3", "-c", asked, check=False).strip() == b"200", 60)


def test_two_nodes_were_changed_by_hand(ready: Any, matrix: Matrix) -> None:
    """As in the field: the same name, other bits, one rank; and another rank with a variable more."""
    other_env = "status names the variable as drift; rollback serves what was staged"
    other_image = "status names the image as drift, verify refuses the rank; rollback serves the digest that was staged"
    injected = "all ranks started anew by hand: rank 1 from a commit of the engine's image, rank 2 with a variable more"
    with (
        matrix.row("env drift by hand", injected, SERVING, other_env) as env,
        matrix.row("wrong digest on one node", injected, SERVING, other_image) as row,
    ):
        image = ready.inspect("spark1")["Config"]["Image"]
        shell(ready, "spark1", "docker commit trispark-engine by-hand:latest >/dev/null")
        start_by_hand(ready, {"spark1": "by-hand:latest"}, {"spark2": "BY_HAND=1"})
        drift = {name: node["drift"] for name, node in status(ready)["nodes"].items()}
        assert any("image" in each["what"] for each in drift["spark1"]), drift
        assert any("BY_HAND" in each["what"] + each["observed"] for each in drift["spark2"]), drift
        assert not any("BY_HAND" in each["what"] + each["observed"] for each in drift["spark0"] + drift["spark1"]), (
            drift
        )
        verified = front(ready, "play", "verify")
        assert verified.rc != 0
        assert "identity.image" in verified.output, verified.output[-1500:]
        ran = front(ready, "rollback")
        assert ran.rc == 0, ran.output[-2000:]
        matrix.served(ready)
        assert ready.inspect("spark1")["Config"]["Image"] == image
        assert not any("BY_HAND" in each for each in ready.inspect("spark2")["Config"]["Env"])
        shell(ready, "spark1", "docker rmi -f by-hand:latest >/dev/null")
        row.seconds = env.seconds = ran.rollback["seconds"]
        row.observed = f"drift and gate name rank 1; serves the staged digest after {row.seconds:.1f} s"
        env.observed = f"drift named on spark2 alone; serves as staged after {row.seconds:.1f} s"


@pytest.mark.leaves_stopped
def test_an_engine_hangs_while_it_starts(known: Any, matrix: Matrix) -> None:
    promised = "the boot ends at its deadline on every rank, the rank is named, logs kept; rollback serves"
    injected = "SIGSTOP to rank 1's engine as soon as it runs; a deadline of 6 s"
    with matrix.row("engine hangs in start", injected, BOOT, promised, mended=True) as row:
        before = boot_of(known.inspect("spark1"))
        going = begin(known, "play", "rollback", "-e", "site_start_deadline_s=6", "-e", "site_stop_deadline_s=4")
        until("the engine runs", started(known, "spark1", before), 60 * known.patience, 0.02)
        boot = boot_of(known.inspect("spark1"))
        shell(known, "spark1", f"kill -STOP {pid_of(known, 'spark1')}")
        output, _ = going.communicate(timeout=200 * known.patience)
        assert going.returncode != 0
        assert "boot.ready" in output, output[-2000:]
        require_stopped(known, *known.nodes)
        for name in known.nodes:  # that of rank 1 may be empty: it was stopped before it wrote a line
            assert known.node(name, "test", "-e", f"{STATE}/boots/{boot}/engine.log") == b""
        row.observed = "boot.ready at the deadline, every rank stopped, its log kept"


@pytest.mark.leaves_stopped
def test_the_image_is_missing_on_one_node(stopped: Any, matrix: Matrix) -> None:
    promised = (
        "what cannot start is no target: refused with the node's name before anything is touched; images mends it"
    )
    injected = "docker rmi of the engine's image on rank 2, engine stopped"
    with matrix.row("image missing", injected, ROLLBACK, promised, mended=True) as row:
        good = f"{STATE}/generations/{last_good(stopped)}/spec.json"
        image = json.loads(stopped.node("spark2", "cat", good))["container"]["image"]
        shell(stopped, "spark2", f"docker rmi -f $(docker inspect -f '{{{{.Id}}}}' {image}) >/dev/null")
        ran = front(stopped, "rollback", "--to", last_good(stopped))  # without it an older one with its image is taken
        assert ran.rc != 0
        assert "TS-ROLLBACK-TARGET" in ran.output, ran.output[-2000:]
        assert "spark2" in ran.output
        row.seconds = ran.seconds
        row.observed = f"TS-ROLLBACK-TARGET names spark2 and the image after {ran.seconds:.1f} s"
        assert front(stopped, "play", "images").rc == 0
