"""Brings the lab's built images into its registry, each under the digest that its content has wherever it is built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trispark.errors import TrisparkError
from trispark.host import Say, alone
from trispark.images.build import BuildEngine, export
from trispark.images.oci import BlobStore, OciImage
from trispark.images.registry import Registry
from trispark.lab.built import describe
from trispark.lab.images import labels
from trispark.lab.layout import PUSH_REGISTRY, Paths
from trispark.lab.prepared import Image, load_prepared
from trispark.lab.registry import split_reference

WAIT_S: Final = 1800
"""For another build or push of this checkout."""


def push(repo: Path, engine: BuildEngine, names: Sequence[str], registry: Registry | None = None) -> dict[str, str]:
    """{image: its digest in the registry}. Raises TS-IMAGES-PUSH, -ARCHIVE, TS-LAB-BUSY; what is there stays."""
    paths = Paths(repo.resolve())
    with writing(paths, lambda _: None):
        return _push(paths, engine, names, registry)


@contextmanager
def writing(paths: Paths, say: Say) -> Iterator[None]:
    """Holds the store of blobs: who is done removes what no image has, also parts that another one still writes.

    Raises TS-LAB-BUSY.
    """
    lock = paths.cache / "lock.rebuild"
    with alone(lock, error_id="TS-LAB-BUSY", doing="build of images", wait_s=WAIT_S, say=say):
        yield


def _push(paths: Paths, engine: BuildEngine, names: Sequence[str], registry: Registry | None) -> dict[str, str]:
    prepared = load_prepared(paths.prepared)
    unknown = [name for name in names if name not in prepared.images or not prepared.images[name].pushed]
    if unknown:
        raise TrisparkError(
            "TS-IMAGES-NAME",
            "there is no such image to push",
            where=unknown[0],
            expected=", ".join(name for name, image in prepared.images.items() if image.pushed),
            observed=unknown[0],
            remedy="name one of these",
        )
    target = registry if registry is not None else Registry(PUSH_REGISTRY)
    store = blob_store(paths)
    pushed: dict[str, str] = {}
    exported: list[OciImage] = []
    for name in names:
        image = prepared.images[name]
        made = exported_image(engine, image, store)
        _, repository, tag = split_reference(image.reference)
        pushed[name] = target.push(made, store, repository, tag)
        describe(paths, prepared, image, made, store)
        exported.append(made)
    store.keep({**store.images(), **dict(zip(names, exported, strict=True))}, prepared.images)
    return pushed


def exported_image(engine: BuildEngine, image: Image, store: BlobStore, suffix: str = "") -> OciImage:
    """What the Engine built of `image` under its reference and `suffix`, in the store."""
    return export(engine, image.reference + suffix, store, labels=labels(image))


def blob_store(paths: Paths) -> BlobStore:
    return BlobStore(paths.cache / "oci")
