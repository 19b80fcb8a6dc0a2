"""Each file and each call that is not what it should be has one answer."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from engram_files import Tables, run_python, table_of, write_checkpoint, write_packed

from engram_store import Backend, Code, Options, Rows, RowStore, StoreError

TOTAL, FIRST, END, LAYER = 600, 200, 400, 14
TABLE = table_of(TOTAL)
SIZE = 4096 + 264 * (END - FIRST)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    write_packed(tmp_path / "shard", TABLE, LAYER, FIRST, END)
    return tmp_path / "shard"


ROWS = Rows(LAYER, FIRST, END, TOTAL)


def refused(path: Path, rows: Rows = ROWS, options: Options | None = None) -> StoreError:
    descriptors = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(StoreError) as caught:
        RowStore.open_packed(path, rows, options)
    assert set(Path("/proc/self/fd").iterdir()) == descriptors, "a refusal leaves nothing open"
    return caught.value


def damaged(path: Path, at: int, flip: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= flip
    path.write_bytes(content)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def holes(path: Path) -> None:
    header = path.read_bytes()[:4096]
    path.write_bytes(header)
    os.truncate(path, SIZE)


def preallocated(path: Path) -> None:
    header = path.read_bytes()[:4096]
    path.write_bytes(header)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, SIZE)


def other_rank(path: Path) -> None:
    write_packed(path, TABLE, LAYER, 0, FIRST)


FILES: dict[str, tuple[Callable[[Path], object], Code, str]] = {
    "absent": (Path.unlink, Code.OPEN, "No such file or directory (errno 2)"),
    "empty": (lambda path: os.truncate(path, 0), Code.HEADER, "expected: 4096; observed: 0"),
    "header cut": (lambda path: os.truncate(path, 4095), Code.HEADER, "expected: 4096; observed: 4095"),
    "header alone": (lambda path: os.truncate(path, 4096), Code.SIZE, f"expected: {SIZE}; observed: 4096"),
    "a byte short": (lambda path: os.truncate(path, SIZE - 1), Code.SIZE, f"expected: {SIZE}; observed: {SIZE - 1}"),
    "a byte long": (lambda path: os.truncate(path, SIZE + 1), Code.SIZE, f"expected: {SIZE}; observed: {SIZE + 1}"),
    "another rank's": (other_rank, Code.HEADER, "first row is wrong"),
    "a hole": (holes, Code.HOLES, "at 4096"),
    "never written": (preallocated, Code.HOLES, "at 4096"),
    "a directory": (directory, Code.KIND, "a directory"),
    "a FIFO": (fifo, Code.KIND, "a special file"),
    "a loop of links": (loop, Code.OPEN, "Too many levels of symbolic links"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_refused_by_what_is_wrong_with_it(shard: Path, name: str) -> None:
    change, code, words = FILES[name]
    change(shard)
    error = refused(shard)
    assert error.code is code
    assert words in str(error)
    assert str(shard) in str(error)
    assert str(error).startswith(f"{error.id}: ")
    assert all(f"; {label}: " in str(error) for label in ("where", "expected", "observed", "do"))


NAMES = ("magic", "layer", "first row", "end row", "total rows", "row bytes")


@pytest.mark.parametrize("field", range(6), ids=NAMES)
def test_every_flipped_bit_of_the_six_fields_is_named(shard: Path, field: int) -> None:
    wanted = struct.unpack("<6Q", shard.read_bytes()[:48])[field]
    for bit in range(64):
        damaged(shard, 8 * field + bit // 8, 1 << bit % 8)
        error = refused(shard)
        assert (error.code, error.offset) == (Code.HEADER, 8 * field)
        assert f"the header's {NAMES[field]} is wrong" in str(error)
        assert f"expected: {wanted}; observed: {wanted ^ (1 << bit)}; " in str(error)
        damaged(shard, 8 * field + bit // 8, 1 << bit % 8)


@pytest.mark.parametrize("at", [48, 49, 2000, 4095])
def test_a_flipped_bit_after_the_fields_is_named(shard: Path, at: int) -> None:
    damaged(shard, at, 0x10)
    error = refused(shard)
    assert (error.code, error.offset, error.expected, error.observed) == (Code.HEADER, at, 0, 0x10)


def test_a_longer_file_is_taken_where_that_is_declared(shard: Path) -> None:
    with shard.open("ab") as file:
        file.write(b"x")
    with RowStore.open_packed(shard, ROWS, allow_longer=True) as store:
        assert np.array_equal(store.fetch([END - 1]), TABLE[[END - 1]])


def test_a_link_to_a_shard_is_followed(shard: Path) -> None:
    link = shard.with_name("link")
    link.symlink_to(shard.name)
    with RowStore.open_packed(link, ROWS) as store:
        assert np.array_equal(store.fetch([FIRST]), TABLE[[FIRST]])


def test_o_direct_refused_is_an_answer_of_its_own() -> None:
    """/proc has regular files and no direct reads."""
    error = refused(Path("/proc/self/status"))
    assert (error.code, error.id) == (Code.NO_DIRECT, "TS-STORE-DIRECT")


ON_RAMFS = """
import subprocess
from pathlib import Path
import numpy as np
from engram_files import table_of, write_checkpoint, write_packed
from engram_store import Backend, Code, Options, RowStore, StoreError
place = Path(sys.argv[1])
subprocess.run(["mount", "-t", "ramfs", "ramfs", place], check=True)
table = table_of(300)
rows = write_packed(place / "shard", table, 1, 100, 200)
try:
    RowStore.open_packed(place / "shard", rows)
