"""Whether each Engram layer is served from its packed shard, by the engine's own log lines, in bounded time.

The engine says it once a layer when it starts, and again in each line of counters; it may fall back later. So the
beginning of the log and its last lines are read, never the whole of a log that may have no end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from trispark_node.clock import Clock
from trispark_node.log_patterns import matching_lines
from trispark_node.node import Node
from trispark_node.redaction import TextRedactor

LINE = r"\bEngram layer=(\d+) .*\bpacked=(True|False)\b"
HEAD_BYTES = 4 * 2**20
HEAD_S = 0.7
"""How long the beginning is read at most: Docker hands a log out line by line."""
TAIL_LINES = 200


def packed(node: Node, container_id: str, layers: Sequence[int]) -> dict[str, bool | None]:
    """{layer: whether every line about it that was read says packed; None when none was found}."""
    found: dict[int, bool] = {}
    pieces = _beginning(node.docker.log(container_id), node.clock)
    for line in matching_lines(pieces, (LINE,), TextRedactor(())):
        _note(line, found)
        if set(layers) <= set(found):
            break
    for line in matching_lines(node.docker.log(container_id, tail=TAIL_LINES), (LINE,), TextRedactor(())):
        _note(line, found)
    return {str(layer): found.get(layer) for layer in sorted({*layers, *found})}


def _note(line: bytes, found: dict[int, bool]) -> None:
    match = re.search(LINE, line.decode("utf-8", "replace"))
    if match is not None:
        layer = int(match[1])
        found[layer] = found.get(layer, True) and match[2] == "True"


def _beginning(pieces: Iterable[bytes], clock: Clock) -> Iterable[bytes]:
    deadline, left = clock.monotonic() + HEAD_S, HEAD_BYTES
    for piece in pieces:
        yield piece[:left]
        left -= len(piece)
        if left <= 0 or clock.monotonic() >= deadline:
            return
