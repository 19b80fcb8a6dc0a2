"""Work with a bound: its value, its errors, and that nobody waits for what never ends."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trispark_node import share_bounded
from trispark_node.errors import AgentError

BOUND_S = 0.3


@pytest.mark.parametrize(
    "value", [None, 1, "x" * 200_000, ["ü", {"a": [True, None]}]], ids=["none", "int", "long", "nest"]
)
def test_the_value_comes_back_whole(value):
    assert share_bounded.call(lambda: value, 10) == value


def test_an_error_of_the_system_keeps_its_number_and_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        share_bounded.call(lambda: (tmp_path / "gone").read_text(), 10)
    assert caught.value.filename == str(tmp_path / "gone")


def test_an_error_without_a_file_is_still_one(tmp_path):
    def fail():
        raise OSError(errno.ESTALE, "Stale file handle")

    with pytest.raises(OSError, match="Stale") as caught:
        share_bounded.call(fail, 10)
    assert caught.value.errno == errno.ESTALE


def test_a_refusal_of_the_agent_is_the_same_one():
    fields = {"where": "w", "expected": "e", "observed": "o", "remedy": "r"}

    def refuse():
        raise AgentError("TS-AGENT-DAMAGED", "what", **fields, extra={"files": [1]}, status=2)

    with pytest.raises(AgentError) as caught:
        share_bounded.call(refuse, 10)
    assert caught.value.fields() == {"id": "TS-AGENT-DAMAGED", "what": "what", **fields}
    assert (caught.value.extra, caught.value.status) == ({"files": [1]}, 2)


def test_a_defect_is_named():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        share_bounded.call(lambda: 1 // 0, 10)


def test_a_child_that_dies_is_named():
    with pytest.raises(RuntimeError, match="without an answer"):
        share_bounded.call(lambda: os.abort(), 10)


def test_a_call_that_never_ends_is_left_after_the_bound(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    before = time.monotonic()
    with pytest.raises(share_bounded.Late):
        share_bounded.call(lambda: fifo.read_bytes(), BOUND_S)
    assert time.monotonic() - before < 5


def test_a_hanging_child_holds_none_of_our_output():
    """Ansible reads the agent's output to its end, which comes when nobody holds the pipe any more."""
    script = (
        "import signal, time\nfrom trispark_node import share_bounded\n"
        "share_bounded.signal.SIGKILL = 0  # as one that waits in the kernel: the signal does nothing\n"
        f"try:\n    share_bounded.call(lambda: time.sleep(8), {BOUND_S})\n"
        "except share_bounded.Late:\n    print('late')\n"
    )
    before = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
        env={"PYTHONPATH": str(Path(share_bounded.__file__).parents[1])},
    )
    assert done.stdout == "late\n"
    assert time.monotonic() - before < 6


def test_a_command_says_its_status_and_its_last_words():
    ended = share_bounded.command(["sh", "-c", "echo one; echo two >&2; exit 3"], 10)
    assert ended == share_bounded.Ended(3, "one two")


def test_a_command_that_is_not_there():
    with pytest.raises(FileNotFoundError):
        share_bounded.command(["no-such-program-of-ours"], 10)


def test_a_command_that_never_ends_is_killed_with_its_children():
    before = time.monotonic()
    with pytest.raises(share_bounded.Late):
        share_bounded.command(["sh", "-c", "sleep 60 & wait"], BOUND_S)
    assert time.monotonic() - before < 5


def test_a_daemon_of_a_command_holds_nobody_up():
    before = time.monotonic()
    ended = share_bounded.command(["sh", "-c", "setsid sleep 5 & echo mounted"], 10)
    assert ended == share_bounded.Ended(0, "mounted")
    assert time.monotonic() - before < 4