except StoreError as error:
    assert error.code is Code.NO_DIRECT, error
else:
    sys.exit("opened")
tables = write_checkpoint(place / "checkpoint", table)
try:
    RowStore.open_checkpoint(tables.path, tables.weight_at, tables.scale_at, rows)
except StoreError as error:
    assert error.code is Code.NO_DIRECT, error
else:
    sys.exit("opened")
for backend in (Backend.AUTO, Backend.THREADS):
    options = Options(backend)
    with RowStore.open_checkpoint(
        tables.path, tables.weight_at, tables.scale_at, rows, options, allow_buffered=True
    ) as store:
        assert not store.direct
        assert np.array_equal(store.fetch(np.arange(100, 200)), table[100:200])
        assert store.counters.reads == 200
print("done")
"""


def test_a_file_system_without_direct_reads(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None:
        pytest.skip("NOT TESTED on ramfs: it takes root to mount one")
    done = run_python(ON_RAMFS, tmp_path, wrapper=[unshare, "--mount"])
    if "permission denied" in done.stderr or "unshare failed" in done.stderr:
        pytest.skip(f"NOT TESTED on ramfs: {done.stderr.splitlines()[-1]}")
    assert done.stdout == "done\n", done.stderr


NO_PERMISSION = """
import os
from engram_store import Code, Rows, RowStore, StoreError, available
assert available() is None
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    RowStore.open_packed(sys.argv[1], Rows(1, 0, 1, 1))
except StoreError as error:
    print(error.code.name, error.errno)
