"""Pushes an image to a registry by the registry's own protocol, blob by blob, and reads back what it has."""

from __future__ import annotations

import hashlib
import http.client
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Protocol
from urllib.parse import urlsplit

from trispark.errors import TrisparkError
from trispark.images.byte_progress import ByteProgress
from trispark.images.oci import DOCKER_MANIFEST_TYPE, MANIFEST_TYPE, Descriptor, OciImage
from trispark.images.registry_address import is_local, split_address
from trispark.images.registry_login import Authorization, Login
from trispark.images.timed_connection import PlainConnection, TlsConnection, ends_within

CALL_TIMEOUT_S: Final = 60.0
"""Of one wait for the peer."""
BEGIN_S: Final = 120.0
SLOWEST: Final = 64 * 1024
"""Bytes a second: a call may take BEGIN_S and as long as this takes for what is sent, however the peer drips."""
MOST_BYTES: Final = 8 * 2**20
"""Of an answer that is kept; no manifest is that long."""
CERTIFICATES: Final = Path("/etc/docker/certs.d")
"""Where the Docker Engine has the certificates of a site's own authority: HOST[:PORT]/ca.crt."""


@dataclass(frozen=True)
class Answer:
    """`challenge`: what a registry that wants a login says of it. `length`: of the whole body in bytes, as stated."""

    status: int
    location: str
    digest: str
    body: bytes
    challenge: str = ""
    length: int | None = None


class Body(Protocol):
    """What is sent: read from its beginning, once more where the registry asks again."""

    def read(self, size: int = ..., /) -> bytes | None: ...

    def seek(self, offset: int, /) -> int: ...


class Blobs(Protocol):
    """Where the blobs of an image are."""

    def open(self, digest: str) -> IO[bytes]:
        """Raises OSError and KeyError where it is not."""


