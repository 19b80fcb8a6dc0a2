"""Filters and small playbooks in real runs of ansible-playbook on local connections."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = Path(sys.executable).parent
NODES = ("spark0", "spark1", "spark2")

PICKING = """
- name: Come to different places
  hosts: sparks
  gather_facts: false
  tasks:
    - name: Answer
      ansible.builtin.set_fact:
        seen: {answer: {ok: true, epoch: "{{ node_rank }}"}}
        reached: "{{ 'ready' if node_rank == 0 else 'started' }}"
      when: node_rank != 2
- name: Pick
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Write what was picked
      ansible.builtin.copy:
        content: "{{ picked | to_json }}"
        dest: "{{ target }}"
        mode: "0600"
      vars:
        hosts: "{{ groups['sparks'] }}"
        picked:
          answers: "{{ hosts | trispark_answers(hostvars, 'seen') }}"
          results: "{{ hosts | trispark_results(hostvars, 'seen') }}"
          boots: "{{ hosts | trispark_boots(hostvars) | list }}"
          lacking: "{{ hosts | trispark_lacking(hostvars, 'reached', 'ready') }}"
          unconfigured: "{{ 'sparks' | trispark_unconfigured_line }}"
          record: "{{ ['spark1', 'spark2'] | trispark_not_recorded_line('b1') }}"
          promoted: "{{ ['spark2'] | trispark_not_promoted_line }}"
          load: "{{ {'exit_code': 3, 'log_tail': ['one', 'two']} | trispark_load_failed_line('spark1') }}"
          silent: "{{ {'exit_code': 137} | trispark_load_failed_line('spark1') }}"
          mounts:
            - "{{ {} | trispark_over_network }}"
            - "{{ {'kind': 'local'} | trispark_over_network }}"
            - "{{ {'kind': 'nfs', 'managed': true} | trispark_over_network }}"
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    hosts = "".join(f"    {name}: {{node_rank: {rank}}}\n" for rank, name in enumerate(NODES))
    values = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    path = tmp_path / "hosts.yml"
    variables = json.dumps({**values, "site_name": "lab"})
    path.write_text(f"sparks:\n  hosts:\n{hosts}  vars: {variables}\n", encoding="utf-8")
    return path


def play(playbook: Path, inventory: Path, path: str = "", **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{path}{TOOLS}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    command = ["ansible-playbook", "-i", str(inventory), "--extra-vars", json.dumps(extra), str(playbook)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=inventory.parent)


def test_filters_pick_by_node_and_say_what_is_lacking(inventory: Path, tmp_path: Path) -> None:
    (tmp_path / "picking.yml").write_text(PICKING, encoding="utf-8")
    target = tmp_path / "picked.json"
    done = play(tmp_path / "picking.yml", inventory, target=str(target))
    assert done.returncode == 0, done.stdout + done.stderr
    picked: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    there = {name: {"ok": True, "epoch": rank} for rank, name in enumerate(NODES[:2])}
    assert picked["answers"] == {**there, "spark2": None}
    assert picked["results"] == {**{name: {"answer": answer} for name, answer in there.items()}, "spark2": {}}
    assert picked["boots"] == list(NODES)
    assert picked["lacking"] == ["spark1", "spark2"]
    assert picked["unconfigured"].startswith(
        "TS-SITE-UNCONFIGURED: site sparks is not configured; where: inventory/sparks/"
    )
    assert picked["record"] == (
        "TS-RECORD-APPEND: the record of b1 is not on every node; where: spark1, spark2; expected: on all nodes; "
        "observed: missing there; do: bring the node back, the next boot gives it what it lacks"
    )
    assert picked["promoted"].startswith("TS-PROMOTE-NODE: ")
    assert "observed: exit 3, two;" in picked["load"]
    assert "observed: exit 137, no output;" in picked["silent"]
    assert picked["mounts"] == [False, False, True]


DOCKER = """#!/bin/sh
echo "$*" >>{log}
[ "$1" != ps ] || printf '{ids}'
"""


@pytest.mark.parametrize(("ids", "killed"), [("", []), ("aaa\\nbbb\\n", []), ("aaa\\n", ["kill aaa"])])
def test_the_incident_kills_one_engine_or_nothing(inventory: Path, tmp_path: Path, ids: str, killed: list[str]) -> None:
    docker, log = tmp_path / "bin" / "docker", tmp_path / "log"
    docker.parent.mkdir()
    docker.write_text(DOCKER.format(log=log, ids=ids), encoding="utf-8")
    docker.chmod(0o755)
    done = play(ROOT / "playbooks" / "demo_incident.yml", inventory, path=f"{docker.parent}:")
    assert (done.returncode == 0) is bool(killed), done.stdout + done.stderr
    assert [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("kill")] == killed
    assert ("TS-LAB-INCIDENT" in done.stdout) is not bool(killed)
