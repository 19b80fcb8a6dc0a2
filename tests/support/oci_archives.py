"""OCI archives as a builder writes them, and spoiled ones."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trispark.images.context_file import ContextFile

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
STATUS = "Package: libc6\nStatus: install ok installed\nVersion: 2.36\nArchitecture: arm64\n"
ROOT_FILES = (
    {"etc/os-release": "ID=ubuntu\n", "var/lib/dpkg/status": STATUS, "opt/gone-1.dist-info/METADATA": "Name: gone\n"},
    {
        "opt/.wh.gone-1.dist-info": "",
        "opt/tiny_kernel-1.2.dist-info/METADATA": "Name: tiny-kernel\nVersion: 1.2\n",
        "opt/tiny_kernel-1.2.dist-info/RECORD": "a,,\n",
    },
)


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer_tar(files: Mapping[str, str]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return target.getvalue()


def labels_of(file: ContextFile) -> dict[str, str]:
    """What a build with the command of a context sets."""
    known = {"title": "TITLE", "version": "VERSION", "revision": "REVISION", "base.name": "BASE_NAME"}
    known["base.digest"] = "BASE_DIGEST"
    labels = {f"org.opencontainers.image.{key}": file.arguments[name] for key, name in known.items()}
    return {**labels, "trispark.context": file.id}


class OciImage:
    """One image; `gzipped`: which of its layers are. `blobs`: {digest: content}."""

    def __init__(
        self,
        labels: Mapping[str, str],
        *,
        architecture: str = "arm64",
        env: Iterable[str] = ("PATH=/bin",),
        roots: Iterable[Mapping[str, str]] = ROOT_FILES,
        gzipped: tuple[int, ...] = (),
    ) -> None:
        plain = [layer_tar(files) for files in roots]
        self.layers = [gzip.compress(data, mtime=0) if n in gzipped else data for n, data in enumerate(plain)]
        config: dict[str, Any] = {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": list(env), "Labels": dict(labels)},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(data) for data in plain]},
        }
        self.config = json.dumps(config).encode()
        types = [LAYER + ("+gzip" if n in gzipped else "") for n in range(len(plain))]
        self.described: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, self.config),
            "layers": [descriptor(kind, data) for kind, data in zip(types, self.layers, strict=True)],
        }
        self.platform = {"os": "linux", "architecture": architecture}

    @property
    def manifest(self) -> bytes:
        return json.dumps(self.described).encode()

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    @property
    def blobs(self) -> dict[str, bytes]:
        return {digest_of(data): data for data in (self.manifest, self.config, *self.layers)}

    @property
    def entry(self) -> dict[str, Any]:
        return descriptor(MANIFEST, self.manifest)


def descriptor(media_type: str, data: bytes, **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data), **more}


def index_of(*entries: Mapping[str, Any]) -> bytes:
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": list(entries)}).encode()


def files_of(image: OciImage) -> dict[str, bytes]:
    """{member: content} of a whole archive, as BuildKit orders it: blobs first."""
    blobs = {f"blobs/sha256/{digest[7:]}": data for digest, data in image.blobs.items()}
    layout = {"imageLayoutVersion": "1.0.0"}
    return {**blobs, "index.json": index_of(image.entry), "oci-layout": json.dumps(layout).encode()}


def write(path: Path, files: Mapping[str, bytes], *more: tarfile.TarInfo) -> Path:
    """`more`: members without content, at the end."""
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for member in more:
            tar.addfile(member)
    return path
