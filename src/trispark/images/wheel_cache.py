"""Wheels kept below .trispark/cache/images: fetched once, in pieces, and only ever given out with the locked hash.

What a broken fetch left is gone on with, where the index allows ranges; nothing but whole files with the right hash has
the final name.
"""

from __future__ import annotations

import hashlib
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final

from trispark.errors import TrisparkError
from trispark.host.locks import alone
from trispark.host.machine import LocalMachine, Machine, Say
from trispark.host.state import state_directory
from trispark.images.lock_model import WheelEntry
from trispark.images.package_index import IndexFile, PackageIndex, Stream

PLACE: Final = "cache/images"
PIECE: Final = 1 << 20
LARGEST: Final = 4 * 2**30
"""Bytes of a file whose size the index does not state."""
SLOWEST: Final = 64 * 1024
"""Bytes a second; a fetch that is slower on the whole is given up, and gone on with by the next one."""
BEGIN_S: Final = 120.0
RESERVE: Final = 512 * 2**20
"""Bytes that stay free on the disk."""
ATTEMPTS: Final = 3
BUSY_S: Final = 900.0


@dataclass(frozen=True)
class Fetched:
    """`resumed`: bytes that were there from an earlier fetch; `fetched`: bytes that came now; `seconds` for them."""

    path: Path
    resumed: int
    fetched: int
    seconds: float


class WheelCache:
    """The wheels of one checkout."""

    def __init__(self, root: Path, say: Say, machine: Machine | None = None) -> None:
        self.folder = state_directory(root) / PLACE
        self._say = say
        self._machine = machine or LocalMachine()

    def kept(self, entry: WheelEntry) -> Path | None:
        """The file with the locked hash, read whole; None where there is none."""
        if entry.file is None:
            return None
        path = self.folder / entry.file
        return path if path.is_file() and sha256_of(path) == entry.sha256 else None

    def fetch(self, entry: WheelEntry, index: PackageIndex) -> Fetched:
        """Raises TS-IMAGES-HASH, -INDEX, -FETCH, -DISK, -FETCHING (another process fetches and does not end)."""
        assert entry.file is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        waiting = {"doing": "fetch of wheels", "wait_s": BUSY_S, "say": self._say, "machine": self._machine}
        with alone(self.folder / "lock", error_id="TS-IMAGES-FETCHING", **waiting):  # type: ignore[arg-type]
            if (path := self.kept(entry)) is not None:
                return Fetched(path, path.stat().st_size, 0, 0.0)
            offered = next((file for file in index.files(entry.project) if file.name == entry.file), None)
            if offered is None:
                raise _fetch_error(entry.file, "the index does not have it")
            return self._fetch(entry, offered, index)

    def _fetch(self, entry: WheelEntry, offered: IndexFile, index: PackageIndex) -> Fetched:
        file, sha256 = offered.name, str(entry.sha256)
        bound = entry.size or offered.size or LARGEST
        partial = self.folder / f"{file}.{sha256[:12]}.partial"
        self._need_room(bound - (partial.stat().st_size if partial.is_file() else 0))
        begun, before = self._machine.now(), partial.stat().st_size if partial.is_file() else 0
        deadline = begun + BEGIN_S + bound / SLOWEST
        problem = ""
        for _ in range(ATTEMPTS):
            try:
                _append(partial, bound, lambda start: _open(index, offered, start), self._machine.now, deadline)
            except (OSError, EOFError, HTTPException) as error:
                problem = f"status {error.code}" if isinstance(error, urllib.error.HTTPError) else str(error)
                if self._machine.now() >= deadline:
                    break
                continue
            observed = sha256_of(partial)
            if observed != sha256:
                partial.unlink()
                raise _hash_error(file, sha256, observed)
            size = partial.stat().st_size
            partial.replace(self.folder / file)
            came = size - before if size >= before else size
            return Fetched(self.folder / file, before, came, self._machine.now() - begun)
        raise _fetch_error(file, problem)

    def _need_room(self, more: int) -> None:
        free = self._machine.free_bytes(self.folder)
        if free < more + RESERVE:
            raise TrisparkError(
                "TS-IMAGES-DISK",
                "there is no room for a wheel",
                where=str(self.folder),
                expected=f"{(more + RESERVE) // 2**20} MiB free",
                observed=f"{free // 2**20} MiB free",
                remedy="make room there; .trispark/cache/images may always be removed",
            )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open(index: PackageIndex, offered: IndexFile, start: int) -> Stream:
    ranged = {"Range": f"bytes={start}-"} if start else {}
    return index.http.get(offered.url, {"Accept-Encoding": "identity", **offered.headers, **ranged})


def _append(
    partial: Path, bound: int, opened: Callable[[int], Stream], now: Callable[[], float], deadline: float
) -> None:
    """Go on with `partial` until the peer ends. Raises OSError, EOFError (too much, too little, too slow)."""
    start = partial.stat().st_size if partial.is_file() else 0
    if start == bound:
        return
    if start > bound:
        partial.unlink()
        start = 0
    try:
        stream = opened(start)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the peer does not have that much: what is kept is of another file
            partial.unlink(missing_ok=True)
        raise
    try:
        # A peer that knows no ranges sends the whole file again.
        goes_on = start > 0 and stream.status == 206
        stated = stream.headers.get("Content-Length")
        length = int(stated) if isinstance(stated, str) and stated.isdecimal() else None
        size = start if goes_on else 0
        whole = None if length is None else size + length
        with partial.open("ab" if goes_on else "wb") as file:
            while piece := stream.read(PIECE):
                size += len(piece)
                if size > bound:
                    break
                file.write(piece)
                if now() >= deadline:
                    raise EOFError(f"slower than {SLOWEST // 1024} KiB a second")
    finally:
        stream.close()
    if size > bound:
        partial.unlink()
        raise EOFError(f"more than the {bound} bytes that are locked")
    if whole is not None and size < whole:
        raise EOFError(f"it ended after {size} of {whole} bytes")


def _fetch_error(file: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-IMAGES-FETCH",
        "a wheel could not be fetched",
        where=file,
        expected="the whole file from pip's package index",
        observed=observed or "no answer",
        remedy="check the network, then run the same command again; it goes on where it ended",
    )


def _hash_error(file: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-IMAGES-HASH",
        "a wheel is another file than the locked one",
        where=file,
        expected=expected,
        observed=observed,
        remedy="find out what pip is configured to give in its place",
    )
