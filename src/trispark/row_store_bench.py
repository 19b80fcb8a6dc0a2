"""Measures lookups of the Engram row store on this machine's disk; the figures go to stdout as one JSON object.

    python -m trispark.row_store_bench --directory DIR [--rows 500000] [--rounds 200]

DIR must be on the disk that is meant; a shard and a checkpoint of random rows are made there and removed again. Arms
are called in turn, round after round, each with random ids of its own, in an order that turns by one every round. Times
are of one call (`us`: median); ratios are medians over rounds of one arm's time over another's in the same round. `fio`
submits as many reads of the same sizes at once and waits for all of them, so its mean time of a batch is batch / IOPS;
it is compared with the mean of io_uring, in turns of their own.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "adapters"), str(ROOT / "lab")]

from engram_store import Backend, Options, Rows, RowStore, StoreError  # noqa: E402
from trispark_lab.readers import ReaderPool  # noqa: E402
from trispark_lab.row_store import RowStore as PythonRows  # noqa: E402
from trispark_lab.row_store import Shard, packed_name  # noqa: E402
from trispark_lab.safetensors import TensorInfo  # noqa: E402

BATCHES: Final = (8, 32, 64)
FIO_S: Final = 2.0
FIO_TURNS: Final = 3
ROW_BYTES: Final = 264
FIO_SIZES: Final = ("--bssplit=4k/94:8k/6", "--blockalign=4k")
"""As the rows have them: of 512 places where a row may begin in a page, 32 leave its end in the next one."""
Ids = npt.NDArray[np.int64]
Fetch = Callable[[Ids], object]


@dataclass
class Arm:
    """One way to read; `us` of each call and `cpu_us` of all of them, this process's threads together."""

    fetch: Fetch
    us: list[float] = field(default_factory=list)
    cpu_us: float = 0.0

    def call(self, ids: Ids) -> None:
        cpu, begin = _cpu_us(), time.perf_counter_ns()
        self.fetch(ids)
        self.us.append((time.perf_counter_ns() - begin) / 1000)
        self.cpu_us += _cpu_us() - cpu


def _cpu_us() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


@dataclass(frozen=True)
class Files:
    """A packed shard of all rows of a table, and the same rows unpacked."""

    shard: Path
    checkpoint: Path
    rows: int

    @classmethod
    def make(cls, directory: Path, rows: int) -> Files:
        files = cls(directory / packed_name(1, 0, 1), directory / "checkpoint", rows)
        generator = np.random.default_rng(1)
        header = struct.pack("<6Q", 0x31344E4531565344, 1, 0, rows, rows, 264).ljust(4096, b"\0")
        with files.shard.open("wb") as packed, files.checkpoint.open("wb") as unpacked:
            packed.write(header)
            for begin in range(0, rows, 65536):
                content = generator.bytes(264 * min(65536, rows - begin))
                packed.write(content)
                unpacked.write(content)
        return files

    def arms(self, readers: int) -> tuple[dict[str, Arm], dict[str, str], dict[str, RowStore]]:
        """{name: arm}, {name: why it cannot be measured}, {name: store with counters}."""
        rows = Rows(1, 0, self.rows, self.rows)
        stores: dict[str, RowStore] = {}
        missing: dict[str, str] = {}
        for backend in (Backend.IO_URING, Backend.THREADS):
            name, options = backend.name.lower(), Options(backend, depth=readers, threads=readers)
            try:
                stores[name] = RowStore.open_packed(self.shard, rows, options)
                stores[f"{name}_unpacked"] = RowStore.open_checkpoint(
                    self.checkpoint, 0, 256 * self.rows, rows, options, allow_buffered=True
                )
            except StoreError as error:
                missing[name] = str(error)
        arms = {name: Arm(store.fetch) for name, store in stores.items()}
        weight = TensorInfo("weight", self.checkpoint, "F8_E4M3", (self.rows, 256), 0, 256 * self.rows)
        scale = TensorInfo("scale", self.checkpoint, "F8_E8M0", (self.rows, 8), 256 * self.rows, 8 * self.rows)
        shard = Shard(1, 0, 1, 0, self.rows, self.rows)
        arms["python"] = Arm(PythonRows(shard, self.shard.parent, weight, scale, ReaderPool(readers)).fetch)
        return arms, missing, stores


