"""The committed libraries: of these sources, for both architectures, the same bytes wherever they are built."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from trispark.errors import TrisparkError
from trispark.native_build import (
    BLAKE3,
    COMMON,
    COMPILERS,
    LIBRARIES,
    MANIFEST,
    PACK,
    Foreign,
    Library,
    build,
    compiler_version,
    locked,
    main,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(params=LIBRARIES)
def library(request):
    return LIBRARIES[request.param]


def manifest(library: Library) -> dict:
    return json.loads((ROOT / library.target / MANIFEST).read_text(encoding="utf-8"))


@pytest.mark.parametrize("architecture", COMPILERS)
def test_the_manifest_is_of_these_sources_and_libraries(library: Library, architecture: str) -> None:
    listed = manifest(library)
    assert listed["source_sha256"] == library.source_sha256(ROOT), "run: python -m trispark.native_build"
    path = ROOT / library.target / architecture / library.file
    assert listed["libraries"][architecture]["file"] == f"{architecture}/{library.file}"
    assert listed["libraries"][architecture]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.read_bytes()[:4] == b"\x7fELF"
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("architecture", COMPILERS)
def test_a_library_names_no_place_and_no_glibc_newer_than_2_34(library: Library, architecture: str) -> None:
    """2.34 is the one of the oldest distributions of an engine's image or a node (Ubuntu 22.04, Debian 12)."""
    content = (ROOT / library.target / architecture / library.file).read_bytes()
    versions = {tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_(2\.\d+)\0", content)}
    assert versions
    assert max(versions) <= (2, 34)
    assert b"GLIBCXX" not in content
    for place in (str(library.sources), str(ROOT), str(BLAKE3.directory)):
        assert place.encode() not in content


def test_the_manifest_says_whose_sources_are_inside() -> None:
    lock = (ROOT / PACK.sources / BLAKE3.lock).read_text(encoding="ascii").splitlines()
    listed = manifest(PACK)["foreign"]["BLAKE3"]
    assert (listed["version"], listed["package"]) == (BLAKE3.version, BLAKE3.package)
    assert [f"{digest}  {name}" for name, digest in listed["files"].items()] != []
    assert sorted(lock[1:]) == sorted(f"{digest}  {name}" for name, digest in listed["files"].items())
    assert {name for names in BLAKE3.compiled.values() for name in names} <= listed["files"].keys()
    assert "BLAKE3" in (ROOT / "NOTICE").read_text(encoding="utf-8")


@pytest.mark.parametrize(("content", "observed"), [(None, "no file"), (b"other", hashlib.sha256(b"other").hexdigest())])
def test_a_foreign_source_that_is_not_the_locked_one_is_refused(tmp_path, content, observed) -> None:
    (tmp_path / "lock").write_text(f"# of a test\n{hashlib.sha256(b'this').hexdigest()}  one.c\n")
    foreign = Foreign("it", "1", "a-package", tmp_path, "lock", {})
    (tmp_path / "one.c").write_bytes(b"this")
    assert locked(foreign, tmp_path / "lock") == {"one.c": hashlib.sha256(b"this").hexdigest()}
    (tmp_path / "one.c").unlink()
    if content is not None:
        (tmp_path / "one.c").write_bytes(content)
    with pytest.raises(TrisparkError) as caught:
        locked(foreign, tmp_path / "lock")
    assert (caught.value.id, caught.value.observed) == ("TS-NATIVE-FOREIGN", observed)


def test_a_name_of_no_library_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["engram_stor"])
    assert "no such library: engram_stor" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("architecture", COMPILERS)
def test_a_build_elsewhere_has_the_committed_bytes(tmp_path, library, architecture, monkeypatch) -> None:
    compiler = COMPILERS[architecture]
    if shutil.which(compiler) is None:
        pytest.skip(f"NOT TESTED for {architecture}: there is no {compiler}")
    listed = manifest(library)["libraries"][architecture]
    if compiler_version(compiler) != listed["compiler"]:
        pytest.skip(f"NOT TESTED for {architecture}: {compiler_version(compiler)} is another compiler")
    if library.foreign is not None and not library.foreign.directory.is_dir():
        pytest.skip(f"NOT TESTED: {library.foreign.package} is not installed")
    root = tmp_path / "another place"
    for sources in (COMMON, library.sources):
        shutil.copytree(ROOT / sources, root / sources)
    for path in root.rglob("*"):
        os.utime(path, (0, 0))
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    built = build(root, library, architecture, tmp_path / "built.so")
    assert built["sha256"] == listed["sha256"]


def test_a_missing_compiler_is_named_with_its_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TrisparkError, match="apt-get install") as caught:
        compiler_version("aarch64-linux-gnu-g++")
    assert (caught.value.id, caught.value.expected) == ("TS-NATIVE-COMPILER", "aarch64-linux-gnu-g++")
