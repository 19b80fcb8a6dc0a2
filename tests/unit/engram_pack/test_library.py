"""The library comes out of the agent's one file, checked, loaded from memory, on both architectures."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pack_files import Checkpoint, header_of

from trispark.native_build import COMPILERS, PACK
from trispark_node import native_library, native_pack
from trispark_node.errors import FIELDS, AgentError

ROOT = Path(__file__).resolve().parents[3]
MACHINE = platform.machine()
BUILT = ROOT / PACK.target


def test_the_library_of_this_machine_can_be_used() -> None:
    assert native_pack.available() == ""


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What lies in the agent's file, to be changed."""
    found = {str(path.relative_to(BUILT)): path.read_bytes() for path in BUILT.rglob("*") if path.is_file()}

    def member(name: str) -> bytes:
        if name not in found:
            raise FileNotFoundError(name)
        return found[name]

    monkeypatch.setattr(native_library, "member", member)
    return found


def refusal(machine: str = MACHINE) -> AgentError:
    with pytest.raises(AgentError) as caught:
        native_library.load(machine)
    assert caught.value.id == "TS-ENGRAM-LIBRARY"
    assert all(caught.value.fields()[name] for name in FIELDS)
    return caught.value


def test_a_changed_library_is_not_loaded(members: dict[str, bytes]) -> None:
    name = f"{MACHINE}/{PACK.file}"
    content = bytearray(members[name])
    content[len(content) // 2] ^= 1
    members[name] = bytes(content)
    error = refusal()
    assert error.expected == f"sha256 {json.loads(members['manifest.json'])['libraries'][MACHINE]['sha256']}"
    assert error.where == f"native/{name}"


def test_a_missing_library_or_manifest_is_named(members: dict[str, bytes]) -> None:
    assert (refusal("riscv64").observed, refusal("riscv64").where) == ("riscv64", "native/manifest.json")
    del members[f"{MACHINE}/{PACK.file}"]
    assert refusal().expected == "the library of the manifest"
    for broken in (b"{", b"[]", b"\xff", b'{"libraries": []}', json.dumps({"libraries": {MACHINE: {}}}).encode()):
        members["manifest.json"] = broken
        assert refusal().expected == "a manifest of libraries by architecture"
    del members["manifest.json"]
    assert "FileNotFoundError" in refusal().observed


def test_another_machines_library_under_this_ones_name_is_refused(
    members: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    create = os.memfd_create

    def create_elsewhere(name: str, flags: int) -> int:
        """The loader knows libraries by their path, and this process has loaded one at a low number."""
        made = create(name, flags)
        moved = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 500)
        os.close(made)
        return moved

    monkeypatch.setattr(os, "memfd_create", create_elsewhere)
    (other,) = set(COMPILERS) - {MACHINE}
    manifest = json.loads(members["manifest.json"])
    manifest["libraries"][MACHINE] = manifest["libraries"][other]
    members["manifest.json"] = json.dumps(manifest).encode()
    assert refusal().expected == f"a library that loads on {MACHINE}"


def test_where_no_file_can_be_made_in_memory_it_is_said(
    members: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert "not permitted" in refusal().observed


def test_available_says_why_not(members: dict[str, bytes]) -> None:
    members.clear()
    native_library.taken.cache_clear()
    try:
        assert native_pack.available().startswith("TS-ENGRAM-LIBRARY: ")
    finally:
        native_library.taken.cache_clear()


IN_A_ZIP = """
import os, sys
sys.path.insert(0, sys.argv[1])
from trispark_node import native_pack
assert native_pack.__file__.startswith(sys.argv[1]), native_pack.__file__
before = len(os.listdir("/proc/self/fd"))
print(native_pack.available() or "usable", native_pack.blake3(b"")[:16], len(os.listdir("/proc/self/fd")) - before)
"""


def test_it_loads_out_of_a_zip_without_leaving_a_descriptor(tmp_path: Path) -> None:
    archive = tmp_path / "agent"
    with zipfile.ZipFile(archive, "w") as target:
        package = BUILT.parent
        for path in [*package.glob("*.py"), *(found for found in BUILT.rglob("*") if found.is_file())]:
            target.write(path, f"trispark_node/{path.relative_to(package)}")
    argv = [sys.executable, "-I", "-c", IN_A_ZIP, str(archive)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    # zipimport itself keeps none; one is of listing the directory, both times
    assert done.stdout == "usable af1349b9f5f9a1a6 0\n", done.stderr


@pytest.mark.parametrize("architecture", COMPILERS)
def test_a_c_program_packs_hashes_and_compares_through_it(tmp_path: Path, architecture: str) -> None:
    compiler = COMPILERS[architecture].replace("g++", "gcc")
    emulator: list[str] = []
    if architecture != MACHINE:
        qemu = shutil.which(f"qemu-{architecture}")
        if qemu is None:
            pytest.skip(f"NOT TESTED on {architecture}: there is no qemu-{architecture} (apt-get install qemu-user)")
        emulator = [qemu, "-L", f"/usr/{architecture}-linux-gnu"]
    if shutil.which(compiler) is None:
        pytest.skip(f"NOT TESTED on {architecture}: there is no {compiler}")
    smoke = tmp_path / "smoke"
    source = ROOT / PACK.sources / "test/smoke.c"
    subprocess.run([compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", str(source), "-o", smoke], check=True)
    checkpoint = Checkpoint.write(tmp_path / "checkpoint", 21000)
    where = checkpoint.source
    argv = [*emulator, str(smoke), str(BUILT / architecture / PACK.file), str(where.path), str(tmp_path / "shard")]
    argv += [str(number) for number in (where.weight_offset, where.scale_offset, 300, 20900)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    expected = checkpoint.packed(header_of(4096), 300, 20900)
    assert (tmp_path / "shard").read_bytes() == expected
    assert done.stdout == native_pack.blake3(expected) + "\n"
