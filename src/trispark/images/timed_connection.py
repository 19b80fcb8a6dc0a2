"""HTTP connections that end by a deadline, however slowly the peer says or takes its bytes."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

AGAIN_S: Final = 0.5
"""Between two tries to end a call that is late: what is not connected yet cannot be ended."""
_BLOCK: Final = 2**20


class PlainConnection(http.client.HTTPConnection):
    """`held`: the socket from connecting on; http.client forgets its own where a body ends with the connection."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        super().__init__(host, port, timeout=timeout_s, blocksize=_BLOCK)
        self.held: socket.socket | None = None

    def connect(self) -> None:
        super().connect()
        self.held = self.sock


class TlsConnection(http.client.HTTPSConnection):
    """As PlainConnection; `held` is there before the handshake, so that one that drips can be ended too."""

    def __init__(self, host: str, port: int, timeout_s: float, trusted: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=timeout_s, blocksize=_BLOCK, context=trusted)
        self.trusted = trusted
        self.held: socket.socket | None = None

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        wrapped = self.trusted.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
        self.sock = self.held = wrapped
        wrapped.do_handshake()


@contextmanager
def ends_within(connection: PlainConnection | TlsConnection, seconds: float) -> Iterator[None]:
    """A peer that says or takes a byte now and then never runs into a timeout; this ends the connection. OSError."""
    late, ended = threading.Event(), threading.Event()

    def watch() -> None:
        wait = seconds
        while not ended.wait(wait):
            late.set()
            wait = AGAIN_S
            if connection.held is not None:
                with suppress(OSError):
                    socket.socket.shutdown(connection.held, socket.SHUT_RDWR)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError):
        if late.is_set():
            raise TimeoutError(f"not done within {seconds:.0f} s") from None
        raise
    finally:
        ended.set()
    if late.is_set():
        raise TimeoutError(f"not done within {seconds:.0f} s")