def measure(
    files: Files, batch: int, rounds: int, readers: int, turns: int = FIO_TURNS, fio_s: float = FIO_S
) -> dict[str, Any]:
    """Figures of one batch size; `turns` of `fio_s` seconds against fio."""
    arms, missing, stores = files.arms(readers)
    generator = np.random.default_rng(batch)
    names = list(arms)
    for turn in range(-3, rounds):  # three rounds warm threads and code up
        if turn == 0:
            arms = {name: Arm(arm.fetch) for name, arm in arms.items()}
        for place in range(len(names)):
            arms[names[(turn + place) % len(names)]].call(generator.integers(0, files.rows, batch))
    reads = {name: store.counters.reads / store.counters.lookups for name, store in stores.items()}
    figures: dict[str, Any] = {
        "us": {name: round(statistics.median(arm.us), 1) for name, arm in arms.items()},
        "cpu_us_per_row": {name: round(arm.cpu_us / (rounds * batch), 2) for name, arm in arms.items()},
        "reads_per_row": reads,
        "not_measured": missing,
    }
    for name, (one, other) in {
        "threads_over_io_uring": ("threads", "io_uring"),
        "python_over_io_uring": ("python", "io_uring"),
        "python_over_threads": ("python", "threads"),
        "unpacked_over_packed_io_uring": ("io_uring_unpacked", "io_uring"),
        "unpacked_over_packed_threads": ("threads_unpacked", "threads"),
    }.items():
        if one in arms and other in arms:
            pairs = zip(arms[one].us, arms[other].us, strict=True)
            figures[name] = round(statistics.median(a / b for a, b in pairs), 3)
    if "io_uring" in arms:
        figures["lookup_vs_fio"] = against_fio(files, stores["io_uring"], batch, turns, fio_s)
    for store in stores.values():
        store.close()
    return figures


def against_fio(files: Files, store: RowStore, batch: int, turns: int, fio_s: float) -> dict[str, Any] | str:
    """Mean time of a batch over fio's, the median of turns; a line that says why when there is no fio."""
    fio = shutil.which("fio")
    if fio is None:
        return "not measured: fio missing"
    argv = [
        fio, "--name=rows", f"--filename={files.shard}", "--readonly", "--rw=randread", *FIO_SIZES,
        "--direct=1", "--ioengine=io_uring", f"--iodepth={batch}", f"--iodepth_batch_submit={batch}",
        f"--iodepth_batch_complete_min={batch}", "--time_based", f"--runtime={round(fio_s * 1000)}ms", "--norandommap",
        "--output-format=json",
    ]  # fmt: skip
    generator = np.random.default_rng(batch)
    pairs = []
    for turn in range(turns):
        means = {}
        for name in ("mine", "fio") if turn % 2 else ("fio", "mine"):
            if name == "mine":
                means[name] = _mean_us(store, files.rows, batch, fio_s, generator)
                continue
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return f"not measured: fio: {done.stderr.strip()[:200]}"
            means[name] = batch / float(json.loads(done.stdout)["jobs"][0]["read"]["iops"]) * 1e6
        pairs.append((means["mine"], means["fio"]))
    return {
        "ratio": round(statistics.median(mine / theirs for mine, theirs in pairs), 3),
        "us": round(statistics.median(mine for mine, _ in pairs), 1),
        "fio_us": round(statistics.median(theirs for _, theirs in pairs), 1),
    }


def _mean_us(store: RowStore, rows: int, batch: int, seconds: float, generator: np.random.Generator) -> float:
    """Of the calls alone: fio makes its places between its batches too, but in less time than NumPy takes."""
    batches = generator.integers(0, rows, (1024, batch))
    fetch = store.fetch
    ns: list[int] = []
    end = time.monotonic() + seconds
    while not ns or time.monotonic() < end:
        for ids in batches[:64]:
            begin = time.perf_counter_ns()
            fetch(ids)
            ns.append(time.perf_counter_ns() - begin)
        batches = np.roll(batches, -64, axis=0)
    return statistics.mean(ns) / 1000


def cache_hit_ns(files: Files) -> float:
    """Of a row in a call of 64 rows that the cache holds all; median over calls."""
    rows = Rows(1, 0, files.rows, files.rows)
    ids = np.random.default_rng(0).integers(0, files.rows, 64)
    with RowStore.open_packed(files.shard, rows, Options(cache_bytes=64 << 20, ways=16)) as store:
        store.fetch(ids)
        arm = Arm(store.fetch)
        for _ in range(2000):
            arm.call(ids)
        if store.counters.reads > len(ids):
            raise AssertionError("rows that were read are no hits")
    return round(statistics.median(arm.us) * 1000 / len(ids), 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(prog="trispark.row_store_bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, required=True, help="on the disk that is measured")
    parser.add_argument("--rows", type=int, default=500_000, help="of the table; 264 bytes each, twice")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--readers", type=int, default=96, help="reads in flight, and threads")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=given.directory, prefix="row-store-bench-") as directory:
        files = Files.make(Path(directory), given.rows)
        batches = {str(batch): measure(files, batch, given.rounds, given.readers) for batch in BATCHES}
        result = {
            "machine": platform.machine(),
            "kernel": platform.release(),
            "rows": given.rows,
            "rounds": given.rounds,
            "readers": given.readers,
            "batches": batches,
            "cache_hit_ns": cache_hit_ns(files),
        }
    print(json.dumps(result, indent=2, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
