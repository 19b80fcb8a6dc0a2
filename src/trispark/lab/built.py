"""What the lab's build says of an image that it pushed, for its provenance (trispark.images.built)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from trispark import __version__
from trispark.images.built import DIRECTORY, BuiltImage, write_built
from trispark.images.oci import BlobStore, OciImage
from trispark.lab.layout import NODE_REGISTRY, Paths
from trispark.lab.prepared import Image, Prepared
from trispark.lab.registry import split_reference
from trispark.project import source_state


def describe(paths: Paths, prepared: Prepared, image: Image, made: OciImage, store: BlobStore) -> BuiltImage:
    """Leave the description of an image that was built of what is prepared.

    An image of the lab stands on others of the lab: their contexts are part of its own, each below its name, and its
    base is the root file system below all of them, by its layer.
    """
    context = {name: digest for each in _chain(prepared, image) for name, digest in _files(each)}
    project = source_state(paths.repo, __version__)
    _, repository, _ = split_reference(image.reference)
    described = BuiltImage(
        name=image.name,
        repository=f"{NODE_REGISTRY}/{repository}",
        manifest_digest=made.manifest.digest,
        config_digest=made.config.digest,
        architecture=str(json.loads(store.path(made.config.digest).read_bytes())["architecture"]),
        dockerfile=f"{image.name}/Dockerfile",
        dockerfile_sha256=context[f"{image.name}/Dockerfile"],
        base="lab-base",
        base_digest=made.layers[0].digest,
        context=context,
        commit=None if project.dirty else project.commit,
    )
    path = paths.repo / DIRECTORY / f"{image.name}.json"
    write_built(path, described, [store.path(layer.digest) for layer in made.layers])
    return described


def _chain(prepared: Prepared, image: Image) -> Iterator[Image]:
    """The image and those of the lab that it stands on."""
    by_reference = {each.reference: each for each in prepared.images.values()}
    found: Image | None = image
    while found is not None:
        yield found
        found = by_reference.get(found.base)


def _files(image: Image) -> Iterator[tuple[str, str]]:
    """(path below the image's name, sha256) of its build context."""
    root = Path(image.context)
    for path in sorted(root.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                yield (
                    f"{image.name}/{path.relative_to(root).as_posix()}",
                    hashlib.file_digest(file, "sha256").hexdigest(),
                )
