"""The committed libraries are checked before they are loaded, and work on both architectures."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from engram_files import ROOT, table_of, write_packed

from engram_store import Code, StoreError, available
from engram_store.library import LIBRARIES, MANIFEST, checked_path, load
from trispark.native_build import COMPILERS, STORE

LISTED = json.loads((LIBRARIES / MANIFEST).read_text(encoding="utf-8"))


def test_the_library_of_this_machine_can_be_used() -> None:
    assert platform.machine() in LISTED["libraries"]
    assert available() is None


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(LIBRARIES, tmp_path / "lib"))


def refusal(libraries: Path, machine: str = platform.machine()) -> str:
    with pytest.raises(StoreError) as caught:
        load(machine, libraries)
    assert caught.value.code is Code.LIBRARY
    return str(caught.value)


def test_a_changed_library_is_not_loaded(copied: Path) -> None:
    path = copied / platform.machine() / STORE.file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "the library is not the one of the manifest" in refusal(copied)
    assert hashlib.sha256(content).hexdigest() in refusal(copied)


def test_a_missing_library_or_manifest_is_named(copied: Path) -> None:
    assert "no library was built for this architecture" in refusal(copied, "riscv64")
    (copied / platform.machine() / STORE.file).unlink()
    assert "the library cannot be read" in refusal(copied)
    for broken in ("{", "[]", '{"libraries": []}', '{"libraries": {"%s": {}}}' % platform.machine()):  # noqa: UP031
        (copied / MANIFEST).write_text(broken, encoding="utf-8")
        assert "the manifest cannot be read" in refusal(copied)
    (copied / MANIFEST).unlink()
    assert "the manifest cannot be read" in refusal(copied)


def test_another_machines_library_under_this_ones_name_is_refused(copied: Path) -> None:
    (other,) = set(COMPILERS) - {platform.machine()}
    manifest = json.loads((copied / MANIFEST).read_text(encoding="utf-8"))
    manifest["libraries"][platform.machine()] = manifest["libraries"][other]
    (copied / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    assert "the library cannot be loaded" in refusal(copied)


def smoke(directory: Path, architecture: str) -> list[str]:
    """The command that runs the C test program with the library of `architecture`, on whatever machine this is."""
    compiler = COMPILERS[architecture].replace("g++", "gcc")
    emulator: list[str] = []
    if architecture != platform.machine():
        qemu = shutil.which(f"qemu-{architecture}")
        if qemu is None:
            pytest.skip(f"NOT TESTED on {architecture}: there is no qemu-{architecture} (apt-get install qemu-user)")
        emulator = [qemu, "-L", f"/usr/{architecture}-linux-gnu"]
    if shutil.which(compiler) is None:
        pytest.skip(f"NOT TESTED on {architecture}: there is no {compiler}")
    program = directory / "smoke"
    argv = [
        compiler,
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        str(ROOT / STORE.sources / "test/smoke.c"),
        "-o",
        program,
    ]
    subprocess.run(argv, check=True)
    return [*emulator, str(program), str(checked_path(architecture))]


@pytest.mark.parametrize("architecture", COMPILERS)
def test_a_c_program_reads_every_row_through_it(tmp_path: Path, architecture: str) -> None:
    table = table_of(900)
    write_packed(tmp_path / "shard", table, 14, 300, 800)
    argv = [*smoke(tmp_path, architecture), str(tmp_path / "shard"), "14", "300", "800", "900"]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == table[300:800].tobytes()
    assert b"slots=500" in done.stderr
