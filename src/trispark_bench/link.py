"""A plain TCP connection whose reads carry the kernel's time of arrival.

The process may be scheduled milliseconds after a packet came. The kernel noted when it came (SO_TIMESTAMPNS), by the
time of day; what counts is how long ago that was when the read is made, taken off the monotonic clock. A stamp that
lies in the future or long ago (the clock was set) is not used: the time of the read stands then.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

SO_TIMESTAMPNS = 35
"""Of Linux; the socket module has no name for it."""
_TIMESPEC = struct.Struct("@ll")
OLDEST_NS = 1_000_000_000
READ_BYTES = 64 << 10
ANCILLARY_BYTES = 64
Ancillary = Sequence[tuple[int, int, bytes]]


class Receiver(Protocol):
    """Who gets what comes."""

    def received(self, at_ns: int, data: bytes, by_kernel: bool) -> None:
        """Bytes, and when they came."""

    def connection_lost(self, error: Exception | None) -> None:
        """The other side ended it (None), or it broke."""


def arrival_ns(ancillary: Ancillary, monotonic_ns: int, real_ns: int) -> int | None:
    """The monotonic time at which the kernel had the last byte of a read; None without a stamp to trust.

    `monotonic_ns`, `real_ns`: both clocks now.
    """
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            age_ns = real_ns - (seconds * 1_000_000_000 + nanoseconds)
            return monotonic_ns - age_ns if 0 <= age_ns <= OLDEST_NS else None
    return None


@contextmanager
def kernel_stamps() -> Iterator[None]:
    """Keeps the kernel noting times. It begins some time after a first socket asks, and ends with the last one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        with suppress(OSError):
            holder.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        yield


class Link:
    """Reads and writes one socket for `receiver`; everything happens in the loop's thread."""

    def __init__(self, connection: socket.socket, receiver: Receiver) -> None:
        self._socket = connection
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(READ_BYTES)
        self._unsent = b""
        self._last_ns = 0
        self._open = True
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):  # without it the time of the read stands
            connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._loop.add_reader(connection, self._readable)

    @classmethod
    async def connect(cls, address: tuple[str, int], receiver: Receiver) -> Link:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        problem: OSError | None = None
        for family, kind, number, _, place in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
            connection = socket.socket(family, kind, number)
            try:
                connection.setblocking(False)
                await loop.sock_connect(connection, place)
                return cls(connection, receiver)
            except OSError as error:
                problem = error
                connection.close()
            except BaseException:
                connection.close()
                raise
        raise problem or OSError("no address")

    def write(self, data: bytes) -> None:
        """Send at once what the socket takes, and the rest when it takes more."""
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._end(error)
            return
        if sent < len(data):
            self._unsent = data[sent:]
            self._loop.add_writer(self._socket, self._writable)

    def abort(self) -> None:
        """Close it; nobody is told."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket)
        self.write(self._unsent)

    def _readable(self) -> None:
        try:
            size, ancillary, _, _ = self._socket.recvmsg_into([self._buffer], ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        real_ns, now_ns = time.time_ns(), time.monotonic_ns()
        if size == 0:
            self._end(None)
            return
        stamp = arrival_ns(ancillary, now_ns, real_ns)
        self._last_ns = max(self._last_ns, now_ns if stamp is None else stamp)
        self._receiver.received(self._last_ns, bytes(memoryview(self._buffer)[:size]), stamp is not None)

    def _end(self, error: OSError | None) -> None:
        self.abort()
        self._receiver.connection_lost(error)
