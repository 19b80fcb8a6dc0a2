"""The boot unit under a real systemd, with a real Docker Engine, through power cuts: installed by the role itself.

The node is a container (tests/support/systemd_node.py). A power cut is a KILL of every process in it at once; its next
start is another one to the agent, as it is on a machine. The kernel is this machine's and starts only once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from systemd_node import AGENT, STATE, UNIT, SystemdNode, Unable, until

from trispark_node import build

pytestmark = [pytest.mark.slow, pytest.mark.docker]
ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
PLAY = """
- name: The part
  hosts: sparks
  gather_facts: false
  tasks:
    - name: Include it
      ansible.builtin.include_role:
        name: agent
        tasks_from: "{{ part }}"
"""
POLITE = 'echo up; trap "echo bye; exit 3" TERM; while :; do sleep 0.1; done'
STUBBORN = 'echo up; trap "" TERM; while :; do sleep 0.1; done'
ALWAYS = ("--restart", "always")
SECRET = "sekret-key-of-the-engine"
PLACE = f"/etc/systemd/system/{UNIT}"
DROP_IN = "/etc/systemd/system/docker.service.d/test.conf"
RESET = f"""
rm -f {DROP_IN}
systemctl unmask docker.service docker.socket
systemctl daemon-reload
systemctl start docker.service
docker ps --all --quiet | xargs --no-run-if-empty docker rm --force
systemctl stop {UNIT} || true
sed -i '\\#{STATE}#d' /etc/fstab
umount {STATE} 2>/dev/null || true
rm -rf {STATE}
mkdir -p {STATE}/bin
cp -a /root/installed/trispark-node {AGENT}
cp -a /root/installed/{UNIT} {PLACE}
systemctl daemon-reload
systemctl reenable --quiet {UNIT}
systemctl reset-failed
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The agent as it is built for every node, and its SHA-256."""
    path = tmp_path_factory.mktemp("agent") / "trispark-node"
    return path, build.build(ROOT, path)


def role(node: SystemdNode, directory: Path, part: str, **variables: Any) -> str:
    """A part of the role in a run of ansible-playbook; what it said."""
    hosts = {"sparks": {"hosts": {node.id: {"ansible_connection": "community.docker.docker"}}}}
    (directory / "hosts.json").write_text(json.dumps(hosts), encoding="utf-8")
    (directory / "play.yml").write_text(PLAY, encoding="utf-8")
    environment = {
        **os.environ,
        "PATH": f"{TOOLS}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    extra = json.dumps({"agent_root": str(ROOT), "part": part, **variables})
    argv = ["ansible-playbook", "-i", "hosts.json", "--extra-vars", extra, "play.yml"]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env=environment, cwd=directory, timeout=300
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    return done.stdout


def install(node: SystemdNode, directory: Path, agent: tuple[Path, str]) -> str:
    return role(node, directory, "main", agent_file=str(agent[0]), agent_sha256=agent[1])


@pytest.fixture(scope="module")
def machine(agent: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdNode]:
    """A node on which the role has installed agent and unit; a copy of both lies beside."""
    try:
        node = SystemdNode.begin(f"unit-{os.getpid()}")
    except Unable as reason:
        pytest.skip(str(reason))
    try:
        assert node.show("LoadState") == "not-found"
        install(node, tmp_path_factory.mktemp("install"), agent)
        assert node.shows("UnitFileState", "ActiveState") == ("enabled", "inactive"), "installing starts nothing"
        node.sh(f"mkdir /root/installed && cp -a {AGENT} {PLACE} /root/installed")
        yield node
    finally:
        node.remove()


@pytest.fixture
def node(machine: SystemdNode) -> SystemdNode:
    """As the role has left it, without state, and with a Docker Engine that runs and knows nothing."""
    machine.sh(RESET, timeout_s=120)
    return machine


def fence(node: SystemdNode, epoch: int, boot: str) -> None:
    done = node.ask("fence", json.dumps({"epoch": epoch, "boot_id": boot}))
    assert done.returncode == 0, done.stdout


def kept_log(node: SystemdNode, boot: str) -> str:
    return node.sh(f"cat {STATE}/boots/{boot}/engine.log")


def require_well(node: SystemdNode) -> None:
    assert node.shows("ActiveState", "SubState", "Result") == ("active", "exited", "success"), node.said()


def require_failed(node: SystemdNode, result: str = "exit-code") -> None:
    """As an operator sees it who asks systemd alone."""
    assert node.shows("ActiveState", "Result") == ("failed", result), node.said()
    assert UNIT in node.sh("systemctl list-units --failed --plain --no-legend")


def test_the_first_start_finds_nothing_and_changes_nothing(node: SystemdNode) -> None:
    node.lose_power()
    require_well(node)
    assert node.said().splitlines()[-2:] == [
        "no engine of ours was there",
        "not checked: ports and memory: the node was not told of its site yet",
    ]
    assert node.sh(f"find {STATE} -type f ! -path '*/run/*' | sort").split() == [AGENT, f"{STATE}/lock"]


def test_an_engine_that_came_back_by_itself_is_stopped(node: SystemdNode) -> None:
    fence(node, 5, "b1")
    epoch = node.sh(f"cat {STATE}/epoch")
    node.run_engine("b1", 5, POLITE, *ALWAYS, "--env", f"X_API_KEY={SECRET}")
    node.lose_power()
    require_well(node)
    assert node.engine() == ""
    assert "stopped: the engine of boot b1, whose epoch no longer holds; its log is kept" in node.said()
    assert kept_log(node, "b1").split() == ["up", "up", "bye"], "it had come back before it was stopped"
    assert node.sh(f"cat {STATE}/epoch") == epoch, "a node takes no epoch by itself"
    status = json.loads(node.ask("status").stdout)
    assert (status["engine"], status["epoch"], status["pending"]) == (None, 5, [])
    assert SECRET not in node.sh("journalctl --quiet --output=cat")


def test_one_that_does_not_end_is_killed(node: SystemdNode) -> None:
    fence(node, 5, "b1")
    node.run_engine("b1", 5, STUBBORN, *ALWAYS)
    node.lose_power()
    require_well(node)
    assert node.engine() == ""
    assert "(it had to be killed)" in node.said()


def test_one_that_fails_and_is_restarted_for_ever_is_ended(node: SystemdNode) -> None:
    fence(node, 5, "b1")
    node.run_engine("b1", 5, "sleep 0.3; exit 7", *ALWAYS)
    node.lose_power()
    require_well(node)
    assert node.engine() == ""


def test_one_that_ended_with_the_node_leaves_its_log(node: SystemdNode) -> None:
    fence(node, 5, "b1")
    node.run_engine("b1", 5, POLITE)
    node.lose_power()
    require_well(node)
    assert node.engine() == ""
    assert "removed: the engine of boot b1, which had ended (exit status " in node.said()
    assert kept_log(node, "b1") == "up"


def test_started_again_by_hand_it_leaves_an_engine_that_serves(node: SystemdNode) -> None:
    node.lose_power()
    fence(node, 6, "b2")
    node.run_engine("b2", 6, POLITE)
    node.sh(f"systemctl restart {UNIT}")
    require_well(node)
    assert node.engine() == "running"
    assert "left alone: the engine of boot b2 runs" in node.said()


def drop_in(node: SystemdNode, lines: str) -> None:
    node.put(DROP_IN, f"[Service]\n{lines}\n".encode())
    node.sh("systemctl daemon-reload")


def test_it_waits_for_a_docker_that_is_slow(node: SystemdNode) -> None:
    fence(node, 5, "b1")
    node.run_engine("b1", 5, POLITE, *ALWAYS)
    drop_in(node, "ExecStartPre=/bin/sleep 4")
    node.lose_power()
    require_well(node)
    began, up = int(node.show("ExecMainStartTimestampMonotonic")), node.show("ActiveEnterTimestampMonotonic", "docker")
    assert began >= int(up)
    assert node.engine() == ""


def test_it_waits_for_a_docker_whose_first_start_fails(node: SystemdNode) -> None:
    """systemd's order alone would let it run at once, and fail."""
    fence(node, 5, "b1")
    node.run_engine("b1", 5, POLITE, *ALWAYS)
    drop_in(node, "ExecStartPre=/bin/sh -c 'test -e /run/second || { touch /run/second; exit 1; }'\nRestartSec=3")
    node.lose_power()
    until("the unit has ended", lambda: node.show("SubState") in ("exited", "failed"), 90)
    require_well(node)
    assert node.engine() == ""


