"""HTTP/1.1 answers: the head, and the body without its framing but with the time of each read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_HEAD_BYTES = 64 << 10
MAX_SIZE_LINE = 1 << 10
Piece = tuple[int, bytes]
"""(time of the read in nanoseconds, bytes)."""


class FramingError(ValueError):
    """The bytes are no answer of HTTP/1.1."""


@dataclass(frozen=True)
class Head:
    """Status and headers (lower case; of repeated ones the last)."""

    status: int
    headers: dict[str, str]

    @property
    def chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def length(self) -> int | None:
        """The body's length where the head tells it. Raises FramingError."""
        text = self.headers.get("content-length")
        if self.status in (204, 304):
            return 0
        if text is None or self.chunked:
            return None
        if not text.isascii() or not text.isdigit():
            raise FramingError(f"Content-Length is {text!r}")
        return int(text)


def read_head(reads: Sequence[Piece]) -> tuple[Head, list[Piece]] | None:
    """The head and the pieces after it; None as long as it is not complete. Interim answers (1xx) are skipped.

    Raises FramingError.
    """
    data = b"".join(piece for _, piece in reads)
    begin = 0
    while True:
        end = data.find(b"\r\n\r\n", begin)
        if end < 0:
            if len(data) - begin > MAX_HEAD_BYTES:
                raise FramingError(f"a head of more than {MAX_HEAD_BYTES >> 10} KiB")
            if data[begin : begin + 5] != b"HTTP/"[: len(data) - begin]:
                raise FramingError(f"it begins with {data[begin : begin + 20]!r}")
            return None
        head = _parsed(data[begin:end])
        begin = end + 4
        if not 100 <= head.status < 200:
            return head, _after(reads, begin)


def _parsed(raw: bytes) -> Head:
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or len(code) != 3 or not code.isdigit():
        raise FramingError(f"the status line is {first[:80]!r}")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise FramingError(f"a header is {line[:80]!r}")
        headers[name.strip().lower()] = value.strip()
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise FramingError(f"the body is encoded: {headers['content-encoding']}")
    return Head(int(code), headers)


def _after(reads: Sequence[Piece], offset: int) -> list[Piece]:
    left = []
    for at_ns, data in reads:
        if offset < len(data):
            left.append((at_ns, data[offset:]))
        offset = max(0, offset - len(data))
    return left


class Body:
    """Takes reads, keeps `pieces`: the same bytes without framing, each with the time of the read that brought it."""

    def __init__(self, head: Head) -> None:
        self.pieces: list[Piece] = []
        self.until_close = not head.chunked and head.length is None
        self.counted = head.length is not None
        self._chunked = head.chunked
        self._left = head.length or 0
        self._line = b""
        self._state = "size"

    def feed(self, reads: Sequence[Piece]) -> bool:
        """Whether the body is complete. Raises FramingError."""
        if self.until_close:
            self.pieces += reads
            return False
        if not self._chunked:
            for at_ns, data in reads:
                if len(data) > self._left:
                    raise FramingError("the body is longer than its Content-Length")
                self._left -= len(data)
                if data:
                    self.pieces.append((at_ns, data))
            return self._left == 0
        for at_ns, data in reads:
            self._unchunk(at_ns, data)
        return self._state == "end"

    def _unchunk(self, at_ns: int, data: bytes) -> None:
        place = 0
        while place < len(data):
            if self._state == "data":
                taken = data[place : place + self._left]
                self.pieces.append((at_ns, taken))
                place += len(taken)
                self._left -= len(taken)
                if not self._left:
                    self._state = "after"
                continue
            end = data.find(b"\n", place)
            self._line += data[place : len(data) if end < 0 else end]
            place = len(data) if end < 0 else end + 1
            if len(self._line) > MAX_SIZE_LINE:
                raise FramingError("a chunk's size line does not end")
            if end >= 0:
                line, self._line = self._line.removesuffix(b"\r"), b""
                self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        if self._state == "after":
            if line:
                raise FramingError(f"after a chunk comes {line[:20]!r}")
            self._state = "size"
        elif self._state == "size":
            digits = line.partition(b";")[0].strip()
            if not digits or digits.strip(b"0123456789abcdefABCDEF"):
                raise FramingError(f"a chunk's size is {line[:20]!r}")
            self._left = int(digits, 16)
            self._state = "data" if self._left else "trailer"
        elif self._state == "trailer":
            self._state = "trailer" if line else "end"
        else:
            raise FramingError("bytes follow the last chunk")
