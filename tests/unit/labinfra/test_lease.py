"""One run at a time changes the lab: whose run it is, and what happens to the lease of a run that has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trispark.errors import TrisparkError
from trispark.lab.lease import Process, look, owner_of, take_lease
from trispark.lab.plan import down_plan, up_plan

PLAY = "/v/bin/python /v/bin/ansible-playbook playbooks/lab_up.yml"


def processes(*found: Process) -> Callable[[int], Process | None]:
    return {each.pid: each for each in found}.get


SHELL = Process(10, 1, 1, "bash")
ONE = Process(20, 200, 10, PLAY)
WORKER = Process(21, 201, 20, PLAY)
MODULE = Process(22, 202, 21, "/usr/bin/python3 AnsiballZ_trispark_lab_state.py")
LATER_MODULE = Process(25, 290, 21, "/usr/bin/python3 AnsiballZ_trispark_lab_state.py")
OTHER = Process(30, 300, 10, "/v/bin/python /v/bin/ansible-playbook playbooks/lab_down.yml")
OTHER_MODULE = Process(31, 301, 30, "/usr/bin/python3 AnsiballZ_trispark_lab_state.py")
ALL = (SHELL, ONE, WORKER, MODULE, LATER_MODULE, OTHER, OTHER_MODULE)


@pytest.mark.parametrize(
    ("pid", "owner"),
    [
        pytest.param(22, ONE, id="module-of-a-worker"),
        pytest.param(20, ONE, id="itself"),
        pytest.param(10, SHELL, id="no-playbook-above"),
        pytest.param(99, None, id="unknown"),
    ],
)
def test_owner_is_the_uppermost_playbook(pid: int, owner: Process | None) -> None:
    assert owner_of(pid, processes(*ALL)) == owner


def test_modules_of_one_run_share_the_lease_and_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lab" / "lease.json"
    take_lease(path, 22, processes(*ALL))
    take_lease(path, 25, processes(*ALL))
    with pytest.raises(TrisparkError) as refused:
        take_lease(path, 31, processes(*ALL))
    assert refused.value.id == "TS-LAB-BUSY"
    assert refused.value.observed == f"process 20: {PLAY}"
    take_lease(path, 22, processes(*ALL))


@pytest.mark.parametrize(
    "alive",
    [
        pytest.param((SHELL, OTHER, OTHER_MODULE), id="ended"),
        pytest.param((SHELL, Process(20, 999, 10, "vi"), OTHER, OTHER_MODULE), id="its-number-was-given-again"),
    ],
)
def test_lease_ends_with_its_run(tmp_path: Path, alive: tuple[Process, ...]) -> None:
    path = tmp_path / "lease.json"
    take_lease(path, 22, processes(*ALL))
    take_lease(path, 31, processes(*alive))
    with pytest.raises(TrisparkError, match="process 30"):
        take_lease(path, 22, processes(*ALL))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x", "started": 1}', '{"pid": 20}'])
def test_torn_lease_is_taken_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lease.json"
    path.write_text(text)
    take_lease(path, 31, processes(*ALL))
    with pytest.raises(TrisparkError, match="process 30"):
        take_lease(path, 22, processes(*ALL))


def test_this_process_is_found_with_its_start_and_parent() -> None:
    found = look(os.getpid())
    assert found is not None
    assert (found.pid, found.parent) == (os.getpid(), os.getppid())
    assert found.started > 0
    assert look(2**22 + 1) is None


@pytest.mark.parametrize("plan", [up_plan, down_plan])
def test_both_plans_are_refused_before_anything_is_read(tmp_path: Path, plan: Callable[..., object]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as holder:
        take_lease(tmp_path / ".trispark" / "lab" / "lease.json", holder.pid)
        with pytest.raises(TrisparkError, match="TS-LAB-BUSY"):
            plan(tmp_path, object())
        holder.communicate(b"\n")
