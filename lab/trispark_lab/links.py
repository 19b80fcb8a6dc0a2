"""Framed messages over the pair links of a full TCP mesh, with deadlines that name the rank which is late."""

import select
import socket
import struct
import time
from collections.abc import Callable, Mapping

from .errors import RankFailure

FRAME = struct.Struct("<IIQ")  # kind, sequence, payload bytes
MAX_PAYLOAD = 256 << 20
POLL_SLICE_S = 0.2


class Incoming:
    """One frame being received from one peer: first its head, then `size` bytes."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._head = bytearray(FRAME.size)
        self.payload: bytearray | None = None
        self.kind = 0
        self.sequence = 0
        self._view = memoryview(self._head)
        self.done = False

    def receive(self, connection: socket.socket) -> bool:
        """Take what is there; False when the peer closed. OSError passes."""
        got = connection.recv_into(self._view)
        if got == 0:
            return False
        self._view = self._view[got:]
        if not self._view and self.payload is None:
            self.kind, self.sequence, size = FRAME.unpack(self._head)
            if size > MAX_PAYLOAD:
                return False
            self.payload = bytearray(size)
            self._view = memoryview(self.payload)
        self.done = self.payload is not None and not self._view
        return True


class Mesh:
    """Connections of this rank to its peers. Every rank calls the same operations in the same order."""

    def __init__(self, rank: int, peers: Mapping[int, socket.socket], step_deadline_s: float) -> None:
        self.rank = rank
        self.world = len(peers) + 1
        self._peers = dict(sorted(peers.items()))
        self._deadline_s = step_deadline_s
        self._sequence = 0
        for connection in self._peers.values():
            connection.setblocking(False)

    @property
    def peers(self) -> tuple[int, ...]:
        """Ranks of the peers, ascending."""
        return tuple(self._peers)

    def exchange(self, what: str, kind: int, payload: memoryview) -> dict[int, bytearray]:
        """Send `payload` to every peer and take theirs, all of the same kind and size."""
        self._sequence += 1
        head = FRAME.pack(kind, self._sequence, payload.nbytes)
        outgoing = {rank: [memoryview(head), payload.cast("B")] for rank in self._peers}
        incoming = {rank: Incoming(rank) for rank in self._peers}
        self._run(what, outgoing, incoming, self._deadline_s)
        return {rank: self._checked(what, item, kind, payload.nbytes) for rank, item in incoming.items()}

    def send_all(self, what: str, kind: int, payload: bytes) -> None:
        """Send to every peer (rank 0's broadcast)."""
        self._sequence += 1
        head = FRAME.pack(kind, self._sequence, len(payload))
        parts = {rank: [memoryview(head), memoryview(payload)] for rank in self._peers}
        self._run(what, parts, {}, self._deadline_s)

    def receive_from(
        self, what: str, rank: int, deadline_s: float, give_up: Callable[[], bool] = lambda: False
    ) -> tuple[int, bytes] | None:
        """(kind, payload) of the next broadcast of `rank`; None when `give_up` says so first."""
        self._sequence += 1
        item = Incoming(rank)
        if not self._run(what, {}, {rank: item}, deadline_s, give_up):
            return None
        payload = self._checked(what, item, item.kind, None)
        return item.kind, bytes(payload)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._peers.values():
            connection.close()

    def _checked(self, what: str, item: Incoming, kind: int, size: int | None) -> bytearray:
        payload = item.payload if item.payload is not None else bytearray()
        if item.sequence != self._sequence or item.kind != kind or (size is not None and len(payload) != size):
            raise RankFailure(
                item.rank,
                "is at another operation",
                where=what,
                expected=f"kind {kind}, sequence {self._sequence}, {size} bytes",
                observed=f"kind {item.kind}, sequence {item.sequence}, {len(payload)} bytes",
            )
        return payload

    def _run(
        self,
        what: str,
        outgoing: dict[int, list[memoryview]],
        incoming: dict[int, Incoming],
        deadline_s: float,
        give_up: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Move bytes until all is sent and received; False when `give_up` became true before that."""
        end = time.monotonic() + deadline_s
        ranks = {self._peers[rank].fileno(): rank for rank in {*outgoing, *incoming}}
        poller = select.poll()
        for descriptor, rank in ranks.items():
            poller.register(descriptor, self._events(rank, outgoing, incoming))
        while outgoing or any(not item.done for item in incoming.values()):
            left = end - time.monotonic()
            late = sorted({*outgoing, *(rank for rank, item in incoming.items() if not item.done)})
            if left <= 0:
                raise RankFailure(
                    late[0],
                    "did not answer" if len(late) == 1 else f"and others {late[1:]} did not answer",
                    where=what,
                    expected=f"an answer within {deadline_s:g} s",
                    observed="the connection is open and silent",
                )
            for descriptor, events in poller.poll(min(left, POLL_SLICE_S) * 1000):
                rank = ranks[descriptor]
                if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    self._receive(what, rank, incoming)
                if events & select.POLLOUT and rank in outgoing:
                    self._send(what, rank, outgoing)
                wanted = self._events(rank, outgoing, incoming)
                if wanted:
                    poller.modify(descriptor, wanted)
                else:
                    poller.unregister(descriptor)
            if any(not item.done for item in incoming.values()) and give_up():
                return False
        return True

    @staticmethod
    def _events(rank: int, outgoing: Mapping[int, object], incoming: Mapping[int, Incoming]) -> int:
        receiving = rank in incoming and not incoming[rank].done
        return (select.POLLOUT if rank in outgoing else 0) | (select.POLLIN if receiving else 0)

    def _receive(self, what: str, rank: int, incoming: dict[int, Incoming]) -> None:
        item = incoming.get(rank)
        if item is None or item.done:
            # Only POLLHUP or POLLERR lead here: the peer is gone while we still send to it.
            raise self._lost(rank, what, "connection closed")
        try:
            while not item.done:
                if not item.receive(self._peers[rank]):
                    raise self._lost(rank, what, "connection closed")
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(rank, what, error.strerror or "connection lost") from error

    def _send(self, what: str, rank: int, outgoing: dict[int, list[memoryview]]) -> None:
        parts = outgoing[rank]
        try:
            sent = self._peers[rank].sendmsg(parts)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(rank, what, error.strerror or "connection lost") from error
        while parts and sent >= parts[0].nbytes:
            sent -= parts.pop(0).nbytes
        if parts:
            parts[0] = parts[0][sent:]
        else:
            del outgoing[rank]

    @staticmethod
    def _lost(rank: int, what: str, observed: str) -> RankFailure:
        return RankFailure(rank, "is gone", where=what, expected="an open connection", observed=observed)
