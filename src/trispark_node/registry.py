"""What a registry says of an image before anything is pulled: for which platform it is, and the sizes of its layers.

Every answer is compared with the digest that names it, so nothing here needs to be trusted. A registry that wants a
login, or cannot be reached from the node itself, says nothing: the pull, which the Docker Engine does, may still work.
"""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trispark_node.image_name import HUB
from trispark_node.plain_json import parse_json

_INDEX = ("application/vnd.docker.distribution.manifest.list.v2+json", "application/vnd.oci.image.index.v1+json")
_MANIFEST = ("application/vnd.docker.distribution.manifest.v2+json", "application/vnd.oci.image.manifest.v1+json")
ACCEPT = ", ".join((*_INDEX, *_MANIFEST))
MAX_BYTES = 8 * 2**20
"""Of a manifest or a configuration."""
TIMEOUT_S = 10.0
ANSWER_S = 60.0
"""For a whole answer."""
HUB_API = "registry-1.docker.io"


class RegistryReader(Protocol):
    def get(self, url: str, accept: str, timeout_s: float) -> bytes:
        """The body of a 200, not more than MAX_BYTES and one. Raises OSError (HTTPError, ConnectionError, ...)."""


class UrllibReader:
    """Follows redirects, as registries keep blobs elsewhere; proxies of the node's environment are left out."""

    def __init__(self) -> None:
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, url: str, accept: str, timeout_s: float) -> bytes:
        try:
            with self._opener.open(urllib.request.Request(url, headers={"Accept": accept}), timeout=timeout_s) as body:
                return _read_within(body.read1, ANSWER_S)
        except http.client.HTTPException as error:
            raise ConnectionError(f"no HTTP answer: {error!r}") from error


def _read_within(read: Callable[[int], bytes], seconds: float) -> bytes:
    """Not more than MAX_BYTES and one. A peer that sends a byte now and then never runs into a socket's timeout."""
    end = time.monotonic() + seconds
    pieces, size = [], 0
    while size <= MAX_BYTES and (piece := read(MAX_BYTES + 1 - size)):
        pieces.append(piece)
        size += len(piece)
        if time.monotonic() >= end:
            raise TimeoutError(f"no whole answer within {seconds:g} s")
    return b"".join(pieces)


@dataclass(frozen=True)
class Layer:
    """`diff_id`: of what is unpacked, empty where it is not known; `size`, `digest`: bytes and hash of what is
    pulled."""

    diff_id: str
    size: int
    digest: str = ""


@dataclass(frozen=True)
class Remote:
    """An image as its registry has it. `platforms`: `os/architecture` of each that it was built for; `layers`: of the
    one for this node, nothing where there is none."""

    platforms: tuple[str, ...]
    layers: tuple[Layer, ...]

    def missing_bytes(self, held: tuple[tuple[str, ...], ...]) -> int:
        """Bytes to pull on a node that has images of these layers (diff ids, the lowest first). A layer is shared only
        on top of the same layers."""
        wanted = tuple(layer.diff_id for layer in self.layers)
        shared = max((_common(wanted, layers) for layers in held), default=0)
        return sum(layer.size for layer in self.layers[shared:])


def _common(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b or not a:
            return index
    return min(len(first), len(second))


def look(reader: RegistryReader, reference: str, platform: str) -> Remote | None:
    """`reference`: name@sha256:..., `platform`: of the node. None where the registry does not say."""
    repository, _, digest = reference.partition("@")
    for base in _bases(repository):
        try:
            manifest = _content(reader, f"{base}/manifests/{digest}", digest)
            return _read(reader, base, manifest, platform)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
    return None


def _bases(repository: str) -> Iterator[str]:
    """Addresses of the repository's API. A registry other than the Docker Hub may speak HTTP, as a site's own does."""
    host, slash, name = repository.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, name = HUB, repository
    if host == HUB:
        name = name if "/" in name else f"library/{name}"
        yield f"https://{HUB_API}/v2/{name}"
        return
    yield f"https://{host}/v2/{name}"
    yield f"http://{host}/v2/{name}"


def _content(reader: RegistryReader, url: str, digest: str) -> Mapping[str, Any]:
    """The JSON object with this digest. Raises ValueError for another content, OSError."""
    body = reader.get(url, ACCEPT, TIMEOUT_S)
    if f"sha256:{hashlib.sha256(body).hexdigest()}" != digest:
        raise ValueError("another content than its digest names")
    found = parse_json(body)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def _read(reader: RegistryReader, base: str, manifest: Mapping[str, Any], platform: str) -> Remote:
    platforms: tuple[str, ...] = ()
    if "manifests" in manifest:
        entries = {_platform(entry["platform"]): str(entry["digest"]) for entry in manifest["manifests"]}
        platforms = tuple(sorted(entries))
        if platform not in entries:
            return Remote(platforms, ())
        manifest = _content(reader, f"{base}/manifests/{entries[platform]}", entries[platform])
    config = str(manifest["config"]["digest"])
    described = _content(reader, f"{base}/blobs/{config}", config)
    diff_ids = [str(each) for each in described["rootfs"]["diff_ids"]]
    packed = [(layer["size"], str(layer["digest"])) for layer in manifest["layers"]]
    if any(type(size) is not int for size, _ in packed):
        raise ValueError("a layer whose size is no whole number")
    if len(diff_ids) != len(packed) or min(packed, default=(0, ""))[0] < 0:
        raise ValueError("layers that do not fit the configuration")
    own = _platform(described)
    layers = tuple(Layer(diff_id, *blob) for diff_id, blob in zip(diff_ids, packed, strict=True))
    return Remote(platforms or (own,), layers if own == platform else ())


def _platform(described: Mapping[str, Any]) -> str:
    return f"{described['os']}/{described['architecture']}"
