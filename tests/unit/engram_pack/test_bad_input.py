"""Files that end early, full disks, file systems without O_DIRECT, wrong numbers: each has one answer."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from native_process import run_program
from pack_files import ROW_BYTES, Checkpoint, chunk_hashes, header_of

from trispark_node import native_pack
from trispark_node.native_pack import ShortRead, Source

ROWS = 40000
HEADER = header_of(4096)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint.write(tmp_path / "checkpoint", ROWS, before=1001, gap=5000)


@contextmanager
def new_file(path: Path, flags: int = os.O_RDWR) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(
    "lost",
    [1, 8, 9, 100000, 8 * ROWS, 8 * ROWS + 5000, 8 * ROWS + 5001, 8 * ROWS + 5000 + 256 * 12345, None],
)
def test_a_checkpoint_that_ends_early(tmp_path: Path, checkpoint: Checkpoint, lost: int | None, threads: int) -> None:
    path = checkpoint.source.path
    left = 0 if lost is None else path.stat().st_size - lost
    os.truncate(path, left)
    with new_file(tmp_path / "shard") as shard:
        descriptors = set(Path("/proc/self/fd").iterdir())
        with pytest.raises(ShortRead) as caught:
            native_pack.pack(checkpoint.source, HEADER, 0, ROWS, shard, threads=threads)
        assert set(Path("/proc/self/fd").iterdir()) == descriptors
    seen = caught.value
    assert seen.role == "checkpoint"
    assert seen.offset + seen.got == max(left, seen.offset)
    assert seen.offset <= left < seen.offset + seen.expected or left < seen.offset
    with new_file(tmp_path / "again") as shard, pytest.raises(ShortRead) as again:
        native_pack.pack(checkpoint.source, HEADER, 0, ROWS, shard, threads=threads)
    assert str(again.value) == str(seen), "the same answer whatever the threads did first"


@pytest.mark.parametrize("left", [0, 1, 4095, 4096, 4097, 4096 + 264 * 5, 3_000_000, 4096 + 264 * ROWS - 1])
def test_a_shard_that_ends_early(tmp_path: Path, checkpoint: Checkpoint, left: int) -> None:
    size = 4096 + ROW_BYTES * ROWS
    (tmp_path / "shard").write_bytes(checkpoint.packed(HEADER, 0, ROWS)[:left])
    with (tmp_path / "shard").open("rb") as shard:
        with pytest.raises(ShortRead) as caught:
            native_pack.hash_file(shard.fileno(), size, threads=2)
        assert (caught.value.role, caught.value.offset + caught.value.got) == ("shard", left)
        with pytest.raises(ShortRead) as caught:
            native_pack.compare(checkpoint.source, 4096, 0, ROWS, shard.fileno(), threads=2)
    assert caught.value.role == "shard"
    assert caught.value.offset + caught.value.got == max(left, 4096)


def test_what_is_nearer_to_the_beginning_is_told(tmp_path: Path, checkpoint: Checkpoint) -> None:
    content = bytearray(checkpoint.packed(HEADER, 0, ROWS)[:-1])
    content[4096 + 264 * 20000 + 3] ^= 1
    (tmp_path / "shard").write_bytes(content)
    with (tmp_path / "shard").open("rb") as shard:
        for threads in (1, 2, 4):
            found = native_pack.compare(checkpoint.source, 4096, 0, ROWS, shard.fileno(), threads=threads)
            assert found == (20000, 3)


@contextmanager
def mounted(directory: Path, kind: str, options: str = "") -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip(f"NOT TESTED: only root mounts a {kind}")
    directory.mkdir()
    argv = ["mount", "-t", kind, *(["-o", options] if options else []), kind, str(directory)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"NOT TESTED: a {kind} cannot be mounted: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_disk_that_is_too_small(tmp_path: Path, checkpoint: Checkpoint, threads: int) -> None:
    with (
        mounted(tmp_path / "small", "tmpfs", "size=4m") as small,
        new_file(small / "shard") as shard,
        pytest.raises(OSError, match="shard") as caught,
    ):
        native_pack.pack(checkpoint.source, HEADER, 0, ROWS, shard, threads=threads)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, None)


def test_a_file_that_may_not_grow(tmp_path: Path, checkpoint: Checkpoint) -> None:
    """As a disk that fills up in the middle, where the space could not be reserved."""
    program = HEAD + (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, 6 << 20))\n"
        "try:\n    pack()\nexcept OSError as error:\n    print(error.errno)\n"
    )
    assert outcome(program, checkpoint, tmp_path / "shard") == f"{errno.EFBIG}\n"


@pytest.mark.parametrize("kind", ["ramfs", "tmpfs"])
def test_a_file_system_in_memory(tmp_path: Path, checkpoint: Checkpoint, kind: str) -> None:
    with mounted(tmp_path / "mounted", kind) as place:
        copy = place / "checkpoint"
        copy.write_bytes(checkpoint.source.path.read_bytes())
        source = Source(copy, checkpoint.source.weight_offset, checkpoint.source.scale_offset)
        expected = checkpoint.packed(HEADER, 0, ROWS)
        with new_file(place / "shard") as shard:
            packed = native_pack.pack(source, HEADER, 0, ROWS, shard, threads=2)
            hashed = native_pack.hash_file(shard, len(expected), threads=2)
            assert native_pack.compare(source, 4096, 0, ROWS, shard, threads=2) is None
        assert (place / "shard").read_bytes() == expected
        assert packed.chunk_hashes == hashed.chunk_hashes == chunk_hashes(expected)
        if kind == "ramfs":
            assert (packed.direct_read, packed.direct_write, hashed.direct_read) == (False, False, False)


HEAD = """
import os
from pathlib import Path
from pack_files import cached_pages, chunk_hashes, header_of
from trispark.page_cache import drop
from trispark_node import native_pack
from trispark_node.native_pack import Source
ROWS = int(sys.argv[1])
SOURCE = Source(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
PATH = Path(sys.argv[5])
def pack():
    descriptor = os.open(PATH, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    return native_pack.pack(SOURCE, header_of(4096), 0, ROWS, descriptor, threads=2)
"""


def outcome(program: str, checkpoint: Checkpoint, shard: Path) -> str:
    source = checkpoint.source
    done = run_program(program, ROWS, source.path, source.weight_offset, source.scale_offset, shard)
    assert done.returncode == 0, done.stderr
    return done.stdout


BUFFERED = (
    HEAD
    + """
from native_process import refuse_direct_opens
drop(SOURCE.path)
SHOWS = cached_pages(SOURCE.path) == 0  # else the file system itself is the cache
refuse_direct_opens()
done = pack()
descriptor = os.open(PATH, os.O_RDONLY)
before = cached_pages(PATH), cached_pages(SOURCE.path)
os.fsync(descriptor)
size = os.fstat(descriptor).st_size
again = native_pack.hash_file(descriptor, size, threads=2)
assert again.chunk_hashes == done.chunk_hashes == chunk_hashes(PATH.read_bytes())
drop(PATH)
native_pack.hash_file(descriptor, size, threads=2)
assert native_pack.compare(SOURCE, 4096, 0, ROWS, descriptor, threads=2) is None
print(done.direct_read, done.direct_write, again.direct_read)
print(SHOWS, max(before), max(cached_pages(PATH), cached_pages(SOURCE.path)))
"""
)


def test_where_o_direct_is_refused_pages_are_dropped(tmp_path: Path, checkpoint: Checkpoint) -> None:
    """A filter refuses it here, as network file systems do."""
    direct, pages = outcome(BUFFERED, checkpoint, tmp_path / "shard").splitlines()
    assert direct == "False False False"
    shows, *cached = pages.split()
    if shows == "False":
        pytest.skip("NOT TESTED: this file system is the page cache")
    assert all(int(number) <= 64 for number in cached), cached  # read-ahead, and pages at the ends of blocks


def test_a_descriptor_that_is_closed_or_cannot_be_written(tmp_path: Path, checkpoint: Checkpoint) -> None:
    descriptor = 1000  # far from those that a call opens itself
    for call in (
        lambda: native_pack.pack(checkpoint.source, HEADER, 0, ROWS, descriptor, threads=2),
        lambda: native_pack.hash_file(descriptor, 10, threads=2),
        lambda: native_pack.compare(checkpoint.source, 4096, 0, ROWS, descriptor, threads=2),
    ):
        with pytest.raises(OSError, match="shard") as caught:
            call()
        assert caught.value.errno == errno.EBADF
    with new_file(tmp_path / "read only", os.O_RDONLY) as shard, pytest.raises(OSError, match="shard") as caught:
        native_pack.pack(checkpoint.source, HEADER, 0, ROWS, shard, threads=2)
    assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize("kind", ["absent", "directory", "fifo"])
def test_a_checkpoint_that_is_no_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    {"absent": lambda _: None, "directory": Path.mkdir, "fifo": os.mkfifo}[kind](path)
    with new_file(tmp_path / "shard") as shard, pytest.raises(OSError, match=kind) as caught:
        native_pack.pack(Source(path, 0, 256), HEADER, 0, 1, shard, threads=1)
    assert caught.value.errno == {"absent": errno.ENOENT, "directory": errno.EISDIR, "fifo": errno.EINVAL}[kind]


NUMBERS: dict[str, Callable[[Source, int], object]] = {
    "no threads": lambda source, shard: native_pack.hash_file(shard, 0, threads=0),
    "too many threads": lambda source, shard: native_pack.hash_file(shard, 0, threads=257),
    "negative size": lambda source, shard: native_pack.hash_file(shard, -1, threads=1),
    "negative descriptor": lambda source, shard: native_pack.hash_file(-1, 1, threads=1),
    "negative rate": lambda source, shard: native_pack.hash_file(shard, 1, threads=1, limit_bytes_s=-1),
    "end before first": lambda source, shard: native_pack.pack(source, HEADER, 2, 1, shard, threads=1),
    "negative row": lambda source, shard: native_pack.pack(source, HEADER, -1, 1, shard, threads=1),
    "rows beyond any file": lambda source, shard: native_pack.compare(source, 4096, 0, 2**48, shard, threads=1),
    "first row beyond any file": lambda source, shard: native_pack.pack(
        source, HEADER, 2**47, 2**47 + 1, shard, threads=1
    ),
    "offset beyond any file": lambda source, shard: native_pack.pack(
        Source(source.path, 2**60, 0), HEADER, 0, 1, shard, threads=1
    ),
    "header too long": lambda source, shard: native_pack.pack(source, bytes(2**20 + 1), 0, 1, shard, threads=1),
}


@pytest.mark.parametrize("which", NUMBERS)
def test_numbers_out_of_range(tmp_path: Path, checkpoint: Checkpoint, which: str) -> None:
    with new_file(tmp_path / "shard") as shard, pytest.raises(ValueError, match=r"range|refuses"):
        NUMBERS[which](checkpoint.source, shard)