def test_without_docker_it_fails_and_runs_by_itself_when_docker_comes(node: SystemdNode) -> None:
    fence(node, 5, "b1")
    node.run_engine("b1", 5, POLITE, *ALWAYS)
    node.sh("systemctl mask docker.service docker.socket")
    node.lose_power()
    until("the unit has ended", lambda: node.show("SubState") in ("exited", "failed"), 90)
    require_failed(node)
    assert "TS-AGENT-DOCKER: the Docker Engine does not answer" in node.said()
    node.sh("systemctl unmask docker.service docker.socket && systemctl start docker.service", timeout_s=120)
    until("the unit has run again", lambda: node.show("SubState") == "exited", 60)
    require_well(node)
    assert node.engine() == ""
    assert "stopped: the engine of boot b1" in node.said()


SLOW_DISK = """
[Service]
Type=oneshot
ExecStart=/bin/sleep 4
RemainAfterExit=yes
"""


def test_it_waits_for_the_disk_of_its_own_on_which_the_state_lies(node: SystemdNode) -> None:
    """One that the start of the node itself does not wait for, as `nofail` says."""
    fence(node, 5, "b1")
    node.run_engine("b1", 5, POLITE, *ALWAYS)
    node.put("/etc/systemd/system/slow-disk.service", SLOW_DISK.encode())
    options = "bind,nofail,x-systemd.requires=slow-disk.service,x-systemd.after=slow-disk.service"
    node.sh(f"rm -rf /srv/state && mv {STATE} /srv/state && echo '/srv/state {STATE} none {options} 0 0' >> /etc/fstab")
    node.lose_power()
    require_well(node)
    assert node.sh(f"findmnt --noheadings --output FSROOT {STATE}").endswith("/srv/state")
    assert node.engine() == ""
    assert "stopped: the engine of boot b1" in node.said()