"""


def test_no_permission(shard: Path) -> None:
    shard.chmod(0)
    done = run_python(NO_PERMISSION, shard)
    assert done.stdout == "OPEN 13\n", done.stderr


@pytest.mark.parametrize("backend", [Backend.AUTO, Backend.THREADS])
@pytest.mark.parametrize("ids", [[END], [FIRST - 1], [-1], [-(2**63)], [2**63 - 1], [FIRST, FIRST + 1, END]])
def test_ids_that_are_not_owned_are_refused_before_any_read(shard: Path, backend: Backend, ids: list[int]) -> None:
    with RowStore.open_packed(shard, ROWS, Options(backend)) as store:
        os.truncate(shard, 4096)  # a read would say something else
        with pytest.raises(StoreError) as caught:
            store.fetch(ids)
        assert (caught.value.code, caught.value.observed) == (Code.ID, ids[-1])
        assert f"an id in [{FIRST}, {END})" in str(caught.value)
        assert store.counters.calls == 0


@pytest.mark.parametrize("ids", [[0.5], [[1]], ["x"], np.zeros((2, 2), dtype=np.int64), [2**64 - 1]])
def test_ids_of_another_form_are_refused(shard: Path, ids: object) -> None:
    with RowStore.open_packed(shard, ROWS) as store, pytest.raises(StoreError) as caught:
        store.fetch(ids)  # type: ignore[arg-type]
    assert caught.value.code in (Code.ARGUMENT, Code.ID)


@pytest.mark.parametrize(
    "out",
    [
        np.empty((2, 263), dtype=np.uint8),
        np.empty((1, 264), dtype=np.uint8),
        np.empty((2, 264), dtype=np.int8),
        np.empty((4, 264), dtype=np.uint8)[::2],
        np.frombuffer(bytes(528), dtype=np.uint8).reshape(2, 264),
    ],
)
def test_buffers_of_another_form_are_refused(shard: Path, out: np.ndarray) -> None:
    with RowStore.open_packed(shard, ROWS) as store, pytest.raises(StoreError) as caught:
        store.fetch([FIRST, FIRST], out)
    assert caught.value.code is Code.ARGUMENT


def test_an_empty_call(shard: Path) -> None:
    with RowStore.open_packed(shard, ROWS) as store:
        assert store.fetch([]).shape == (0, 264)
        assert store.fetch(np.empty(0, dtype=np.int64)).shape == (0, 264)
        assert (store.counters.calls, store.counters.reads) == (2, 0)


def test_a_rank_without_rows(tmp_path: Path) -> None:
    rows = write_packed(tmp_path / "shard", TABLE, 1, 7, 7)
    with RowStore.open_packed(tmp_path / "shard", rows, Options(cache_bytes=10**6)) as store:
        assert store.slots == 0
        assert store.fetch([]).shape == (0, 264)
        with pytest.raises(StoreError):
            store.fetch([7])


@pytest.mark.parametrize("backend", [Backend.AUTO, Backend.THREADS])
@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize("cache_bytes", [0, 10**6])
def test_a_file_that_is_truncated_while_open(shard: Path, backend: Backend, count: int, cache_bytes: int) -> None:
    with RowStore.open_packed(shard, ROWS, Options(backend, cache_bytes=cache_bytes)) as store:
        os.truncate(shard, SIZE - 100)
        with pytest.raises(StoreError) as caught:
            store.fetch([END - 1, *range(FIRST, FIRST + count - 1)])
        error = caught.value
        assert (error.code, error.offset, error.expected, error.observed) == (Code.SHORT, SIZE - 264, 264, 164)
        assert str(shard) in str(error)
        assert store.counters.calls == 0
        assert np.array_equal(store.fetch([FIRST]), TABLE[[FIRST]]), "what is still there is served"


@pytest.mark.parametrize("backend", [Backend.AUTO, Backend.THREADS])
def test_a_name_that_is_given_to_another_file_changes_nothing(shard: Path, backend: Backend) -> None:
    with RowStore.open_packed(shard, ROWS, Options(backend)) as store:
        other = shard.with_name("other")
        write_packed(other, table_of(TOTAL, seed=1), LAYER, FIRST, END)
        other.replace(shard)
        assert np.array_equal(store.fetch(range(FIRST, END)), TABLE[FIRST:END])


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return write_checkpoint(tmp_path / "checkpoint", TABLE)


def test_a_checkpoint_that_is_too_short(tables: Tables) -> None:
    os.truncate(tables.path, tables.path.stat().st_size - 1)
    with pytest.raises(StoreError) as caught:
        RowStore.open_checkpoint(tables.path, tables.weight_at, tables.scale_at, ROWS)
    assert caught.value.code is Code.SIZE


@pytest.mark.parametrize("backend", [Backend.AUTO, Backend.THREADS])
def test_a_checkpoint_that_is_truncated_while_open(tables: Tables, backend: Backend) -> None:
    with RowStore.open_checkpoint(tables.path, tables.weight_at, tables.scale_at, ROWS, Options(backend)) as store:
        os.truncate(tables.path, tables.scale_at)
        with pytest.raises(StoreError) as caught:
            store.fetch([FIRST])
        assert (caught.value.code, caught.value.offset) == (Code.SHORT, tables.scale_at + 8 * FIRST)


OPTIONS = [
    {"depth": 0}, {"depth": 4097}, {"threads": 0}, {"threads": 1025}, {"threads": 2**32}, {"ways": 0}, {"ways": 17},
    {"cache_bytes": -1}, {"cache_bytes": 2**64},
]  # fmt: skip


@pytest.mark.parametrize("wrong", OPTIONS, ids=str)
def test_options_out_of_range(shard: Path, wrong: dict[str, int]) -> None:
    assert refused(shard, options=Options(**wrong)).code is Code.ARGUMENT


@pytest.mark.parametrize(
    "rows", [Rows(14, 300, 200, 600), Rows(14, 0, 601, 600), Rows(14, 0, 2**62, 2**62), Rows(-1, 0, 1, 1)]
)
def test_rows_that_are_no_range(shard: Path, rows: Rows) -> None:
    assert refused(shard, rows).code is Code.ARGUMENT


def test_a_path_with_a_zero_byte(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        RowStore.open_packed(f"{tmp_path}\0x", ROWS)
    assert caught.value.code is Code.ARGUMENT


def test_a_long_path_does_not_overrun_the_message() -> None:
    assert refused(Path("/" + "x" * 100_000)).errno == 36
