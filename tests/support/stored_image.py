"""Images as a registry stores them, for tests of what is read there before a pull."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from trispark_node.registry import Layer

REFERENCE = "registry:5000/a/b"
BASE = "http://registry:5000/v2/a/b"


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


class StoredImage:
    """`platform`: `os/architecture`; `sizes`: {name of a layer: bytes to pull}; `contents`: of layers that exist."""

    def __init__(self, platform: str, sizes: Mapping[str, int], contents: Mapping[str, bytes] | None = None) -> None:
        system, _, architecture = platform.partition("/")
        self.platform: dict[str, Any] = {"os": system, "architecture": architecture}
        digests = {name: digest_of((contents or {}).get(name, name.encode())) for name in sizes}
        self.layers = tuple(
            Layer(digest_of(f"unpacked {name}".encode()), size, digests[name]) for name, size in sizes.items()
        )
        diff_ids = [layer.diff_id for layer in self.layers]
        self.config = json.dumps({**self.platform, "rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()
        packed = [{"digest": digests[name], "size": size} for name, size in sizes.items()]
        self.manifest = json.dumps({"config": {"digest": digest_of(self.config)}, "layers": packed}).encode()
        self.reference = f"{REFERENCE}@{digest_of(self.manifest)}"

    def served(self) -> dict[str, bytes]:
        """{URL: body}: manifest, then configuration."""
        return {
            f"{BASE}/manifests/{digest_of(self.manifest)}": self.manifest,
            f"{BASE}/blobs/{digest_of(self.config)}": self.config,
        }

    @staticmethod
    def index(*images: StoredImage) -> tuple[str, dict[str, bytes]]:
        """(reference, {URL: body}) of an index over images of different platforms."""
        entries = [{"digest": digest_of(image.manifest), "platform": image.platform} for image in images]
        body = json.dumps({"manifests": entries}).encode()
        served = {f"{BASE}/manifests/{digest_of(body)}": body}
        for image in images:
            served |= image.served()
        return f"{REFERENCE}@{digest_of(body)}", served
