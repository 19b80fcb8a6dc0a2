"""The bill of materials of an image: CycloneDX 1.6 in JSON. The same image gives the same bytes: no time, no chance."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from trispark import __version__
from trispark.canonical import canonical_sha256
from trispark.images.built import BuiltImage
from trispark.images.root_inventory import DebianPackage, PythonDist, RootInventory

SPEC_VERSION: Final = "1.6"
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:trispark:sbom")
PROPERTY: Final = "trispark:"
"""Begins the names of properties that are ours."""


def sbom(image: BuiltImage, inventory: RootInventory) -> dict[str, Any]:
    """Components: Python distributions, Debian packages, and our own trees of the build context by their hashes.

    A wheel or package that a lock names has the hash of its file; one that came with the base image has none, but a
    distribution has the hash of its RECORD as a property.
    """
    components = sorted(
        [*_dists(image, inventory), *_debian(image, inventory), *_trees(image)], key=lambda each: str(each["bom-ref"])
    )
    content: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "trispark", "version": __version__}]},
            "component": _image(image),
        },
        "components": components,
        "dependencies": [
            {"ref": image.reference, "dependsOn": [str(each["bom-ref"]) for each in components]},
            *({"ref": str(each["bom-ref"]), "dependsOn": []} for each in components),
        ],
    }
    return {**content, "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, canonical_sha256(content))}"}


def _image(image: BuiltImage) -> dict[str, Any]:
    last = image.repository.rpartition("/")[2]
    digest, place = quote(image.manifest_digest, safe=""), quote(image.repository, safe="/:")
    return {
        "type": "container",
        "bom-ref": image.reference,
        "name": image.name,
        "version": image.manifest_digest,
        "purl": f"pkg:oci/{quote(last, safe='')}@{digest}?arch={image.architecture}&repository_url={place}",
        "hashes": [_sha256(image.manifest_digest.partition(":")[2])],
        "properties": _properties(config_digest=image.config_digest),
    }


def _dists(image: BuiltImage, inventory: RootInventory) -> Iterator[dict[str, Any]]:
    locked = {(_normal(each.name), each.version): each.sha256 for each in _locked(image, "pypi")}
    for dist in inventory.dists:
        yield _with_hash(
            {
                "type": "library",
                "bom-ref": f"pypi:{dist.name}@{dist.version}#{dist.path}",
                "name": dist.name,
                "version": dist.version,
                "purl": f"pkg:pypi/{quote(dist.name, safe='')}@{quote(dist.version, safe='')}",
                "properties": _properties(path=dist.path, record_sha256=dist.record_sha256),
            },
            locked.get(_key(dist)),
        )


def _debian(image: BuiltImage, inventory: RootInventory) -> Iterator[dict[str, Any]]:
    # A lock names the file of an architecture; the image has one architecture, and `all`.
    locked = {(each.name, each.version): each.sha256 for each in _locked(image, "deb")}
    vendor = quote(inventory.distribution or "debian", safe="")
    for package in inventory.packages:
        yield _with_hash(
            {
                "type": "library",
                "bom-ref": f"deb:{package.name}:{package.architecture}@{package.version}",
                "name": package.name,
                "version": package.version,
                "purl": f"pkg:deb/{vendor}/{quote(package.name, safe='')}@{quote(package.version, safe='')}"
                f"?arch={quote(package.architecture, safe='')}",
            },
            locked.get(_key(package)),
        )


def _trees(image: BuiltImage) -> Iterator[dict[str, Any]]:
    """Each directory or file at the top of the build context; a directory by the hash of its files' hashes."""
    tops: dict[str, dict[str, str]] = {}
    for path, digest in image.context.items():
        tops.setdefault(path.partition("/")[0], {})[path] = digest
    for top, files in tops.items():
        single = files.get(top)
        yield {
            "type": "file",
            "bom-ref": f"context:{top}",
            "name": top,
            "hashes": [_sha256(single or canonical_sha256(files))],
            "properties": _properties(files=str(len(files))),
        }


def _locked(image: BuiltImage, kind: str) -> Iterator[Any]:
    return (each for each in image.dependencies if each.purl.startswith(f"pkg:{kind}/"))


def _key(found: PythonDist | DebianPackage) -> tuple[str, str]:
    return found.name, found.version


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _with_hash(component: dict[str, Any], digest: str | None) -> dict[str, Any]:
    return component if digest is None else {**component, "hashes": [_sha256(digest)]}


def _sha256(digest: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest}


def _properties(**values: str | None) -> list[dict[str, str]]:
    return [
        {"name": f"{PROPERTY}{name}", "value": value} for name, value in sorted(values.items()) if value is not None
    ]


def counts(bom: Mapping[str, Any]) -> dict[str, int]:
    """{kind: number of components}: pypi, deb, context."""
    found: dict[str, int] = {}
    for component in bom["components"]:
        kind = str(component["bom-ref"]).partition(":")[0]
        found[kind] = found.get(kind, 0) + 1
    return found
