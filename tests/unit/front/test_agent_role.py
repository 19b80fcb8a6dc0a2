"""The role `agent` in real runs of ansible-playbook on a local connection: the agent is built, judged and replaced."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
TOOLS = Path(sys.executable).parent
OLD = '#!/bin/sh\necho \'{"ok": true, "version": "old"}\'\n'
PLAY = """
- name: Install
  hosts: sparks
  gather_facts: false
  tasks:
    - name: The part
      ansible.builtin.include_role:
        name: agent
        tasks_from: "{{ part }}"
"""


def write_agent(path: Path, protocol: str = "") -> Path:
    """The package as one file without its dependencies, which the verb `version` does not need."""
    with path.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w") as members:
            for each in sorted((ROOT / "src" / "trispark_node").glob("*.py")):
                text = each.read_text(encoding="utf-8")
                if protocol and each.name == "__init__.py":
                    text, count = re.subn(r"^PROTOCOL(.*)= .*$", rf"PROTOCOL\1= {protocol}", text, flags=re.MULTILINE)
                    assert count == 1
                members.writestr(f"trispark_node/{each.name}", text)
            members.writestr("__main__.py", "import runpy; runpy.run_module('trispark_node', run_name='__main__')")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_agent(tmp_path_factory.mktemp("agent") / "trispark-node")


def play(directory: Path, part: str, *arguments: str, **extra: Any) -> subprocess.CompletedProcess[str]:
    directory.mkdir(exist_ok=True)
    (directory / "play.yml").write_text(PLAY, encoding="utf-8")
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    hosts = {"sparks": {"hosts": {"spark0": {}}, "vars": variables}}
    (directory / "hosts.json").write_text(json.dumps(hosts), encoding="utf-8")
    environment = {
        **os.environ,
        "PATH": f"{TOOLS}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    argv = ["ansible-playbook", "-i", str(directory / "hosts.json"), *arguments]
    argv += ["--extra-vars", json.dumps({"agent_root": str(ROOT), "part": part, **extra}), str(directory / "play.yml")]
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, env=environment, cwd=directory, timeout=120
    )


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.skipif(os.geteuid() != 0, reason="files of root are installed")
def test_an_older_agent_is_replaced_and_a_spoilt_file_replaces_nothing(agent: Path, tmp_path: Path) -> None:
    target = tmp_path / "node" / "bin" / "trispark-node"
    target.parent.mkdir(parents=True)
    target.write_text(OLD)
    given = {"agent_path": str(target), "agent_file": str(agent), "agent_sha256": sha256(agent)}
    # Cut short on its way, and one that does not run: what is there stays.
    for content in (agent.read_bytes()[:5000], b"#!/usr/bin/env python3\nraise SystemExit(3)\n"):
        spoilt = tmp_path / "spoilt"
        spoilt.write_bytes(content)
        wanted = sha256(agent) if content[:1000] == agent.read_bytes()[:1000] else sha256(spoilt)
        done = play(tmp_path / "play", "replace", **{**given, "agent_file": str(spoilt), "agent_sha256": wanted})
        assert done.returncode == 2, done.stdout
        assert "failed to validate" in done.stdout
        assert target.read_text() == OLD
    checked = play(tmp_path / "play", "main", "--check", **given)
    assert checked.returncode == 0, checked.stdout
    assert target.read_text() == OLD
    first = play(tmp_path / "play", "main", **given)
    assert first.returncode == 0, first.stdout
    assert sha256(target) == sha256(agent)
    assert "changed=1" in first.stdout
    second = play(tmp_path / "play", "main", **given)
    assert "changed=0" in second.stdout, second.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="files of root are installed")
def test_a_new_agent_of_another_protocol_names_the_command(tmp_path: Path) -> None:
    """The controller's protocol is asked of what was installed, and the line says what brings both together."""
    target = tmp_path / "node" / "bin" / "trispark-node"
    target.parent.mkdir(parents=True)
    write_agent(target, protocol="99")
    done = play(tmp_path / "play", "main", agent_path=str(target), agent_file=str(target), agent_sha256=sha256(target))
    assert done.returncode == 2, done.stdout
    assert "TS-AGENT-PROTOCOL" in done.stdout
    assert "./trispark play install" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="files of root are removed")
