"""Pushes an image to a registry by the registry's own protocol, blob by blob, and reads back what it has."""

from __future__ import annotations

import hashlib
import http.client
from dataclasses import dataclass
from typing import IO, Final, Protocol
from urllib.parse import urlsplit

from trispark.errors import TrisparkError
from trispark.images.oci import MANIFEST_TYPE, BlobStore, Descriptor, OciImage

CALL_TIMEOUT_S: Final = 60.0
"""Of one answer; a blob on its way has as long as its bytes keep moving."""


MOST_BYTES: Final = 8 * 2**20
"""Of an answer that is kept; no manifest is that long."""


@dataclass(frozen=True)
class Answer:
    status: int
    location: str
    digest: str
    body: bytes


class Transport(Protocol):
    """One call to the registry. `path` begins with a slash; a body is sent as it is read. Raises OSError."""

    def call(
        self, method: str, path: str, *, body: IO[bytes] | bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer: ...


class HttpTransport:
    """http.client and not urllib: a proxy from the environment has no business between us and the site's registry."""

    def __init__(self, address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        host, _, port = address.partition(":")
        self._host, self._port, self._timeout_s = host, int(port or 80), timeout_s

    def call(
        self, method: str, path: str, *, body: IO[bytes] | bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            return Answer(
                answer.status,
                answer.getheader("Location", "") or "",
                answer.getheader("Docker-Content-Digest", "") or "",
                answer.read(MOST_BYTES),
            )
        except (http.client.HTTPException, ValueError) as error:  # a place to send to comes from the registry
            raise OSError(f"no HTTP answer: {error!r}") from error
        finally:
            connection.close()


class Registry:
    """A registry that answers over plain HTTP, as the lab's does on a loopback address."""

    def __init__(self, address: str, transport: Transport | None = None) -> None:
        self.address = address
        self._transport = transport if transport is not None else HttpTransport(address)

    def push(self, image: OciImage, store: BlobStore, repository: str, tag: str) -> str:
        """The digest under which the registry has the image; blobs that it has are not sent again.

        The manifest goes last: a push that is cut off leaves blobs without an image, and the next one goes on from
        there. Raises TS-IMAGES-PUSH.
        """
        for blob in image.blobs[:-1]:
            self._put_blob(repository, blob, store)
        manifest = store.path(image.manifest.digest).read_bytes()
        answer = self._call(
            "PUT", f"/v2/{repository}/manifests/{tag}", repository, manifest, {"Content-Type": MANIFEST_TYPE}
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
        answer = self._call("GET", path, repository, None, {"Accept": MANIFEST_TYPE})
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise self._refused(repository, f"GET of the manifest {reference}: {_told(answer)}")
        return answer.body

    def _put_blob(self, repository: str, blob: Descriptor, store: BlobStore) -> None:
        if self._call("HEAD", f"/v2/{repository}/blobs/{blob.digest}", repository, None, {}).status == 200:
            return
        begun = self._call("POST", f"/v2/{repository}/blobs/uploads/", repository, b"", {})
        if begun.status != 202 or not begun.location:
            raise self._refused(repository, f"POST of an upload: {_told(begun)}")
        try:
            place = urlsplit(begun.location)
        except ValueError:
            raise self._refused(repository, "POST of an upload: a place that is no address") from None
        query = f"{place.query}&" if place.query else ""
        with store.path(blob.digest).open("rb") as data:
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
            path = f"{place.path}?{query}digest={blob.digest}"
            answer = self._call("PUT", path, repository, data, headers)
        if answer.status != 201:
            raise self._refused(repository, f"PUT of the blob {blob.digest}: {_told(answer)}")

    def _call(
        self, method: str, path: str, repository: str, body: IO[bytes] | bytes | None, headers: dict[str, str]
    ) -> Answer:
        try:
            return self._transport.call(method, path, body=body, headers=headers)
        except OSError as error:
            raise self._refused(repository, f"{method}: {error}") from error

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
