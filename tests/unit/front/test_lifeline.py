"""What ends with whom: a run inside a run ends when the outermost process is killed, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trispark.lifeline import tied
from trispark.runner import forget_outer_run

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 15


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def gone(pid: int) -> bool:
    """Whether it ends within a bound."""
    until = time.monotonic() + WAIT_S
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(pid)


def awaited(path: Path) -> int:
    until = time.monotonic() + WAIT_S
    while not path.exists() or not path.read_text().strip():
        assert time.monotonic() < until, f"{path.name} was not written"
        time.sleep(0.05)
    return int(path.read_text())


PARENT = """
import subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from trispark.lifeline import tied
subprocess.Popen(tied([sys.executable, "-c", CHILD, sys.argv[2]])).wait()
"""
CHILD = """
import os, sys, time
from pathlib import Path
path = Path(sys.argv[1])
path.with_suffix(".tmp").write_text(str(os.getpid()))
path.with_suffix(".tmp").rename(path)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_tied_process_ends_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    script = f"CHILD = {CHILD!r}\n{PARENT}"
    parent = subprocess.Popen([sys.executable, "-c", script, str(ROOT / "src"), str(tmp_path / "pid")])
    child = awaited(tmp_path / "pid")
    assert alive(child)
    parent.send_signal(number)
    parent.wait(WAIT_S)
    assert gone(child)


def test_a_parent_that_has_gone_already_ends_it_at_once() -> None:
    words = tied(["true"])
    words[3] = "1" if os.getppid() != 1 else "2"
    assert subprocess.run(words, check=False, timeout=WAIT_S).returncode == -signal.SIGTERM


def test_a_program_that_is_not_there_is_named() -> None:
    done = subprocess.run(tied(["/no/such"]), check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr.strip()) == (127, "/no/such: No such file or directory")


def test_what_the_outer_run_has_set_for_itself_is_forgotten() -> None:
    environment = {
        "PATH": "/bin",
        "ANSIBLE_STDOUT_CALLBACK": "awx_display",
        "ORIGINAL_STDOUT_CALLBACK": "x",
        "ANSIBLE_CALLBACK_PLUGINS": "/x",
        "AWX_ISOLATED_DATA_DIR": "/x",
        "RUNNER_OMIT_EVENTS": "False",
        "ANSIBLE_CACHE_PLUGIN": "jsonfile",
        "ANSIBLE_DEPRECATION_WARNINGS": "True",
        "TRISPARK_SITE": "lab",
    }
    forget_outer_run(environment)
    assert set(environment) == {"PATH", "ANSIBLE_DEPRECATION_WARNINGS", "TRISPARK_SITE"}


OUTER = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from trispark.runner import run_playbook
run_playbook(Path(sys.argv[2]), "outer", site="lab")
"""
PLAYBOOKS = {
    "outer": """
- name: Outer
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Run the inner playbook as a walk does
      inner_run:
""",
    "inner": """
- name: Inner
  hosts: spark0
  gather_facts: false
  tasks:
    - name: Wait as a watch does
      slow_look:
""",
}
INNER_RUN = """
import os
from pathlib import Path
from ansible.plugins.action import ActionBase
from trispark.lifeline import die_with_controller
from trispark.runner import forget_outer_run, run_playbook


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        die_with_controller()
        forget_outer_run(os.environ)
        root = Path(task_vars["playbook_dir"]).parent
        (root / "walk.tmp").write_text(str(os.getpid()))
        (root / "walk.tmp").rename(root / "walk")
        run_playbook(root, "inner", site="lab")
        return result
"""
SLOW_LOOK = """
import os, time
from pathlib import Path
from ansible.plugins.action import ActionBase
from trispark.lifeline import die_with_controller


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        die_with_controller()
        root = Path(task_vars["playbook_dir"]).parent
        (root / "look.tmp").write_text(f"{os.getpid()}")
        (root / "main.tmp").write_text(f"{os.getppid()}")
        (root / "main.tmp").rename(root / "main")
        (root / "look.tmp").rename(root / "look")
        time.sleep(600)
        return result
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("victim", ["front", "main"])
def test_a_walk_ends_with_whatever_started_it(tmp_path: Path, number: signal.Signals, victim: str) -> None:
    """Front end, ansible-playbook, its worker, the child ansible-playbook and its worker: five processes deep."""
    for directory in ("playbooks", "inventory/lab", "plugins"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "ansible.cfg").write_text("[defaults]\naction_plugins = plugins\ngathering = explicit\n")
    local = f'{{ansible_connection: local, ansible_python_interpreter: "{sys.executable}"}}'
    (tmp_path / "inventory/lab/hosts.yml").write_text(
        f"ungrouped:\n  hosts:\n    localhost: {local}\n    spark0: {local}\n"
    )
    for name, text in PLAYBOOKS.items():
        (tmp_path / "playbooks" / f"{name}.yml").write_text(text)
    (tmp_path / "plugins/inner_run.py").write_text(INNER_RUN)
    (tmp_path / "plugins/slow_look.py").write_text(SLOW_LOOK)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment["PYTHONPATH"] = str(ROOT / "src")
    front = subprocess.Popen([sys.executable, "-c", OUTER, str(ROOT / "src"), str(tmp_path)], env=environment)
    try:
        pids = {name: awaited(tmp_path / name) for name in ("walk", "look", "main")}
        assert all(map(alive, pids.values()))
        outer_main = int(Path(f"/proc/{pids['walk']}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(front.pid if victim == "front" else outer_main, number)
        for name, pid in pids.items():
            assert gone(pid), f"{name} is still there"
        assert gone(outer_main)
    finally:
        front.kill()
        front.wait(WAIT_S)
