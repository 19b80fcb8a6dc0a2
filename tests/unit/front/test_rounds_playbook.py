"""`rounds.yml` in real runs of ansible-playbook on local connections.

The agent is a stub that runs the real load client against a server with a switch. What runs is taken as verified; that
is another test's.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from switch_server import Engine

from trispark.catalog import load_catalog

ROOT = Path(__file__).resolve().parents[3]
NODES = ("spark0", "spark1", "spark2")
DIGEST = "sha256:" + "a" * 64
AGENT = '''
"""Answers like the agent; `oneshot` runs the load client here, against the server of the test."""

import json
import os
import subprocess
import sys
from pathlib import Path

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        verb, request = self._task.args["verb"], self._task.args.get("request") or {}
        rank = int(task_vars["node_rank"])
        answer = {"ok": True, "engine": {"boot_id": "b20260102T030405Z-a1b2"}}
        if verb == "oneshot":
            assert rank == 0 and request["command"][:3] == ["python3", "-m", "trispark_bench.rounds"]
            answer = {"ok": True, "exit_code": None, "output": None, "log_tail": []}
            if not self._task.check_mode:
                work = Path(os.environ["TEST_WORK"])
                given = request["input"]
                assert given["bench"]["base_url"] == "http://127.0.0.1:8888"
                given["bench"]["base_url"] = os.environ["TEST_SERVER"]
                (work / "input.json").write_text(json.dumps(given))
                done = subprocess.run(
                    [sys.executable, *request["command"][1:3], str(work / "input.json"), str(work / "output.json")]
                )
                output = json.loads((work / "output.json").read_text())
                for each in output["passes"]:
                    for request in each["requests"]:  # the server is so fast that a read may hold a whole answer
                        request.update(ttft_s=0.25, total_s=0.75 if each["on"] else 0.8)
                answer |= {"exit_code": done.returncode, "output": output}
        result.update(changed=False, answer=answer)
        return result
'''
VERIFIED = """
- name: Take what runs as verified
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Say what runs
      ansible.builtin.set_fact:
        verify_planned: {plan: "{{ lookup('ansible.builtin.file', playbook_dir ~ '/running.json') | from_json }}"}
