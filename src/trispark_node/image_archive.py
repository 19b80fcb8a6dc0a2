"""An image from an archive on the node, for sites without a registry: served to the Engine on a loopback port.

`docker load` forgets the digest of the manifest, by which everything here names an image. A pull keeps it. So the
archive is an OCI layout in a plain tar (`blobs/sha256/...`), the image is named after the port,
`127.0.0.1:PORT/name@sha256:...`, and for as long as the pull takes the agent is that registry, read-only and for this
image alone.
"""

from __future__ import annotations

import re
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trispark_node.errors import AgentError
from trispark_node.oci_tar import OciTar
from trispark_node.plain_json import parse_json
from trispark_node.registry import MAX_BYTES

HOST = re.compile(r"127\.0\.0\.1:(?P<port>[1-9][0-9]{3,4})/(?P<name>[a-z0-9][a-z0-9._/-]*)")
_PATH = re.compile(r"/v2/(?P<name>[^?]+)/(?P<kind>manifests|blobs)/(?P<digest>sha256:[0-9a-f]{64})")
_TYPE = re.compile(r"application/[a-z0-9.+-]{1,100}")
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Archive(OciTar):
    """The layout with refusals of the agent. Also a reader of its manifests (registry.look)."""

    def __init__(self, path: str) -> None:
        """Raises TS-AGENT-IMAGE-ARCHIVE."""
        self.path = path
        try:
            super().__init__(Path(path))
        except OSError as error:
            raise self.refusal("an OCI layout in a tar that can be read", error.strerror or str(error)) from error
        except tarfile.TarError as error:
            raise self.refusal("a whole tar without compression", str(error)) from error

    def refusal(self, expected: str, observed: str) -> AgentError:
        """TS-AGENT-IMAGE-ARCHIVE."""
        return AgentError(
            "TS-AGENT-IMAGE-ARCHIVE",
            "the image cannot be taken from this archive",
            where=self.path,
            expected=expected,
            observed=observed,
            remedy="write it as an OCI layout (skopeo copy ... oci-archive:FILE); docker save keeps no manifest",
        )

    def get(self, url: str, accept: str, timeout_s: float) -> bytes:
        """A manifest or configuration by the end of its URL. Raises OSError."""
        digest = url.rpartition("/")[2]
        size = self.size(digest)
        if size is None or size > MAX_BYTES:
            raise FileNotFoundError(2, "no such blob", digest)
        return b"".join(self.pieces(digest))

    def verify(self, layers: Mapping[str, int]) -> None:
        """Hash these blobs, {digest: bytes that the manifest states}. Raises TS-AGENT-IMAGE-ARCHIVE for the first that
        lacks or is another one."""
        for digest, size in layers.items():
            if self.size(digest) is None:
                raise self.refusal(f"the layer {digest}", "no such blob")
            if self.size(digest) != size:
                raise self.refusal(f"the layer {digest} of {size} bytes", f"{self.size(digest)} bytes")
            found = self.hash_of(digest)
            if found != digest:
                raise self.refusal(f"the layer {digest}", f"content with the hash {found}")


@contextmanager
def served(archive: Archive, repository: str) -> Iterator[None]:
    """The registry of `repository` (HOST) is this archive meanwhile. Raises TS-AGENT-IMAGE-PORT."""
    match = HOST.fullmatch(repository)
    assert match is not None, "the request was checked"
    wanted = match["name"]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = _PATH.fullmatch(self.path)
            size = archive.size(asked["digest"]) if asked and asked["name"] == wanted else None
            if self.path == "/v2/":
                return self._begin(200, "application/json", 0)
            if asked is None or size is None or (asked["kind"] == "manifests" and size > MAX_BYTES):
                return self._begin(404, "application/json", 0)
            kind = "application/octet-stream"
            if asked["kind"] == "manifests":
                kind = _media_type(b"".join(archive.pieces(asked["digest"])))
            self._begin(200, kind, size, asked["digest"])
            if self.command == "GET":
                sent = 0
                for piece in archive.pieces(asked["digest"]):
                    self.wfile.write(piece)
                    sent += len(piece)
                # A file that was cut off meanwhile: who waits for the rest would wait for ever.
                self.close_connection = self.close_connection or sent < size
            return None

        do_HEAD = do_GET

        def _begin(self, status: int, kind: str, size: int, digest: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(size))
            if digest:
                self.send_header("Docker-Content-Digest", digest)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            return None

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """An Engine that hangs up says itself why; a traceback would say nothing of it."""

    try:
        server = Server(("127.0.0.1", int(match["port"])), Handler)
    except (OSError, OverflowError) as error:
        raise AgentError(
            "TS-AGENT-IMAGE-PORT",
            "the port after which the image is named cannot be had",
            where=repository,
            expected="a port of this node that is free for the moment of the pull",
            observed=str(error),
            remedy="see who listens there (ss -ltnp), or name the image after another port",
        ) from error
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _media_type(manifest: bytes) -> str:
    """As it says itself; it goes into a header, so nothing but what can be a type."""
    try:
        said = parse_json(manifest)["mediaType"]
    except (ValueError, KeyError, TypeError):
        return _MANIFEST
    return said if isinstance(said, str) and _TYPE.fullmatch(said) else _MANIFEST
