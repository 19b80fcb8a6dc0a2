"""Export gives the same private bytes for the same records; prune removes old kept logs and nothing else."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trispark.errors import TrisparkError
from trispark.record_archive import export_records, kept_logs, logs_to_prune, prune_logs
from trispark.records import RecordCache, head_of

BOOTS = [f"b2026010{day}T000000Z-000{day}" for day in range(1, 5)]


@pytest.fixture
def cache(boot_record: Callable[..., dict[str, Any]], tmp_path: Path) -> RecordCache:
    cache = RecordCache(tmp_path / "records")
    for _ in range(2):
        cache.add(boot_record())
    return cache


@pytest.fixture
def boots(tmp_path: Path) -> Path:
    """Kept logs of four boots, beside what is not ours."""
    directory = tmp_path / "boots"
    for boot in BOOTS:
        (directory / boot / "watch").mkdir(parents=True)
        (directory / boot / "rank0.log").write_text(f"log of {boot}\n", encoding="utf-8")
        (directory / boot / "watch" / "spark1.json").write_text("{}", encoding="utf-8")
    (directory / "notes").mkdir()
    (directory / "notes" / "mine.txt").write_text("keep me", encoding="utf-8")
    (directory / "b20260109T000000Z-0009").symlink_to(directory / "notes")
    return directory


def test_the_same_records_give_the_same_bytes(cache: RecordCache, boots: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "one.tar.gz", tmp_path / "two.tar.gz"
    export_records("lab", cache, kept_logs(boots), first)
    for path in boots.rglob("*.log"):
        os.utime(path, (1, 1))
    time.sleep(1.1)  # gzip and tar note whole seconds
    export_records("lab", cache, kept_logs(boots), second)
    assert first.read_bytes() == second.read_bytes()


def test_an_archive_is_private_and_whole(cache: RecordCache, boots: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.tar.gz"
    manifest = export_records("lab", cache, kept_logs(boots), target)
    assert target.stat().st_mode & 0o777 == 0o600
    assert manifest["head"] == head_of(cache.list()[-1])
    with tarfile.open(target) as archive:
        members = {member.name: member for member in archive.getmembers()}
        content = {name: archive.extractfile(name).read() for name in members}  # type: ignore[union-attr]
    assert {member.mode for member in members.values()} == {0o600}
    assert {(member.mtime, member.uid, member.uname) for member in members.values()} == {(0, 0, "")}
    assert json.loads(content["trispark-lab/MANIFEST.json"]) == manifest
    names = {name.removeprefix("trispark-lab/") for name in members} - {"MANIFEST.json"}
    assert names == set(manifest["files"])
    assert len([name for name in names if name.startswith("records/")]) == 2
    assert f"boots/{BOOTS[0]}/watch/spark1.json" in names
    assert not [name for name in names if "mine.txt" in name]
    for name, digest in manifest["files"].items():
        assert hashlib.sha256(content[f"trispark-lab/{name}"]).hexdigest() == digest
    assert gzip.decompress(target.read_bytes())


def test_what_is_there_is_never_replaced(cache: RecordCache, tmp_path: Path) -> None:
    target = tmp_path / "out.tar.gz"
    target.write_text("mine", encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        export_records("lab", cache, [], target)
    assert (caught.value.id, target.read_text(encoding="utf-8")) == ("TS-RECORD-EXPORT", "mine")
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize("place", ["no-such-directory/out.tar.gz", "records"])
def test_a_place_that_cannot_be_written_is_named(cache: RecordCache, tmp_path: Path, place: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        export_records("lab", cache, [], tmp_path / place)
    assert caught.value.id == "TS-RECORD-EXPORT"
    assert str(tmp_path / place) in caught.value.where


def test_a_broken_chain_is_not_exported(cache: RecordCache, tmp_path: Path) -> None:
    path = cache.path(cache.list()[0])
    path.write_text(path.read_text(encoding="utf-8").replace("all gates passed", "all was fine"), encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        export_records("lab", cache, [], tmp_path / "out.tar.gz")
    assert caught.value.id == "TS-RECORD-CHAIN"
    assert not (tmp_path / "out.tar.gz").exists()


@pytest.mark.parametrize(("keep", "removed"), [(0, 4), (1, 3), (3, 1), (4, 0), (99, 0)])
def test_the_oldest_logs_go_and_nothing_else(boots: Path, keep: int, removed: int) -> None:
    logs = logs_to_prune(boots, keep)
    assert [log.boot_id for log in logs] == BOOTS[:removed]
    assert all(log.size > 0 for log in logs)
    assert sorted(path.name for path in boots.iterdir())[: len(BOOTS)] == BOOTS, "asking removes nothing"
    prune_logs(logs)
    assert [log.boot_id for log in kept_logs(boots)] == BOOTS[removed:]
    assert (boots / "notes" / "mine.txt").read_text(encoding="utf-8") == "keep me"
    assert (boots / "b20260109T000000Z-0009").is_symlink()


def test_without_kept_logs_there_is_nothing_to_prune(tmp_path: Path) -> None:
    assert logs_to_prune(tmp_path / "none", 0) == []


def test_a_log_that_cannot_be_removed_is_named(boots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("trispark.record_archive.shutil.rmtree", refuse)
    with pytest.raises(TrisparkError) as caught:
        prune_logs(logs_to_prune(boots, 3))
    assert caught.value.id == "TS-RECORD-PRUNE"
    assert BOOTS[0] in caught.value.where


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("b20260101T000000Z-0009", "b20260101T000000Z-0000"),
        ("20260102", "b20260102T000000Z-0001"),
        ("b2026010", "b20260101T000000Z-0000"),
    ],
)
def test_an_unknown_id_names_the_nearest_ones(cache: RecordCache, key: str, near: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        cache.show(key)
    assert caught.value.id == "TS-RECORD-UNKNOWN"
    assert f"near: {near}" in caught.value.expected or f", {near}" in caught.value.expected
    assert "\n" not in str(caught.value)


def test_in_an_empty_cache_nothing_is_near(tmp_path: Path) -> None:
    with pytest.raises(TrisparkError) as caught:
        RecordCache(tmp_path).show("b1")
    assert "near" not in caught.value.expected
    assert "no records yet" in caught.value.remedy
    assert "./trispark play stage_a" in caught.value.remedy


def test_a_record_of_a_wrong_shape_is_named_by_verify(cache: RecordCache) -> None:
    path = cache.path(cache.list()[1])
    path.write_text(path.read_text(encoding="utf-8").replace('"state":"valid"', '"state":"fine"'), encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        cache.verify()
    assert caught.value.id == "TS-RECORD-SCHEMA"
    assert caught.value.where.startswith("record 2 (b20260102T000000Z-0001): outcome")
