"""One HTTP/1.1 exchange on a connection of its own; every read has its time before anything looks at it.

An HTTP library stamps an answer when its own parser and the reader's task have run, and it sends a request some hundred
microseconds after it was asked to. Here the time of a read is taken first in the socket's callback, and the request's
in the line before the socket gets it. Framing is undone afterwards, when nothing is being timed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from trispark_bench.framing import Body, FramingError, Head, read_head
from trispark_bench.link import READ_BYTES, Link

CONNECT_S = 10.0
FLOWING_READS = 4
"""So many reads hold more than the head and the first event."""
MAX_ANSWER_BYTES = 64 << 20
"""A longer answer is an error: a server that never ends a line would fill the memory."""


class WireError(Exception):
    """The exchange failed; the text says how."""


class Silence(TimeoutError):
    """Nothing came for as long as a request waits."""


@dataclass(frozen=True)
class Target:
    """Where requests go. `prefix`: path of the base URL without its last slash."""

    host: str
    port: int
    prefix: str
    tls: ssl.SSLContext | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, base_url: str, api_key: str | None = None, ca_file: str | None = None) -> Target:
        """Raises ValueError for what is no http(s) URL of a host."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url must be http(s) with a host, not {base_url!r}")
        tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        headers = (("Authorization", f"Bearer {api_key}"),) if api_key else ()
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname, port, parts.path.rstrip("/"), tls, headers)

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The whole request, as it goes out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.prefix}{path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "Accept: */*",
            "Connection: close",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


class Wire(asyncio.BufferedProtocol):
    """A connection that carries one exchange. Times are of CLOCK_MONOTONIC, in nanoseconds.

    Without TLS a Link brings the reads, with the kernel's times. With TLS asyncio does; it reads into a buffer of ours,
    for it would make one of 256 KiB for every read, and the time is that of the read.
    """

    def __init__(self) -> None:
        self.sent_ns = 0
        self.head: Head | None = None
        self._reads: list[tuple[int, bytes]] = []
        self._body: Body | None = None
        self._fed = 0
        self._size = 0
        self._tail = b""
        self._transport: asyncio.Transport | Link | None = None
        self._kernel_stamps = True
        self._buffer = memoryview(bytearray(READ_BYTES))
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._flows: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is a socket's."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, request: bytes) -> None:
        """Stamp and send the request."""
        assert self._transport is not None
        self.sent_ns = time.monotonic_ns()
        self._transport.write(request)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next read goes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Stamp a read of asyncio's."""
        now_ns = time.monotonic_ns()
        self.received(now_ns, bytes(self._buffer[:nbytes]), False)

    def linked(self, link: Link) -> None:
        """The connection is a Link."""
        self._transport = link

    def received(self, at_ns: int, data: bytes, by_kernel: bool) -> None:
        """Keep it, and look only whether this can be the end."""
        self._reads.append((at_ns, data))
        self._kernel_stamps = self._kernel_stamps and by_kernel
        self._size += len(data)
        if len(self._reads) == FLOWING_READS and not self._flows.done():
            self._flows.set_result(None)
        if self._size > MAX_ANSWER_BYTES:
            self._fail(WireError(f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB"))
            return
        self._tail = (self._tail + data)[-4:]
        # A chunked answer ends with an empty line; one of known length is counted; any other ends with the connection.
        if self._body is None or self._body.counted or self._tail == b"\r\n\r\n":
            self._read_on()

    def connection_lost(self, error: Exception | None) -> None:
        """The end of an answer without a length, and the failure of every other."""
        if self._ended.done():
            return
        self._read_on()
        if self._ended.done():
            return
        if self._body is not None and self._body.until_close and error is None:
            self._ended.set_result(None)
        elif error is not None:
            self._fail(WireError(f"the connection broke: {type(error).__name__}: {error}"))
        else:
            begun = "in the middle of its answer" if self._reads else "without an answer"
            self._fail(WireError(f"the server closed the connection {begun}"))

    async def finished(self, silence_s: float) -> None:
        """Wait for the end of the answer. Raises WireError, and Silence when nothing came for `silence_s`."""
        while not self._ended.done():
            last_ns = self._reads[-1][0] if self._reads else self.sent_ns
            left = silence_s - (time.monotonic_ns() - last_ns) / 1e9
            if left <= 0:
                raise Silence(f"nothing came for {silence_s:g} s")
            await asyncio.wait({self._ended}, timeout=left)
        self._ended.result()

    async def flowing(self, silence_s: float) -> None:
        """Wait until the answer is on its way, or is over."""
        await asyncio.wait({self._ended, self._flows}, timeout=silence_s, return_when=asyncio.FIRST_COMPLETED)

    @property
    def ended_ns(self) -> int:
        """When the last read came; the request's time where none did."""
        return self._reads[-1][0] if self._reads else self.sent_ns

    @property
    def stamped_by_kernel(self) -> bool:
        """Whether every read has the kernel's time."""
        return self._kernel_stamps and bool(self._reads)

    def close(self) -> None:
        """End the connection; what came stays."""
        if self._transport is not None:
            self._transport.abort()
        if not self._ended.done():
            self._ended.cancel()
        elif not self._ended.cancelled():
            self._ended.exception()  # looked at, so that asyncio does not complain

    def pieces(self) -> list[tuple[int, bytes]]:
        """(time, bytes) of the answer's body without its framing, as far as it came."""
        return self._body.pieces if self._body is not None else []

    def status(self) -> int:
        """The answer's status; 0 without one."""
        return self.head.status if self.head is not None else 0

    def content(self) -> bytes:
        """The whole body."""
        return b"".join(piece for _, piece in self.pieces())

    def _read_on(self) -> None:
        """Undo the framing of what has come since the last time."""
        try:
            if self._body is None:
                begun = read_head(self._reads)
                if begun is None:
                    return
                self.head, rest = begun
                self._body = Body(self.head)
                self._fed = len(self._reads)
                complete = self._body.feed(rest)
            else:
                fresh = self._reads[self._fed :]
                self._fed = len(self._reads)
                complete = self._body.feed(fresh)
        except FramingError as error:
            self._fail(WireError(f"the answer is not HTTP/1.1: {error}"))
            return
        if complete and not self._ended.done():
            self._ended.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)
        if self._transport is not None:
            self._transport.abort()


async def connected(target: Target) -> Wire:
    """An open connection. Raises WireError."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            if target.tls is not None:
                _, wire = await loop.create_connection(Wire, target.host, target.port, ssl=target.tls)
                return wire
            plain = Wire()
            plain.linked(await Link.connect((target.host, target.port), plain))
            return plain
    except TimeoutError:
        raise WireError(f"no connection within {CONNECT_S:g} s") from None
    except (OSError, ssl.SSLError) as error:
        raise WireError(f"no connection: {type(error).__name__}: {error}") from None


async def fetch(target: Target, path: str, silence_s: float) -> tuple[int, bytes]:
    """(status, body) of a GET. Raises WireError and Silence."""
    wire = await connected(target)
    try:
        wire.send(target.request("GET", path))
        await wire.finished(silence_s)
        return wire.status(), wire.content()
    finally:
        wire.close()
