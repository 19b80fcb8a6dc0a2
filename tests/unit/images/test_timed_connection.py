"""A peer whose bytes each come long before a wait would be too long cannot hold a call beyond its deadline."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from trispark.images.registry import HttpTransport

BEGIN_S = 0.3
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
HANDSHAKE = b"\x16\x03\x03\x3f\xff"
"""The head of a TLS record of 16383 bytes."""


@contextmanager
def dripping(begin: bytes) -> Iterator[int]:
    """Port of a peer that says `begin`, then a byte every 20 ms. Within its 10 s the caller must have hung up."""
    gone = False
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            nonlocal gone
            connection, _ = listening.accept()
            with connection:
                try:
                    connection.sendall(begin)
                    for _ in range(500):
                        time.sleep(0.02)
                        connection.sendall(b"x")
                except OSError:
                    gone = True

        peer = threading.Thread(target=drip)
        peer.start()
        yield listening.getsockname()[1]
        peer.join(60)
    assert gone


def given_up(address: str) -> None:
    with pytest.raises(TimeoutError, match="not done within"):
        HttpTransport(address, timeout_s=60, begin_s=BEGIN_S).call("GET", "/v2/")


@pytest.mark.parametrize("begin", [b"", SIZED, CLOSING], ids=["head", "body", "body until it hangs up"])
def test_an_answer_that_drips_is_ended(begin: bytes) -> None:
    with dripping(begin) as port:
        given_up(f"127.0.0.1:{port}")


def test_a_call_that_is_late_before_it_is_connected_is_ended_after(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.create_connection

    def slow(*arguments: Any, **more: Any) -> socket.socket:
        time.sleep(2 * BEGIN_S)
        return connect(*arguments, **more)

    monkeypatch.setattr(socket, "create_connection", slow)
    with dripping(SIZED) as port:
        given_up(f"127.0.0.1:{port}")


def test_a_handshake_that_drips_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.create_connection
    with dripping(HANDSHAKE) as port:
        monkeypatch.setattr(socket, "create_connection", lambda _, *more, **named: connect(("127.0.0.1", port), *more))
        given_up(f"registry.example:{port}")