class Transport(Protocol):
    """One call to the registry. `path` begins with a slash; a body is sent as it is read. Raises OSError, and
    TS-IMAGES-LOGIN for a login of a kind that is not supported."""

    def call(
        self, method: str, path: str, *, body: Body | bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer: ...


class HttpTransport:
    """http.client and not urllib: a proxy from the environment has no business between us and the site's registry.

    With TLS, except on this machine itself. Each call opens a connection, and ends by its deadline.
    """

    def __init__(
        self, address: str, *, timeout_s: float = CALL_TIMEOUT_S, begin_s: float = BEGIN_S, slowest: float = SLOWEST
    ) -> None:
        self._address, self._timeout_s, self._begin_s, self._slowest = address, timeout_s, begin_s, slowest

    def call(
        self, method: str, path: str, *, body: Body | bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        given = headers or {}
        seconds = self._begin_s + int(given.get("Content-Length", 0)) / self._slowest
        try:
            connection = self._connection()
            try:
                with ends_within(connection, seconds):
                    return _asked(connection, method, path, body, given)
            finally:
                connection.close()
        except ssl.SSLError as error:
            raise OSError(f"TLS: {getattr(error, 'verify_message', '') or error.reason}") from error
        except (http.client.HTTPException, ValueError) as error:  # a place to send to comes from the registry
            raise OSError(f"no HTTP answer: {error!r}") from error

    def _connection(self) -> PlainConnection | TlsConnection:
        host, port = split_address(self._address)
        if is_local(self._address):
            return PlainConnection(host, port or 80, self._timeout_s)
        return TlsConnection(host, port or 443, self._timeout_s, _trusted(self._address))


def _trusted(address: str) -> ssl.SSLContext:
    """Authorities of this machine, and the one that its Docker Engine trusts for this registry.

    Raises TS-IMAGES-LOGIN where the Engine would show a certificate of its own there.
    """
    place = CERTIFICATES / address
    if shown := sorted(each.name for pattern in ("*.cert", "*.key") for each in place.glob(pattern)):
        raise TrisparkError(
            "TS-IMAGES-LOGIN",
            "a login by a client certificate is not supported",
            where=str(place),
            expected="ca.crt alone",
            observed=", ".join(shown)[:200],
            remedy="where the registry takes a password: move these files away, docker login, then repeat it",
        )
    context = ssl.create_default_context()
    if (place / "ca.crt").is_file():
        context.load_verify_locations(place / "ca.crt")
    return context


def _asked(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any, headers: Mapping[str, str]
) -> Answer:
    try:
        connection.request(method, path, body=body, headers=dict(headers))
    except (BrokenPipeError, ConnectionResetError) as error:
        try:  # who hangs up while it is sent to has mostly said why
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException):
            raise error from None
    else:
        answer = connection.getresponse()
    return Answer(
        answer.status,
        answer.getheader("Location", "") or "",
        answer.getheader("Docker-Content-Digest", "") or "",
        answer.read(MOST_BYTES),
        answer.getheader("WWW-Authenticate", "") or "",
        int(stated) if (stated := answer.getheader("Content-Length", "") or "").isdecimal() else None,
    )


def no_login() -> Login | None:
    """Of a registry that wants none, as the lab's."""
    return None


def token_get(address: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """A place for tokens is asked as a registry is. Raises OSError, TS-IMAGES-LOGIN."""
    answer = HttpTransport(address).call("GET", path, headers=dict(headers))
    return answer.status, answer.body


class Registry:
    """A registry at `host[:port]`: over TLS, on a loopback address over plain HTTP, as the lab's."""

    def __init__(
        self, address: str, transport: Transport | None = None, login: Callable[[], Login | None] = no_login
    ) -> None:
        self.address = address
        self._transport = transport if transport is not None else HttpTransport(address)
        self._login = login
        self._authorizations: dict[str, Authorization] = {}

    def push(
        self, image: OciImage, store: Blobs, repository: str, tag: str, say: Callable[[str], None] | None = None
    ) -> str:
        """The digest under which the registry has the image; blobs that it has are not sent again.

        The manifest goes last: a push that is cut off leaves blobs without an image, and the next one goes on from
        there. `say` gets a line for each blob, and some while a large one is sent. Raises TS-IMAGES-PUSH, -LOGIN.
        """
        blobs = image.blobs[:-1]
        for number, blob in enumerate(blobs, 1):
            progress = ByteProgress(f"blob {number} of {len(blobs)}", "sent", blob.size, say)
            progress.end("sent" if self._put_blob(repository, blob, store, progress) else "there already")
        with store.open(image.manifest.digest) as data:
            manifest = data.read()
        answer = self._call(
            "PUT",
            f"/v2/{repository}/manifests/{tag}",
            repository,
            manifest,
            {"Content-Type": image.manifest.media_type},
        )
        if answer.status != 201:
            raise self._refused(repository, f"PUT of the manifest: {_told(answer)}")
        held = self.manifest(repository, tag)
        if held is None or f"sha256:{hashlib.sha256(held).hexdigest()}" != image.manifest.digest:
            raise self._refused(repository, f"another manifest under {tag} than the one sent")
        return image.manifest.digest

    def manifest(self, repository: str, reference: str) -> bytes | None:
        """The bytes of a manifest by tag or digest; None where there is none."""
        path = f"/v2/{repository}/manifests/{reference}"
        answer = self._call("GET", path, repository, None, {"Accept": f"{MANIFEST_TYPE}, {DOCKER_MANIFEST_TYPE}"})
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise self._refused(repository, f"GET of the manifest {reference}: {_told(answer)}")
        return answer.body

    def _put_blob(self, repository: str, blob: Descriptor, store: Blobs, progress: ByteProgress) -> bool:
        """Whether it had to be sent. One of another length was torn when the registry lost power: it is sent again."""
        held = self._call("HEAD", f"/v2/{repository}/blobs/{blob.digest}", repository, None, {})
        if held.status == 200 and held.length in (None, blob.size):
            return False
        begun = self._call("POST", f"/v2/{repository}/blobs/uploads/", repository, b"", {})
        if begun.status != 202 or not begun.location:
            raise self._refused(repository, f"POST of an upload: {_told(begun)}")
        try:
            place = urlsplit(begun.location)
        except ValueError:
            raise self._refused(repository, "POST of an upload: a place that is no address") from None
        query = f"{place.query}&" if place.query else ""
        with store.open(blob.digest) as data:
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
            # To this registry, whatever host it names: nobody else gets bytes or a login.
            path = f"{place.path}?{query}digest={blob.digest}"
            answer = self._call("PUT", path, repository, progress.of(data), headers)
        if answer.status != 201:
            raise self._refused(repository, f"PUT of the blob {blob.digest}: {_told(answer)}")
        return True

    def _call(
        self, method: str, path: str, repository: str, body: Body | bytes | None, headers: dict[str, str]
    ) -> Answer:
        known = self._authorizations.setdefault(
            repository, Authorization(self.address, repository, self._login, token_get)
        )
        try:
            answer = self._transport.call(method, path, body=body, headers={**headers, **known.headers()})
            if answer.status != 401 or not answer.challenge:
                return answer
            if not known.renew(answer.challenge):
                raise self._no_login(repository, f"{_told(answer)}, without one")
            if body is not None and not isinstance(body, bytes):
                body.seek(0)
            answer = self._transport.call(method, path, body=body, headers={**headers, **known.headers()})
            if answer.status == 401:
                raise self._no_login(repository, f"{_told(answer)}, with one")
            return answer
        except OSError as error:
            raise self._refused(repository, f"{method}: {error}") from error

    def _no_login(self, repository: str, observed: str) -> TrisparkError:
        return TrisparkError(
            "TS-IMAGES-LOGIN",
            "the registry wants a login that it knows",
            where=f"{self.address}/{repository}",
            expected=f"one for {self.address} in Docker's configuration",
            observed=observed,
            remedy="docker login on this machine, without a credential helper (docs/images.md); then repeat it",
        )

    def _refused(self, repository: str, observed: str) -> TrisparkError:
        return TrisparkError(
            "TS-IMAGES-PUSH",
            "an image did not reach the registry",
            where=f"{self.address}/{repository}",
            expected="the registry takes each blob, then the manifest",
            observed=observed,
            remedy="see that the registry runs and has room; the same command goes on with what it has",
        )


def _told(answer: Answer) -> str:
    said = " ".join(answer.body.decode("utf-8", "replace").split())[:200]
    return f"status {answer.status}{f': {said}' if said else ''}"
