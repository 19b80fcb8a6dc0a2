"""Threads, children and what the kernel refuses: each program runs in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from engram_files import run_python, table_of, write_packed

HEAD = """
import os
import threading
import time
from pathlib import Path
import numpy as np
from engram_files import table_of
from engram_store import Backend, Code, Options, Rows, RowStore, StoreError
TABLE = table_of(400)
ROWS = Rows(1, 100, 300, 400)
PATH, BACKEND = sys.argv[1], Backend[sys.argv[2]]

def opened(**more):
    return RowStore.open_packed(PATH, ROWS, Options(BACKEND, **more))

def entries(name):
    return len(os.listdir(f"/proc/self/{name}"))
"""


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    write_packed(tmp_path / "shard", table_of(400), 1, 100, 300)
    return tmp_path / "shard"


def outcome(code: str, shard: Path, backend: str = "AUTO", *more: object) -> str:
    done = run_python(HEAD + code, shard, backend, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


LEAKS = """
opened().close()  # what is made once for the process is there now
descriptors, threads = entries("fd"), entries("task")
for turn in range(40):
    with opened(cache_bytes=turn % 2 * 10**5) as store:
        callers = [threading.Thread(target=store.fetch, args=(np.arange(100, 300),)) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert entries("fd") == descriptors
deadline = time.monotonic() + 10  # workers of the kernel end a moment after their ring
while entries("task") > threads and time.monotonic() < deadline:
    time.sleep(0.01)
print(entries("fd") - descriptors, entries("task") - threads)
"""


@pytest.mark.parametrize("backend", ["AUTO", "THREADS"])
def test_a_closed_store_leaves_no_descriptor_and_no_thread(shard: Path, backend: str) -> None:
    assert outcome(LEAKS, shard, backend) == "0 0\n"


CLOSED = """
store = opened()
store.close()
store.close()
for use in (lambda: store.fetch([100]), lambda: store.counters):
    try:
        use()
    except StoreError as error:
        print(error.code.name)
with opened() as other:
    try:
        store.fetch([100])
    except StoreError as error:
        print(error.code.name, "also when its place is taken again")
    print(len(other.fetch([100])))
"""


@pytest.mark.parametrize("backend", ["AUTO", "THREADS"])
def test_a_closed_store_says_so(shard: Path, backend: str) -> None:
    expected = "CLOSED\nCLOSED\nCLOSED also when its place is taken again\n1\n"
    assert outcome(CLOSED, shard, backend) == expected


CLOSED_WHILE_CALLED = """
for turn in range(30):
    store = opened()
    seen = []
    def call():
        while True:
            try:
                assert np.array_equal(store.fetch(np.arange(100, 300)), TABLE[100:300])
            except StoreError as error:
                seen.append(error.code.name)
                return
    callers = [threading.Thread(target=call) for _ in range(5)]
    for caller in callers:
        caller.start()
    time.sleep(0.005)
    store.close()
    for caller in callers:
        caller.join()
    assert seen == ["CLOSED"] * 5, seen
print("done")
"""


@pytest.mark.parametrize("backend", ["AUTO", "THREADS"])
def test_a_store_that_is_closed_while_it_is_called_ends_each_call_well(shard: Path, backend: str) -> None:
    assert outcome(CLOSED_WHILE_CALLED, shard, backend) == "done\n"


FORKED = """
store = opened(cache_bytes=10**6)
store.fetch([100])
stop = threading.Event()
def call():
    while not stop.is_set():
        assert np.array_equal(store.fetch(np.arange(100, 300)), TABLE[100:300])
callers = [threading.Thread(target=call) for _ in range(4)]
for caller in callers:
    caller.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            refusals = 0
            for use in (lambda: store.fetch([100]), lambda: store.fetch([]), lambda: store.counters):
                try:
                    use()
                except StoreError as error:
                    refusals += error.code is Code.FORKED
            before = entries("fd")
            store.close()
            assert entries("fd") < before, "its copies of the descriptors are given back"
            with opened(cache_bytes=10**6) as own:
                assert np.array_equal(own.fetch(np.arange(100, 300)), TABLE[100:300])
            status = 0 if refusals == 3 else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for caller in callers:
    caller.join()
assert np.array_equal(store.fetch([299]), TABLE[[299]])
store.close()
print("done")
"""


@pytest.mark.parametrize("backend", ["AUTO", "THREADS"])
def test_a_child_is_refused_its_parents_store_and_opens_its_own(shard: Path, backend: str) -> None:
    assert outcome(FORKED, shard, backend) == "done\n"


FILTER = """
import ctypes
import errno
import struct
def refuse_io_uring(number):
    # Load the number of the system call; 425 is io_uring_setup on every architecture; answer with an errno, else allow.
    program = b"".join(
        struct.pack("<HBBI", *step)
        for step in ((0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050000 | number), (0x06, 0, 0, 0x7FFF0000))
    )
    held = ctypes.create_string_buffer(program, len(program))
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(held)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(filters)), 0, 0) == 0, ctypes.get_errno()
"""
SECCOMP = """
refuse_io_uring(errno.REFUSED)
with opened() as store:
    print(store.backend.name)
    print(store.why)
    assert np.array_equal(store.fetch(np.arange(100, 300)), TABLE[100:300])
