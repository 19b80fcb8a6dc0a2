"""Status judged from outside: a dead worker that the head does not notice, drift by hand, a node that hangs."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

pytestmark = pytest.mark.lab

REPORTED_WITHIN_S = 10.0
STATUS_S = 3.0


def status(lab) -> tuple[int, dict[str, Any], float]:
    """Exit code, the JSON object and the seconds of one status."""
    began = time.monotonic()
    done = subprocess.run(
        [str(lab.root / "trispark"), "status", "--json"],
        cwd=lab.root,
        capture_output=True,
        text=True,
        timeout=60 * lab.patience,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), time.monotonic() - began


class Watching:
    """A running `status --watch`: each of its lines with the second in which it came."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[tuple[float, str]] = []
        self.thread = Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def until(self, words: str, timeout_s: float, since: float = 0.0) -> float:
        """The second in which a line with these words came, after `since`."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for at, line in list(self.lines):
                if at >= since and words in line:
                    return at
            assert self.process.poll() is None, self.lines
            time.sleep(0.05)
        raise AssertionError(f"no {words!r} in {self.lines}")


@contextmanager
def watching(lab) -> Iterator[Watching]:
    process = subprocess.Popen(
        [str(lab.root / "trispark"), "status", "--watch"],
        cwd=lab.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watch = Watching(process)
    try:
        watch.until("SERVING", 60 * lab.patience)
        yield watch
    finally:
        process.terminate()
        process.wait(60)
        watch.thread.join(60)
        if process.stdout is not None:
            process.stdout.close()


def head_says(lab) -> bytes:
    """The head's own /health: its HTTP status."""
    asked = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8888/health', timeout=5).status)"
    return lab.node("spark0", "python3", "-c", asked, check=False).strip()


def test_a_serving_fleet_is_healthy_by_canary_in_three_seconds(serving) -> None:
    code, found, _ = status(serving)
    assert (code, found["fleet"]["state"]) == (0, "SERVING"), found["fleet"]
    assert "healthy by canary" in found["fleet"]["health"]
    for name, state in found["nodes"].items():
        engine = serving.inspect(name)
        assert (state["engine"]["id"], state["drift"], state["problems"]) == (engine["Id"], [], [])
        assert state["packed"] == {"1": True, "14": True}
        assert state["engine"]["resident_bytes"] > 0
    seconds = sorted(status(serving)[2] for _ in range(5))
    assert seconds[2] <= STATUS_S * serving.patience, seconds


def test_a_worker_that_died_is_said_within_ten_seconds(serving) -> None:
    with watching(serving) as watch:
        serving.node("spark1", "docker", "kill", "trispark-engine")
        killed = time.monotonic()
        said = watch.until("rank 1 on spark1 has exited with 137", 60 * serving.patience, killed)
    assert said - killed <= REPORTED_WITHIN_S * serving.patience
    code, found, _ = status(serving)
    assert (code, found["fleet"]["state"]) == (1, "BROKEN")
    assert any("rollback" in command for command in found["fleet"]["do"])


def test_a_worker_that_hangs_is_said_within_ten_seconds_while_the_head_says_200(serving) -> None:
    """Its container runs and the head answers; only a completion through all ranks tells."""
    pid = serving.node("spark1", "docker", "inspect", "-f", "{{.State.Pid}}", "trispark-engine").decode().strip()
    with watching(serving) as watch:
        serving.node("spark1", "kill", "-STOP", pid)
        stopped = time.monotonic()
        try:
            said = watch.until("a completion fails", 60 * serving.patience, stopped)
            assert head_says(serving) == b"200"
        finally:
            serving.node("spark1", "kill", "-CONT", pid)
    assert said - stopped <= REPORTED_WITHIN_S * serving.patience


def test_a_container_by_hand_in_the_engines_place_is_drift(serving) -> None:
    """With our labels, name, image and mounts, as somebody would make it who wants to try something."""
    state = serving.inspect("spark2")
    config = state["Config"]
    words = [f"--env={item}" for item in [*config["Env"], "BY_HAND=1"]]
    words += [f"--label={key}={value}" for key, value in config["Labels"].items()]
    words += [
        f"--mount=type=bind,source={mount['Source']},target={mount['Target']}"
        + ",readonly" * bool(mount.get("ReadOnly"))
        for mount in state["HostConfig"]["Mounts"]
    ]
    try:
        serving.node("spark2", "docker", "rm", "-f", "trispark-engine")
        command = ["docker", "run", "-d", "--name=trispark-engine", "--network=host", "--entrypoint=sleep", *words]
        serving.node("spark2", *command, config["Image"], "600")
        code, found, _ = status(serving)
    finally:
        serving.play("stop")
    drift = {each["what"]: (each["expected"], each["observed"]) for each in found["nodes"]["spark2"]["drift"]}
    assert code == 1
    assert drift.pop("environment BY_HAND") == ("not set", "1")
    assert [what.startswith("command, argument 0") for what in drift] == [True], drift


def test_a_shard_changed_by_hand_is_drift(serving) -> None:
    path = serving.node("spark1", "sh", "-c", "ls /srv/engram/engram-l1-r1of3.bin").decode().strip()
    serving.node("spark1", "touch", path)
    try:
        code, found, _ = status(serving)
        assert code == 1
        assert [path in each["what"] for each in found["nodes"]["spark1"]["drift"]] == [True]
    finally:
        serving.node("spark1", "touch", f"{path}.manifest.json")
    assert status(serving)[1]["nodes"]["spark1"]["drift"] == []


def test_a_node_that_hangs_and_its_return_are_said_in_time(serving) -> None:
    with watching(serving) as watch:
        try:
            subprocess.run(["docker", "pause", "spark2"], check=True, capture_output=True)
            paused = time.monotonic()
            gone = watch.until("no answer from spark2", 60 * serving.patience, paused)
        finally:
            subprocess.run(["docker", "unpause", "spark2"], check=True, capture_output=True)
        back = time.monotonic()
        returned = watch.until("spark2: answers", 60 * serving.patience, back)
    assert gone - paused <= REPORTED_WITHIN_S * serving.patience
    assert returned - back <= REPORTED_WITHIN_S * serving.patience


def test_a_docker_engine_that_hangs_is_named_and_the_rest_is_shown(serving) -> None:
    pid = serving.node("spark1", "pidof", "dockerd").decode().split()[0]
    serving.node("spark1", "kill", "-STOP", pid)
    try:
        code, found, _ = status(serving)
    finally:
        serving.node("spark1", "kill", "-CONT", pid)
    state = found["nodes"]["spark1"]
    assert (code, state["unknown"]) == (1, ["engine"])
    assert state["current"] == found["nodes"]["spark0"]["current"]
    assert "the Docker Engine of spark1 does not tell" in found["fleet"]["reason"]