"""


GATES = """
- name: Take the gates after the load as passed
  ansible.builtin.assert:
    that: engine_plan.generation == 'g0123456789abcdef' and not (gates_fail | default(false) | bool)
    fail_msg: "after_load.engram.reads: failed"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with a stub in place of the agent, and of the look at what runs."""
    root = tmp_path / "project"
    root.mkdir()
    for name in ("experiments", "templates", "adapters", "src"):
        (root / name).symlink_to(ROOT / name)
    for name in ("plugins", "inventory"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "ansible.cfg", root)
    (root / "plugins/action/trispark_node.py").write_text(AGENT)
    (root / "playbooks").mkdir()
    for name in ("rounds.yml", "name_site.yml", "lock.yml", "unlock.yml"):
        shutil.copy(ROOT / "playbooks" / name, root / "playbooks")
    (root / "playbooks/run_verify.yml").write_text(VERIFIED)
    (root / "roles/engine/tasks").mkdir(parents=True)
    (root / "roles/engine/tasks/gates_after_load.yml").write_text(GATES)
    settings = {**load_catalog(ROOT).baseline, "DSV41_ENGRAM_PREFETCH": 1}
    running = {
        "generation": "g0123456789abcdef",
        "serving": True,
        "nodes": {name: {"rank": rank} for rank, name in enumerate(NODES)},
        "resolved": {"engine": "lab", "settings": settings},
    }
    (root / "playbooks/running.json").write_text(json.dumps(running))
    images = f"site_engine_image: r.invalid/engine@{DIGEST}\nsite_bench_image: r.invalid/bench@{DIGEST}\n"
    (root / "inventory/lab/group_vars/all/images.yml").write_text(images)
    hosts = "".join(f"    {name}: {{node_rank: {rank}}}\n" for rank, name in enumerate(NODES))
    values = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    values["site_name"] = "lab"
    (tmp_path / "hosts.yml").write_text(f"sparks:\n  hosts:\n{hosts}all:\n  vars: {json.dumps(values)}\n")
    return root


@pytest.fixture
def serve() -> Iterator[Any]:
    """serve(engine) gives the server's URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runners: list[web.AppRunner] = []

    async def start(engine: Engine) -> str:
        runner = web.AppRunner(engine.app(), shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield lambda engine: asyncio.run_coroutine_threadsafe(start(engine), loop).result(60)
    for runner in runners:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


def play(tree: Path, url: str, *options: str, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(tree / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "PYTHONPATH": str(ROOT / "src"),
        "TEST_SERVER": url,
        "TEST_WORK": str(tree.parent),
    }
    command = ["ansible-playbook", "-i", str(tree.parent / "hosts.yml"), "--extra-vars", json.dumps(extra), *options]
    return subprocess.run(
        [*command, str(tree / "playbooks/rounds.yml")], capture_output=True, text=True, check=False, env=environment,
        cwd=tree, timeout=300,
    )  # fmt: skip


def test_rounds_are_planned_measured_judged_and_kept(tree: Path, serve: Any) -> None:
    engine = Engine(name="engram_prefetch")
    done = play(tree, serve(engine), feature="engram_prefetch", rounds="8")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    said = " ".join(done.stdout.split())
    assert "engram_prefetch on against off +10.00 %" in said
    assert "1 boot:" in said
    assert "engram_prefetch is on again on every rank" in said
    (kept,) = (tree / ".trispark/lab/rounds").iterdir()
    assert kept.name == "b20260102T030405Z-a1b2-engram_prefetch.json"
    assert len(json.loads(kept.read_text())["output"]["passes"]) == 36
    assert (len(engine.orders), engine.on) == (37, True)


@pytest.mark.parametrize(
    ("fault", "error_id"),
    [
        ("refused", "TS-ROUNDS-ACK"),
        ("other text", "TS-ROUNDS-REPEAT"),
        ("switched text", "TS-ROUNDS-DIFFERENT"),
        ("foreign", "TS-ROUNDS-TRAFFIC"),
    ],
)
def test_what_ends_the_rounds_fails_the_playbook_with_the_switch_back(
    tree: Path, serve: Any, fault: str, error_id: str
) -> None:
    engine = Engine(fault, name="engram_prefetch")
    done = play(tree, serve(engine), feature="engram_prefetch")
    assert done.returncode != 0
    assert error_id in done.stdout, done.stdout[-3000:]
    assert engine.on is True
    (kept,) = (tree / ".trispark/lab/rounds").iterdir()
    assert json.loads(kept.read_text())["ended"]["id"] == error_id


@pytest.mark.parametrize(("fault", "error_id"), [("", "TS-ROUNDS-GATES"), ("foreign", "TS-ROUNDS-TRAFFIC")])
def test_gates_that_do_not_hold_fail_the_playbook_and_hide_nothing(
    tree: Path, serve: Any, fault: str, error_id: str
) -> None:
    engine = Engine(fault, name="engram_prefetch")
    done = play(tree, serve(engine), feature="engram_prefetch", gates_fail="true")
    assert done.returncode != 0
    last = done.stdout[done.stdout.rindex("TASK [") :]
    assert "End with the failure" in last
    assert "after_load.engram.reads" in last
    assert error_id in done.stdout
    assert "verified: true" in done.stdout
    (kept,) = (tree / ".trispark/lab/rounds").iterdir()
    assert json.loads(kept.read_text())["ended"]["id"] == error_id


def test_nothing_is_switched_in_check_mode_or_when_it_is_refused(tree: Path, serve: Any) -> None:
    engine = Engine(name="engram_prefetch")
    url = serve(engine)
    done = play(tree, url, "--check", feature="engram_prefetch")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert "8 rounds would be measured" in done.stdout
    for feature, error_id in (("wo_a", "TS-ROUNDS-FEATURE"), ("engram_cache", "TS-ROUNDS-OFF")):
        done = play(tree, url, feature=feature)
        assert (done.returncode != 0, error_id in done.stdout) == (True, True)
    assert engine.orders == []