try:
    RowStore.open_packed(PATH, ROWS, Options(Backend.IO_URING))
except StoreError as error:
    print(error.code.name, error.errno == errno.REFUSED)
"""


@pytest.mark.parametrize(("refusal", "words"), [("EPERM", "not permitted"), ("ENOSYS", "not implemented")])
def test_where_a_filter_refuses_io_uring_threads_read(shard: Path, refusal: str, words: str) -> None:
    backend, why, asked = outcome(FILTER + SECCOMP.replace("REFUSED", refusal), shard).splitlines()
    assert backend == "THREADS"
    assert why.startswith("io_uring_setup failed; where: ")
    assert words in why
    assert asked == "BACKEND True"


LATER = """
refusals = []
def call(store):  # a thread needs a ring of its own where the kernel then does less for each read
    refuse_io_uring(errno.ENOMEM)
    for _ in range(3):
        try:
            assert np.array_equal(store.fetch(np.arange(100, 300)), TABLE[100:300])
        except StoreError as error:
            refusals.append(error.code.name)
def kept(backend):
    with RowStore.open_packed(PATH, ROWS, Options(backend, cache_bytes=CACHE)) as store:
        assert store.backend is Backend.IO_URING
        callers = [threading.Thread(target=call, args=(store,)) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        print(store.backend.name, store.why.startswith("io_uring_setup failed"), len(refusals), store.counters.lookups)
    assert len(set(refusals)) <= 1
with opened() as probe:
    if probe.backend is Backend.THREADS:
        print("no ring")
        raise SystemExit
kept(Backend.AUTO)
kept(Backend.IO_URING)
print(*set(refusals))
"""


@pytest.mark.parametrize("cache", [0, 10**5])
def test_where_no_further_ring_is_given_threads_read_on(shard: Path, cache: int) -> None:
    """Rings count against memory that other processes of the user lock, so the first may be there and the next not."""
    lines = outcome(FILTER + LATER.replace("CACHE", str(cache)), shard).splitlines()
    if lines == ["no ring"]:
        pytest.skip("NOT TESTED: this kernel gives no ring at all")
    assert lines == [f"THREADS True 0 {4 * 3 * 200}", "IO_URING False 12 0", "BACKEND"]


ASKED = """
with opened() as store:
    print(store.backend.name, store.why == "")
"""


def test_threads_can_be_asked_for(shard: Path) -> None:
    assert outcome(ASKED, shard, "THREADS") == "THREADS True\n"


COUNTED = """
def calls():
    return int(Path("/proc/self/io").read_text().split("syscr: ")[1].split()[0])
with opened() as store:
    ids = np.random.default_rng(0).integers(100, 300, 150)
    before = calls()
    own = calls() - before  # of looking
    before = calls()
    store.fetch(ids)
    print(calls() - before - own, store.counters.reads)
"""


def test_the_counted_reads_are_those_of_the_kernel(shard: Path) -> None:
    assert outcome(COUNTED, shard, "THREADS") == "150 150\n"


SHARED = """
before = entries("task")
def started(wanted):
    deadline = time.monotonic() + 10  # a thread that has ended is listed a moment longer
    while entries("task") - before != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return entries("task") - before
one = opened(threads=6)
print(started(5))
other = opened(threads=9)
print(started(8), "as many as the largest asks for")
third = opened(threads=1)
callers = [threading.Thread(target=lambda store=store: [store.fetch(np.arange(100, 300)) for _ in range(20)])
           for store in (one, other, third) for _ in range(2)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
other.close()
assert np.array_equal(one.fetch(np.arange(100, 300)), TABLE[100:300])
one.close()
assert np.array_equal(third.fetch(np.arange(100, 300)), TABLE[100:300])
third.close()
print(started(0))
with opened(threads=4) as again:
    print(started(3))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            again.close()
            before = entries("task")
            with opened(threads=3) as own, opened(threads=5) as more:
                assert np.array_equal(own.fetch(np.arange(100, 300)), TABLE[100:300])
                status = 0 if started(4) == 4 else 2
        finally:
            os._exit(status)
    print(os.waitpid(child, 0)[1])
"""


def test_the_stores_of_a_process_share_its_readers(shard: Path) -> None:
    expected = "5\n8 as many as the largest asks for\n0\n3\n0\n"
    assert outcome(SHARED, shard, "THREADS") == expected


CALLERS = """
store = opened()
descriptors = entries("fd")
def call():
    for _ in range(30):
        assert np.array_equal(store.fetch(np.arange(100, 300)), TABLE[100:300])
for _ in range(4):  # of each round all are new threads
    callers = [threading.Thread(target=call) for _ in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
print(entries("fd") - descriptors <= 8, store.counters.lookups)
store.close()
"""


@pytest.mark.parametrize("backend", ["AUTO", "THREADS"])
def test_more_callers_than_rings_and_callers_that_end(shard: Path, backend: str) -> None:
    assert outcome(CALLERS, shard, backend) == f"True {4 * 20 * 30 * 200}\n"


MANY = """
stores = [opened(threads=1) for _ in range(30)]
for store in stores:
    assert np.array_equal(store.fetch([101]), TABLE[[101]])
import resource
next_one = os.dup(0)
os.close(next_one)
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, before[1]))
try:
    opened()
except StoreError as error:
    print(error.code.name, error.errno)
for store in stores:
    store.close()
with opened() as store:
    print(len(store.fetch([101])))
"""


@pytest.mark.parametrize("backend", ["AUTO", "THREADS"])
def test_a_process_without_descriptors_left(shard: Path, backend: str) -> None:
    assert outcome(MANY, shard, backend) == "OPEN 24\n1\n"


LOCKED = """
import resource
LIMIT = int(sys.argv[3])
file = os.open(PATH, os.O_RDONLY)  # its directory is root's alone
with opened() as store:
    before = store.backend
resource.setrlimit(resource.RLIMIT_MEMLOCK, (LIMIT, LIMIT))
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
with RowStore.open_packed(f"/proc/self/fd/{file}", ROWS, Options(BACKEND, depth=256)) as store:
    assert np.array_equal(store.fetch(np.arange(100, 300)), TABLE[100:300])
    print(store.counters.reads, store.backend is before)
"""


def test_a_process_that_may_lock_no_memory(shard: Path) -> None:
    """Kernels ask that for a ring itself; then threads read."""
    assert outcome(LOCKED, shard, "AUTO", 0).startswith("200 ")


def test_a_process_that_may_lock_a_ring_and_not_its_windows(shard: Path) -> None:
    """256 windows are 2 MiB."""
    assert outcome(LOCKED, shard, "AUTO", 256 * 1024) == "200 True\n"
