"""The lookup of a CUDA host function, called as the driver would: with one pointer, in any thread, without Python."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engram_files import table_of, write_packed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engram_store import Job, Places, RowStore, Scratch, StoreError, serve_address
from engram_store.job import JobFields
from engram_store.library import U64

FIRST, END, TOTAL = 40, 260, 300
TABLE = table_of(TOTAL, seed=4)
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Memory:
    """Buffers of a job as its caller has them, full of what must not be served."""

    def __init__(self, store: RowStore, tokens: int, columns: int, stride: int) -> None:
        self.ids = np.zeros(tokens * stride + 1, dtype=np.int64)
        self.weights = np.full((tokens * columns + 1, 256), 0xAA, dtype=np.uint8)
        self.scales = np.full((tokens * columns + 1, 8), 0xAA, dtype=np.uint8)
        places = Places(self.ids.ctypes.data, self.weights.ctypes.data, self.scales.ctypes.data)
        self.job = Job(store, (FIRST, END), places, tokens, columns, stride)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("job") / "shard.bin"
    rows = write_packed(path, TABLE, 1, FIRST, END)
    with RowStore.open_packed(path, rows) as opened:
        yield opened


def call(job: Job) -> None:
    """As the driver does."""
    HostFunction(serve_address())(job.address)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 6), st.integers(1, 5), st.integers(0, 4), st.randoms(use_true_random=False))
def test_rows_of_any_shape(store: RowStore, tokens: int, columns: int, gap: int, random: Any) -> None:
    memory = Memory(store, tokens, columns, columns + gap)
    for at in range(tokens * (columns + gap)):
        memory.ids[at] = random.choice([FIRST, END - 1, FIRST - 1, END, 0, TOTAL - 1, random.randrange(TOTAL), -7])
    call(memory.job)
    wanted = memory.ids[: tokens * (columns + gap)].reshape(tokens, columns + gap)[:, :columns].reshape(-1)
    for place, row in enumerate(wanted):
        expected = TABLE[row] if FIRST <= row < END else np.zeros(264, dtype=np.uint8)
        assert memory.weights[place].tobytes() == expected[:256].tobytes()
        assert memory.scales[place].tobytes() == expected[256:].tobytes()
    assert (memory.weights[tokens * columns] == 0xAA).all()  # and nothing beyond
    assert (memory.scales[tokens * columns] == 0xAA).all()
    assert memory.job.failure is None
    assert (memory.job.calls, memory.job.retries) == (1, 0)


def test_the_next_call_reads_the_ids_that_lie_there_then(store: RowStore) -> None:
    memory = Memory(store, 1, 2, 2)
    for pair in [(40, 41), (41, 40), (0, 259)]:
        memory.ids[:2] = pair
        call(memory.job)
        for place, row in enumerate(pair):
            expected = TABLE[row, :256] if row >= FIRST else np.zeros(256, dtype=np.uint8)
            assert (memory.weights[place] == expected).all()
    assert memory.job.calls == 3
    assert memory.job.busy_s > 0


def test_a_failed_lookup_gives_nan_and_stays_known(tmp_path: Path) -> None:
    path = tmp_path / "shard.bin"
    rows = write_packed(path, TABLE, 1, FIRST, END)
    with RowStore.open_packed(path, rows) as opened:
        memory = Memory(opened, 1, 3, 3)
        memory.ids[:3] = (END - 1, 0, END - 2)
        with path.open("r+b") as file:
            file.truncate(8192)
        with pytest.raises(StoreError, match="TS-STORE-SHORT"):
            memory.job.run()
        assert memory.job.retries == 1
        assert (memory.weights[:3] == 0xFF).all()  # NaN, also where no row is owned
        assert (memory.scales[:3] == 127).all()
        path.write_bytes(path.read_bytes().ljust(4096 + 264 * (END - FIRST), b"\0"))
        call(memory.job)
        assert memory.job.failure is not None  # the first failure is kept
        memory.job.forget()
        memory.job.run()
        assert memory.job.failure is None


def test_a_closed_store_gives_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "shard.bin"
    opened = RowStore.open_packed(path, write_packed(path, TABLE, 1, FIRST, END))
    memory = Memory(opened, 1, 1, 1)
    memory.ids[0] = FIRST
    opened.close()
    with pytest.raises(StoreError, match="TS-STORE-CLOSED"):
        memory.job.run()
    assert (memory.weights[0] == 0xFF).all()


def test_jobs_may_share_scratch_that_is_large_enough(store: RowStore) -> None:
    scratch = Scratch(6)
    memory = Memory(store, 2, 3, 3)
    places = Places(memory.ids.ctypes.data, memory.weights.ctypes.data, memory.scales.ctypes.data)
    memory.ids[:6] = range(FIRST, FIRST + 6)
    for tokens in (2, 1):
        Job(store, (FIRST, END), places, tokens, 3, 3, scratch).run()
        assert (memory.weights[: 3 * tokens] == TABLE[FIRST : FIRST + 3 * tokens, :256]).all()
    with pytest.raises(ValueError, match="scratch for 6 ids, 9 are"):
        Job(store, (FIRST, END), places, 3, 3, 3, scratch)


def test_jobs_of_one_store_run_side_by_side(store: RowStore) -> None:
    memories = [Memory(store, 4, 6, 6) for _ in range(4)]
    random = np.random.default_rng(0)
    for memory in memories:
        memory.ids[:24] = random.integers(FIRST, END, 24)
    threads = [threading.Thread(target=lambda job=memory.job: [call(job) for _ in range(50)]) for memory in memories]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for memory in memories:
        assert (memory.weights[:24] == TABLE[memory.ids[:24], :256]).all()
        assert memory.job.calls == 50


def test_the_fields_lie_where_the_library_looks_for_them() -> None:
    """Offsets of es_job in engram_store.h on a 64-bit machine."""
    assert JobFields.handle.offset == 0
    assert JobFields.calls.offset == 12 * ctypes.sizeof(U64)
    assert JobFields.failed.offset == 15 * ctypes.sizeof(U64)
    assert JobFields.error.offset == 16 * ctypes.sizeof(U64)
