"""What the nodes answered becomes a backup, and only what was written is handed back."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from pathlib import Path

import pytest

from trispark.backups import KEPT, archive_of, directory_of, keep, lines, missing, prune
from trispark.errors import TrisparkError

NODES = ["spark0", "spark1"]


def answer(directory: Path, node: str, content: bytes = b"archive", digest: str = "") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    said = {
        "content": base64.b64encode(content).decode(),
        "sha256": digest or sha256(content).hexdigest(),
        "head": {"seq": 3, "id": "r3", "hash": "0" * 64},
    }
    (directory / f"{node}.answer.json").write_text(json.dumps(said))


def make(root: Path, name: str = "20260101T000000Z") -> Path:
    directory = directory_of(root, "lab") / name
    for node in NODES:
        answer(directory, node, f"archive of {node}".encode())
    keep(directory, "lab", NODES)
    return directory


def test_answers_become_private_archives_and_are_gone(tmp_path: Path) -> None:
    directory = make(tmp_path)
    assert sorted(path.name for path in directory.iterdir()) == ["backup.json", "spark0.tar.gz", "spark1.tar.gz"]
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    for place in ("20260101T000000Z", str(directory), str(directory.relative_to(tmp_path))):
        assert archive_of(tmp_path, "lab", place, "spark1") == b"archive of spark1"


def test_a_node_without_an_answer_is_missing_and_the_others_are_kept(tmp_path: Path) -> None:
    directory = directory_of(tmp_path, "lab") / "20260101T000000Z"
    answer(directory, "spark0")
    kept = keep(directory, "lab", NODES)
    assert kept["missing"] == ["spark1"]
    assert lines(kept, directory)[:2] == ["spark0  7 bytes, records up to 3", "spark1  missing"]
    with pytest.raises(TrisparkError) as caught:
        archive_of(tmp_path, "lab", "20260101T000000Z", "spark1")
    assert caught.value.id == "TS-BACKUP-UNKNOWN"


def test_no_answer_leaves_no_directory(tmp_path: Path) -> None:
    directory = directory_of(tmp_path, "lab") / "20260101T000000Z"
    directory.mkdir(parents=True)
    assert keep(directory, "lab", NODES)["nodes"] == {}
    assert not directory.exists()


@pytest.mark.parametrize("text", ["", "{", "{}", '{"content": "!", "sha256": "0", "head": null}'])
def test_an_answer_that_is_none_is_refused_and_not_left(tmp_path: Path, text: str) -> None:
    directory = directory_of(tmp_path, "lab") / "20260101T000000Z"
    directory.mkdir(parents=True)
    (directory / "spark0.answer.json").write_text(text)
    with pytest.raises(TrisparkError) as caught:
        keep(directory, "lab", NODES)
    assert caught.value.id == "TS-BACKUP-ANSWER"
    assert list(directory.iterdir()) == []


def test_content_of_another_hash_is_refused(tmp_path: Path) -> None:
    directory = directory_of(tmp_path, "lab") / "20260101T000000Z"
    answer(directory, "spark0", digest="0" * 64)
    with pytest.raises(TrisparkError) as caught:
        keep(directory, "lab", NODES)
    assert caught.value.id == "TS-BACKUP-ANSWER"


def test_only_the_newest_stay_and_what_is_not_ours(tmp_path: Path) -> None:
    names = [f"202601{day:02d}T000000Z" for day in range(1, KEPT + 4)]
    backups = directory_of(tmp_path, "lab")
    (backups / "a-person's").mkdir(parents=True)
    for name in names:
        make(tmp_path, name)
    (backups / names[0]).mkdir()  # one that was interrupted, older than all
    assert prune(backups) == [names[0]]
    assert sorted(path.name for path in backups.iterdir()) == [*names[3:], "a-person's"]
    newer = backups / "20270101T000000Z"
    newer.mkdir()  # one that is being made
    assert prune(backups) == []
    assert newer.is_dir()


@pytest.mark.parametrize("backup", ["20250101T000000Z", "/nowhere", "../../x"])
def test_an_unknown_backup_names_those_that_are_there(tmp_path: Path, backup: str) -> None:
    make(tmp_path)
    with pytest.raises(TrisparkError) as caught:
        archive_of(tmp_path, "lab", backup, "spark1")
    assert caught.value.id == "TS-BACKUP-UNKNOWN"
    assert "20260101T000000Z" in caught.value.expected


@pytest.mark.parametrize("name", ["spark1.tar.gz", "backup.json"])
@pytest.mark.parametrize("content", [b"", b"other"])
def test_a_damaged_backup_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    directory = make(tmp_path)
    (directory / name).write_bytes(content)
    with pytest.raises(TrisparkError) as caught:
        archive_of(tmp_path, "lab", directory.name, "spark1")
    assert caught.value.id == "TS-BACKUP-DAMAGED"


def test_a_lost_archive_and_a_node_that_is_no_name(tmp_path: Path) -> None:
    directory = make(tmp_path)
    (directory / "spark1.tar.gz").unlink()
    for node, wanted in (("spark1", "TS-BACKUP-DAMAGED"), ("../spark0", "TS-BACKUP-UNKNOWN")):
        with pytest.raises(TrisparkError) as caught:
            archive_of(tmp_path, "lab", directory.name, node)
        assert caught.value.id == wanted


def test_a_backup_that_lacks_nodes_names_them_and_says_what_is_kept() -> None:
    error = missing(["spark0", "spark2"])
    assert (error.id, error.where) == ("TS-BACKUP-MISSING", "spark0, spark2")
    assert "the other nodes are kept" in error.remedy
