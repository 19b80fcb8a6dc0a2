"""The memory of a node's own control group: files as kernels wrote them, and the kernel of this machine itself.

The files below data/cgroup are of a group with a limit of 512 MiB in which one process holds 96 MiB of memory and
48 MiB of shared memory, and has written a file of 64 MiB to a disk: Linux 6.18, version 1 and version 2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from trispark_node import node_memory
from trispark_node.layout import Layout
from trispark_node.node import Node

DATA = Path(__file__).parent / "data" / "cgroup"
MIB = 2**20
LIMIT, FILE, HELD, SHARED = 512 * MIB, 64 * MIB, 96 * MIB, 48 * MIB
OVERHEAD = 24 * MIB
"""The interpreter, page tables, kernel stacks, and what the kernel counts in batches."""


def read(cgroups: Path) -> node_memory.Memory:
    return node_memory.read(Node(Layout(Path("/nowhere")), cgroups=cgroups), "cgroup")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_what_processes_hold_is_gone_and_what_files_hold_is_to_be_had(version: str) -> None:
    found = read(DATA / version)
    assert (found.total, found.word) == (LIMIT, "")
    assert found.available is not None
    assert LIMIT - HELD - SHARED - OVERHEAD < found.available <= LIMIT - HELD - SHARED


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_text(text)


def without(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def without_line(name: str, start: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        lines = (directory / name).read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(f"{start} ")]
        assert len(kept) == len(lines) - 1
        (directory / name).write_text("".join(kept))

    return change


@dataclass(frozen=True)
class Case:
    """Real files of a version, changed; then the total in bytes, or the words for why nothing is known."""

    version: str
    change: Callable[[Path], object]
    total: int | None
    word: str = ""


# "max", and numbers near 2**63 of a kernel with pages of 4 and of 64 KiB: the kernel's own words for `no limit`.
CASES = {
    "v2, no limit": Case("v2", written("memory.max", "max\n"), None, "no memory limit"),
    "v2, high alone": Case(
        "v2", lambda at: (written("memory.max", "max\n")(at), written("memory.high", f"{300 * MIB}\n")(at)),
        300 * MIB,
    ),
    "v2, high below max": Case("v2", written("memory.high", f"{300 * MIB}\n"), 300 * MIB),
    "v2, high above max": Case("v2", written("memory.high", f"{2 * LIMIT}\n"), LIMIT),
    "v2, the root group": Case("v2", without("memory.max"), None, "No such file"),
    "v2, no usage": Case("v2", without("memory.current"), None, "No such file"),
    "v2, no number": Case("v2", written("memory.current", "much\n"), None, "invalid literal"),
    "v2, empty": Case("v2", written("memory.max", ""), None, "invalid literal"),
    "v2, no line of files": Case("v2", without_line("memory.stat", "inactive_file"), None, "inactive_file"),
    "v2, more used than allowed": Case("v2", written("memory.current", f"{3 * LIMIT}\n"), LIMIT),
    "v1, no limit, pages of 4 KiB": Case(
        "v1", written("memory/memory.limit_in_bytes", "9223372036854771712\n"), None, "no memory limit"
    ),
    "v1, no limit, pages of 64 KiB": Case(
        "v1", written("memory/memory.limit_in_bytes", "9223372036854710272\n"), None, "no memory limit"
    ),
    "v1, no line of files": Case(
        "v1", without_line("memory/memory.stat", "total_inactive_file"), None, "total_inactive_file"
    ),
    "v1, no usage": Case("v1", without("memory/memory.usage_in_bytes"), None, "No such file"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_limits_and_what_cannot_be_known(case: str, tmp_path: Path) -> None:
    wanted = CASES[case]
    directory = tmp_path / "cgroup"
    shutil.copytree(DATA / wanted.version, directory)
    wanted.change(directory)
    found = read(directory)
    assert found.total == wanted.total
    assert wanted.word in found.word
    assert (found.available is None) is (wanted.total is None)
    if "more used" in case:
        assert found.available == 0


def test_groups_below_count_in_version_1(tmp_path: Path) -> None:
    """An engine's container is a group below the node's: the lines without `total_` know nothing of its files."""
    directory = tmp_path / "cgroup"
    shutil.copytree(DATA / "v1", directory)
    stat = directory / "memory" / "memory.stat"
    lines = dict(line.split() for line in stat.read_text().splitlines())
    lines |= {"inactive_file": "0", "active_file": "0"}
    stat.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    assert read(directory) == read(DATA / "v1")


@dataclass(frozen=True)
class Group:
    """A group of this machine's kernel: `root` as a node in a container sees it, `directory` with its files."""

    root: Path
    directory: Path
    limit: str


CHILD = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
file = open(sys.argv[2], "wb"); file.write(os.urandom(64 << 20)); file.flush(); os.fsync(file.fileno())
held = bytearray(os.urandom(96 << 20))
shared = open(sys.argv[3], "wb"); shared.write(held[: 48 << 20]); shared.flush()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """One of version 1 or 2, whichever has this machine's memory controller."""
    top = Path("/sys/fs/cgroup")
    name = f"trispark-test-{os.getpid()}"
    if (top / "memory" / "memory.limit_in_bytes").exists():
        (tmp_path / "v1").mkdir()
        found = Group(tmp_path / "v1", top / "memory" / name, "memory.limit_in_bytes")
        (found.root / "memory").symlink_to(found.directory)
    elif "memory" in _text(top / "cgroup.subtree_control").split():
        found = Group(top / name, top / name, "memory.max")
    else:
        pytest.skip("this machine hands down no memory controller, of version 1 or 2")
    try:
        found.directory.mkdir()
        (found.directory / found.limit).write_text(str(LIMIT))
    except OSError as error:
        with suppress(OSError):
            found.directory.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield found
    found.directory.rmdir()


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii") if path.exists() else ""


def test_this_machines_kernel_says_what_its_processes_hold(group: Group, tmp_path: Path) -> None:
    empty = read(group.root)
    assert empty.total == LIMIT
    assert empty.available is not None
    assert empty.available > LIMIT - OVERHEAD
    shared = Path(f"/dev/shm/{group.directory.name}")
    argv = [sys.executable, "-c", CHILD, str(group.directory), str(tmp_path / "file"), str(shared)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"held\n"
            holding = read(group.root)
        finally:
            child.stdin.close()
            child.wait(timeout=60)
            shared.unlink(missing_ok=True)
            (tmp_path / "file").unlink(missing_ok=True)
    assert holding.available is not None
    assert LIMIT - HELD - SHARED - OVERHEAD < holding.available <= LIMIT - HELD - SHARED
    after = read(group.root)
    assert replace(after, available=0) == replace(empty, available=0)
    assert after.available is not None
    assert after.available > LIMIT - OVERHEAD
