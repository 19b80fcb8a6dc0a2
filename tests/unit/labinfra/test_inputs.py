"""Preparation: what is complete is kept, what is partial is made again, keys follow the sources that matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from trispark.errors import TrisparkError
from trispark.lab.files import hash_files, make_directory, prune, source_files, write_atomic
from trispark.lab.inputs import ensure_checkpoint, import_closure
from trispark.lab.keys import ensure_keys
from trispark.lab.layout import Paths, load_layout, root_id

REPO = Path(__file__).resolve().parents[3]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_directory_is_made_once_and_a_partial_one_again(tmp_path: Path) -> None:
    target = tmp_path / "thing"

    def interrupted(partial: Path) -> None:
        write(partial / "half", "x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_directory(target, interrupted)
    assert not target.exists()
    assert make_directory(target, lambda partial: (partial / "whole").touch())
    assert [each.name for each in target.iterdir()] == ["whole"]
    assert not make_directory(target, interrupted)


def test_write_atomic_says_whether_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file"
    assert write_atomic(path, "text")
    assert not write_atomic(path, "text")
    assert write_atomic(path, "other")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_prune_keeps_the_named_and_the_other_prefixes(tmp_path: Path) -> None:
    for name in ("deps-1", "deps-2", "deps-2.partial", "other-1"):
        write(tmp_path / name / "x", "")
    assert prune(tmp_path, "deps-", ["deps-2"]) == ["deps-1", "deps-2.partial"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["deps-2", "other-1"]


def test_hash_changes_with_name_content_and_extra(tmp_path: Path) -> None:
    first = write(tmp_path / "one" / "a", "x")
    hashes = {
        hash_files(tmp_path / "one", [first]),
        hash_files(tmp_path / "one", [first], "extra"),
        hash_files(tmp_path, [first]),
        hash_files(tmp_path / "two", [write(tmp_path / "two" / "a", "y")]),
        hash_files(tmp_path, []),
    }
    assert len(hashes) == 5


def test_source_files_leave_out_what_is_compiled_or_hidden(tmp_path: Path) -> None:
    for name in ("a.py", "sub/b.txt", "__pycache__/a.pyc", ".hidden/c", "d.pyc"):
        write(tmp_path / name, "")
    assert [each.relative_to(tmp_path).as_posix() for each in source_files(tmp_path)] == ["a.py", "sub/b.txt"]


SOURCES = {
    "__init__.py": "",
    "make.py": "from trispark_x.one import thing\nfrom . import two\nimport json\n",
    "one.py": "import trispark_x.three\n",
    "two.py": "",
    "three.py": "def late():\n    from .one import thing\n",
    "server.py": "from trispark_x import make\n",
}


def test_import_closure_has_what_is_imported_and_no_more(tmp_path: Path) -> None:
    for name, text in SOURCES.items():
        write(tmp_path / "trispark_x" / name, text)
    found = [each.name for each in import_closure(tmp_path, "trispark_x", "make")]
    assert found == ["__init__.py", "make.py", "one.py", "three.py", "two.py"]


MAKER = "import pathlib, sys\npathlib.Path(sys.argv[1], 'config.json').write_text('{}')\n"


def test_checkpoint_follows_its_maker_and_the_corpus_only(tmp_path: Path) -> None:
    package, paths = tmp_path / "lab" / "trispark_lab", Paths(tmp_path)
    write(package / "__init__.py", "")
    write(package / "make_checkpoint.py", MAKER)
    write(package / "server.py", "")
    corpus = write(tmp_path / "lab" / "corpus" / "prose.txt", "once")
    said: list[str] = []
    first = ensure_checkpoint(paths, said.append)
    assert (first / "config.json").read_text() == "{}"
    write(package / "server.py", "changed = True")
    assert ensure_checkpoint(paths, said.append) == first
    assert len(said) == 1
    write(corpus, "twice")
    assert ensure_checkpoint(paths, said.append) != first
    write(package / "make_checkpoint.py", "raise SystemExit('no corpus')\n")
    with pytest.raises(TrisparkError, match=r"TS-LAB-CHECKPOINT: .*no corpus"):
        ensure_checkpoint(paths, said.append)


def test_keys_are_made_once_and_pin_each_node(tmp_path: Path) -> None:
    layout = load_layout(REPO)
    first = ensure_keys(tmp_path / "ssh", layout)
    assert ensure_keys(tmp_path / "ssh", layout) == first
    known = (tmp_path / "ssh" / "known_hosts").read_text().splitlines()
    assert [line.split()[0] for line in known] == ["[127.77.0.10]:2222", "[127.77.0.11]:2222", "[127.77.0.12]:2222"]
    assert len({line.split()[2] for line in known}) == 3
    for node, line in zip(layout.nodes, known, strict=True):
        assert line.split()[2] in (tmp_path / "ssh" / node.name / "ssh_host_ed25519_key.pub").read_text()
    assert (tmp_path / "ssh" / "id_ed25519").stat().st_mode & 0o077 == 0
    assert not list((tmp_path / "ssh").rglob("*.partial*"))
    (tmp_path / "ssh" / "spark1" / "ssh_host_ed25519_key").unlink()
    assert ensure_keys(tmp_path / "ssh", layout) != first


def test_roots_differ_and_do_not_depend_on_the_spelling(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert root_id(tmp_path / "a") == root_id(tmp_path / "link") == root_id(tmp_path / "a" / ".." / "a")
    assert root_id(tmp_path / "a") != root_id(tmp_path)
