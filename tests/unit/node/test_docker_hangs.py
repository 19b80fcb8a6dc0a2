"""An Engine that takes a request and never answers: whoever stops an engine is told so within a bound."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from trispark_node import docker_client
from trispark_node.cli import answer
from trispark_node.docker_client import SdkClient
from trispark_node.errors import AgentError

BOUND_S = 0.5
ID = "e" * 64
INSPECTED = {
    "Id": ID, "Name": "/trispark-engine", "Image": "sha256:0", "Mounts": [],
    "State": {"Status": "running", "ExitCode": 0, "Error": "", "StartedAt": "2026-01-02T03:04:05Z"},
    "Config": {
        "Image": "x", "Env": [], "Cmd": [],
        "Labels": {"trispark": "1", "trispark.role": "engine", "trispark.boot": "b1", "trispark.epoch": "1"},
    },
}  # fmt: skip


class HangingEngine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers until a request's path holds `hangs_at`; that one waits for `released`."""

    daemon_threads = True
    hangs_at = "nothing"
    released: threading.Event


class Handler(BaseHTTPRequestHandler):
    server: HangingEngine

    def address_string(self) -> str:
        return "local"

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        if self.server.hangs_at in self.path:
            self.server.released.wait(30)
            return
        body: object = {"ApiVersion": "1.41", "Version": "20.10.24"}
        if "/json" in self.path:
            body = [{"Id": ID}] if "/containers/json" in self.path else INSPECTED
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingEngine]:
    monkeypatch.setattr(docker_client, "QUICK_S", BOUND_S)
    with HangingEngine(str(tmp_path / "docker.sock"), Handler) as server:
        server.released = threading.Event()
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield server
        server.released.set()
        server.shutdown()


def url(engine: HangingEngine) -> str:
    return f"unix://{engine.server_address!s}"


HANGS = {"connect": "/version", "ps": "/containers/json", "look": f"/containers/{ID}/json", "kill": "/kill"}


@pytest.mark.parametrize("at", HANGS)
def test_a_stop_ends_where_the_engine_hangs(bench, engine, at):
    engine.hangs_at = HANGS[at]
    node = replace(bench.node, connect=lambda: SdkClient(url(engine)))
    began = time.monotonic()
    said, code = answer(node, "stop", json.dumps({"deadline_s": 0.2}))
    assert time.monotonic() - began < 10 * BOUND_S
    assert (code, said["error"]["id"]) == (1, "TS-AGENT-DOCKER")
    assert "timed out" in said["error"]["observed"].lower()


def test_what_takes_longer_has_more_time(engine):
    client = SdkClient(url(engine))
    assert [container.id for container in client.labelled({"trispark": "1"})] == [ID]
    engine.hangs_at = "/kill"
    with pytest.raises(AgentError):
        client.signal(ID, "SIGTERM")
    assert client._api.timeout == docker_client.API_TIMEOUT_S, "a removal may take as long as ever"
