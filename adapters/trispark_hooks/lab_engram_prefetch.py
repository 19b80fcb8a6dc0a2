"""Engram rows of the lab engine read ahead: the reads of all layers start when the row ids of a forward are known.

A thread reads layer after layer while the engine gathers, sums and projects; `gather` joins the read of its layer. A
read is used only if it was made for exactly the ids that are asked for, else the layer is read synchronously. The
first error turns the prefetch off for this process, with one line in the log (evidence `prefetch.disabled`); the engine
then reads as it would without it. Counted are the time of reads that was over before their join began (hidden) and the
time that gathers waited (exposed). With DSV41_ENGRAM_PREFETCH_CHECK=1 every served gather is read again and compared.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import ModuleType
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from trispark_lab import logs, stats, switches
from trispark_lab.engram import Lookup
from trispark_lab.row_store import LayerRows

Bytes = npt.NDArray[np.uint8]
NAME = "DSV41 Engram prefetch"
JOIN_DEADLINE_S = 5.0
"""Half of the step deadline of the other ranks: a read that hangs is left behind before they give up on this rank."""


class Engram(Protocol):
    """What the adapter needs of `trispark_lab.engram`."""

    attach: Callable[[Sequence[LayerRows]], None]
    ids_known: Callable[[Sequence[Lookup]], None]
    gather: Callable[[Lookup], Bytes]


@dataclass
class Pending:
    """One read in flight; `done` is set when `rows` or `error` is. `began` and `ended` are the read's own seconds."""

    lookup: Lookup
    began: float = 0.0
    ended: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)
    rows: Bytes | None = None
    error: BaseException | None = None


class Prefetch:
    """The three functions that replace the module's own. They are called from the thread of the forward."""

    def __init__(
        self,
        module: Engram,
        check: bool,
        announce: Callable[[str], None] = logs.announce,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._attach, self._ids_known, self._gather = module.attach, module.ids_known, module.gather
        self._check = check
        self._announce = announce
        self._clock = clock
        self._enabled = True
        self._wanted = True
        self._jobs: SimpleQueue[Pending] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending: dict[int, Pending] = {}
        self.differing: dict[int, int] = {}
        """Differing gathers by layer, -1 while nothing was compared."""
        self.served = self.synchronous = 0
        self.hidden_s = self.exposed_s = 0.0
        """Of served gathers: read time that was over before the join began. Of all joins: time that they waited."""
        self._seen = (0, 0)
        self._seen_s = (0.0, 0.0)

    def attach(self, stores: Sequence[LayerRows]) -> None:
        """Say that the prefetch is armed, and for which layers."""
        self._attach(stores)
        layers = [store.shard.layer for store in stores]
        self.differing = dict.fromkeys(layers, -1)
        suffix = ", CHECK" if self._check else ""
        self._announce(f"{NAME} ARMED: layers {layers}, reads start when the row ids are known{suffix}")

    @property
    def on(self) -> bool:
        """Whether reads are started ahead; an error ended that for good."""
        return self._enabled and self._wanted

    def turn(self, on: bool) -> None:
        """Start reads ahead, or leave all of them to the engine's own path; between two forwards alone."""
        self._wanted = on
        self._pending.clear()

    def ids_known(self, lookups: Sequence[Lookup]) -> None:
        """Start the reads of a forward."""
        self._ids_known(lookups)
        self._pending.clear()
        if not self.on:
            return
        try:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="engram-prefetch", daemon=True)
                self._thread.start()
            for lookup in lookups:
                pending = self._pending[lookup.store.shard.layer] = Pending(lookup)
                self._jobs.put(pending)
        except RuntimeError as error:  # no thread could be started
            self._disable(error)

    def gather(self, lookup: Lookup) -> Bytes:
        """Rows of the read that was started for these ids, else of the engine's own path."""
        pending = self._pending.pop(lookup.store.shard.layer, None)
        if pending is not None and self._enabled and _same(pending.lookup, lookup):
            rows = self._join(pending)
            if rows is not None:
                self.served += 1
                if self._check:
                    self._compare(lookup, rows)
                return rows
        self.synchronous += 1
        return self._gather(lookup)

    def lines(self, final: bool) -> list[str]:
        """Stats source: gathers by path and times since the line before, and the comparisons since the start."""
        now = (self.served, self.synchronous)
        delta = (now[0] - self._seen[0], now[1] - self._seen[1])
        if not final and not any(delta):
            return []
        hidden, exposed = self.hidden_s - self._seen_s[0], self.exposed_s - self._seen_s[1]
        self._seen, self._seen_s = now, (self.hidden_s, self.exposed_s)
        times = f"hidden_ms={hidden * 1e3:.3f} exposed_ms={exposed * 1e3:.3f}"
        lines = [f"{NAME} served={delta[0]} synchronous={delta[1]} {times}"]
        if self._check:
            differing = list(self.differing.values())
            lines.append(f"{NAME} CHECK: gathers differing from the synchronous path per layer = {differing}")
        return lines

    def _join(self, pending: Pending) -> Bytes | None:
        """The rows of a read; None after the error that turns the prefetch off."""
        joined = self._clock()
        in_time = pending.done.wait(JOIN_DEADLINE_S)
        self.exposed_s += self._clock() - joined
        if not in_time:
            self._disable(TimeoutError(f"a read took longer than {JOIN_DEADLINE_S:g} s"))
        elif pending.error is not None:
            self._disable(pending.error)
        else:
            self.hidden_s += max(min(pending.ended, joined) - pending.began, 0.0)
        return pending.rows if self._enabled else None

    def _compare(self, lookup: Lookup, rows: Bytes) -> None:
        layer = lookup.store.shard.layer
        differs = not np.array_equal(rows, self._gather(lookup))
        self.differing[layer] = max(self.differing.get(layer, -1), 0) + int(differs)

    def _disable(self, error: BaseException) -> None:
        self._enabled = False
        self._pending.clear()
        self._announce(f"{NAME} disabled after error: {type(error).__name__}: {error}")

    def _serve(self) -> None:
        while True:
            pending = self._jobs.get()
            pending.began = self._clock()
            try:
                if self._enabled:
                    pending.rows = self._gather(pending.lookup)
            except BaseException as error:  # the forward learns of it in `gather` and reads by itself
                pending.error = error
            finally:
                pending.ended = self._clock()
                pending.done.set()


def _same(one: Lookup, other: Lookup) -> bool:
    return one.store is other.store and np.array_equal(one.ids, other.ids)


def install(module: ModuleType) -> None:
    """Replace `attach`, `ids_known` and `gather` of trispark_lab.engram."""
    target = cast(Engram, module)
    prefetch = Prefetch(target, os.environ.get("DSV41_ENGRAM_PREFETCH_CHECK") == "1")
    target.attach = prefetch.attach
    target.ids_known = prefetch.ids_known
    target.gather = prefetch.gather
    stats.register(prefetch.lines)
    switches.register("engram_prefetch", prefetch)
