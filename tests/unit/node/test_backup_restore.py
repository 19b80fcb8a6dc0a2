"""A node whose disk was replaced gets its state back; only a whole backup of its own is put on a node."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
from hashlib import sha256

import pytest

from trispark_node import restore
from trispark_node.mutation import Mode

ME = {"site": "lab", "node": "spark1"}


def append(bench, record_id: str) -> None:
    head = bench.ask("record-head")["head"]
    previous = {"seq": head["seq"], "hash": head["hash"]} if head else None
    record = {"id": record_id, "seq": previous["seq"] + 1 if previous else 1, "previous": previous}
    bench.ask("record-append", record=record, previous=previous)


def state(bench) -> dict[str, str]:
    """What a restore promises: all of the state but journal and epoch, which go on; the next stage makes room anew."""
    volatile = ("lock", "journal.jsonl", "epoch", "reserve", "run/", "boots/")
    return {name: text for name, text in bench.tree().items() if not name.startswith(volatile)}


@pytest.fixture
def used(bench, active):
    append(bench, "r1")
    append(bench, "r2")
    bench.ask("good-mark", generation=active["generation"], boot_id="b1", time="2026-01-02T03:04:05Z")
    adopted = bench.root / "adopted/a0123456789abcdef"
    adopted.mkdir(parents=True)
    (adopted / "start.json").write_text('{"Env": ["X_API_KEY=sekret"]}\n')
    (adopted / "engine.log").write_text("a log is no state\n")
    bench.node.journal.append("activate", "intent", {"to": active["generation"]})
    return bench


@pytest.fixture
def fresh(make_bench, quick_path):
    return make_bench(quick_path / "fresh")


def test_a_backup_changes_nothing_and_is_the_same_again(used):
    before = used.tree()
    first, second = used.ask("backup", **ME), used.ask("backup", **ME)
    assert first == second
    assert {name: text for name, text in used.tree().items() if name != "lock"} == {
        name: text for name, text in before.items() if name != "lock"
    }
    assert first["head"]["id"] == "r2"
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(first["content"]))) as archive:
        names = archive.getnames()
    assert "adopted/a0123456789abcdef/start.json" in names
    assert "adopted/a0123456789abcdef/engine.log" not in names


def test_a_new_disk_gets_everything_and_the_next_boot_must_fence(used, fresh, active):
    content = used.ask("backup", **ME)["content"]
    assert fresh.ask("restore", **ME, content=content, check=True)["changed"]
    assert not fresh.root.exists()
    assert fresh.ask("restore", **ME, content=content)["changed"]
    wanted = state(used)
    wanted.pop("adopted/a0123456789abcdef/engine.log")
    assert state(fresh) == wanted
    for path in used.root.rglob("generations/**/*"):
        assert path.stat().st_mode == (fresh.root / path.relative_to(used.root)).stat().st_mode, path
    status = fresh.ask("status")
    assert status["problems"] == []
    assert (status["current"], status["epoch"]) == (active["generation"], 5)
    # Whatever was pending when the backup was made still is; the restore itself is not.
    assert [each["verb"] for each in status["pending"]] == ["activate"]
    assert fresh.refused("start", epoch=5, boot_id="b1")["id"] == "TS-AGENT-EPOCH"
    fresh.ask("fence", epoch=6, boot_id="b2")
    fresh.ask("start", epoch=6, boot_id="b2")
    append(fresh, "r3")
    fresh.ask("stop", deadline_s=1)
    assert not fresh.ask("restore", **ME, content=content)["changed"], "it holds all of the backup, and more"


def test_again_the_same_changes_nothing(used, fresh):
    content = used.ask("backup", **ME)["content"]
    fresh.ask("restore", **ME, content=content)
    before = fresh.tree()
    assert not fresh.ask("restore", **ME, content=content)["changed"]
    assert fresh.tree() == before


def test_an_epoch_never_goes_back(used, fresh):
    content = used.ask("backup", **ME)["content"]
    fresh.ask("fence", epoch=9, boot_id="b9")
    assert fresh.ask("restore", **ME, content=content)["changed"]
    assert fresh.ask("status")["epoch"] == 9


def test_state_is_replaced_only_when_asked_and_records_are_never_lost(used, make_bench, quick_path, stage_request):
    content = used.ask("backup", **ME)["content"]
    other = make_bench(quick_path / "other")
    other.ask("stage", **stage_request("two"))
    before = other.tree()
    error = other.refused("restore", **ME, content=content)
    assert error["id"] == "TS-RESTORE-STATE"
    assert "generations" in error["observed"]
    assert {**other.tree(), "lock": ""} == {**before, "lock": ""}
    assert other.ask("restore", **ME, content=content, replace=True)["replaced"] == ["generations"]
    assert other.ask("status")["generations"] == used.ask("status")["generations"]
    append(other, "r3")
    assert not other.ask("restore", **ME, content=content)["changed"], "it holds all of the backup, and more"
    (other.root / "good.jsonl").unlink()
    error = other.refused("restore", **ME, content=content, replace=True)
    assert error["id"] == "TS-RESTORE-RECORDS"
    assert "000003-r3" in error["observed"]
    # A damaged chain is what a backup is for.
    (other.root / "records/000001-r1.json").write_text("{}\n")
    assert other.ask("restore", **ME, content=content, replace=True)["changed"]
    assert other.ask("status")["record_head"]["id"] == "r2"


def test_an_engine_that_runs_is_refused(used, fresh, engine_labels):
    fresh.docker.add("trispark-engine", "running", engine_labels())
    error = fresh.refused("restore", **ME, content=used.ask("backup", **ME)["content"])
    assert error["id"] == "TS-RESTORE-ENGINE"


@pytest.mark.parametrize("wrong", [{"node": "spark2"}, {"site": "other"}])
def test_a_backup_of_another_node_or_site_is_refused(used, fresh, wrong):
    error = fresh.refused("restore", **{**ME, **wrong}, content=used.ask("backup", **ME)["content"])
    assert error["id"] == "TS-RESTORE-NODE"
    assert not fresh.root.exists()


def changed(content: str, change) -> str:
    """The archive with its members (name -> TarInfo, data) changed."""
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(content))) as archive:
        members = [(entry, archive.extractfile(entry) if entry.isreg() else None) for entry in archive.getmembers()]
        found = {entry.name: [entry, file.read() if file else b""] for entry, file in members}
    change(found)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, (entry, data) in found.items():
            entry.name, entry.size = name, len(data)
            archive.addfile(entry, io.BytesIO(data))
    return base64.b64encode(buffer.getvalue()).decode()


def add(name: str, data: bytes = b"x", **fields):
    def change(found):
        entry = tarfile.TarInfo(name)
        for key, value in fields.items():
            setattr(entry, key, value)
        found[name] = [entry, data if not fields else b""]

    return change


def flip(name: str):
    def change(found):
        found[name][1] = found[name][1][:-2] + b"!\n"

    return change


def manifest(**values):
    def change(found):
        found["MANIFEST.json"][1] = json.dumps({**json.loads(found["MANIFEST.json"][1]), **values}).encode()

    return change


@pytest.mark.parametrize(
    "change",
    [
        flip("records/000001-r1.json"),
        flip("epoch"),
        lambda found: found.pop("good.jsonl"),
        lambda found: found.pop("MANIFEST.json"),
        lambda found: found["epoch"][0].__setattr__("mode", 0o666),
        lambda found: found["current"][0].__setattr__("linkname", "/etc"),
        manifest(schema_version=2),
        manifest(files={}),
        add("records/extra.json"),
        add("../outside"),
        add("/absolute"),
        add("bin/trispark-node"),
        add("records/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        add("device", type=tarfile.CHRTYPE),
    ],
)
def test_a_backup_that_was_changed_is_refused_and_nothing_is_written(used, fresh, change):
    error = fresh.refused("restore", **ME, content=changed(used.ask("backup", **ME)["content"], change))
    assert error["id"] == "TS-RESTORE-DAMAGED"
    assert not fresh.root.exists()


@pytest.mark.parametrize("content", ["", "!", "QQ==", base64.b64encode(gzip.compress(b"no tar")).decode()])
def test_what_is_no_archive_is_refused(fresh, content):
    assert fresh.refused("restore", **ME, content=content)["id"] == "TS-RESTORE-DAMAGED"


def test_a_cut_off_archive_is_refused(used, fresh):
    whole = base64.b64decode(used.ask("backup", **ME)["content"])
    for length in (10, len(whole) // 2, len(whole) - 4):
        content = base64.b64encode(whole[:length]).decode()
        assert fresh.refused("restore", **ME, content=content)["id"] == "TS-RESTORE-DAMAGED"


def test_no_backup_of_a_broken_chain_and_none_of_nothing(used, fresh):
    assert fresh.refused("backup", **ME)["id"] == "TS-BACKUP-NOTHING"
    (used.root / "records/000001-r1.json").write_text("{}\n")
    assert used.refused("backup", **ME)["id"] == "TS-RECORD-CHAIN"


def test_a_backup_has_a_bound(used, monkeypatch):
    monkeypatch.setattr("trispark_node.backup.MOST_BYTES", 1000)
    assert used.refused("backup", **ME)["id"] == "TS-BACKUP-SIZE"


@pytest.mark.parametrize("recovers", [False, True])
def test_after_a_crash_at_every_step_the_same_again_completes_it(used, make_bench, crashes, quick_path, recovers):
    """Also when a controller ends what was left in between: a restore that it cannot end stays known as begun."""
    content = used.ask("backup", **ME)["content"]
    request = restore.RestoreRequest("lab", "spark1", base64.b64decode(content), replace=False)
    wanted = state(used)
    wanted.pop("adopted/a0123456789abcdef/engine.log")
    number = 0
    bench = None

    def reset() -> None:
        nonlocal number, bench
        number += 1
        bench = make_bench(quick_path / f"n{number}")

    def operation(disk) -> None:
        restore.restore(bench.with_disk(disk), request, Mode(check=False, lock_wait_s=1))

    for where in crashes(operation, reset):
        begun = "restore" in [each["verb"] for each in bench.ask("status")["pending"]]
        if recovers:
            ended = bench.ask("recover")["recovered"]
            assert [each["verb"] for each in ended if each["outcome"] == "left"] == ["restore"] * begun, where
        bench.ask("restore", **ME, content=content)
        assert state(bench) == wanted, where
        left = [each["verb"] for each in bench.ask("status")["pending"]]
        assert left == ["activate"] or (recovers and left == []), where


def test_a_restore_that_goes_on_takes_no_record_away_that_came_in_between(used, fresh):
    content = used.ask("backup", **ME)["content"]
    fresh.ask("restore", **ME, content=content)
    begun = {"sha256": sha256(base64.b64decode(content)).hexdigest()}
    fresh.node.journal.append("restore", "intent", begun)
    append(fresh, "r3")
    before = fresh.tree()
    assert fresh.refused("restore", **ME, content=content)["id"] == "TS-RESTORE-RECORDS"
    assert fresh.tree() == before
