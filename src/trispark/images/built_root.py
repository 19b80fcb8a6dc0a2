"""The root file system of a built image, from wherever its description says that its layers lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from trispark.errors import TrisparkError
from trispark.images.archive import ImageArchive
from trispark.images.built import ArchivedLayers
from trispark.images.root_inventory import RootInventory, inventory_of, inventory_of_files, unreadable

ZSTD: Final = b"\x28\xb5\x2f\xfd"
"""How a stream of it begins; this Python has no reader for it."""


def inventory_of_built(
    layers: tuple[Path, ...] | ArchivedLayers, say: Callable[[str], None] | None = None
) -> RootInventory:
    """Layers in an archive are hashed first: it may be another one by now. `say` gets a line for each of them.

    Raises TS-PROVENANCE-ROOT, TS-IMAGES-ARCHIVE.
    """
    if not isinstance(layers, ArchivedLayers):
        return inventory_of(*layers)
    with ImageArchive(layers.archive) as archive, unreadable(str(layers.archive)):
        return inventory_of_files(_layers(archive, layers.digests, say))


def is_zstd(archive: ImageArchive, digest: str) -> bool:
    """Whether attesting would be refused for this layer. Raises OSError, KeyError."""
    with archive.open(digest) as layer:
        return layer.read(len(ZSTD)) == ZSTD


def _layers(archive: ImageArchive, digests: tuple[str, ...], say: Callable[[str], None] | None) -> Iterator[IO[bytes]]:
    for number, digest in enumerate(digests, 1):
        if is_zstd(archive, digest):
            raise TrisparkError(
                "TS-PROVENANCE-ROOT",
                "a layer of the image cannot be read",
                where=f"{archive.path}, {digest}",
                expected="a tar that is not compressed, or by gzip, bzip2 or xz",
                observed="one that is compressed by zstd",
                remedy="build with compression=gzip,force-compression=true; layers of the base are written anew then",
            )
        yield archive.layer(digest, f"layer {number} of {len(digests)}", say)
