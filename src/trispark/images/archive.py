"""An OCI archive that a builder wrote: the one image of a platform in it, every part of it hashed before it is used.

Nothing is unpacked and nothing is written; blobs are read where they lie (trispark_node.oci_tar).
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any, Final, Self

from trispark.errors import TrisparkError
from trispark.images.byte_progress import ByteProgress
from trispark.images.oci import (
    CONFIG_TYPE,
    DOCKER_MANIFEST_TYPE,
    INDEX_TYPE,
    LAYER_TYPE,
    MANIFEST_TYPE,
    Descriptor,
    OciImage,
)
from trispark_node.canonical import sha256_hex
from trispark_node.oci_tar import OciTar
from trispark_node.plain_json import parse_json

LARGEST: Final = 8 * 2**20
"""Of an index, a manifest or a configuration."""
MOST_ENTRIES: Final = 1000
"""Of all indexes together, and layers of an image."""
LEVELS: Final = 3
"""Of indexes in each other."""
INDEX_TYPES: Final = frozenset({INDEX_TYPE, "application/vnd.docker.distribution.manifest.list.v2+json"})
MANIFEST_TYPES: Final = frozenset({MANIFEST_TYPE, DOCKER_MANIFEST_TYPE})
CONFIG_TYPES: Final = frozenset({CONFIG_TYPE, "application/vnd.docker.container.image.v1+json"})
_DOCKER_LAYER: Final = "application/vnd.docker.image.rootfs.diff.tar"
LAYER_TYPES: Final = frozenset(
    {
        LAYER_TYPE,
        f"{LAYER_TYPE}+gzip",
        f"{LAYER_TYPE}+zstd",
        _DOCKER_LAYER,
        f"{_DOCKER_LAYER}.gzip",
        f"{_DOCKER_LAYER}.zstd",
    }
)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_ATTESTATION: Final = "attestation-manifest"
"""What a builder says of the image beside it, as an image of no platform."""
_WORD: Final = re.compile(r"[a-zA-Z0-9_.-]{1,40}")


@dataclass(frozen=True)
class ArchivedImage:
    """An image in an archive. `environment`, `labels`: of its configuration."""

    image: OciImage
    environment: Mapping[str, str]
    labels: Mapping[str, str]

    @property
    def size(self) -> int:
        """Bytes of its blobs."""
        return sum({blob.digest: blob.size for blob in self.image.blobs}.values())


class ImageArchive:
    """Open for as long as it is in use. Raises TS-IMAGES-ARCHIVE, -PLATFORM."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._tar = OciTar(path)
        except OSError as error:
            raise self._refusal("a file that can be read", error.strerror or str(error)) from None
        except tarfile.TarError as error:
            raise self._refusal("a whole tar without compression", str(error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def open(self, digest: str) -> IO[bytes]:
        """Raises OSError, KeyError."""
        return io.BufferedReader(self._tar.open(digest), 2**20)

    def image(self, architecture: str) -> ArchivedImage:
        """The one of linux on that architecture."""
        layout = self._file("oci-layout")
        if not str(layout.get("imageLayoutVersion", "")).startswith("1."):
            raise self._refusal("an OCI layout of version 1", "another version")
        found: dict[str, Descriptor] = {}
        others: set[str] = set()
        said: dict[str, str] = {}
        for descriptor, entry in self._manifests(self._file("index.json"), LEVELS, count(1)):
            platform = _platform(entry.get("platform")) or said.get(descriptor.digest) or self._built_for(descriptor)
            said[descriptor.digest] = platform
            if platform == f"linux/{architecture}":
                found[descriptor.digest] = descriptor
            else:
                others.add(platform)
        if not found:
            raise TrisparkError(
                "TS-IMAGES-PLATFORM",
                "the archive holds no image for the platform of its context",
                where=str(self.path),
                expected=f"linux/{architecture}",
                observed=", ".join(sorted(others)[:10]) or "no image",
                remedy="build with the command of build.json, for that platform",
            )
        if len(found) > 1:
            raise self._refusal(f"one image for linux/{architecture}", f"{len(found)}: {', '.join(sorted(found)[:5])}")
        (descriptor,) = found.values()
        return self._image(descriptor, architecture)

    def verify(self, image: OciImage, say: Callable[[str], None] | None = None) -> None:
        """Hash every blob of the image; `say` gets a line for each, and some within a large one."""
        distinct = {blob.digest: blob for blob in image.blobs}
        for number, blob in enumerate(distinct.values(), 1):
            progress = ByteProgress(f"part {number} of {len(distinct)}", "hashed", blob.size, say)
            self.require(blob, progress.seen)
            progress.end("as its digest says")

    def layer(self, digest: str, what: str, say: Callable[[str], None] | None = None) -> IO[bytes]:
        """A blob, hashed before it is given out; lines call it `what`."""
        size = self._tar.size(digest) or 0
        progress = ByteProgress(what, "hashed", size, say)
        self.require(Descriptor(LAYER_TYPE, digest, size), progress.seen)
        progress.end("as its digest says")
        return self.open(digest)

    def require(self, blob: Descriptor, seen: Callable[[int], None] | None = None) -> None:
        """It is there, whole and unchanged; `seen` is told the bytes of each piece that was hashed."""
        self._there(blob)
        try:
            observed = self._tar.hash_of(blob.digest, seen)
        except OSError as error:
            raise self._refusal("a file that can be read", error.strerror or str(error)) from None
        if observed != blob.digest:
            raise self._refusal(f"the part {blob.digest}", f"content with the hash {observed}")

    def _manifests(
        self, index: Mapping[str, Any], levels: int, seen: Iterator[int]
    ) -> Iterator[tuple[Descriptor, Mapping[str, Any]]]:
        """Images that an index names, also through another index; without what a builder says of one. `seen`: numbers
        entries, of all indexes together."""
        entries = index.get("manifests")
        if not isinstance(entries, list):
            raise self._refusal("an index of images", "another form")
        for entry in entries:
            if next(seen) > MOST_ENTRIES:
                raise self._refusal(f"at most {MOST_ENTRIES} images in all indexes", "more")
            descriptor = self._descriptor(entry, "an index", INDEX_TYPES | MANIFEST_TYPES)
            notes = entry.get("annotations")
            if isinstance(notes, dict) and notes.get("vnd.docker.reference.type") == _ATTESTATION:
                continue
            if descriptor.media_type in MANIFEST_TYPES:
                yield descriptor, entry
            elif levels > 1:
                yield from self._manifests(self._json(descriptor), levels - 1, seen)
            else:
                raise self._refusal(f"indexes of at most {LEVELS} levels", "more")

    def _image(self, descriptor: Descriptor, architecture: str) -> ArchivedImage:
        manifest = self._json(descriptor)
        said = manifest.get("mediaType", descriptor.media_type)
        layers = manifest.get("layers")
        if said != descriptor.media_type or not isinstance(layers, list) or not 0 < len(layers) <= MOST_ENTRIES:
            raise self._refusal(f"a manifest of 1 to {MOST_ENTRIES} layers", f"another form of {descriptor.digest}")
        config = self._descriptor(manifest.get("config"), "the manifest", CONFIG_TYPES)
        image = OciImage(
            descriptor, config, tuple(self._descriptor(each, "the manifest", LAYER_TYPES) for each in layers)
        )
        built = self._json(config)
        contents = _object(built.get("rootfs")).get("diff_ids")
        if f"{built.get('os')}/{built.get('architecture')}" != f"linux/{architecture}":
            raise self._refusal(f"a configuration for linux/{architecture}", _platform(built) or "no platform")
        if not isinstance(contents, list) or len(contents) != len(layers):
            raise self._refusal("as many layers in the configuration as in the manifest", "another number")
        container = _object(built.get("config"))
        return ArchivedImage(image, self._environment(container.get("Env")), self._labels(container.get("Labels")))

    def _environment(self, lines: Any) -> dict[str, str]:
        if lines is None:
            return {}
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise self._refusal("an environment of lines NAME=VALUE", "another form")
        return {line.partition("=")[0]: line.partition("=")[2] for line in lines}

    def _labels(self, labels: Any) -> dict[str, str]:
        if not all(isinstance(value, str) for value in _object(labels).values()):
            raise self._refusal("labels of text", "another form")
        return _object(labels)

    def _built_for(self, manifest: Descriptor) -> str:
        """Of an entry that does not say it, as builders write one for a single image."""
        config = self._descriptor(self._json(manifest).get("config"), "the manifest", CONFIG_TYPES)
        return _platform(self._json(config)) or "no platform"

    def _descriptor(self, value: Any, where: str, types: frozenset[str]) -> Descriptor:
        entry = _object(value)
        media_type, digest, size = entry.get("mediaType"), entry.get("digest"), entry.get("size")
        if media_type not in types:
            raise self._refusal(f"parts of images in {where}", f"mediaType {str(media_type)[:120]!r}")
        if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
            raise self._refusal(f"parts by sha256 in {where}", f"digest {str(digest)[:120]!r}")
        if type(size) is not int or size < 0:
            raise self._refusal(f"sizes of parts in {where}", f"size {str(size)[:40]!r} of {digest}")
        return Descriptor(str(media_type), digest, size)

    def _there(self, blob: Descriptor) -> None:
        observed = self._tar.size(blob.digest)
        if observed is None or observed != blob.size:
            raise self._refusal(
                f"the part {blob.digest} of {blob.size} bytes",
                "no such part" if observed is None else f"{observed} bytes",
            )

    def _json(self, blob: Descriptor) -> dict[str, Any]:
        self._there(blob)
        data = self._small(blob.digest, blob.size)
        if f"sha256:{sha256_hex(data)}" != blob.digest:
            raise self._refusal(f"the part {blob.digest}", f"content with the hash sha256:{sha256_hex(data)}")
        return self._object_of(data, blob.digest)

    def _file(self, name: str) -> dict[str, Any]:
        size = self._tar.size(name)
        if size is None:
            saved = self._tar.size("manifest.json") is not None
            raise self._refusal(
                f"the file {name} of an OCI layout", "an archive of docker save" if saved else "a tar without it"
            )
        return self._object_of(self._small(name, size), name)

    def _small(self, key: str, size: int) -> bytes:
        if size > LARGEST:
            raise self._refusal(f"{key} of at most {LARGEST} bytes", f"{size} bytes")
        try:
            return b"".join(self._tar.pieces(key))
        except OSError as error:
            raise self._refusal("a file that can be read", error.strerror or str(error)) from None

    def _object_of(self, data: bytes, where: str) -> dict[str, Any]:
        try:
            value = parse_json(data)
        except ValueError as error:
            raise self._refusal(f"JSON in {where}", str(error)[:120]) from None
        if not isinstance(value, dict):
            raise self._refusal(f"an object in {where}", type(value).__name__)
        return value

    def _refusal(self, expected: str, observed: str) -> TrisparkError:
        return TrisparkError(
            "TS-IMAGES-ARCHIVE",
            "an image cannot be taken from this archive",
            where=str(self.path),
            expected=expected,
            observed=observed,
            remedy="write it as an OCI archive again, with the command of build.json; docker save is no such builder",
        )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _platform(value: Any) -> str:
    """`os/architecture` of a descriptor's platform or of a configuration; empty where it says none."""
    parts = [_object(value).get(name) for name in ("os", "architecture")]
    if not all(isinstance(part, str) and _WORD.fullmatch(part) for part in parts):
        return ""
    return "/".join(map(str, parts))
