"""Copies of trees and files: nothing without a hash comes into an image, and none is lost where a command fails."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from built_images import built

from trispark.errors import TrisparkError
from trispark.images import image_check, lock_update
from trispark.images.build_context import _Inputs
from trispark.images.chain import lines
from trispark.images.lock_model import TreeEntry
from trispark.images.provenance import _replace
from trispark.images.signing import SshKeygen, SshVerifier
from trispark.images.tree_hash import tree_hash
from trispark.images.wheel_cache import WheelCache


def tree(path: Path) -> Path:
    (path / "python").mkdir(parents=True)
    (path / "python/a.py").write_text("A = 1\n")
    return path


def test_what_no_hash_covers_comes_into_no_context(tmp_path: Path) -> None:
    cache = WheelCache(tmp_path, lambda _: None)
    given = tree(cache.folder / "given/sglang")
    entry = TreeEntry(kind="tree", source="x", commit="1" * 40, directory="python", sha256=tree_hash(given))
    for place in (given / ".git", given / "python/.git"):
        place.mkdir()
        (place / "evil.py").write_text("import os")
    (tmp_path / "context").mkdir()
    _Inputs(tmp_path, tmp_path / "context", cache, None).put({"sglang": entry})
    assert not list((tmp_path / "context").rglob("evil.py"))
    assert (tmp_path / "context/tree/sglang/python/a.py").is_file()


def test_a_tree_with_any_name_has_a_hash(tmp_path: Path) -> None:
    before = tree_hash(tree(tmp_path / "t"))
    Path(os.fsdecode(os.fsencode(tmp_path / "t") + b"/\xff")).write_text("x")
    assert tree_hash(tmp_path / "t") != before


def test_a_kept_tree_given_again_is_not_lost(tmp_path: Path) -> None:
    kept = tree(tmp_path / "given/sglang")
    assert lock_update._kept_tree(kept, kept) == tree_hash(kept)
    assert (kept / "python/a.py").is_file()
    assert [path.name for path in kept.parent.iterdir()] == ["sglang"]


@pytest.mark.parametrize("fault", ["a fifo", "a full disk"])
def test_a_copy_that_fails_leaves_the_old_one(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, given = tree(tmp_path / "given/sglang"), tree(tmp_path / "new")
    before = tree_hash(kept)
    (given / "python/b.py").write_text("B = 2\n")
    if fault == "a fifo":
        os.mkfifo(given / "python/pipe")
    else:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(lock_update.shutil, "copytree", full)
    with pytest.raises(TrisparkError) as caught:
        lock_update._kept_tree(given, kept)
    assert caught.value.id == "TS-IMAGES-SOURCE"
    assert tree_hash(kept) == before


def test_signers_that_are_a_fifo_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "signers")
    with pytest.raises(TrisparkError) as caught:
        SshVerifier(tmp_path / "signers", SshKeygen()).verify(b"x", b"y", "z")
    assert caught.value.id == "TS-PROVENANCE-SIGNERS"


def test_a_statement_cannot_say_in_a_line_of_its_own_that_it_was_verified() -> None:
    found = {
        "image": "x\nsignature  of alice, ED25519: verified",
        "config_digest": "\x1b[2Jsha256:1",
        "architecture": "arm64",
        **dict.fromkeys(("dockerfile", "base", "context", "source")),
        "arguments": {"A\n": "\u2028b\r"},
        "dependencies": 0,
        "components": {},
        "builder": {"id": "b", "version": {}},
        "fact": {"sbom_sha256": "1", "statement_sha256": "2"},
        "verified": False,
        "signed": False,
    }
    shown = list(lines(found))
    assert all(line.isprintable() for line in shown)
    assert [line for line in shown if line.startswith("signature")] == ["signature  none"]


def test_many_attest_one_image_at_once(tmp_path: Path) -> None:
    target = tmp_path / built().manifest_digest.partition(":")[2]
    failed: list[BaseException] = []
    begin = threading.Barrier(8)

    def one(number: int) -> None:
        begin.wait()
        try:
            for _ in range(30):
                _replace(target, {"a": str(number).encode(), "b": str(number).encode()})
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert (target / "a").read_bytes() == (target / "b").read_bytes()
    assert list(tmp_path.iterdir()) == [target]


def test_a_module_that_ends_the_program_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ends_the_look.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = image_check.findings({"modules": ["ends_the_look"]}, {})
    assert "SystemExit" in found
