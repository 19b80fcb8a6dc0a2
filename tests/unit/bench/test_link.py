"""The kernel's time of arrival on the monotonic clock, and a socket that takes a request piece by piece."""

from __future__ import annotations

import asyncio
import socket
import struct
import time

import pytest

from trispark_bench.link import OLDEST_NS, SO_TIMESTAMPNS, Link, arrival_ns, kernel_stamps

NOW, REAL = 5_000_000_000_000, 1_800_000_000_123_456_789


def stamp(real_ns: int, kind: int = SO_TIMESTAMPNS, level: int = socket.SOL_SOCKET) -> tuple[int, int, bytes]:
    return level, kind, struct.pack("@ll", *divmod(real_ns, 10**9))


@pytest.mark.parametrize(
    ("ancillary", "expected"),
    [
        ([], None),
        ([stamp(REAL)], NOW),
        ([stamp(REAL - 1)], NOW - 1),
        ([stamp(REAL - 7_000_000)], NOW - 7_000_000),
        ([stamp(REAL - OLDEST_NS)], NOW - OLDEST_NS),
        ([stamp(REAL - OLDEST_NS - 1)], None),
        ([stamp(REAL + 1)], None),
        ([stamp(REAL, kind=29)], None),
        ([stamp(REAL, level=6)], None),
        ([(socket.SOL_SOCKET, SO_TIMESTAMPNS, b"1234")], None),
        ([stamp(REAL, kind=29), stamp(REAL - 5)], NOW - 5),
    ],
    ids=["none", "now", "1 ns", "7 ms", "oldest", "too old", "future", "kind", "level", "short", "second"],
)
def test_a_stamp_is_an_age_on_the_monotonic_clock(ancillary: list, expected: int | None) -> None:
    assert arrival_ns(ancillary, NOW, REAL) == expected


class Taker:
    def __init__(self) -> None:
        self.reads: list[tuple[int, bytes, bool]] = []
        self.lost: list[Exception | None] = []
        self.came = asyncio.get_running_loop().create_future()
        self.ended = asyncio.get_running_loop().create_future()

    def received(self, at_ns: int, data: bytes, by_kernel: bool) -> None:
        self.reads.append((at_ns, data, by_kernel))
        if not self.came.done():
            self.came.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)
        self.ended.set_result(None)


def test_a_read_has_the_time_at_which_it_came_not_at_which_it_was_made() -> None:
    """Sent while the loop is kept busy for 30 ms. The kernel begins to note times some time after it is asked to."""

    async def late_by_ns() -> int | None:
        here, there = socket.create_server(("127.0.0.1", 0)), Taker()
        link = await Link.connect(here.getsockname()[:2], there)
        peer, _ = here.accept()
        peer.send(b"x")
        sent_ns = time.monotonic_ns()
        while time.monotonic_ns() < sent_ns + 30_000_000:
            pass
        await there.came
        peer.close()
        link.abort()
        here.close()
        (read,) = there.reads
        assert read[1] == b"x"
        return read[0] - sent_ns if read[2] else None

    with kernel_stamps():
        late = [asyncio.run(late_by_ns()) for _ in range(10)]
    if None not in late:  # a kernel without it gives the time of the read
        assert min(each for each in late if each is not None) < 20_000_000


def test_a_large_request_goes_out_whole() -> None:
    async def talk() -> int:
        here, there = socket.create_server(("127.0.0.1", 0)), Taker()
        here.setblocking(False)
        link = await Link.connect(here.getsockname()[:2], there)
        loop = asyncio.get_running_loop()
        peer, _ = await loop.sock_accept(here)
        link.write(b"y" * (8 << 20))
        size = 0
        while size < 8 << 20:
            size += len(await loop.sock_recv(peer, 1 << 20))
        peer.close()
        await there.ended
        link.abort()
        here.close()
        return size

    assert asyncio.run(talk()) == 8 << 20


def test_a_refused_connection_is_an_error() -> None:
    async def talk() -> None:
        here = socket.create_server(("127.0.0.1", 0))
        place = here.getsockname()[:2]
        here.close()
        await Link.connect(place, Taker())

    with pytest.raises(ConnectionRefusedError):
        asyncio.run(talk())
