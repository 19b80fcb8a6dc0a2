"""Packing against a plain copy, hashing against the usual programs, in interleaved pairs on one disk.

A pair is one run of each arm; which of them begins turns from pair to pair. Ratios are medians over pairs of the
throughput of ours over theirs in the same pair. What is read is not in the page cache when an arm begins, and what is
written is on the disk when it ends.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trispark import page_cache
from trispark_node import native_pack, shard_format
from trispark_node.native_pack import Source

COPY_BLOCK: Final = 16 * 2**20
"""Of dd; larger ones are no faster."""
MIB: Final = 2**20
ROOT: Final = Path(__file__).resolve().parents[2]
# The agent's whole program is imported, as when it packs; then its own peak is told (getrusage would tell that of the
# process which started it, if that was higher).
_PACKING: Final = """
import os, sys
sys.path[:0] = [sys.argv[1]]
import trispark_node.cli
from pathlib import Path
from trispark_node import native_pack
source, weight_at, scale_at, target, first, end, threads = sys.argv[2:]
descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
source = native_pack.Source(Path(source), int(weight_at), int(scale_at))
native_pack.pack(source, sys.stdin.buffer.read(), int(first), int(end), descriptor, threads=int(threads))
os.fsync(descriptor)
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


@dataclass(frozen=True)
class PackedTable:
    """A table in `checkpoint`, all of whose rows one rank owns."""

    source: Source
    rows: int

    @property
    def header(self) -> bytes:
        return self.shard.header()

    @property
    def shard(self) -> shard_format.Shard:
        return shard_format.Shard(1, 0, 1, 0, self.rows, self.rows)


@dataclass(frozen=True)
class Pairs:
    """Throughputs in MB/s, by arm, one each pair."""

    mb_s: dict[str, list[float]]

    def ratio(self, ours: str, theirs: Sequence[str]) -> float:
        """Median over pairs of ours over the fastest of theirs."""
        best = [max(values) for values in zip(*(self.mb_s[name] for name in theirs), strict=True)]
        ratios = [mine / other for mine, other in zip(self.mb_s[ours], best, strict=True)]
        return round(float(statistics.median(ratios)), 3)

    def medians(self) -> dict[str, float]:
        return {name: round(statistics.median(values)) for name, values in self.mb_s.items()}


def interleaved(arms: dict[str, Callable[[], int]], pairs: int, before: Callable[[], None]) -> Pairs:
    """Each arm returns the bytes that it moved; `before` is called ahead of each, outside its time."""
    names = list(arms)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(pairs):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            before()
            began = time.perf_counter()
            moved = arms[name]()
            found[name].append(moved / (time.perf_counter() - began) / 1e6)
    return Pairs(found)


def pack_vs_copy(table: PackedTable, directory: Path, pairs: int, threads: int) -> dict[str, Any]:
    """Throughput of packing over that of `dd` with direct I/O of as many bytes; both end with fsync."""
    dd = shutil.which("dd")
    if dd is None:
        return missing("dd")
    packed, copied = directory / "packed", directory / "copied"
    size = table.shard.size // COPY_BLOCK * COPY_BLOCK or table.shard.size // 4096 * 4096
    argv = [dd, f"if={table.source.path}", f"of={copied}", f"bs={min(size, COPY_BLOCK)}", f"count={size}"]
    argv += ["iflag=direct,count_bytes", "oflag=direct", "conv=fsync", "status=none"]
    direct = []

    def pack() -> int:
        descriptor = os.open(packed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            done = native_pack.pack(table.source, table.header, 0, table.rows, descriptor, threads=threads)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        direct.append(done.direct_read and done.direct_write)
        return done.bytes

    def copy() -> int:
        subprocess.run(argv, check=True)
        return size

    def before() -> None:
        packed.unlink(missing_ok=True)
        copied.unlink(missing_ok=True)
        page_cache.drop(table.source.path)

    found = interleaved({"pack": pack, "dd": copy}, pairs, before)
    before()
    return {"value": found.ratio("pack", ["dd"]), "mb_s": found.medians(), "direct": all(direct), "threads": threads}


def pack_memory(table: PackedTable, directory: Path, threads: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(peak of the agent's resident memory while it packs, pages that packing left in the page cache), in MiB."""
    target = directory / "packed"
    page_cache.drop(table.source.path)
    before = page_cache.cached_bytes(table.source.path)
    where = (table.source.path, table.source.weight_offset, table.source.scale_offset, target, 0, table.rows, threads)
    argv = [sys.executable, "-c", _PACKING, str(ROOT / "src"), *(str(value) for value in where)]
    done = subprocess.run(argv, input=table.header, capture_output=True, check=True)
    grown = page_cache.cached_bytes(table.source.path) - before + page_cache.cached_bytes(target)
    target.unlink()
    peak = int(done.stdout) * 1024
    return {"value": round(peak / MIB, 1)}, {"value": round(grown / MIB, 2)}


def full_verify(table: PackedTable, shard: Path, directory: Path, pairs: int, threads: int) -> dict[str, Any]:
    """Throughput of hashing a shard over the faster of b3sum and sha256sum with as many threads: sha256sum has one, so
    as many of them hash as many parts."""
    b3sum, sha256sum = shutil.which("b3sum"), shutil.which("sha256sum")
    if b3sum is None and sha256sum is None:
        return missing("b3sum and sha256sum")
    parts = _split(shard, directory, threads) if sha256sum else []
    size = shard.stat().st_size

    def ours() -> int:
        with shard.open("rb") as file:
            native_pack.hash_file(file.fileno(), size, threads=threads)
        return size

    def with_b3sum() -> int:
        subprocess.run([str(b3sum), "--num-threads", str(threads), str(shard)], check=True, stdout=subprocess.DEVNULL)
        return size

    def with_sha256sum() -> int:
        running = [subprocess.Popen([str(sha256sum), str(part)], stdout=subprocess.DEVNULL) for part in parts]
        if any([each.wait() for each in running]):
            raise subprocess.SubprocessError("sha256sum failed")
        return size

    def before() -> None:
        for path in (shard, *parts):
            page_cache.drop(path)

    others: dict[str, Callable[[], int]] = {}
    if b3sum:
        others["b3sum"] = with_b3sum
    if sha256sum:
        others["sha256sum"] = with_sha256sum
    found = interleaved({"hash": ours, **others}, pairs, before)
    for part in parts:
        part.unlink()
    without = [name for name in ("b3sum", "sha256sum") if name not in others]
    return {
        "value": found.ratio("hash", list(others)),
        "mb_s": found.medians(),
        "threads": threads,
        "not_measured": {name: missing(name)["not_measured"] for name in without},
    }


def _split(shard: Path, directory: Path, count: int) -> list[Path]:
    size = shard.stat().st_size
    parts = [directory / f"part{index}" for index in range(count)]
    with shard.open("rb") as source:
        for index, part in enumerate(parts):
            left = size * (index + 1) // count - size * index // count
            with part.open("wb") as target:
                while left > 0:
                    left -= target.write(source.read(min(left, COPY_BLOCK)))
    return parts


def missing(program: str) -> dict[str, Any]:
    return {"value": None, "not_measured": f"not measured: {program} missing"}
