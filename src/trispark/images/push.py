"""`images push`: an archive of a builder, judged by the context that it was built from, described, and brought to a
registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark.errors import TrisparkError
from trispark.images.archive import ArchivedImage, ImageArchive
from trispark.images.built import DIRECTORY, ArchivedLayers, read_built, write_built
from trispark.images.built_from import description, require_built_from, require_no_variable
from trispark.images.built_root import is_zstd
from trispark.images.context_file import BuildContext, read_context
from trispark.images.declaration import Declaration
from trispark.images.registry import Registry
from trispark.images.registry_address import Place

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """`context`: the folder that the archive was built from; `to`: where it goes, None for nowhere."""

    name: str
    context: Path
    archive: Path
    to: Place | None


@dataclass(frozen=True)
class Pushed:
    """`digest`: of the manifest; `image_id`: of the configuration; `size`: bytes of all blobs; `tag`: under which the
    registry has it, empty where it went nowhere; `unread`: layers that no bill of materials can be made of."""

    name: str
    architecture: str
    repository: str
    digest: str
    image_id: str
    size: int
    tag: str
    description: Path
    unread: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "architecture": self.architecture,
            "repository": self.repository,
            "digest": self.digest,
            "image_id": self.image_id,
            "bytes": self.size,
            "tag": self.tag or None,
            "pushed": bool(self.tag),
            "description": str(self.description),
            "unread_layers": list(self.unread),
        }


def push(
    root: Path, declaration: Declaration, request: Request, say: Say, registry_of: Callable[[Place], Registry]
) -> Pushed:
    """Nothing is sent and nothing described before the whole archive was judged.

    Raises TS-IMAGES-NAME, -CONTEXT, -TREE, -ARCHIVE, -PLATFORM, -OTHER, -VARIABLE, -PUSH, -LOGIN, -DESCRIPTION.
    """
    context = _context(request)
    with ImageArchive(request.archive) as archive:
        found = archive.image(context.file.architecture)
        require_built_from(found, context, request.archive)
        require_no_variable(root, declaration.images[request.name], found, request.archive)
        say(f"{request.archive}: linux/{context.file.architecture}, {len(found.image.layers)} layers")
        archive.verify(found.image, say)
        unread = tuple(each.digest for each in found.image.layers if is_zstd(archive, each.digest))
        tag = ""
        if request.to is not None:
            tag = tag_of(found.image.manifest.digest)
            registry_of(request.to).push(found.image, archive, request.to.path, tag, say)
    repository = _known_as(root, request.name, found) if request.to is None else request.to.reference
    return Pushed(
        request.name,
        context.file.architecture,
        repository,
        found.image.manifest.digest,
        found.image.config.digest,
        found.size,
        tag,
        _described(root, request, context, found, repository),
        unread,
    )


def tag_of(digest: str) -> str:
    """Registries remove what no tag names; this one names one content, so it never moves."""
    return f"trispark-{digest.removeprefix('sha256:')[:16]}"


def _context(request: Request) -> BuildContext:
    context = read_context(request.context)
    if context.file.name != request.name:
        raise TrisparkError(
            "TS-IMAGES-NAME",
            "the build context is of another image",
            where=str(request.context),
            expected=request.name,
            observed=context.file.name,
            remedy="name the image of the context, or the context of the image",
        )
    return context


def _known_as(root: Path, name: str, found: ArchivedImage) -> str:
    """Where an image that is not pushed now was brought to before, so that its statement and signature stay."""
    try:
        before, _ = read_built(root / DIRECTORY / f"{name}.json")
    except TrisparkError:
        return f"trispark/{name}"
    same = before.manifest_digest == found.image.manifest.digest
    return before.repository if same else f"trispark/{name}"


def _described(root: Path, request: Request, context: BuildContext, found: ArchivedImage, repository: str) -> Path:
    path = root / DIRECTORY / f"{request.name}.json"
    layers = ArchivedLayers(request.archive.absolute(), tuple(each.digest for each in found.image.layers))
    try:
        write_built(path, description(found, context, repository), layers)
    except OSError as error:
        raise TrisparkError(
            "TS-IMAGES-DESCRIPTION",
            "the description of an image cannot be written",
            where=str(path),
            expected="room, and the right to write there",
            observed=error.strerror or str(error),
            remedy="make room, then run the same command again; the registry is not sent anything twice",
        ) from error
    return path
