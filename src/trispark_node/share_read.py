"""Known byte ranges of a checkpoint: what the head reads, and whether another node reads the same."""

from __future__ import annotations

import errno
import hashlib
import os
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trispark_node.canonical import canonical_json, sha256_hex
from trispark_node.fields import NAME, Fields
from trispark_node.regular_file import open_regular
from trispark_node.safetensors import MAX_HEADER_BYTES

WEIGHTS = ".safetensors"
CONFIG = "config.json"
HEAD_BYTES = 64 * 2**20
"""How much of a JSON file, such as config.json or the index, is hashed: in practice all of it."""
RANGE_BYTES = 64 * 2**10
MAX_RANGES = 1024
"""Of one file."""
_PIECE_BYTES = 2**20
STALE = frozenset(
    number
    for name in ("ESTALE", "ENOTCONN", "EIO", "ECONNABORTED", "ECONNRESET", "EHOSTDOWN", "ETIMEDOUT", "EREMOTEIO")
    if (number := getattr(errno, name, None)) is not None
)
"""What a network file system answers when its server is gone or has another idea of the file."""


@dataclass(frozen=True)
class Range:
    offset: int
    length: int
    sha256: str


@dataclass(frozen=True)
class File:
    """One file of the checkpoint. `head`: hash of its header (weights) or of its content (JSON, without ranges)."""

    name: str
    size: int
    head: str
    ranges: tuple[Range, ...]

    @classmethod
    def parse(cls, fields: Fields) -> File:
        ranges = tuple(
            Range(item.integer("offset"), item.integer("length", high=RANGE_BYTES), item.text("sha256"))
            for item in fields.inners("ranges")
        )
        file = cls(fields.text("name", pattern=NAME), fields.integer("size"), fields.text("head"), ranges)
        fields.done()
        return file


@dataclass(frozen=True)
class Difference:
    """The first one found. `kind`: export, revision or content."""

    kind: str
    where: str
    expected: str
    observed: str


def parse_files(fields: Fields) -> tuple[File, ...]:
    return tuple(File.parse(item) for item in fields.inners("files"))


def as_json(files: Iterable[File]) -> list[dict[str, Any]]:
    return [asdict(file) for file in files]


def revision(files: Iterable[File]) -> str:
    """16 hex digits over names, sizes and headers: what tells one checkpoint from another without reading its data."""
    return sha256_hex(canonical_json(sorted([file.name, file.size, file.head] for file in files)))[:16]


def listing(directory: str) -> list[str]:
    return sorted(entry.name for entry in Path(directory).iterdir())


def names(directory: str) -> list[str]:
    """The files that make a checkpoint: weights and JSON, at its top level."""
    return [name for name in listing(directory) if name.endswith((WEIGHTS, ".json")) and NAME.fullmatch(name)]


def read_all(directory: str, seed: str, ranges: int) -> dict[str, Any]:
    """The head's own reading: {"listed", "files"}. Raises OSError."""
    found = names(directory)
    return {"listed": found, "files": as_json(_read(directory, name, seed, ranges) for name in found)}


def read_again(directory: str, files: Iterable[File]) -> dict[str, Any]:
    """{"listed": names here, "files": what this node reads in the places that `files` names; absent ones left out}."""
    listed = listing(directory)
    there = set(listed)
    return {"listed": listed, "files": as_json(_read_places(directory, file) for file in files if file.name in there)}


def _read(directory: str, name: str, seed: str, ranges: int) -> File:
    with _opened(directory, name) as (descriptor, size):
        places = _places(f"{seed} {name} {size}", size, ranges) if name.endswith(WEIGHTS) else []
        return File(name, size, _head(descriptor, name), _hashed(descriptor, places))


def _read_places(directory: str, file: File) -> File:
    with _opened(directory, file.name) as (descriptor, size):
        places = [(each.offset, each.length) for each in file.ranges]
        return File(file.name, size, _head(descriptor, file.name), _hashed(descriptor, places))


@contextmanager
def _opened(directory: str, name: str) -> Iterator[tuple[int, int]]:
    """(descriptor, size), without what this node remembers of the file: it is the server's bytes that count."""
    descriptor = open_regular(Path(directory, name))
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        yield descriptor, os.fstat(descriptor).st_size
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _places(seed: str, size: int, count: int) -> list[tuple[int, int]]:
    """Seeded offsets, the last bytes always among them: a file that was cut or not copied to its end. All of a file
    that is not longer than its ranges."""
    if size <= count * RANGE_BYTES:
        return [(offset, min(RANGE_BYTES, size - offset)) for offset in range(0, size, RANGE_BYTES)]
    chosen = random.Random(seed).sample(range(size - RANGE_BYTES + 1), count - 1)
    return sorted((offset, RANGE_BYTES) for offset in {*chosen, size - RANGE_BYTES})


def _head(descriptor: int, name: str) -> str:
    if not name.endswith(WEIGHTS):
        return _sha256(descriptor, 0, HEAD_BYTES)
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    # Damage is found by comparing, not here: what cannot be a header is hashed as the beginning of a file.
    return _sha256(descriptor, 0, 8 + length if length <= MAX_HEADER_BYTES else RANGE_BYTES)


def _hashed(descriptor: int, places: Iterable[tuple[int, int]]) -> tuple[Range, ...]:
    return tuple(Range(offset, length, _sha256(descriptor, offset, length)) for offset, length in places)


def _sha256(descriptor: int, offset: int, length: int) -> str:
    """Of what is there of these bytes; a short file has another hash than a whole one."""
    digest = hashlib.sha256()
    end = offset + length
    while offset < end:
        piece = os.pread(descriptor, min(_PIECE_BYTES, end - offset), offset)
        if not piece:
            break
        digest.update(piece)
        offset += len(piece)
    return digest.hexdigest()


def compare(expected: Iterable[File], listed: Iterable[str], observed: Iterable[File]) -> Difference | None:
    """The first difference: another directory before another checkpoint before other bytes. None when all is equal."""
    wanted = list(expected)
    here = {file.name: file for file in observed}
    seen = set(listed)
    if not any(file.name in seen for file in wanted):
        shown = ", ".join(sorted(seen)[:3]) or "an empty directory"
        return Difference("export", "", f"{wanted[0].name} and {len(wanted) - 1} more files of the head", shown)
    absent = [file.name for file in wanted if file.name not in here]
    if absent:
        return Difference("revision", absent[0], f"{len(wanted)} files of the head's checkpoint", f"no {absent[0]}")
    surplus = sorted(name for name in seen if name.endswith(WEIGHTS) and name not in here)
    if surplus:
        return Difference("revision", surplus[0], "no such file, the head has none", "a file of another checkpoint")
    for file in wanted:
        found = here[file.name]
        if found.size != file.size:
            return Difference("revision", file.name, f"{file.size} bytes", f"{found.size} bytes")
        if found.head != file.head:
            what = "header" if file.name.endswith(WEIGHTS) else "content"
            return Difference("revision", file.name, f"{what} sha256 {file.head[:16]}", found.head[:16])
    for file in wanted:
        for one, other in zip(file.ranges, here[file.name].ranges, strict=True):
            if one.sha256 != other.sha256:
                place = f"bytes {one.offset} to {one.offset + one.length}"
                return Difference(
                    "content", file.name, f"{place} with sha256 {one.sha256[:16]}", f"sha256 {other.sha256[:16]}"
                )
    return None
