"""What lies under a shard's name, judged at one of three levels. Reads only.

quick   header, size, manifest (against header, size, source and checkpoint), and rows against the checkpoint: 256 of a
        large file, all of a small one
full    and every chunk's hash against the manifest, and no holes
deep    and every row against the checkpoint
"""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node import engram_tables, native_pack, ownership, shard_format, shard_manifest
from trispark_node.errors import AgentError
from trispark_node.regular_file import open_regular, read_bounded
from trispark_node.shard_format import HEADER_BYTES, MANIFEST_SUFFIX, PARTIAL_SUFFIX, ROW_BYTES, Shard
from trispark_node.shard_manifest import Manifest, Origin
from trispark_node.share_mounts import parse_mounts

QUICK, FULL, DEEP = "quick", "full", "deep"
LEVELS = (QUICK, FULL, DEEP)
WHOLE_BELOW_BYTES = 2**30
"""Files of this size and more are compared in samples at the quick level: reading a table of tens of GB from the
checkpoint's network file system takes longer than a start."""
SAMPLED_ROWS = 256
THREADS = min(16, os.cpu_count() or 1)
MOUNTINFO = Path("/proc/self/mountinfo")

OK, ADOPTED, MISSING, PARTIAL, NO_MANIFEST = "ok", "adopted", "missing", "partial", "no_manifest"
OTHER_LAYOUT, WRONG_HEADER, WRONG_SIZE = "other_layout", "wrong_header", "wrong_size"
HOLES, WRONG_CONTENT, WRONG_MANIFEST = "holes", "wrong_content", "wrong_manifest"
GOOD = (OK, ADOPTED)
"""An engine may serve from it. ADOPTED: of another tool, hashed by us later."""
MENDED = (MISSING, PARTIAL, NO_MANIFEST)
"""What `ensure` brings about without being told to replace anything."""

Watch = Callable[[str, str, int, int], None]
"""(file, phase, bytes done, bytes in all) of the work on one shard; about twice a second."""


@dataclass(frozen=True)
class Work:
    """How work on whole shards is done: `limit` bytes a second, 0 for no bound."""

    limit: int = 0
    watch: Watch | None = None

    def progress(self, file: str, phase: str) -> native_pack.Progress | None:
        watch = self.watch
        return None if watch is None else lambda done, total: watch(file, phase, done, total)


ALONE = Work()
"""At any speed, and nobody is told."""


@dataclass(frozen=True)
class Judged:
    """`observed` says the state in words. `checked`: `sampled`, `hashed` (every chunk) or `whole` (every row against
    the checkpoint); None where no row was looked at."""

    state: str
    observed: str
    checked: str | None = None


def manifest_path(path: Path) -> Path:
    return path.with_name(path.name + MANIFEST_SUFFIX)


def partial_path(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL_SUFFIX)


def judge(directory: Path, origin: Origin, config: Mapping[str, Any], level: str, work: Work) -> Judged:
    """What lies under a shard's name in `directory`. Raises TS-ENGRAM-LINK for what is no file of it, and
    TS-ENGRAM-CHANGED for one that is replaced meanwhile."""
    path = directory / origin.shard.name
    partial = partial_path(path)
    for candidate in (path, partial, manifest_path(path)):
        _refuse_linked_file(directory, candidate)
    if not path.exists():
        if partial.exists():
            return Judged(PARTIAL, f"only {partial.name}, {partial.stat().st_size} bytes")
        return Judged(MISSING, "absent")
    descriptor = open_regular(path, os.O_NOFOLLOW)
    try:
        before = _identity(os.fstat(descriptor))
        try:
            judged = _judge_open(descriptor, path, origin, config, level, work)
        except native_pack.ShortRead as short:
            if short.role != "shard":
                raise engram_tables.unusable(origin.table.path, "every row of the table", str(short)) from short
            judged = Judged(WRONG_SIZE, str(short))
        if _identity(path.lstat()) != before or _identity(os.fstat(descriptor)) != before:
            raise _changed(path)
        return judged
    except FileNotFoundError:
        raise _changed(path) from None
    finally:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _changed(path: Path) -> AgentError:
    return AgentError(
        "TS-ENGRAM-CHANGED",
        "a shard was changed or replaced while it was looked at",
        where=str(path),
        expected="the same file from the begin of the look to its end",
        observed="another file, size or time",
        remedy="see what writes there, then run the verb again",
    )


def _judge_open(
    descriptor: int, path: Path, origin: Origin, config: Mapping[str, Any], level: str, work: Work
) -> Judged:
    shard, size = origin.shard, os.fstat(descriptor).st_size
    if size < HEADER_BYTES:
        return Judged(WRONG_SIZE, f"{size} bytes, less than its header")
    header = os.pread(descriptor, HEADER_BYTES, 0)
    difference = shard_format.header_difference(shard.header(), header)
    if difference is not None:
        return _other_header(origin, config, header, difference)
    if size != shard.size:
        return Judged(WRONG_SIZE, f"{size} bytes, not {shard.size}")
    manifest, fault = _manifest(path, origin)
    every_row = level == DEEP or size < WHOLE_BELOW_BYTES
    if every_row or level == FULL or manifest is None:
        hole = os.lseek(descriptor, 0, os.SEEK_HOLE)
        if hole < size:
            return Judged(HOLES, f"nothing was ever written at byte {hole}; it would be read as rows of zeros")
    row = _first_other_row(descriptor, origin, work) if every_row else _first_other_sample(descriptor, origin)
    checked = "whole" if every_row else "sampled"
    if row is not None:
        return Judged(WRONG_CONTENT, f"row {row[0]} differs first at its byte {row[1]}", checked)
    if manifest is None:
        return Judged(WRONG_MANIFEST if fault else NO_MANIFEST, fault or "its manifest is absent", checked)
    if level != QUICK:
        other = _first_other_chunk(descriptor, origin, manifest, work)
        checked = checked if every_row else "hashed"
        if other is not None:
            return Judged(WRONG_MANIFEST, other, checked)
    state = ADOPTED if manifest.origin == shard_manifest.ADOPTED else OK
    return Judged(state, f"equal to the checkpoint and the manifest ({checked})", checked)


