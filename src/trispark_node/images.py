"""Verb `image-ensure`: the image is on the node under exactly this digest, for this node's platform."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from trispark_node import pulled
from trispark_node.docker_client import Image
from trispark_node.errors import AgentError, request_error
from trispark_node.fields import Fields
from trispark_node.image_archive import HOST, Archive, served
from trispark_node.image_name import IMAGE, is_among
from trispark_node.mutation import Plan
from trispark_node.node import Node
from trispark_node.registry import RegistryReader, look

PAUSES_S = (2.0, 8.0, 30.0)
"""Between attempts to pull: a registry that restarts is waited for, one that stays away ends the command soon."""
DEADLINE_S = 10800.0
MINIMUM_FREE_BYTES = 256 * 2**20
UNPACKED = 3
"""A layer lies on the disk as it came while it is unpacked, and unpacked it has about twice that size."""
_ABSENT = (
    "manifest unknown",
    "name unknown",
    "blob unknown",
    "not found",
    "http 404",
    "does not exist",
    "unauthorized",
)
_FULL = ("no space left", "disk quota exceeded")
_PLATFORM = ("no matching manifest for",)


@dataclass(frozen=True)
class ImageRequest:
    """`deadline_s`: after it no further attempt begins; `minimum_free_bytes`: what stays free beside the image;
    `archive`: path of the archive that stands for the registry (image_archive), empty for none."""

    image: str
    deadline_s: float = DEADLINE_S
    minimum_free_bytes: int = MINIMUM_FREE_BYTES
    archive: str = ""

    @classmethod
    def parse(cls, fields: Fields) -> ImageRequest:
        image = fields.text("image")
        if not IMAGE.fullmatch(image):
            raise AgentError(
                "TS-AGENT-IMAGE-REF",
                "the image is not named by digest",
                where="request.image",
                expected="name@sha256:<64 hex digits>, without a tag that could move",
                observed=image,
                remedy="pin the digest in the site's data",
                status=2,
            )
        archive = fields.absolute_path("archive") if fields.has("archive") else ""
        if archive and not HOST.fullmatch(image.partition("@")[0]):
            raise request_error(
                "an image that comes from an archive is named after a port of the node itself",
                where="request.image",
                expected="127.0.0.1:PORT/name@sha256:<64 hex digits>",
                observed=image,
            )
        deadline_s = fields.seconds("deadline_s", DEADLINE_S)
        return cls(image, deadline_s, fields.integer("minimum_free_bytes", MINIMUM_FREE_BYTES), archive)

    @property
    def repository(self) -> str:
        return self.image.partition("@")[0]

    @property
    def digest(self) -> str:
        return self.image.partition("@")[2]


def _check_digest(image: Image, request: ImageRequest) -> None:
    if not is_among(request.image, image.digests):
        raise AgentError(
            "TS-AGENT-IMAGE-DIGEST",
            "the image on this node has another digest",
            where=request.repository,
            expected=request.digest,
            observed=", ".join(image.digests) or "no digest: it was never pulled from a registry",
            remedy="remove the image from this node and pull it again",
        )


def _check_platform(node: Node, request: ImageRequest, image: Image) -> None:
    """An image that does not say for what it was built is not refused: the Engine runs it."""
    if image.platform and image.platform != node.docker.platform():
        raise _other_platform(request, node.docker.platform(), image.platform)


def _other_platform(request: ImageRequest, wanted: str, found: str) -> AgentError:
    return AgentError(
        "TS-AGENT-IMAGE-PLATFORM",
        "the image was built for another platform than this node's",
        where=request.image,
        expected=wanted,
        observed=found,
        remedy="name the digest of the index, or of the image for this platform",
    )


def plan_image(node: Node, request: ImageRequest) -> Plan:
    image = node.docker.image(request.image)
    if image is not None:
        _check_digest(image, request)
        _check_platform(node, request, image)
        return Plan(None, {"image_id": image.id, "pulled": False})
    with _source(node, request) as (reader, _):
        expected = _look_first(node, request, reader).size

    def apply() -> dict[str, Any]:
        with _source(node, request) as (reader, archive):
            if archive is None:
                attempts = _pull(node, request)
            else:
                archive.verify(_look_first(node, request, reader).blobs)
                with served(archive, request.repository):
                    attempts = _pull(node, request)
        image = node.docker.image(request.image)
        if image is None:
            raise AgentError(
                "TS-AGENT-IMAGE",
                "the image is absent after its pull",
                where=request.image,
                expected="the image",
                observed="nothing",
                remedy="see the Engine's log on this node",
            )
        _check_digest(image, request)
        try:
            _check_platform(node, request, image)
        except AgentError:
            with suppress(AgentError):
                node.docker.remove_image(request.image)
            raise
        pulled.add(node, request.image)
        return {"image_id": image.id, "pulled": True, "attempts": attempts}

    return Plan(
        apply,
        {"image_id": None, "pulled": False, "bytes_to_pull": expected},
        {"image": request.image},
        ("image absent\n", f"image {request.image}\n"),
    )


@contextmanager
def _source(node: Node, request: ImageRequest) -> Iterator[tuple[RegistryReader, Archive | None]]:
    """Who says what the image is: its registry, or the archive in its place. Raises TS-AGENT-IMAGE-ARCHIVE."""
    if not request.archive:
        yield node.registry, None
        return
    archive = Archive(request.archive)
    try:
        yield archive, archive
    finally:
        archive.close()


@dataclass(frozen=True)
class _Expected:
    """`size`: bytes that the pull will bring, None where the registry does not say; `blobs`: {digest: bytes} of the
    layers."""

    size: int | None
    blobs: Mapping[str, int]


def _look_first(node: Node, request: ImageRequest, reader: RegistryReader) -> _Expected:
    """Raises TS-AGENT-IMAGE-PLATFORM and TS-AGENT-IMAGE-SPACE before anything is pulled."""
    platform = node.docker.platform()
    remote = look(reader, request.image, platform)
    if remote is None and isinstance(reader, Archive):
        raise reader.refusal(f"the manifest {request.digest} and its configuration", "no such blob, or another content")
    if remote is not None and platform not in remote.platforms:
        raise _other_platform(request, platform, ", ".join(remote.platforms))
    storage = node.docker.storage()
    size = None if remote is None else remote.missing_bytes(storage.layers)
    needed = UNPACKED * (size or 0) + request.minimum_free_bytes
    if storage.free_bytes < needed:
        said = "" if size is None else f", {size} bytes of them to pull, unpacked about twice as many"
        raise _no_room(request, storage.root, f"{needed} bytes free{said}", f"{storage.free_bytes} bytes free")
    return _Expected(size, {} if remote is None else {layer.digest: layer.size for layer in remote.layers})


def _no_room(request: ImageRequest, where: str, expected: str, observed: str) -> AgentError:
    return AgentError(
        "TS-AGENT-IMAGE-SPACE",
        "the Engine's disk has no room for the image",
        where=f"{where} for {request.image}",
        expected=expected,
        observed=observed,
        remedy="make room there, ./trispark play prune -e images=true takes images that nothing needs; then repeat it",
    )


def _pull(node: Node, request: ImageRequest) -> int:
    """How many attempts it took. Raises TS-AGENT-IMAGE-ABSENT, -PLATFORM, -SPACE at once, -PULL in the end."""
    end = node.clock.monotonic() + request.deadline_s
    attempt = 1
    while True:
        try:
            node.docker.pull(request.repository, request.digest)
            return attempt
        except AgentError as error:
            final = _final(node, request, error)
            if final is not None:
                raise final from error
            pause = PAUSES_S[attempt - 1] if attempt <= len(PAUSES_S) else None
            if pause is None or node.clock.monotonic() + pause >= end:
                raise AgentError(
                    "TS-AGENT-IMAGE-PULL",
                    f"the image could not be pulled in {attempt} attempt{'s' if attempt > 1 else ''}",
                    where=request.image,
                    expected="its registry answers until all layers are here",
                    observed=error.observed,
                    remedy="bring it with its archive: trispark-node image-ensure, docs/images.md"
                    if HOST.fullmatch(request.repository)
                    else "bring the registry back and repeat it; nothing on this node uses a part of an image",
                ) from error
            node.clock.sleep(pause)
            attempt += 1


def _final(node: Node, request: ImageRequest, error: AgentError) -> AgentError | None:
    """What no further attempt can change, by name."""
    said = error.observed.lower()
    if any(words in said for words in _FULL):
        return _no_room(request, node.docker.storage().root, "room for every layer, as it came and unpacked", said)
    if any(words in said for words in _PLATFORM):
        return _other_platform(request, node.docker.platform(), error.observed)
    if any(words in said for words in _ABSENT):
        return AgentError(
            "TS-AGENT-IMAGE-ABSENT",
            "the registry does not have the image, or not all of it",
            where=request.image,
            expected="the manifest of this digest and all that it names",
            observed=error.observed,
            remedy="push the image again, whole; or let the node's Docker Engine log in to that registry",
        )
    return None
