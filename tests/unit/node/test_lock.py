"""The node's lock: waits up to its deadline, names the holder, dies with its process."""

from __future__ import annotations

import fcntl
import os

import pytest

from trispark_node.errors import AgentError
from trispark_node.lock import held


def test_contention_names_the_holder_and_waits_as_long_as_told(bench):
    bench.root.mkdir()
    with held(bench.node.layout.lock("state"), bench.clock, 0, "stop") as note:
        note()
        before = bench.clock.time
        error = bench.refused("fence", epoch=1, lock_wait_s=2)
        assert error["id"] == "TS-AGENT-LOCKED"
        assert f"held by stop, pid {os.getpid()}" in error["observed"]
        assert 2 <= bench.clock.time - before < 2.2
    assert bench.ask("fence", epoch=1)["changed"]
    assert bench.node.layout.lock("state").read_bytes() == b""


def test_lock_of_a_dead_process_is_free(bench):
    bench.root.mkdir()
    path = bench.node.layout.lock("state")
    child = os.fork()
    if child == 0:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, b'{"verb": "stage", "pid": 1, "since": "then"}')
        os._exit(0)
    os.waitpid(child, 0)
    assert bench.ask("fence", epoch=1, lock_wait_s=0)["changed"]


def test_packing_does_not_keep_anyone_from_stopping(bench):
    bench.root.mkdir()
    with held(bench.node.layout.lock("engram"), bench.clock, 0, "engram"):
        assert bench.ask("fence", epoch=1, lock_wait_s=0)["changed"]
        with pytest.raises(AgentError), held(bench.node.layout.lock("engram"), bench.clock, 0, "engram"):
            pytest.fail("two holders")