def test_remove_takes_the_agent_and_its_copy_alone(tmp_path: Path) -> None:
    root = tmp_path / "node"
    for name in ("bin/trispark-node", "run/agent-1/manifest.json", "records/1.json"):
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
    done = play(tmp_path / "play", "remove", agent_path=str(root / "bin" / "trispark-node"))
    assert done.returncode == 0, done.stdout
    assert [path.name for path in root.iterdir()] == ["records"]
    assert "changed=0" in play(tmp_path / "play", "remove", agent_path=str(root / "bin" / "trispark-node")).stdout


SYSTEMCTL = """#!/bin/sh
echo "$*" >> {root}/asked
case "$1" in
show) case "$*" in
  *NeedDaemonReload*) cat {root}/need ;;
  *) [ ! -e {units}/trispark-boot.service ] || echo LoadState=loaded ;;
  esac ;;
daemon-reload) echo no > {root}/need ;;
*) exec {real} --root={root}/node "$@" ;;
esac
"""
"""systemd's own program on the files of a node on which no systemd runs, and what a running one would say beside."""
LINKS = ["docker.service.wants", "multi-user.target.wants"]


@pytest.mark.skipif(os.geteuid() != 0, reason="files of root are installed")
@pytest.mark.skipif(shutil.which("systemctl") is None, reason="systemd's program makes the links")
@pytest.mark.parametrize(
    ("links", "need", "wrong"),
    [
        pytest.param(None, "no", True, marks=pytest.mark.slow),
        (["multi-user.target.wants"], "no", True),
        pytest.param([*LINKS, "old.target.wants"], "no", True, marks=pytest.mark.slow),
        (LINKS, "yes", False),
    ],
    ids=["not there", "enabled as before", "for too much", "not read"],
)
def test_the_unit_is_brought_from_any_state_to_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: list[str] | None, need: str, wrong: bool
) -> None:
    """Whatever an earlier run ended after: the unit's file may be equal already."""
    units = tmp_path / "node" / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    unit = units / "trispark-boot.service"
    if links is not None:
        shutil.copyfile(ROOT / "templates" / unit.name, unit)
        unit.chmod(0o644)
        for each in links:
            (units / each).mkdir()
            (units / each / unit.name).symlink_to(f"/etc/systemd/system/{unit.name}")
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "systemctl"
    program.write_text(SYSTEMCTL.format(root=tmp_path, units=units, real=shutil.which("systemctl")), encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "need").write_text(f"{need}\n", encoding="utf-8")
    asked = tmp_path / "asked"
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    # Names of the role itself: no site sets them, and what is given here goes before what the role finds or says.
    given = {"__agent_units": str(units), "__agent_systemd": {"stat": {"exists": True}}}
    changes = wrong or need == "yes"

    def run(*arguments: str) -> tuple[bool, list[str]]:
        """Whether it reports a change, and what it asked systemd to do."""
        asked.write_text("", encoding="utf-8")
        done = play(tmp_path / "play", "unit", *arguments, **given)
        assert done.returncode == 0, done.stdout
        words = [line.split()[0] for line in asked.read_text(encoding="utf-8").splitlines()]
        return "changed=0" not in done.stdout, [each for each in words if each not in ("show", "is-enabled")]

    def state() -> list[str]:
        return sorted(str(path.relative_to(units)) for path in units.rglob("*") if path.name == unit.name)

    before = state()
    assert run("--check") == (changes, [])
    assert state() == before
    reported, did = run()
    assert (reported, "daemon-reload" in did) == (changes, changes)
    assert state() == sorted([unit.name, *(f"{each}/{unit.name}" for each in LINKS)])
    assert run() == (False, [])


def test_the_links_that_are_looked_for_are_those_of_the_unit() -> None:
    text = (ROOT / "templates" / "trispark-boot.service").read_text(encoding="utf-8")
    wanted = re.search(r"^WantedBy=(.*)$", text, flags=re.MULTILINE)
    assert wanted is not None
    assert sorted(f"{each}.wants" for each in wanted[1].split()) == LINKS
    tasks = yaml.safe_load((ROOT / "roles/agent/tasks/unit.yml").read_text(encoding="utf-8"))
    assert [each.split("/")[1] for each in tasks[1]["vars"]["__agent_links"]] == LINKS
