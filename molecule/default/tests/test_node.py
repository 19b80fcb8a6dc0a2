"""A converged node: what runs, from which bytes, who may read it, and who may log in."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
MAGIC = 0x31344E4531565344
LAYERS = (1, 14)
IMAGES: dict[str, str] = yaml.safe_load((ROOT / "inventory/lab/group_vars/all/images.yml").read_text())
STATE = "/var/lib/trispark"


def test_the_engine_runs_from_the_pinned_digest_without_privileges(node: Any) -> None:
    engine = node.engine()
    assert engine["State"]["Running"]
    assert engine["RestartCount"] == 0
    assert engine["Config"]["Image"] == IMAGES["site_engine_image"]
    assert "@sha256:" in engine["Config"]["Image"]
    image = json.loads(node.host.check_output(f"docker image inspect {engine['Image']}"))[0]
    assert IMAGES["site_engine_image"] in image["RepoDigests"]
    assert engine["HostConfig"]["Privileged"] is False
    assert engine["HostConfig"]["NetworkMode"] == "host"
    assert engine["Config"]["Labels"]["trispark.rank"] == str(node.rank)
    # What it may write is its own state alone (the tuning of its kernels), which belongs to its generation.
    assert [mount["Destination"] for mount in engine["Mounts"] if mount["RW"]] == ["/state"]


def test_all_ranks_run_one_boot_of_one_generation(nodes: list[Any]) -> None:
    labels = [node.engine()["Config"]["Labels"] for node in nodes]
    for name in ("trispark.boot", "trispark.epoch", "trispark.generation"):
        assert len({label[name] for label in labels}) == 1
    assert {label["trispark.rank"] for label in labels} == {"0", "1", "2"}


def test_the_second_converge_started_nothing(node: Any) -> None:
    """One boot record, one start in the journal; both are by the node's own account."""
    directory = node.host.file(f"{STATE}/records")
    records = [json.loads(node.host.file(f"{STATE}/records/{name}").content_string) for name in directory.listdir()]
    assert [record["kind"] for record in records] == ["boot"]
    starts = [entry for entry in node.lines(f"{STATE}/journal.jsonl") if entry["verb"] == "start"]
    assert [entry["phase"] for entry in starts] == ["intent", "done"]


def test_every_layer_is_read_from_packed_rows(node: Any) -> None:
    found = re.findall(r"Exact nvme Engram layer=(\d+) rank=(\d+) .* packed=(True|False)", node.log())
    assert sorted(found) == sorted((str(layer), str(node.rank), "True") for layer in LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_shard_says_whose_rows_it_holds(node: Any, layer: int) -> None:
    path = f"/srv/engram/engram-l{layer}-r{node.rank}of3.bin"
    words = node.host.check_output(f"od -An -v -t u8 -N 48 {path}").split()
    magic, header_layer, first, end, rows, stride = (int(word) for word in words)
    assert (magic, header_layer, stride) == (MAGIC, layer, 264)
    assert (first, end) == (rows * node.rank // 3, rows * (node.rank + 1) // 3)
    assert node.host.file(path).size == 4096 + 264 * (end - first)


def test_the_api_listens_and_is_healthy(node: Any) -> None:
    assert node.host.socket("tcp://0.0.0.0:8888").is_listening
    ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8888/health', timeout=5).status)"
    health = node.host.check_output(f'python3 -c "{ask}"')
    assert health == "200"


def test_only_root_reads_the_state(node: Any) -> None:
    script = f"find {STATE} -printf '%u:%g %m %y %P\\n'"
    for line in node.host.check_output(script).splitlines():
        owner, mode, kind, *_ = line.split(" ", 3)
        assert owner == "root:root", line
        assert kind == "l" or int(mode, 8) & 0o022 == 0, f"others may write: {line}"
    for name, mode in {
        "generations": 0o700,
        "records": 0o700,
        "journal.jsonl": 0o600,
        "good.jsonl": 0o600,
        "epoch": 0o600,
        "bin": 0o755,
        "bin/trispark-node": 0o755,
    }.items():
        assert node.host.file(f"{STATE}/{name}").mode == mode, name


def protocol() -> int:
    """Of this tree's agent; its package is not on the path of these tests."""
    found = re.search(r"^PROTOCOL = (\d+)$", (ROOT / "src/trispark_node/__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_the_agent_is_the_one_of_this_tree(node: Any) -> None:
    prepared = json.loads((ROOT / ".trispark/lab/prepared.json").read_text())
    wanted = hashlib.sha256(Path(prepared["agent"]).read_bytes()).hexdigest()
    assert node.host.file(f"{STATE}/bin/trispark-node").sha256sum == wanted
    assert json.loads(node.host.check_output(f"{STATE}/bin/trispark-node version"))["protocol"] == protocol()


def sshd(node: Any, *options: str) -> dict[str, set[str]]:
    """The server's effective settings; several lines of one name are several values."""
    found: dict[str, set[str]] = {}
    for line in node.host.check_output(f"/usr/sbin/sshd -T {' '.join(options)}").splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name, set()).add(value)
    return found


def test_sshd_takes_keys_and_no_password(node: Any) -> None:
    effective = sshd(node)
    for name in ("permitrootlogin", "passwordauthentication", "kbdinteractiveauthentication"):
        assert effective[name] == {"no"}
    assert effective["allowusers"] == {"trispark", "trispark-share"}


def test_the_user_of_the_share_may_read_files_and_nothing_else(node: Any) -> None:
    effective = sshd(node, "-C", "user=trispark-share,host=spark1,addr=10.77.1.11")
    (command,) = effective["forcecommand"]
    assert command == "internal-sftp -R"
    for name in ("allowtcpforwarding", "permittty", "x11forwarding", "permittunnel"):
        assert effective[name] == {"no"}


@pytest.mark.parametrize("user", ["trispark", "root"])
def test_a_login_without_the_key_is_refused(node: Any, user: str) -> None:
    """The server names what it would accept: keys alone. Its own key is checked against the pinned one."""
    options = [
        "BatchMode=yes",
        "ConnectTimeout=5",
        "ControlPath=none",
        "GlobalKnownHostsFile=/dev/null",
        "IdentityAgent=none",
        "PubkeyAuthentication=no",
        "StrictHostKeyChecking=yes",
        f"UserKnownHostsFile={ROOT / '.trispark/lab/ssh/known_hosts'}",
    ]
    done = subprocess.run(
        ["ssh", "-F", "/dev/null", *(f"-o{option}" for option in options), f"-p{node.port}", f"{user}@{node.address}"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 255
    assert "Permission denied (publickey)." in done.stderr
