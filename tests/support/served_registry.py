"""A registry of the distribution protocol on loopback, as far as a push uses it: real HTTP, with real faults."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Served:
    """A registry of the protocol that is used, on a free port of the loopback.

    ends_at   the calls that it answers before it drops connections
    status    {method: what it says instead}
    login     NAME:PASSWORD that it wants, by `scheme` Basic, or Bearer: then at /token, and a token is good for
              `token_uses` calls
    realm     where it says that tokens are
    given     what came as Authorization, in order
    """

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.ends_at = 10**9
        self.status: dict[str, int] = {}
        self.login = ""
        self.scheme = "Basic"
        self.token_uses = 10**9
        self.realm = ""
        self.given: list[str] = []
        self.scopes: list[str] = []
        self._left = 0
        self.calls = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                outer.calls += 1
                if outer.calls > outer.ends_at:
                    self.connection.close()
                    return
                refused = outer.refusal(self.path, self.headers.get("Authorization") or "")
                status, headers, answer = refused or outer.answer(self.command, self.path, body)
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)

            do_GET = do_HEAD = do_POST = do_PUT = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"

    def refusal(self, path: str, given: str) -> tuple[int, dict[str, str], bytes] | None:
        """What a registry that wants a login says; None where the call may go on."""
        if not self.login:
            return None
        self.given.append(given)
        basic = "Basic " + base64.b64encode(self.login.encode()).decode()
        if path.startswith("/token?"):
            if given != basic:
                return 401, {}, b"no such user"
            self.scopes += parse_qs(urlsplit(path).query)["scope"]
            self._left = self.token_uses
            return 200, {}, json.dumps({"token": f"t{len(self.scopes)}"}).encode()
        if self.scheme == "Basic":
            return None if given == basic else (401, {"WWW-Authenticate": 'Basic realm="r"'}, b"")
        if given == f"Bearer t{len(self.scopes)}" and self._left > 0:
            self._left -= 1
            return None
        realm = self.realm or f"http://{self.address}/token"
        return 401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="r",scope="repository:e:pull"'}, b""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if method in self.status:
            return self.status[method], {}, b'{"errors":[{"code":"DENIED"}]}'
        place = urlsplit(path)
        last = place.path.rpartition("/")[2]
        if method == "HEAD" and "/manifests/" in place.path:
            held = self.manifests.get(last)
            digest = f"sha256:{hashlib.sha256(held or b'').hexdigest()}"
            return (404, {}, b"") if held is None else (200, {"Docker-Content-Digest": digest}, b"")
        if method == "HEAD":
            return (200, {}, self.blobs[last]) if last in self.blobs else (404, {}, b"")
        if method == "POST":
            return 202, {"Location": f"http://{self.address}{place.path}session?_state=s"}, b""
        if method == "PUT" and "/uploads/" in place.path:
            digest = parse_qs(place.query)["digest"][0]
            if digest != f"sha256:{hashlib.sha256(body).hexdigest()}":
                return 400, {}, b"digest does not match"
            self.blobs[digest] = body
            self.puts.append(digest)
            return 201, {}, b""
        if method == "PUT":
            named = json.loads(body)
            if not all(each["digest"] in self.blobs for each in [named["config"], *named["layers"]]):
                return 400, {}, b"MANIFEST_BLOB_UNKNOWN"
            self.manifests[last] = body
            return 201, {}, b""
        return (200, {}, self.manifests[last]) if last in self.manifests else (404, {}, b"")


@contextmanager
def serving() -> Iterator[Served]:
    registry = Served()
    thread = threading.Thread(target=registry.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield registry
    finally:
        registry.server.shutdown()
        thread.join()
        registry.server.server_close()
