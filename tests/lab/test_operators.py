"""Install, upgrade, backup, restore, support bundle and uninstall on three nodes, judged from outside.

In this order: the last one leaves nodes without state, and makes them serve again.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.slow]

STATE = "/var/lib/trispark"
AGENT = f"{STATE}/bin/trispark-node"
BUNDLE_S = 30.0
SECRET = "planted-Secret-0815"
OLDER = b'#!/bin/sh\necho \'{"ok": true, "version": "0.0.1", "protocol": 0}\'\n'


def words(output: str) -> str:
    """Without the line breaks of the callback."""
    return " ".join(output.split())


def done(played: Any) -> str:
    assert played.rc == 0, played.output[-4000:]
    return words(played.output)


def front_end(lab: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "trispark", *arguments]
    return subprocess.run(argv, cwd=lab.root, capture_output=True, text=True, timeout=300, check=False)


def engines(lab: Any) -> dict[str, tuple[str, str]]:
    """{node: (id, start) of the engine's container}."""
    found = {name: lab.inspect(name) for name in lab.nodes}
    return {name: (each["Id"], each["State"]["StartedAt"]) for name, each in found.items() if each}


def ask(lab: Any, name: str, verb: str, **request: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(lab.node(name, AGENT, verb, data=json.dumps(request).encode()))
    assert answer["ok"], answer
    return answer


def state_of(lab: Any, name: str) -> dict[str, str]:
    """What a backup promises to bring back."""
    kept = ("generations/", "records/", "good.jsonl", "baseline.json", "adopted/", "current")
    below = f"{STATE.lstrip('/')}/"
    found = {path.removeprefix(below): about for path, about in lab.hash_tree(name).items() if path.startswith(below)}
    return {path: about for path, about in found.items() if path.startswith(kept) and "/engine.log" not in path}


def test_an_upgrade_under_a_running_engine_restarts_nothing(serving: Any) -> None:
    before = engines(serving)
    assert len(before) == len(serving.nodes)
    right = serving.node("spark1", "cat", AGENT)
    serving.node("spark1", "sh", "-c", f"cat > {AGENT}", data=OLDER)
    refused = serving.play("verify")
    assert refused.rc != 0
    checked = done(serving.play("install", options=("--check",)))
    assert "changed=1" in checked
    assert serving.node("spark1", "cat", AGENT) == OLDER
    assert "changed=1" in done(serving.play("install"))
    assert hashlib.sha256(serving.node("spark1", "cat", AGENT)).digest() == hashlib.sha256(right).digest()
    assert "changed=0" in done(serving.play("install"))
    assert engines(serving) == before
    done(serving.play("verify"))
    assert engines(serving) == before


@pytest.fixture
def paused(serving: Any) -> Iterator[str]:
    """A node that hangs: its connections stay open and nothing answers."""
    subprocess.run(["docker", "pause", "spark2"], check=True, capture_output=True, timeout=30)
    yield "spark2"
    subprocess.run(["docker", "unpause", "spark2"], check=True, capture_output=True, timeout=30)


@pytest.mark.parametrize("anonymous", [False, True])
def test_a_support_bundle_with_a_hanging_node(serving: Any, paused: str, tmp_path: Path, anonymous: bool) -> None:
    serving.node("spark0", "sh", "-c", f"echo 'HF_TOKEN={SECRET}' > {STATE}/share.json")
    out = tmp_path / "bundle.tar.gz"
    began = time.monotonic()
    try:
        made = front_end(serving, "support-bundle", "--out", str(out), *(["--anonymous"] if anonymous else []))
    finally:
        serving.node("spark0", "rm", f"{STATE}/share.json")
    assert time.monotonic() - began < BUNDLE_S * serving.patience
    assert made.returncode == 4, made.stdout + made.stderr
    assert out.stat().st_mode & 0o777 == 0o600
    with tarfile.open(out) as archive:
        texts = {}
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            assert file is not None
            texts[entry.name.partition("/")[2]] = file.read().decode()
    names = ("node0", "node1", "node2") if anonymous else serving.nodes
    for name in names[:2]:
        assert json.loads(texts[f"nodes/{name}/status.json"])["current"]
        assert texts[f"nodes/{name}/journal.jsonl"]
        assert any(path.startswith(f"nodes/{name}/running/") for path in texts)
    assert names[2] in texts["missing.txt"]
    everything = "\n".join([*texts, *texts.values()])
    assert SECRET not in everything
    assert "id_ed25519" not in everything
    if anonymous:
        for name in (*serving.nodes, "127.77.0.1", "10.77.0.1"):
            assert name not in everything


def test_a_node_with_a_new_disk_gets_its_state_back(known: Any) -> None:
    done(known.play("stop"))
    said = done(known.play("backup"))
    backups = sorted((known.root / ".trispark/lab/backups").iterdir())
    newest = backups[-1]
    assert {path.name for path in newest.iterdir()} == {"backup.json", *(f"{name}.tar.gz" for name in known.nodes)}
    assert str(newest) in said
    before, epoch = state_of(known, "spark2"), ask(known, "spark2", "status")["epoch"]
    # Not onto a node that has state, and not the backup of another one.
    other = known.play("restore", backup=newest.name, node="spark9")
    assert other.rc != 0
    assert "TS-RESTORE-TARGET" in words(other.output)
    assert "changed=0" in done(known.play("restore", backup=newest.name, node="spark2"))
    known.node("spark2", "sh", "-c", f"cd {STATE} && rm -rf $(ls -A | grep -v '^bin$')")
    would = done(known.play("restore", backup=newest.name, node="spark2", options=("--check",)))
    assert "would be restored" in would
    assert state_of(known, "spark2") == {}
    done(known.play("restore", backup=newest.name, node="spark2"))
    assert state_of(known, "spark2") == before
    assert ask(known, "spark2", "status")["epoch"] >= epoch
    # The fleet serves what all nodes hold, the restored one included, under a new epoch.
    done(known.play("rollback"))
    assert len(engines(known)) == len(known.nodes)
    assert ask(known, "spark2", "status")["epoch"] > epoch


def test_uninstall_says_refuses_removes_and_the_next_lab_serves(serving: Any) -> None:
    trees = {name: serving.hash_tree(name) for name in serving.nodes}
    refused = serving.play("uninstall", confirm="true")
    assert refused.rc != 0
    assert "TS-UNINSTALL-ENGINE" in words(refused.output)
    assert len(engines(serving)) == len(serving.nodes)
    done(serving.play("stop"))
    said = done(serving.play("uninstall"))
    assert "nothing was changed; -e confirm=true removes it" in said
    shards = {name: {path for path in tree if path.startswith("srv/")} for name, tree in trees.items()}
    assert all(shards.values())
    records = {name: serving.node(name, "ls", f"{STATE}/records") for name in serving.nodes}
    try:
        done(serving.play("uninstall", confirm="true"))
        for name in serving.nodes:
            left = serving.node(name, "ls", "-A", STATE).decode().split()
            assert set(left) <= {"records", "adopted"}, left
            assert serving.node(name, "ls", f"{STATE}/records") == records[name]
            assert {path for path in serving.hash_tree(name) if path.startswith("srv/")} == shards[name]
        assert "changed=0" in done(serving.play("uninstall", confirm="true"))
        gone = serving.play("status")
        assert "TS-AGENT-MISSING" in words(gone.output)
        assert "./trispark play install" in words(gone.output)
    finally:
        done(serving.play("install"))
        done(serving.play("site", repair="true"))
    assert len(engines(serving)) == len(serving.nodes)
