"""A bundle is made whatever is broken; the same content gives the same bytes; nothing planted is in it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from trispark import support_bundle
from trispark.errors import TrisparkError
from trispark.run_events import FailedEvent
from trispark.support_bundle import make_bundle
from trispark.support_sources import tail

SECRET = "planted-S3cret-1"
NOW = 1_770_000_000.0
HOSTS = """
sparks:
  hosts:
    spark1: {node_rank: 1, ansible_host: 192.0.2.11}
    spark0: {node_rank: 0, ansible_host: 192.0.2.10, ansible_ssh_private_key_file: /home/ann/.ssh/id_ed25519}
    spark2: {node_rank: 2}
"""
ANSWER: dict[str, Any] = {
    "ok": True,
    "agent": {"version": "0.1.0", "protocol": 1},
    "host": {"hostname": "ann-head", "addresses": ["192.0.2.10"]},
    "status": {"current": "g1", "problems": []},
    "journal": {"entries": [{"seq": 1, "verb": "stop", "phase": "intent", "detail": {}}], "total": 1},
    "boots": {"b1": f"started with --api-key {SECRET}\nready on spark0\n"},
    "running": {},
    "state": {"fleet-lock.json": json.dumps({"owner": {"token": SECRET, "host": "ann-head"}})},
    "files": {"bytes": {"boots": 3}, "listed": []},
    "unread": {"boots/b0": "TS-AGENT-LOG-REDACT: what the kept log must not show cannot be read"},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inventory = tmp_path / "inventory" / "lab" / "group_vars" / "all"
    inventory.mkdir(parents=True)
    (tmp_path / "inventory/lab/hosts.yml").write_text(HOSTS)
    (inventory / "site.yml").write_text(f"site_name: lab\nsite_extra_container_env: {{HF_TOKEN: {SECRET}}}\n")
    run = tmp_path / ".trispark/runs/20260101T000000Z-boot-abcdef"
    run.mkdir(parents=True)
    (run / "stdout").write_text(f"TASK [x]\nfatal: [spark1]: TS-BOOT-NODE: x\nX_API_KEY={SECRET}\n")
    (run / "rc").write_text("2")
    plans = tmp_path / ".trispark/lab/plans"
    plans.mkdir(parents=True)
    (plans / "p1.json").write_text("{}")
    return tmp_path


def answers(**by_node: Any):
    def ask(directory: Path) -> list[FailedEvent]:
        for node, answer in by_node.items():
            (directory / f"{node}.json").write_text(answer if isinstance(answer, str) else json.dumps(answer))
        return [FailedEvent("spark2", "Ask the node", "ssh: connect: timed out", unreachable=True)]

    return ask


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive.getmembers():
            assert (entry.mode, entry.mtime, entry.uid) == (0o600, 0, 0)
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.partition("/")[2]] = file.read()
        assert list(found) == sorted(found)
        return found


def test_a_bundle_with_a_node_down_names_it_and_holds_the_rest(root: Path) -> None:
    made = make_bundle(root, "lab", answers(spark0=ANSWER, spark1="not json"), None, anonymous=False, now=NOW)
    assert made.path == root / ".trispark/lab/support/20260202T024000Z.tar.gz"
    assert made.path.stat().st_mode & 0o777 == 0o600
    assert set(made.missing) == {"spark1", "spark2", "spark0/boots/b0"}
    assert "timed out" in made.missing["spark2"]
    found = members(made.path)
    wanted = {
        "versions.json", "site/hosts.yml", "site/group_vars/all/site.yml", "controller/plans.txt", "manifest.json",
        "controller/records.json", "controller/runs/20260101T000000Z-boot-abcdef/stdout", "missing.txt",
        "nodes/spark0/status.json", "nodes/spark0/journal.jsonl", "nodes/spark0/boots/b1.log",
        "nodes/spark0/state/fleet-lock.json",
    }  # fmt: skip
    assert wanted <= set(found)
    assert not any(name.startswith("nodes/spark2") for name in found)
    everything = b"\n".join(found.values())
    for planted in (SECRET.encode(), b"id_ed25519"):
        assert planted not in everything
    manifest = json.loads(found["manifest.json"])
    assert set(manifest["files"]) == set(found) - {"manifest.json"}
    assert b"TS-BOOT-NODE" in everything


def test_the_same_content_gives_the_same_bytes(root: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "a.tar.gz", tmp_path / "b.tar.gz"]
    for path in paths:
        make_bundle(root, "lab", answers(spark0=ANSWER), path, anonymous=True, now=NOW)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_anonymous_has_no_name_and_no_address(root: Path, tmp_path: Path) -> None:
    made = make_bundle(root, "lab", answers(spark0=ANSWER), tmp_path / "a.tar.gz", anonymous=True, now=NOW)
    found = members(made.path)
    assert "nodes/node0/boots/b1.log" in found
    everything = b"\n".join([*found.values(), *(name.encode() for name in found)])
    for name in (b"spark0", b"spark1", b"ann-head", b"192.0.2.1", b"/home/ann"):
        assert name not in everything
    assert b"ready on node0" in found["nodes/node0/boots/b1.log"]


def test_nothing_that_is_broken_keeps_a_bundle_from_being_made(tmp_path: Path) -> None:
    def ask(directory: Path) -> list[FailedEvent]:
        raise TrisparkError("TS-PLAY-UNKNOWN", "no playbook support", "playbooks/", "it", "none", "restore it")

    made = make_bundle(tmp_path, "lab", ask, tmp_path / "a.tar.gz", anonymous=True, now=NOW)
    assert made.missing["nodes"]
    assert "versions.json" in members(made.path)


def test_a_file_that_is_there_is_not_replaced(root: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("x")
    for out in (taken, tmp_path / "no" / "directory"):
        with pytest.raises(TrisparkError) as caught:
            make_bundle(root, "lab", answers(), out, anonymous=False, now=NOW)
        assert caught.value.id == "TS-SUPPORT-FILE"
    assert taken.read_text() == "x"


def test_what_is_too_large_is_left_out_and_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_bundle, "MOST_BYTES", 20_000)
    large = {**ANSWER, "boots": {"b1": "x" * 50_000, "b2": "short\n"}}
    made = make_bundle(root, "lab", answers(spark0=large), tmp_path / "a.tar.gz", anonymous=False, now=NOW)
    found = members(made.path)
    assert json.loads(found["manifest.json"])["left_out"] == {"nodes/spark0/boots/b1.log": 50_000}
    assert "nodes/spark0/boots/b2.log" in found


def test_a_tail_begins_at_a_line_and_says_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(100)))
    assert tail(path, 30) == "[trispark: 766 bytes left out]\nline 97\nline 98\nline 99\n"
    assert tail(path, 10_000) == path.read_text()
    assert "not readable" in tail(tmp_path / "none")


def test_a_name_of_a_node_is_one_part_of_a_path(root: Path, tmp_path: Path) -> None:
    answer = {**ANSWER, "boots": {"../../etc/passwd": "x\n"}}
    made = make_bundle(root, "lab", answers(spark0=answer), tmp_path / "a.tar.gz", anonymous=False, now=NOW)
    assert "nodes/spark0/boots/_.._etc_passwd.log" in members(made.path)
