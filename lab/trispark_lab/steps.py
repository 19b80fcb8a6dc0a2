"""What rank 0 tells the other ranks, and how every rank runs it."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .collective import Collective
from .model import RankModel
from .switches import Acknowledgement, Order, RankSwitches, exchange

FORWARD, PING, WARMED, GOODBYE, SWITCH = 0, 1, 2, 3, 4
MAX_ROWS = 2048
"""Rows computed at a time: bounds the memory of a step and the size of a message between ranks."""
_COUNTS = struct.Struct("<II")


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one request: `history` (the max n-gram - 1 ids before), `tokens`, and which rows of
    `tokens` need logits: the last `logit_rows`. Only the first `live` rows are computed as themselves (0: all); the
    others are copies of the first row, the anchor, and only fill the rectangle."""

    history: tuple[int, ...]
    tokens: tuple[int, ...]
    logit_rows: int
    live: int = 0


def encode(segments: Sequence[Segment]) -> bytes:
    """Payload of a FORWARD broadcast: counts, (length, logit rows, live) of each segment, then all ids as int32."""
    sizes = np.array([(len(item.tokens), item.logit_rows, item.live) for item in segments], dtype=np.int32)
    ids = np.array([token for item in segments for token in (*item.history, *item.tokens)], dtype=np.int32)
    return _COUNTS.pack(len(segments), ids.size) + sizes.tobytes() + ids.tobytes()


def decode(payload: bytes, history: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(windows [T, history + 1] newest first, logit rows) of a FORWARD payload."""
    count, total = _COUNTS.unpack_from(payload)
    sizes = np.frombuffer(payload, dtype=np.int32, count=3 * count, offset=_COUNTS.size).reshape(count, 3)
    ids = np.frombuffer(payload, dtype=np.int32, count=total, offset=_COUNTS.size + sizes.nbytes).astype(np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(ids, history + 1)[:, ::-1]
    rows: list[npt.NDArray[np.int64]] = []
    wanted: list[npt.NDArray[np.int64]] = []
    start = position = 0
    for length, logit_rows, live in sizes.tolist():
        places = np.arange(start, start + length)
        if live:
            places[live:] = start
        rows.append(places)
        wanted.append(np.arange(position + length - logit_rows, position + length))
        start += length + history
        position += length
    return windows[np.concatenate(rows)], np.concatenate(wanted)


class StepRunner:
    """Rank 0's side of a step: tell all ranks, run the own share, give the summed logits."""

    def __init__(self, model: RankModel, collective: Collective) -> None:
        self._model = model
        self._collective = collective
        self._history = model.config.max_ngram - 1

    def forward(self, segments: Sequence[Segment]) -> npt.NDArray[np.float32]:
        """Logits [sum of logit_rows, V], in the order of the segments."""
        payload = encode(segments)
        self._collective.broadcast("tokens of the step", FORWARD, payload)
        return run_forward(self._model, payload, self._history)

    def ping(self) -> None:
        """All ranks answer; finds a lost rank while no request runs."""
        self._collective.broadcast("idle ping", PING, b"")
        self._collective.barrier("idle ping")

    def switch(self, switches: RankSwitches, order: Order) -> dict[int, Acknowledgement]:
        """All ranks turn a switch between two steps; {rank: what it says}. RankFailure when one says nothing."""
        self._collective.broadcast("switch", SWITCH, order.encode())
        return exchange(switches, self._collective, order)

    def warmed(self) -> None:
        """Tell the other ranks that the head is ready."""
        self._collective.broadcast("warmed", WARMED, b"")

    def goodbye(self) -> None:
        """Tell the other ranks to end."""
        self._collective.broadcast("goodbye", GOODBYE, b"")


def run_forward(model: RankModel, payload: bytes, history: int) -> npt.NDArray[np.float32]:
    """One forward from a FORWARD payload, in pieces of MAX_ROWS rows; all ranks cut alike."""
    windows, wanted = decode(payload, history)
    parts = []
    for first in range(0, len(windows), MAX_ROWS):
        inside = wanted[(wanted >= first) & (wanted < first + MAX_ROWS)] - first
        parts.append(model.forward(windows[first : first + MAX_ROWS], inside))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
