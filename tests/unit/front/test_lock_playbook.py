"""`lock.yml` in real runs of ansible-playbook with a real agent for each of three nodes, on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trispark_node import cli, fleet_lock
from trispark_node.fleet_owner import Owner
from trispark_node.layout import Layout
from trispark_node.node import Node

ROOT = Path(__file__).resolve().parents[3]
NODES = ("spark0", "spark1", "spark2")
ANA = {"token": "ana", "host": "elsewhere", "pid": 4711, "user": "ana", "reason": "trial"}
PLUGIN = """
import importlib.util
import os
import shlex
import subprocess
import sys

spec = importlib.util.spec_from_file_location("the_plugin", {plugin!r})
plugin = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plugin)


class ActionModule(plugin.ActionModule):
    def run(self, tmp=None, task_vars=None):
        self.node = task_vars["inventory_hostname"]
        return super().run(tmp, task_vars)

    def _low_level_execute_command(self, cmd, sudoable=True, in_data=None):
        root = os.path.join({root!r}, self.node)
        done = subprocess.run(
            [sys.executable, "-m", "trispark_node", shlex.split(cmd)[-1]],
            input=in_data, capture_output=True, env={{**os.environ, "TRISPARK_ROOT": root}},
        )
        return {{"rc": done.returncode, "stdout": done.stdout.decode(), "stderr": done.stderr.decode()}}
"""


class Fleet:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.nodes = {name: Node(Layout(root / name)) for name in NODES}

    def ask(self, node: str, verb: str, **request: Any) -> dict[str, Any]:
        return cli.answer(self.nodes[node], verb, json.dumps(request))[0]

    def locks(self) -> dict[str, bytes]:
        return {name: node.layout.fleet_lock.read_bytes() for name, node in self.nodes.items()}

    def take(self, **extra: Any) -> subprocess.CompletedProcess[str]:
        command = ["ansible-playbook", "-i", "hosts.yml", "-e", json.dumps(extra), "lock.yml"]
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_ACTION_PLUGINS": str(self.root / "plugins"),
            "ANSIBLE_NOCOLOR": "1",
            "PYTHONPATH": str(ROOT / "src"),
        }
        environment.pop("TRISPARK_LOCK", None)
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=self.root)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    (tmp_path / "plugins").mkdir()
    plugin = PLUGIN.format(plugin=str(ROOT / "plugins/action/trispark_lock.py"), root=str(tmp_path))
    (tmp_path / "plugins/trispark_lock.py").write_text(plugin, encoding="utf-8")
    shutil.copy(ROOT / "playbooks/lock.yml", tmp_path)
    hosts = "".join(f"    {name}: {{}}\n" for name in NODES)
    values = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    (tmp_path / "hosts.yml").write_text(f"sparks:\n  hosts:\n{hosts}  vars: {json.dumps(values)}\n", encoding="utf-8")
    return Fleet(tmp_path)


@pytest.mark.parametrize("busy", [True, False], ids=["a-call-at-work", "a-lease-alive"])
def test_a_command_that_works_on_one_node_alone_is_left_as_it_was_by_another_that_is_refused(
    fleet: Fleet, busy: bool
) -> None:
    for name in NODES:
        lease_s = 300 if name == "spark1" and not busy else 0.001
        assert fleet.ask(name, "lock-take", owner=ANA, lease_s=lease_s)["changed"]
    before = fleet.locks()
    if busy:
        with fleet_lock.admitted(fleet.nodes["spark1"], "oneshot", Owner(**ANA)):
            done = fleet.take()
    else:
        done = fleet.take()
    assert done.returncode == 2
    assert "TS-LOCK-HELD: another command works on this fleet" in done.stdout
    assert "trial of ana on elsewhere, pid 4711" in done.stdout
    assert "(on spark1)" in done.stdout
    assert fleet.locks() == before
    for name in NODES:
        assert fleet.ask(name, "fence", epoch=1, owner=ANA)["ok"]


def test_it_is_taken_on_all_nodes_with_the_sites_lease_where_nobody_is_at_work(fleet: Fleet) -> None:
    fleet.ask("spark2", "lock-take", owner=ANA, lease_s=0.001)
    done = fleet.take(site_lock_lease_s=77)
    assert done.returncode == 0, done.stdout + done.stderr
    holders = [json.loads(content)["holder"] for content in fleet.locks().values()]
    assert [holder["lease_s"] for holder in holders] == [77, 77, 77]
    assert len({holder["owner"]["token"] for holder in holders} - {"ana"}) == 1
