"""The action plugin under a real ansible-playbook: progress while it works, and who ends the job when that ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.node.conftest import Checkpoint

from trispark_node.clock import SystemClock
from trispark_node.layout import Layout
from trispark_node.lock import held, is_held

ROOT = Path(__file__).resolve().parents[3]
PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - trispark_shards:
        agent: AGENT
        floor_mib_s: 0.01
        work:
          action: ensure
          checkpoint: CHECKPOINT
          directory: PLACE
          rank: 0
          tp: 3
          layers: [1]
          limit_bytes_s: LIMIT
      register: shards
    - debug:
        msg: "{{ shards.answer.files[0].action }}"
"""


class Run:
    """A play on this machine with an agent of its own."""

    def __init__(self, base: Path, limit: int) -> None:
        self.begun: list[subprocess.Popen[bytes]] = []
        self.layout = Layout(base / "state")
        self.place = base / "engram"
        self.place.mkdir()
        checkpoint = Checkpoint(base / "checkpoint", {1: 60_000})
        agent = base / "agent"
        environment = f"TRISPARK_ROOT={self.layout.root} PYTHONPATH={ROOT / 'src'}"
        self.asked = base / "asked"
        tell = f"[ -p {self.asked} ] && echo > {self.asked}"
        agent.write_text(f'#!/bin/sh\n{tell}\n{environment} exec {sys.executable} -m trispark_node "$@"\n')
        agent.chmod(0o755)
        text = PLAY.replace("AGENT", str(agent)).replace("CHECKPOINT", str(checkpoint.directory))
        self.playbook = base / "play.yml"
        self.playbook.write_text(text.replace("PLACE", str(self.place)).replace("LIMIT", str(limit)))

    def begin(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_FORCE_COLOR": "0",
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONUNBUFFERED": "1",
        }
        argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local"]
        process = subprocess.Popen(
            [*argv, str(self.playbook)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.begun.append(process)
        return process

    def end(self) -> None:
        """Whatever a failed test has left."""
        for process in self.begun:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()
        self.ended(signal.SIGKILL)

    def ended(self, number: int = 0) -> None:
        """Until the job's process is gone; with `number` it is told to go."""
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            descriptor = os.pidfd_open(self.state()["pid"])
            if number and self.state()["state"] == "running":
                signal.pidfd_send_signal(descriptor, number)
            select.select([descriptor], [], [], 30)
            os.close(descriptor)

    def until(self, process: subprocess.Popen[bytes], text: str) -> str:
        """What it prints until a line holds `text`."""
        said = ""
        assert process.stdout is not None
        while text not in said:
            assert select.select([process.stdout], [], [], 60)[0], said
            piece = os.read(process.stdout.fileno(), 65536)
            assert piece, said
            said += piece.decode()
        return said

    def state(self) -> dict:
        return json.loads(self.layout.engram_job.read_bytes())


@pytest.fixture
def begin_run(tmp_path):
    runs: list[Run] = []

    def make(limit: int) -> Run:
        runs.append(Run(tmp_path, limit))
        return runs[-1]

    yield make
    for run in runs:
        run.end()


@pytest.mark.slow
def test_progress_and_the_answer(begin_run) -> None:
    run = begin_run(2**19)
    process = run.begin()
    said = run.until(process, "PLAY RECAP")
    assert process.wait(60) == 0, said
    assert "work: localhost: pack engram-l1-r0of3.bin: " in said, said
    assert "MiB/s, " in said
    assert '"packed"' in said or "packed" in said
    assert run.state()["state"] == "done"


@pytest.mark.slow
def test_an_interrupt_ends_the_job(begin_run) -> None:
    """As Ctrl-C does, and a TERM signal to ./trispark, which asks ansible-playbook in this way."""
    run = begin_run(2**18)
    process = run.begin()
    run.until(process, "work: localhost: pack ")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    run.ended()
    assert not is_held(run.layout.lock("engram"))
    assert run.state()["state"] == "stopped"
    assert list(run.place.iterdir()) == []


@pytest.mark.slow
def test_an_interrupt_while_the_job_starts_forestalls_it(begin_run) -> None:
    """The start waits for a lock that this test holds, so the controller has no answer yet."""
    run = begin_run(2**18)
    run.layout.root.mkdir()
    os.mkfifo(run.asked)
    with held(run.layout.lock("engram"), SystemClock(), 0, "a test"):
        process = run.begin()
        run.asked.read_bytes()
        run.asked.unlink()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
        assert len(json.loads(run.layout.engram_forestalled.read_bytes())) == 1
        assert not run.layout.engram_job.exists()
    assert list(run.place.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_controller_that_dies_leaves_a_job_that_ends_by_itself_and_the_next_run_joins_it(begin_run, number) -> None:
    run = begin_run(2**19)
    process = run.begin()
    run.until(process, "work: localhost: pack ")
    job = run.state()["pid"]
    os.kill(job, signal.SIGSTOP)  # however long the next run takes to begin, it finds the job at work
    os.kill(process.pid, number)
    process.wait(60)
    assert run.state()["state"] == "running"
    second = run.begin()
    run.until(second, "goes on with")
    os.kill(job, signal.SIGCONT)
    run.until(second, "PLAY RECAP")
    assert second.wait(60) == 0
    assert run.state()["state"] == "done"
