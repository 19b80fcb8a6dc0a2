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
from trispark.lab.prepared import Image, Prepared, load_prepared
from trispark.lab.registry import split_reference

STORE_WAIT_S: Final = 600.0
"""A build without a cache takes a minute, on a busy machine several."""


def push(repo: Path, engine: BuildEngine, names: Sequence[str], registry: Registry | None = None) -> dict[str, str]:
    """{image: its digest in the registry}. Raises TS-IMAGES-PUSH, TS-IMAGES-ARCHIVE; what is there stays."""
    paths = Paths(repo.resolve())
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
    with only_writer(paths, lambda _line: None) as store:
        return _push(
            paths, prepared, engine, names, registry if registry is not None else Registry(PUSH_REGISTRY), store
        )


def _push(
    paths: Paths, prepared: Prepared, engine: BuildEngine, names: Sequence[str], target: Registry, store: BlobStore
) -> dict[str, str]:
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


@contextmanager
def only_writer(paths: Paths, say: Say) -> Iterator[BlobStore]:
    """The store of this checkout's images, for one process at a time: who ends removes the blobs of no one.

    Raises TS-LAB-BUSY.
    """
    lock = paths.cache / "lock.oci"
    with alone(lock, error_id="TS-LAB-BUSY", doing="build of images", wait_s=STORE_WAIT_S, say=say):
        yield BlobStore(paths.cache / "oci")
