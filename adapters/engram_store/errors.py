"""What the row store refuses or cannot do, as one line with a stable id."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Code(IntEnum):
    """Which kind of failure; LIBRARY alone is of the binding, the others are of the library."""

    LIBRARY = 0
    ARGUMENT = 1
    OPEN = 2
    KIND = 3
    NO_DIRECT = 4
    HEADER = 5
    SIZE = 6
    HOLES = 7
    ID = 8
    READ = 9
    SHORT = 10
    BACKEND = 11
    MEMORY = 12
    FORKED = 13
    CLOSED = 14


PACK_AGAIN = "find out why, then pack this shard again"


@dataclass(frozen=True)
class Kind:
    """Of all errors of one code; a line says `what` more exactly."""

    id: str
    what: str
    remedy: str


_KINDS = {
    Code.LIBRARY: Kind(
        "TS-STORE-LIBRARY",
        "the built row store of this machine is missing, or not the one of the manifest",
        remedy="stage the generation again from a whole checkout",
    ),
    Code.ARGUMENT: Kind(
        "TS-STORE-ARGUMENT", "a call or an option of the row store is wrong", remedy="correct the caller"
    ),
    Code.OPEN: Kind(
        "TS-STORE-OPEN",
        "a shard or the checkpoint cannot be opened",
        remedy="mount the directory that holds it, or pack it",
    ),
    Code.KIND: Kind("TS-STORE-KIND", "a shard is a directory or a special file", remedy="put the file itself there"),
    Code.NO_DIRECT: Kind(
        "TS-STORE-DIRECT",
        "the file system refuses direct reads",
        remedy="keep shards on a local disk file system such as ext4 or XFS",
    ),
    Code.HEADER: Kind("TS-STORE-HEADER", "a shard is of another layer, rank, size or format", remedy=PACK_AGAIN),
    Code.SIZE: Kind("TS-STORE-SIZE", "a shard or the checkpoint is too short or too long", remedy=PACK_AGAIN),
    Code.HOLES: Kind(
        "TS-STORE-HOLES",
        "a shard has a range that was never written and would read as rows of zeros",
        remedy="pack it again; a copy is made with cp --sparse=never",
    ),
    Code.ID: Kind(
        "TS-STORE-ID",
        "a row was asked for that this rank does not own; nothing was read",
        remedy="correct the caller: it asks for rows of another rank or of no row at all",
    ),
    Code.READ: Kind(
        "TS-STORE-READ", "a read failed", remedy="look at the kernel's log for the disk, then start all ranks again"
    ),
    Code.SHORT: Kind(
        "TS-STORE-SHORT",
        "a read ended early: the file was truncated while it was open",
        remedy="find out who truncated it, pack it again, start all ranks again",
    ),
    Code.BACKEND: Kind(
        "TS-STORE-BACKEND",
        "io_uring was asked for and cannot be used here",
        remedy="allow io_uring to the container, or ask for threads",
    ),
    Code.MEMORY: Kind(
        "TS-STORE-MEMORY",
        "the row store gets no memory or no threads",
        remedy="ask for a smaller cache or fewer readers",
    ),
    Code.FORKED: Kind(
        "TS-STORE-FORKED",
        "a child process used the row store of its parent",
        remedy="open the store in the process that uses it",
    ),
    Code.CLOSED: Kind("TS-STORE-CLOSED", "the row store is closed", remedy="open it again"),
}


class StoreError(Exception):
    """`code` is the kind, `errno` the system's number or 0, `offset` the place in the file.

    `offset`, `expected` and `observed` are -1 where they are no number; `str()` has them in words, with the path.
    """

    def __init__(
        self, code: Code, text: str, errno: int = 0, offset: int = -1, expected: int = -1, observed: int = -1
    ) -> None:
        kind = _KINDS[code]
        super().__init__(" ".join(f"{kind.id}: {text}; do: {kind.remedy}".split()))
        self.id = kind.id
        self.code = code
        self.text = text
        self.errno = errno
        self.offset = offset
        self.expected = expected
        self.observed = observed
