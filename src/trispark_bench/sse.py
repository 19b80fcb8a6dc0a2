"""Events of a `text/event-stream` body, each with the time at which its last byte came and its size."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trispark_bench.framing import Piece

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """`data`: its data lines joined by line feeds; empty for one that has none. `size`: its bytes with the empty line.

    `at_ns`: when the read came that holds its last byte.
    """

    at_ns: int
    size: int
    data: bytes


def events(pieces: Sequence[Piece]) -> tuple[list[Event], bytes]:
    """(the events, what follows the last one: an event that did not end).

    Nothing here depends on where the reads were cut, but for the times.
    """
    body = b"".join(data for _, data in pieces)
    ends = list(itertools.accumulate(len(data) for _, data in pieces))
    found: list[Event] = []
    begin = place = len(_BOM) if body.startswith(_BOM) else 0
    lines: list[bytes] = []
    while (match := _LINE_END.search(body, place)) is not None:
        line = body[place : match.start()]
        place = match.end()
        if line:
            if line.startswith(b"data"):
                name, _, value = line.partition(b":")
                if name == b"data":
                    lines.append(value.removeprefix(b" "))
            continue
        if lines:
            at_ns = pieces[bisect.bisect_left(ends, place)][0]
            found.append(Event(at_ns, place - begin, b"\n".join(lines)))
            lines = []
            begin = place
    # Comments and empty lines between events count to the event that they stand before.
    return found, body[begin:] if lines or body[place:] else b""
