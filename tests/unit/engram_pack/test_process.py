"""Signals in the middle, what is left afterwards, and how much memory is taken: in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from native_process import program, run_program
from pack_files import Checkpoint

from trispark_node import native_pack

ROWS = 60000

HEAD = """
import os
import signal
import threading
import time
from pathlib import Path
from pack_files import chunk_hashes, header_of
from trispark_node import native_pack
from trispark_node.native_pack import ShortRead, Source
ROWS, HEADER = int(sys.argv[1]), header_of(4096)
SOURCE = Source(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
PATH = Path(sys.argv[5])
SIZE = 4096 + 264 * ROWS
SHARD = os.open(PATH, os.O_RDWR | os.O_CREAT, 0o644)
def entries(name):
    return len(os.listdir(f"/proc/self/{name}"))
def pack(**more):
    os.ftruncate(SHARD, 0)
    return native_pack.pack(SOURCE, HEADER, 0, ROWS, SHARD, threads=2, **more)
CALLS = {
    "pack": pack,
    "hash": lambda **more: native_pack.hash_file(SHARD, SIZE, threads=2, **more),
    "compare": lambda **more: native_pack.compare(SOURCE, 4096, 0, ROWS, SHARD, threads=2, **more),
}
"""


def arguments(directory: Path) -> list[object]:
    source = Checkpoint.write(directory / "checkpoint", ROWS).source
    return [ROWS, source.path, source.weight_offset, source.scale_offset, directory / "shard"]


def outcome(code: str, directory: Path, *more: object) -> str:
    done = run_program(HEAD + code, *arguments(directory), *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


INTERRUPTED = """
pack()
descriptors, threads = entries("fd"), entries("task")
call = CALLS[sys.argv[6]]
def late(number, frame):
    raise InterruptedError
signal.signal(signal.SIGTERM, late)
def told(done, total):
    print("begun", done < total, flush=True)
try:
    call(limit_bytes_s=1 << 20, progress=told)  # 15 s and more, were it not ended
except (KeyboardInterrupt, InterruptedError) as error:
    print(type(error).__name__, entries("fd") - descriptors, entries("task") - threads)
assert pack().chunk_hashes == chunk_hashes(PATH.read_bytes())
print("afterwards", entries("fd") - descriptors, entries("task") - threads)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("call", ["pack", "hash", "compare"])
def test_a_signal_ends_it_and_leaves_nothing(tmp_path: Path, call: str, number: signal.Signals) -> None:
    # Tests in the background inherit that Ctrl-C is ignored.
    argv = ["env", "--default-signal=INT", *program(HEAD + INTERRUPTED, *arguments(tmp_path), call)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun True\n"
        process.send_signal(number)
        rest, errors = process.communicate(timeout=10)
    name = "KeyboardInterrupt" if number == signal.SIGINT else "InterruptedError"
    lines = [line for line in rest.splitlines() if line != "begun True"]
    assert lines == [f"{name} 0 0", "afterwards 0 0"], errors


ENDED = """
pack()
class Enough(Exception):
    pass
def enough(done, total):
    raise Enough
descriptors, threads = entries("fd"), entries("task")
for call in CALLS.values():
    try:
        call(limit_bytes_s=1 << 20, progress=enough)
    except Enough:
        print(entries("fd") - descriptors, entries("task") - threads)
"""


def test_progress_that_raises_ends_it(tmp_path: Path) -> None:
    assert outcome(ENDED, tmp_path) == "0 0\n" * 3


MANY = """
pack()
descriptors, threads = entries("fd"), entries("task")
maps = len(Path("/proc/self/maps").read_text().splitlines())
for turn in range(30):
    for call in CALLS.values():
        call()
    try:
        native_pack.hash_file(SHARD, SIZE + 1, threads=4)
    except ShortRead:
        pass
print(entries("fd") - descriptors, entries("task") - threads)
print(len(Path("/proc/self/maps").read_text().splitlines()) - maps < 20)
"""


def test_many_calls_leave_no_descriptor_thread_or_mapping(tmp_path: Path) -> None:
    assert outcome(MANY, tmp_path) == "0 0\nTrue\n"


TOGETHER = """
pack()
expected = chunk_hashes(PATH.read_bytes())
wrong = []
def hash_often():
    for _ in range(10):
        if native_pack.hash_file(SHARD, SIZE, threads=2).chunk_hashes != expected:
            wrong.append("hash")
        if native_pack.compare(SOURCE, 4096, 0, ROWS, SHARD, threads=2) is not None:
            wrong.append("compare")
callers = [threading.Thread(target=hash_often) for _ in range(4)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
print(wrong)
"""


def test_several_callers_at_once(tmp_path: Path) -> None:
    assert outcome(TOGETHER, tmp_path) == "[]\n"


FEW_DESCRIPTORS = """
import resource
pack()
expected = chunk_hashes(PATH.read_bytes())
next_one = os.dup(0)
os.close(next_one)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (next_one + 1, hard))
print(native_pack.hash_file(SHARD, SIZE, threads=2).chunk_hashes == expected)
resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, hard))
print(native_pack.hash_file(SHARD, SIZE, threads=2).chunk_hashes == expected)
"""


def test_without_descriptors_left_the_given_one_is_used(tmp_path: Path) -> None:
    assert outcome(FEW_DESCRIPTORS, tmp_path) == "True\nTrue\n"


FEW_THREADS = """
import errno, resource
pack()
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(54321)  # nobody else's threads count against this one's
resource.setrlimit(resource.RLIMIT_NPROC, (3, 3))
try:
    native_pack.hash_file(SHARD, SIZE * 0 + 3, threads=2)
    native_pack.compare(SOURCE, 4096, 0, ROWS, SHARD, threads=8)
except PermissionError as error:  # the checkpoint is root's
    print("not told")
except OSError as error:
    print(errno.errorcode[error.errno], "threads" in str(error), entries("task"))
"""


def test_threads_that_cannot_be_started_are_told(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents):
        if path.is_relative_to(tempfile.gettempdir()) and path != Path(tempfile.gettempdir()):
            path.chmod(0o755)
    assert outcome(FEW_THREADS, tmp_path) == "EAGAIN True 1\n"


MEMORY = """
from trispark_node import native_pack
descriptor = os.open(PATH, os.O_RDWR)
os.ftruncate(descriptor, 600 << 20)
for threads in (1, 4, 64, 256):
    native_pack.hash_file(descriptor, 600 << 20, threads=threads)
source = Source(PATH, 0, 256 << 20)
print(native_pack.compare(source, 4096, 0, 1 << 20, descriptor, threads=256))
os.ftruncate(SHARD, 0)
# getrusage would tell the peak of the process that started this one, if that was higher
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def test_memory_is_bounded_whatever_the_threads(tmp_path: Path) -> None:
    """A file of holes takes no space; its size does not matter."""
    equal, kibibytes = outcome(MEMORY, tmp_path).splitlines()
    assert equal == "None"
    assert int(kibibytes) < 300 * 1024
    assert native_pack.MEMORY_BYTES <= 200 * 2**20
