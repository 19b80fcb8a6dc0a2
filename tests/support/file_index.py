"""A package index and a registry on loopback, for tests of the lock of the images: real HTTP, with real faults."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FileIndex:
    """`wheels`: {project: {file name: content}}. `blobs`: {path: (content type, content)} for anything else.

    stated       {file name: sha256 that the index states in place of the true one; None states none}
    cut          {file name: bytes after which the connection ends, once}
    html         pages as PEP 503
    ranges       whether the peer knows them
    password     what Authorization must carry
    token        a bearer token that blobs need; the challenge names /token
    """

    wheels: dict[str, dict[str, bytes]] = field(default_factory=dict)
    blobs: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    stated: dict[str, str | None] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    html: bool = False
    ranges: bool = True
    password: str | None = None
    token: str | None = None
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"

    def wheel(self, project: str, name: str, content: bytes) -> str:
        self.wheels.setdefault(project, {})[name] = content
        return hashlib.sha256(content).hexdigest()

    def page(self, project: str) -> tuple[str, bytes]:
        files = []
        for name, content in self.wheels[project].items():
            sha256 = self.stated.get(name, hashlib.sha256(content).hexdigest())
            files.append((name, f"../../files/{project}/{name}", sha256, len(content)))
        if self.html:
            lines = [f'<a href="{url}{"#sha256=" + sha if sha else ""}">{name}</a>' for name, url, sha, _ in files]
            return "text/html", "\n".join(lines).encode()
        listed = [
            {"filename": name, "url": url, "hashes": {"sha256": sha} if sha else {}, "size": size}
            for name, url, sha, size in files
        ]
        body = json.dumps({"meta": {"api-version": "1.1"}, "name": project, "files": listed}).encode()
        return "application/vnd.pypi.simple.v1+json", body


def _handler(index: FileIndex) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            index.asked.append((self.path, dict(self.headers.items())))
            given = self.headers.get("Authorization")
            if index.password is not None and given != index.password:
                return self._answer(401, "text/plain", b"no")
            path = self.path.partition("?")[0]
            parts = path.strip("/").split("/")
            if parts[0] == "simple":
                known = parts[1] in index.wheels
                kind, body = index.page(parts[1]) if known else ("text/plain", b"no such project")
                return self._answer(200 if known else 404, kind, body)
            if parts[0] == "files":
                return self._file(parts[-1], index.wheels[parts[1]][parts[-1]])
            if path == "/token":
                return self._answer(200, "application/json", json.dumps({"token": index.token}).encode())
            if index.token is not None and given != f"Bearer {index.token}":
                realm = f'Bearer realm="http://127.0.0.1:{index.port}/token",service="r",scope="pull"'
                return self._answer(401, "text/plain", b"no", {"WWW-Authenticate": realm})
            if path in index.blobs:
                return self._answer(200, *index.blobs[path])
            return self._answer(404, "text/plain", b"none")

        def _file(self, name: str, content: bytes) -> None:
            start, status = 0, 200
            wanted = self.headers.get("Range")
            if wanted is not None and index.ranges:
                start, status = int(wanted.removeprefix("bytes=").rstrip("-")), 206
                if start >= len(content):
                    return self._answer(416, "text/plain", b"")
            body = content[start:]
            end = index.cut.pop(name, None)
            if end is not None:
                self.close_connection = True
            self._answer(status, "application/octet-stream", body, length=len(body), end=end)

        def _answer(
            self,
            status: int,
            kind: str,
            body: bytes,
            headers: dict[str, str] | None = None,
            *,
            length: int | None = None,
            end: int | None = None,
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body if end is None else body[:end])

    return Handler


@contextmanager
def serving(index: FileIndex) -> Iterator[FileIndex]:
    """Answers on a free port of 127.0.0.1 while inside."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(index))
    server.daemon_threads = True
    index.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
