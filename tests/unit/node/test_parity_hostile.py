"""Hash trees, loaded code and tactics where somebody wants two ranks to look alike, or the agent to wait for ever."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from trispark_node import autotune_image, file_tree, libraries
from trispark_node.file_tree import hash_directory, hash_of
from trispark_node.inside import open_inside

ONE, TWO = "1" * 64, "2" * 64


def tree_of(directory: Path) -> file_tree.Tree:
    descriptor = open_inside(directory, ".")
    try:
        return hash_directory(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": ONE, "b": TWO}, {f"a\n{TWO}  b": ONE}),
        ({"a": "a link to x", "b": TWO}, {"a": f"a link to x  a\n{TWO}  b"}),
        ({"a\nb": ONE}, {"a\\nb": ONE}),
    ],
    ids=["a line feed in a name", "in the target of a link", "a name that looks escaped"],
)
def test_other_files_never_have_one_hash(first: dict[str, str], second: dict[str, str]) -> None:
    assert hash_of(first) != hash_of(second)


def test_an_escaped_line_is_that_of_sha256sum() -> None:
    # printf x > "$(printf 'a\nb')"; sha256sum a*b
    digest = hashlib.sha256(b"x").hexdigest()
    assert hash_of({"a\nb": digest}) == hashlib.sha256(f"\\{digest}  a\\nb\n".encode()).hexdigest()


def test_an_endless_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse.py").open("wb") as file:
        file.truncate(2**42)
    with pytest.raises(OSError, match="files or"):
        tree_of(tmp_path)


def test_a_file_that_grows_while_it_is_read_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x")
    monkeypatch.setattr(os, "pread", lambda _descriptor, _count, _offset: b"x" * 100)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="more than 1000 bytes"):
            file_tree.hash_file(descriptor, 1000)
    finally:
        os.close(descriptor)


def test_directories_without_end_are_an_error_and_no_traceback(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    try:
        with pytest.raises(OSError, match="levels"):
            tree_of(tmp_path)
    finally:  # deeper than pytest removes
        descriptor = os.open(tmp_path, os.O_RDONLY)
        os.rename("d", "top", src_dir_fd=descriptor, dst_dir_fd=descriptor)
        os.close(descriptor)
        os.system(f"rm -rf {tmp_path}/top")


def process(procfs: Path, pid: int, root: Path | None, *lines: str) -> None:
    """As the kernel shows it; without `root` it ended after its tables were read."""
    (procfs / str(pid)).mkdir(parents=True)
    (procfs / str(pid) / "maps").write_text("".join(f"7f-80 r-xp 0 00:59 7      {line}\n" for line in lines))
    if root is not None:
        (procfs / str(pid) / "root").symlink_to(root)


@pytest.mark.parametrize("mark", ["\u2028", "\x0b", "\x0c", "\x1c", "\x85"])
def test_a_name_that_splits_a_line_does_not_show_another_file(tmp_path: Path, mark: str) -> None:
    root, procfs = tmp_path / "root", tmp_path / "proc"
    (root / "lib").mkdir(parents=True)
    (root / "lib/a.so").write_bytes(b"honest")
    evil = f"lib/a.so{mark}.so"
    (root / evil).write_bytes(b"evil")
    process(procfs, 5, root, f"/{evil}")
    assert libraries.hashed(procfs, [5], ())["listed"] == {f"/{evil}": hashlib.sha256(b"evil").hexdigest()}


def test_a_helper_that_ended_is_no_fault_of_what_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, procfs = tmp_path / "root", tmp_path / "proc"
    (root / "lib").mkdir(parents=True)
    (root / "lib/both.so").write_bytes(b"both")
    process(procfs, 5, None, "/lib/both.so", "/lib/own.so")
    process(procfs, 6, root, "/lib/both.so")
    found = libraries.loaded(procfs, [5, 6])
    (procfs / "5/maps").write_text("")  # what a zombie shows
    monkeypatch.setattr(libraries, "loaded", lambda *_: found)
    assert libraries.hashed(procfs, [5, 6], ())["listed"] == {"/lib/both.so": hashlib.sha256(b"both").hexdigest()}


def test_libraries_beyond_the_bound_are_said_and_not_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, procfs = tmp_path / "root", tmp_path / "proc"
    root.mkdir()
    for name in ("a", "b", "c"):
        (root / name).write_bytes(b"x")
    process(procfs, 5, root, "/a", "/b", "/c")
    monkeypatch.setattr(libraries, "MOST", 2)
    assert libraries.hashed(procfs, [5], ())["listed"]["/c"] == "not read, one of more than 2"


@pytest.mark.parametrize("kind", ["link in it", "a link itself", "a file itself"])
def test_tactics_behind_a_link_are_tactics(tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "rank.json").write_text("{}")
    place = tmp_path / "autotune"
    if kind == "link in it":
        place.mkdir()
        (place / "flashinfer").symlink_to(other)
    elif kind == "a link itself":
        place.symlink_to(other)
    else:
        place.write_text(json.dumps({}))
    assert autotune_image._number(place) == 1


def test_no_tactics_are_none(tmp_path: Path) -> None:
    assert autotune_image._number(tmp_path / "absent") == 0
    assert autotune_image._number(tmp_path) == 0
