"""The Engram benchmarks: packing, verification and lookups on one disk, each with its goal.

    python -m trispark.engram_bench --directory DIR [--bytes 2147483648] [--pairs 7]

DIR must be on the disk that is meant. Files of random rows are made in a directory of their own there and removed
again. The figures go to stdout as one JSON object. What needs a program that this machine does not have is `null`,
with a line that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trispark import pack_bench, page_cache, row_store_bench
from trispark.errors import TrisparkError
from trispark_node.native_pack import Source

BYTES: Final = 2 * 2**30
PAIRS: Final = 7
ROUNDS: Final = 300
READERS: Final = 96
"""Threads of the backend without io_uring: what production sets."""
FILES: Final = 5
"""Of about the size of a shard, at one time: checkpoint, shard, packed, copy, parts for sha256sum."""


@dataclass(frozen=True)
class Goal:
    """`at_least` or `at_most`, in the unit of the figure; neither for one that is only told."""

    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float | None) -> bool | None:
        """None where nothing was measured or nothing is asked."""
        if value is None or self == Goal():
            return None
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


GOALS: Final = {
    "pack_vs_copy": Goal(at_least=0.9),
    "pack_rss_mib": Goal(at_most=300),
    "pack_page_cache_growth_mib": Goal(at_most=64),
    "full_verify_vs_b3sum": Goal(at_least=0.9),
    **{f"lookup_vs_fio_{batch}": Goal(at_most=1.15) for batch in row_store_bench.BATCHES},
    "reads_per_row": Goal(at_least=1.0, at_most=1.0),
    "cpu_us_per_row_io_uring": Goal(),
    "cpu_us_per_row_threads": Goal(),
    "unpacked_over_packed": Goal(),
    "cache_hit_ns": Goal(),
}


def run(
    directory: Path,
    bytes: int = BYTES,
    pairs: int = PAIRS,
    rounds: int = ROUNDS,
    threads: int | None = None,
    fio_s: float = row_store_bench.FIO_S,
) -> dict[str, Any]:
    """All figures: {"figures": {name: {value, goal, met, ...}}, "host": ..., "settings": ...}.

    `bytes` of the packed shard (about), `pairs` of each comparison, `rounds` of lookups, `threads` that hash and pack,
    `fio_s` of each turn of fio. Raises TS-BENCH-SPACE when the files would not fit, TS-ENGRAM-LIBRARY.
    """
    threads = threads or min(4, os.cpu_count() or 1)
    rows = max(1, bytes // row_store_bench.ROW_BYTES)
    _require_space(directory, FILES * rows * row_store_bench.ROW_BYTES + 2**20)
    with tempfile.TemporaryDirectory(dir=directory, prefix="engram-bench-") as name:
        place = Path(name)
        files = row_store_bench.Files.make(place, rows)
        for path in (files.shard, files.checkpoint):
            page_cache.drop(path)
        table = pack_bench.PackedTable(Source(files.checkpoint, 0, 256 * rows), rows)
        found = {"pack_vs_copy": pack_bench.pack_vs_copy(table, place, pairs, threads)}
        memory, cached = pack_bench.pack_memory(table, place, threads)
        found |= {"pack_rss_mib": memory, "pack_page_cache_growth_mib": cached}
        found["full_verify_vs_b3sum"] = pack_bench.full_verify(table, files.shard, place, pairs, threads)
        found |= _lookups(files, rounds, pairs, fio_s)
        system = _file_system(place)
    figures = {name: {**found[name], **_judged(name, found[name]["value"])} for name in GOALS}
    return {
        "figures": figures,
        "host": {"cpu": _cpu(), "cpus": os.cpu_count(), "kernel": platform.release(), "file_system": system},
        "settings": {"bytes": rows * row_store_bench.ROW_BYTES, "pairs": pairs, "rounds": rounds, "threads": threads},
    }


def _lookups(files: row_store_bench.Files, rounds: int, pairs: int, fio_s: float) -> dict[str, dict[str, Any]]:
    batches = {
        batch: row_store_bench.measure(files, batch, rounds, READERS, turns=pairs, fio_s=fio_s)
        for batch in row_store_bench.BATCHES
    }
    found: dict[str, dict[str, Any]] = {}
    for batch, figures in batches.items():
        against = figures.get("lookup_vs_fio") or f"not measured: {figures['not_measured'].get('io_uring')}"
        if isinstance(against, str):
            found[f"lookup_vs_fio_{batch}"] = {"value": None, "not_measured": against}
        else:
            found[f"lookup_vs_fio_{batch}"] = {"value": against.pop("ratio"), **against}
    largest = batches[max(batches)]
    for backend in ("io_uring", "threads"):
        found[f"cpu_us_per_row_{backend}"] = {"value": largest["cpu_us_per_row"].get(backend)}
    packed = "io_uring" if "io_uring" in largest["reads_per_row"] else "threads"
    reads = {str(batch): figures["reads_per_row"][packed] for batch, figures in batches.items()}
    found["reads_per_row"] = {"value": max(reads.values()), "batches": reads}
    ratios = {str(batch): figures[f"unpacked_over_packed_{packed}"] for batch, figures in batches.items()}
    found["unpacked_over_packed"] = {"value": ratios[str(max(batches))], "batches": ratios}
    found["cache_hit_ns"] = {"value": row_store_bench.cache_hit_ns(files)}
    return found


def _judged(name: str, value: float | None) -> dict[str, Any]:
    goal = GOALS[name]
    asked = {key: bound for key, bound in (("at_least", goal.at_least), ("at_most", goal.at_most)) if bound is not None}
    return {"goal": asked, "met": goal.met(value)}


def _require_space(directory: Path, needed: int) -> None:
    facts = os.statvfs(directory)
    free = facts.f_bavail * facts.f_frsize
    if free < needed:
        raise TrisparkError(
            "TS-BENCH-SPACE",
            "the benchmark's files do not fit",
            where=str(directory),
            expected=f"{needed} bytes free",
            observed=f"{free} bytes free",
            remedy="give fewer --bytes or another --directory",
        )


def _cpu() -> str:
    """The processor's name where Linux tells it, else the architecture."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(path: Path) -> str:
    program = shutil.which("findmnt")
    if program is None:
        return "not told: findmnt missing"
    argv = [program, "--noheadings", "--output", "FSTYPE,SOURCE,OPTIONS", "--target", str(path)]
    return " ".join(subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split())


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the figures; 0 when no goal is missed."""
    parser = argparse.ArgumentParser(prog="trispark.engram_bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, required=True, help="on the disk that is measured")
    parser.add_argument("--bytes", type=int, default=BYTES, help="of the packed shard")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of each comparison")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of lookups")
    parser.add_argument("--threads", type=int, help="that pack and hash")
    parser.add_argument("--fio-s", type=float, default=row_store_bench.FIO_S, help="seconds of each turn of fio")
    given = parser.parse_args(argv)
    try:
        result = run(given.directory, given.bytes, given.pairs, given.rounds, given.threads, given.fio_s)
    except TrisparkError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(result, indent=2))
    return 1 if any(figure["met"] is False for figure in result["figures"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