def test_an_epoch_that_cannot_be_read_fails_the_unit_and_names_the_engine(node: SystemdNode) -> None:
    fence(node, 5, "b1")
    node.run_engine("b1", 5, POLITE, *ALWAYS)
    node.put(f"{STATE}/epoch", b'{"epo')
    node.lose_power()
    require_failed(node)
    assert node.engine() == "running", "what cannot be judged is not stopped"
    assert "TS-AGENT-DAMAGED: the epoch file cannot be read, and an engine runs: boot b1" in node.said()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (f"truncate --size=5000 {AGENT}", "SyntaxError"),
        (f"truncate --size=0 {AGENT}", "Exec format error"),
        (f"rm {AGENT}", "status=203/EXEC"),
        (f"rm -r {STATE}/bin", "status=203/EXEC"),
    ],
    ids=["cut short", "empty", "missing", "its directory missing"],
)
def test_an_agent_that_is_gone_or_damaged_fails_the_unit_until_it_is_installed_again(
    node: SystemdNode, spoil: str, words: str
) -> None:
    fence(node, 5, "b1")
    node.run_engine("b1", 5, POLITE, *ALWAYS)
    node.sh(spoil)
    node.lose_power()
    require_failed(node)
    assert words in node.run("systemctl", "status", "--no-pager", "--full", UNIT).stdout
    assert node.engine() == "running"
    node.sh(f"mkdir -p {STATE}/bin && cp -a /root/installed/trispark-node {AGENT} && systemctl start {UNIT}")
    require_well(node)
    assert node.engine() == ""


def test_a_newer_unit_takes_the_place_of_one_that_ran_at_the_start_alone(
    node: SystemdNode, tmp_path: Path, agent: tuple[Path, str]
) -> None:
    newer = (ROOT / "templates" / UNIT).read_text(encoding="utf-8")
    old = newer.replace("multi-user.target docker.service", "multi-user.target")
    assert old != newer
    node.sh(f"systemctl disable {UNIT}")
    node.put(PLACE, old.encode())
    node.sh(f"systemctl daemon-reload && systemctl enable {UNIT}")
    assert UNIT not in node.show("Wants", "docker.service")
    install(node, tmp_path, agent)
    assert node.sh(f"cat {PLACE}") == newer.strip()
    assert UNIT in node.show("Wants", "docker.service").split()
    assert UNIT in node.show("Wants", "multi-user.target").split()
    assert "changed=0" in install(node, tmp_path, agent)


@pytest.mark.parametrize("died", ["after the copy", "after the old links were let go", "between the links"])
def test_an_install_that_died_is_ended_by_the_next_one(
    node: SystemdNode, tmp_path: Path, agent: tuple[Path, str], died: str
) -> None:
    """The unit's file is equal then: no copy says that something is left to be done."""
    newer = (ROOT / "templates" / UNIT).read_bytes()
    node.sh(f"systemctl disable {UNIT}")
    if died != "after the old links were let go":
        old = newer.replace(b"multi-user.target docker.service", b"multi-user.target")
        if died == "after the copy":
            old = old.replace(b"TimeoutStartSec=900", b"TimeoutStartSec=90")
        node.put(PLACE, old)
        node.sh(f"systemctl daemon-reload && systemctl enable {UNIT}")
    node.put(PLACE, newer)
    if died == "between the links":
        node.sh("systemctl daemon-reload")
    install(node, tmp_path, agent)
    assert node.shows("NeedDaemonReload", "TimeoutStartUSec", "UnitFileState") == ("no", "15min", "enabled")
    for target in ("docker.service", "multi-user.target"):
        assert UNIT in node.show("Wants", target).split()
    assert "changed=0" in install(node, tmp_path, agent)


@pytest.mark.parametrize("ended", ["well", "failed"])
def test_uninstall_leaves_systemd_without_the_unit(node: SystemdNode, tmp_path: Path, ended: str) -> None:
    if ended == "failed":
        node.sh(f"truncate --size=0 {AGENT}")
    assert node.run("systemctl", "start", UNIT).returncode == (0 if ended == "well" else 1)
    role(node, tmp_path, "remove")
    assert node.sh(f"find /etc/systemd -name '{UNIT}'") == ""
    assert node.show("LoadState") == "not-found"
    assert UNIT not in node.sh("systemctl list-units --all --plain --no-legend")
    assert "changed=0" in role(node, tmp_path, "remove")
    node.lose_power()
    assert node.run("systemctl", "status", UNIT).returncode == 4, "there is no such unit"
