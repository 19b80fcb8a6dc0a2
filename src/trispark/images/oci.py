"""An image as blobs in the OCI image layout, from what a Docker Engine has built: one digest for one content."""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from trispark.errors import TrisparkError
from trispark.images.layers import EPOCH, Layer, write_layer
from trispark_node.canonical import canonical_json
from trispark_node.plain_json import parse_json
from trispark_node.tar_members import members, open_tar

MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
DOCKER_MANIFEST_TYPE: Final = "application/vnd.docker.distribution.manifest.v2+json"
"""Of builders that were not told to write OCI types; the rest of the image is the same."""
CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
"""Not compressed: what gzip writes depends on the version of the compressor."""
INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
CREATED: Final = datetime.fromtimestamp(EPOCH, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
_NAME: Final = "org.opencontainers.image.ref.name"
_CONFIG_KEYS: Final = ("Cmd", "Entrypoint", "Env", "ExposedPorts", "StopSignal", "User", "Volumes", "WorkingDir")


@dataclass(frozen=True)
class Descriptor:
    """A blob: `digest` is `sha256:...`, `size` in bytes."""

    media_type: str
    digest: str
    size: int

    def as_dict(self) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True)
class OciImage:
    """An image whose blobs lie in a store."""

    manifest: Descriptor
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """In the order in which a registry wants them: what the manifest names, then the manifest."""
        return (*self.layers, self.config, self.manifest)


class BlobStore:
    """Blobs by digest below `root/blobs/sha256`. A store believes what it wrote itself; what it finds there is hashed
    before its first use, as a power cut leaves files of the right name and size with other bytes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._blobs = root / "blobs" / "sha256"
        self._known = root / "engine-layers.json"
        self._sizes: dict[str, int] = {}
        """{digest: bytes} of the blobs that are what their names say."""

    def path(self, digest: str) -> Path:
        return self._blobs / digest.removeprefix("sha256:")

    def open(self, digest: str) -> IO[bytes]:
        """Raises OSError."""
        return self.path(digest).open("rb")

    def add_bytes(self, media_type: str, data: bytes) -> Descriptor:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self._blobs.mkdir(parents=True, exist_ok=True)
        with self._partial() as partial:
            partial.write(data)
            partial.flush()
            self._name(partial.name, digest, len(data))
        return Descriptor(media_type, digest, len(data))

    def add_layer(self, source: Any) -> Layer:
        """Write the layer of a tar; a killed writer leaves a partial file that `prune` removes."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        with self._partial() as partial:
            layer = write_layer(source, partial)
            partial.flush()
            self._name(partial.name, layer.digest, layer.size)
        return layer

    def _name(self, partial: str, digest: str, size: int) -> None:
        Path(partial).replace(self.path(digest))
        self._sizes[digest] = size

    @contextmanager
    def _partial(self) -> Iterator[Any]:
        """A file without its name yet. It does not stay where writing failed: a full disk would stay full."""
        with tempfile.NamedTemporaryFile(dir=self._blobs, prefix=".partial-", delete=False) as partial:
            try:
                yield partial
            except BaseException:
                Path(partial.name).unlink(missing_ok=True)
                raise

    def known_layers(self) -> dict[str, Layer]:
        """{an Engine's id of a layer's content: the layer here}, of those whose blobs are whole, hashed once each."""
        try:
            loaded: dict[str, Any] = json.loads(self._known.read_text(encoding="utf-8"))
            layers = {key: Layer(str(value["digest"]), int(value["size"])) for key, value in loaded.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}
        return {key: layer for key, layer in layers.items() if self.holds(layer.digest, layer.size)}

    def know_layers(self, layers: Mapping[str, Layer]) -> None:
        self._write(self._known.name, {key: asdict(layer) for key, layer in layers.items()})

    def images(self) -> dict[str, OciImage]:
        """{name: image} of the index; without those that cannot be read whole."""
        try:
            listed = json.loads((self.root / "index.json").read_text(encoding="utf-8"))["manifests"]
            named = {str(each["annotations"][_NAME]): str(each["digest"]) for each in listed}
        except (OSError, ValueError, TypeError, KeyError):
            return {}
        found = {name: self._image(digest) for name, digest in named.items()}
        return {name: image for name, image in found.items() if image is not None}

    def keep(self, images: Mapping[str, OciImage], names: Iterable[str]) -> None:
        """Write the index of those of `images` that have one of these names, and remove the blobs of no one."""
        kept = {name: image for name, image in images.items() if name in set(names)}
        manifests = [{**kept[name].manifest.as_dict(), "annotations": {_NAME: name}} for name in sorted(kept)]
        self._write("index.json", {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests})
        self._write("oci-layout", {"imageLayoutVersion": "1.0.0"})
        needed = {blob.digest.removeprefix("sha256:") for image in kept.values() for blob in image.blobs}
        for path in self._blobs.iterdir() if self._blobs.is_dir() else ():
            if path.name not in needed:
                path.unlink()

    def _image(self, digest: str) -> OciImage | None:
        try:
            data = self.path(digest).read_bytes()
            manifest: dict[str, Any] = json.loads(data)
            layers = tuple(_descriptor(each) for each in manifest["layers"])
            image = OciImage(Descriptor(MANIFEST_TYPE, digest, len(data)), _descriptor(manifest["config"]), layers)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return image if all(self.holds(blob.digest, blob.size) for blob in image.blobs) else None

    def _write(self, name: str, value: Any) -> None:
        partial = self.root / f".{name}.partial"
        partial.write_bytes(canonical_json(value) + b"\n")
        partial.replace(self.root / name)

    def holds(self, digest: str, size: int) -> bool:
        """Whether the blob is there, of that size and with the bytes of its name."""
        try:
            if self.path(digest).stat().st_size != size:
                return False
            if digest not in self._sizes:
                with self.path(digest).open("rb") as blob:
                    if digest != f"sha256:{hashlib.file_digest(blob, 'sha256').hexdigest()}":
                        return False
                self._sizes[digest] = size
        except OSError:
            return False
        return True