def _other_header(origin: Origin, config: Mapping[str, Any], header: bytes, difference: str) -> Judged:
    """Shards of another rank or layout are called so."""
    shard, found = origin.shard, shard_format.fields_of(header)
    alike = {**shard.fields(), "first_row": found["first_row"], "end_row": found["end_row"]} == found
    rows = (found["first_row"], found["end_row"])
    owner = ownership.whose(config, shard.layer, shard.total_rows, shard.tp, *rows) if alike else None
    if owner is None:
        return Judged(WRONG_HEADER, difference)
    layout, rank = owner
    said = f"this is the {layout} layout's rank {rank}, the site declares {origin.layout} and this is rank {shard.rank}"
    return Judged(WRONG_HEADER if layout == origin.layout else OTHER_LAYOUT, said)


def _manifest(path: Path, origin: Origin) -> tuple[Manifest | None, str]:
    """(the manifest that belongs to the shard, what is wrong with the one that is there)."""
    try:
        manifest = shard_manifest.parse(read_bounded(manifest_path(path), shard_manifest.MAX_BYTES))
    except FileNotFoundError:
        return None, ""
    except ValueError as error:
        return None, f"its manifest is damaged: {str(error)[:200]}"
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return None, f"its manifest is damaged: {error.strerror}"
    difference = manifest.difference(origin)
    return (manifest, "") if difference is None else (None, f"by its manifest {difference}")


def sample(shard: Shard) -> list[int]:
    """Rows of the layer to compare, ascending; always the same ones of a file's name and size."""
    rows = range(shard.first_row, shard.end_row)
    return sorted(random.Random(f"{shard.name} {shard.size}").sample(rows, min(SAMPLED_ROWS, len(rows))))


def _first_other_sample(descriptor: int, origin: Origin) -> tuple[int, int] | None:
    """(row, byte of it) of the first sampled row that differs."""
    shard = origin.shard
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    with engram_tables.open_rows(origin.table) as rows:
        for row in sample(shard):
            expected = rows.row(row)
            observed = os.pread(descriptor, ROW_BYTES, HEADER_BYTES + (row - shard.first_row) * ROW_BYTES)
            if observed != expected:
                pairs = zip(expected, observed, strict=False)
                return row, next((i for i, (a, b) in enumerate(pairs) if a != b), len(observed))
    return None


def _first_other_row(descriptor: int, origin: Origin, work: Work) -> tuple[int, int] | None:
    shard = origin.shard
    rows = (shard.first_row, shard.end_row)
    progress = work.progress(shard.name, "compare")
    return native_pack.compare(
        origin.table.source,
        HEADER_BYTES,
        *rows,
        descriptor,
        threads=THREADS,
        limit_bytes_s=work.limit,
        progress=progress,
    )


def _first_other_chunk(descriptor: int, origin: Origin, manifest: Manifest, work: Work) -> str | None:
    found = hashes(descriptor, origin, work)
    for number, (wanted, digest) in enumerate(zip(manifest.chunks, found, strict=True)):
        if wanted != digest:
            begin = number * native_pack.CHUNK_BYTES
            end = min(begin + native_pack.CHUNK_BYTES, origin.shard.size)
            return f"bytes {begin} to {end} do not have the hash of the manifest (chunk {number})"
    return None


def hashes(descriptor: int, origin: Origin, work: Work) -> tuple[str, ...]:
    """BLAKE3 of every chunk of the file."""
    shard = origin.shard
    progress = work.progress(shard.name, "hash")
    found = native_pack.hash_file(descriptor, shard.size, threads=THREADS, limit_bytes_s=work.limit, progress=progress)
    return found.chunk_hashes


def refuse_moved_directory(directory: Path) -> None:
    """A link would let the agent check one place and the container mount another later."""
    real = Path(os.path.realpath(directory))
    if real != directory:
        raise _link_error(directory, f"a link leads to {real}")
    if directory.exists() and not directory.is_dir():
        raise _link_error(directory, "no directory")


def _refuse_linked_file(directory: Path, path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise _link_error(path, f"a link to {path.readlink()}")
    if not stat.S_ISREG(found.st_mode):
        raise _link_error(path, "no regular file")
    if found.st_dev != directory.stat().st_dev or _is_mounted(path):
        raise _link_error(path, "another mount")


def _is_mounted(path: Path) -> bool:
    """A file of the same file system may be bind-mounted over another; only the mount table shows it."""
    text = MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    return any(mount.target == str(path) for mount in parse_mounts(text))


def _link_error(path: Path, observed: str) -> AgentError:
    return AgentError(
        "TS-ENGRAM-LINK",
        "a shard's place is not what it seems",
        where=str(path),
        expected="a directory and regular files in it, reached without links or mounts in between",
        observed=observed,
        remedy="put the files themselves there, or give the real directory",
    )
