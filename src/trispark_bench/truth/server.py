"""`python3 -m trispark_bench.truth.server SCENARIO.json LOG.jsonl`: the server, on a free port of loopback.

Streams are made before the port is told: while one is made, no other request would be seen to come.

The first line of its output is the port. Each finished request is a line of LOG.jsonl: when it came, and of each write
the time right before and right after it (CLOCK_MONOTONIC, the clock of every process of this machine), when it was due,
and which events it completed. It ends with SIGTERM.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from trispark_bench.link import Link, kernel_stamps
from trispark_bench.truth.schedule import MODEL, WARM_UP, WARM_UP_TOKENS, Scenario, Write, stream_of

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: close\r\n\r\n"
)
HEAD_S = 0.005
REASONS = {429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable"}


class State:
    """What the server has sent so far."""

    def __init__(self, scenario: Scenario, log: TextIO) -> None:
        self.scenario = scenario
        self.requests = 0
        self.tokens = 0
        self.finished = 0
        self.running = 0
        self._log = log
        self._streams = {
            (number, continuous): stream_of(scenario, number, continuous)
            for number in range(scenario.prepared)
            for continuous in (False, True)
        }

    def take_number(self, asked: dict[str, Any]) -> int:
        """Of this request; a warm-up has none of its own."""
        if asked.get("max_tokens") == WARM_UP_TOKENS:
            return WARM_UP
        self.requests += 1
        return self.requests - 1

    def stream(self, number: int, continuous: bool) -> tuple[list[Write], int]:
        """The writes of the n-th request and its completion tokens."""
        return self._streams.pop((number, continuous), None) or stream_of(self.scenario, number, continuous)

    def record(self, row: dict[str, Any]) -> None:
        """Append a finished request."""
        self._log.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._log.flush()


class Connection:
    """Requests of one connection, one after the other."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._buffer = b""
        self._link: Link | None = None

    def linked(self, link: Link) -> None:
        """The connection is there."""
        self._link = link

    def connection_lost(self, _error: Exception | None) -> None:
        """What is still to be sent has nowhere to go."""
        self._link = None

    def received(self, at_ns: int, data: bytes, _by_kernel: bool) -> None:
        """A request is complete with the last byte that its Content-Length tells of."""
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        lengths = [line.partition(":")[2] for line in lines if line.lower().startswith("content-length:")]
        length = int(lengths[0]) if lengths else 0
        if len(body) < length:
            return
        self._buffer = body[length:]
        method, path, _ = lines[0].split(" ", 2)
        self._serve(method, path.partition("?")[0], body[:length], at_ns)

    def _serve(self, method: str, path: str, body: bytes, now_ns: int) -> None:
        asked = json.loads(body) if method == "POST" and body else {}
        if path == "/v1/chat/completions" and not asked.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "bell"}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
            self._answer(200, {"id": "chatcmpl-x", "model": MODEL, "choices": [choice], "usage": usage})
        elif path == "/v1/chat/completions":
            number = self._state.take_number(asked)
            stream = Stream(self._state, self._send, self._hang_up, number, asked, now_ns)
            # Later: the other requests of a wave are to be seen when they come, not when this one has its head.
            asyncio.get_running_loop().call_later(HEAD_S, stream.start)
        elif path == "/server_info":
            state = {
                "generation_tokens": self._state.tokens,
                "finished_requests": self._state.finished,
                "running": self._state.running,
            }
            self._answer(200, {"version": "truth", "startup_time": 1.0, "internal_states": [state]})
        elif path == "/v1/models":
            card = {"id": MODEL, "object": "model", "created": 0, "owned_by": "truth"}
            self._answer(200, {"object": "list", "data": [card]})
        elif path == "/text":
            self._answer(200, "The ferry waited at the quay while the bell rang twice. " * 400)
        else:
            self._answer(404, {"error": "not here"})

    def _answer(self, status: int, document: Any) -> None:
        plain = isinstance(document, str)
        body = document.encode() if plain else json.dumps(document).encode()
        kind = "text/plain" if plain else "application/json"
        head = (
            f"HTTP/1.1 {status} {REASONS.get(status, 'OK')}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        )
        self._send(f"{head}\r\n".encode() + body)

    def _send(self, data: bytes) -> bool:
        if self._link is None:
            return False
        self._link.write(data)
        return self._link is not None

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.abort()
            self._link = None


class Stream:
    """One answer on its way."""

    def __init__(self, state: State, send: Any, hang_up: Any, number: int, asked: dict[str, Any], now_ns: int) -> None:
        self._state = state
        self._send = send
        self._hang_up = hang_up
        self._number = number
        self._received_ns = now_ns
        options = asked.get("stream_options") or {}
        self._fault = state.scenario.faults.get(str(number))
        self._writes, self._tokens = state.stream(number, bool(options.get("continuous_usage_stats")))
        self._rows: list[list[Any]] = []

    def start(self) -> None:
        """Send the head, or the error that stands for all of it."""
        if self._fault is not None and self._fault.startswith("http"):
            status = int(self._fault[4:])
            body = b'{"error": {"message": "not now"}}'
            head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Length: {len(body)}\r\n\r\n"
            self._send(head.encode() + body)
            self._finish(0)
            return
        self._state.running += 1
        self._send(STREAM_HEAD)
        self._next(0)

    def _next(self, place: int) -> None:
        if place == len(self._writes):
            self._end()
            return
        loop = asyncio.get_running_loop()
        write = self._writes[place]
        loop.call_later((self._received_ns + write.due_ns - time.monotonic_ns()) / 1e9, self._write, place, write)

    def _write(self, place: int, write: Write) -> None:
        framed = b"%x\r\n%s\r\n" % (len(write.data), write.data)
        before_ns = time.monotonic_ns()
        sent = self._send(framed)
        after_ns = time.monotonic_ns()
        events = [[event.tokens, event.kind, len(event.data)] for event in write.events]
        self._rows.append([self._received_ns + write.due_ns, before_ns, after_ns, events])
        if not sent:
            self._state.running -= 1
            self._finish(self._tokens)
            return
        self._next(place + 1)

    def _end(self) -> None:
        if self._fault not in ("early_end", "cut_event"):
            self._send(b"0\r\n\r\n")
        if self._fault is not None:
            self._hang_up()
        self._state.running -= 1
        self._finish(self._tokens)

    def _finish(self, tokens: int) -> None:
        self._state.tokens += tokens
        self._state.finished += 1
        self._state.record(
            {
                "number": self._number,
                "received_ns": self._received_ns,
                "tokens": tokens,
                "fault": self._fault,
                "writes": self._rows,
            }
        )


async def serve(scenario: Scenario, log_path: Path) -> None:
    """Until SIGTERM."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, asked.set)
    with log_path.open("w", encoding="utf-8") as log:
        state = State(scenario, log)
        with kernel_stamps(), socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            listener.setblocking(False)
            loop.add_reader(listener, _accept, listener, state)
            print(listener.getsockname()[1], flush=True)
            gc.disable()
            await asked.wait()
            loop.remove_reader(listener)


def _accept(listener: socket.socket, state: State) -> None:
    try:
        accepted, _ = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return
    connection = Connection(state)
    connection.linked(Link(accepted, connection))


if __name__ == "__main__":
    given = Scenario.from_json(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    asyncio.run(serve(given, Path(sys.argv[2])))