def from_engine(archive: Path, store: BlobStore, *, labels: Mapping[str, str]) -> OciImage:
    """The image of an archive of `docker save`, its blobs put into `store`. `labels`: all that the image gets.

    Whatever says where and when it was built is left out: times, history, the Engine's version, labels of the build.
    Raises TS-IMAGES-ARCHIVE when the archive is not of one image.
    """
    try:
        with archive.open("rb") as file, open_tar(file) as saved:
            built, known, layers = _layers_of(saved, store)
    except (tarfile.TarError, KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise _no_archive(archive, " ".join(f"{type(error).__name__}: {error}".split())[:200]) from None
    store.know_layers({**known, **layers})
    ordered = [layers[content] for content in built["rootfs"]["diff_ids"]]
    config = store.add_bytes(CONFIG_TYPE, canonical_json(_config(built, ordered, labels)))
    descriptors = tuple(Descriptor(LAYER_TYPE, layer.digest, layer.size) for layer in ordered)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config.as_dict(),
        "layers": [each.as_dict() for each in descriptors],
    }
    return OciImage(store.add_bytes(MANIFEST_TYPE, canonical_json(manifest)), config, descriptors)


def _layers_of(saved: tarfile.TarFile, store: BlobStore) -> tuple[dict[str, Any], dict[str, Layer], dict[str, Layer]]:
    """(configuration, layers that the store knew, layers of the image); layers by the Engine's id of their content."""
    for _ in members(saved):  # all headers, so that looking for a name finds nothing new
        pass
    listed = _json_of(saved, "manifest.json")
    if not isinstance(listed, list) or len(listed) != 1:
        raise _no_archive(Path(str(saved.name)), "not exactly one image")
    built: dict[str, Any] = _json_of(saved, str(listed[0]["Config"]))
    known = store.known_layers()
    layers: dict[str, Layer] = {}
    for member, content in zip(listed[0]["Layers"], built["rootfs"]["diff_ids"], strict=True):
        layers[content] = known.get(content) or _add(saved, str(member), store)
    return built, known, layers


def _config(built: dict[str, Any], layers: list[Layer], labels: Mapping[str, str]) -> dict[str, Any]:
    container = {key: built["config"][key] for key in _CONFIG_KEYS if built["config"].get(key)}
    return {
        "architecture": built["architecture"],
        "os": built["os"],
        "created": CREATED,
        "config": {**container, "Labels": dict(labels)},
        "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        "history": [{"created": CREATED, "created_by": "trispark"} for _ in layers],
    }


def _descriptor(value: dict[str, Any]) -> Descriptor:
    return Descriptor(str(value["mediaType"]), str(value["digest"]), int(value["size"]))


def _add(saved: tarfile.TarFile, name: str, store: BlobStore) -> Layer:
    data = saved.extractfile(name)
    if data is None:
        raise _no_archive(Path(str(saved.name)), f"{name} is no file")
    return store.add_layer(data)


def _json_of(saved: tarfile.TarFile, name: str) -> Any:
    try:
        data = saved.extractfile(name)
        if data is None:
            raise KeyError(name)
        return parse_json(data.read())
    except (KeyError, ValueError) as error:
        raise _no_archive(Path(str(saved.name)), f"no {name} that can be read") from error


def _no_archive(path: Path, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-IMAGES-ARCHIVE",
        "this is no archive of an image",
        where=str(path),
        expected="what the Docker Engine saves: one image with manifest.json",
        observed=observed,
        remedy="build the image again; see the log of the Docker Engine",
    )
