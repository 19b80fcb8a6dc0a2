"""What a builder says of an image that it made: all that went in, each by its hash. Its provenance is made from it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from trispark.canonical import canonical_json, canonical_sha256
from trispark.errors import TrisparkError
from trispark.images.bounded import read_json
from trispark.images.secret_arguments import require_no_secrets
from trispark.plainyaml import Strict, check_model

DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
DIRECTORY: Final = Path(".trispark") / "images" / "built"
"""Below the project: what a build leaves of each image, `<name>.json`."""
MOST_BYTES: Final = 16 * 2**20
"""Of a description: a context may have thousands of files."""
_HASH: Final = r"^[0-9a-f]{64}$"
_DIGEST: Final = r"^sha256:[0-9a-f]{64}$"


@dataclass(frozen=True)
class Dependency:
    """Something from outside that a lock names: a wheel, a Debian package, a tree. `sha256`: 64 hex digits, of the file
    or as the lock has it."""

    name: str
    version: str
    purl: str
    sha256: str


@dataclass(frozen=True)
class BuiltImage:
    """One image of one architecture.

    name                as in the lock, such as `lab-engine`
    repository          where it is pulled from, without tag and digest
    manifest_digest     `sha256:...` of its manifest, by which it is pulled
    config_digest       `sha256:...` of its configuration, the image id of Docker
    architecture        as OCI names it: amd64, arm64
    dockerfile          path in the project; dockerfile_sha256: 64 hex digits
    arguments           build arguments, none of them secret
    base, base_digest   reference of the base image, and its digest for this architecture; None for one from scratch
    context             {path in the build context: sha256 of the file}
    dependencies        what the locks name, wheels and Debian packages alike
    commit              of the project's sources, None where they were changed or are no git tree
    """

    name: str
    repository: str
    manifest_digest: str
    config_digest: str
    architecture: str
    dockerfile: str
    dockerfile_sha256: str
    base: str | None
    base_digest: str | None
    arguments: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)
    dependencies: tuple[Dependency, ...] = ()
    commit: str | None = None

    @property
    def reference(self) -> str:
        """`repository@sha256:...`."""
        return f"{self.repository}@{self.manifest_digest}"

    @property
    def context_sha256(self) -> str:
        """Hash of the whole build context: of the canonical JSON of `context`."""
        return canonical_sha256(dict(self.context))


@dataclass(frozen=True)
class ArchivedLayers:
    """Layers that lie in an OCI archive, lowest first, by the digests (`sha256:...`) of their blobs."""

    archive: Path
    digests: tuple[str, ...]


class _Dependency(Strict):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    version: Annotated[str, Field(min_length=1, max_length=200)]
    purl: Annotated[str, Field(pattern=r"^pkg:[a-z]+/", max_length=500)]
    sha256: Annotated[str, Field(pattern=_HASH)]


class _Built(Strict):
    name: Annotated[str, Field(pattern=rf"^{NAME.pattern}$")]
    repository: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._:/-]*$", max_length=300)]
    manifest_digest: Annotated[str, Field(pattern=_DIGEST)]
    config_digest: Annotated[str, Field(pattern=_DIGEST)]
    architecture: Annotated[str, Field(pattern=r"^[a-z0-9]{2,16}$")]
    dockerfile: Annotated[str, Field(min_length=1, max_length=300)]
    dockerfile_sha256: Annotated[str, Field(pattern=_HASH)]
    base: Annotated[str, Field(min_length=1, max_length=500)] | None
    base_digest: Annotated[str, Field(pattern=_DIGEST)] | None
    arguments: dict[str, str] = Field(default_factory=dict)
    context: dict[str, Annotated[str, Field(pattern=_HASH)]] = Field(default_factory=dict)
    dependencies: tuple[_Dependency, ...] = ()
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40,64}$")] | None = None


class _File(Strict):
    """`layers`: paths, or with `archive` digests of blobs in that file."""

    schema_version: Annotated[int, Field(ge=1, le=1)]
    image: _Built
    layers: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    archive: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _by_digest(self) -> _File:
        if self.archive is not None and not all(DIGEST.fullmatch(layer) for layer in self.layers):
            raise ValueError("layers in an archive are named by digest")
        return self


def read_built(path: Path) -> tuple[BuiltImage, tuple[Path, ...] | ArchivedLayers]:
    """A description that `write_built` left, and the tars of the image's layers, lowest first.

    Raises TS-PROVENANCE-BUILT where there is none, TS-PROVENANCE-DAMAGED, and TS-IMAGES-SECRET: what is read here
    goes into a statement.
    """
    try:
        data = read_json(path, MOST_BYTES)
    except FileNotFoundError:
        raise TrisparkError(
            "TS-PROVENANCE-BUILT",
            "there is no description of this image",
            where=str(path),
            expected="what its build leaves there",
            observed="no such file",
            remedy="build the image first; its name is the file's",
        ) from None
    except (OSError, ValueError) as error:
        raise TrisparkError(
            "TS-PROVENANCE-DAMAGED",
            "the description of an image cannot be read",
            where=str(path),
            expected="what its build left there",
            observed=str(error)[:200],
            remedy="build the image again",
        ) from None
    found = check_model(_File, data, str(path), "TS-PROVENANCE-DAMAGED")
    require_no_secrets(found.image.arguments, str(path))
    fields = found.image.model_dump()
    fields["dependencies"] = tuple(Dependency(**each) for each in fields["dependencies"])
    if found.archive is not None:
        return BuiltImage(**fields), ArchivedLayers(Path(os.path.normpath(path.parent / found.archive)), found.layers)
    return BuiltImage(**fields), tuple(path.parent / layer for layer in found.layers)


def write_built(path: Path, image: BuiltImage, layers: Sequence[Path] | ArchivedLayers) -> None:
    """Leave a description for `read_built`. `layers`: one tar each, lowest first; or one directory, the whole root file
    system; or where they lie in an archive. Files are named relative to the description, so that both can be moved
    together. Raises OSError."""
    content: dict[str, Any] = {"schema_version": 1, "image": asdict(image)}
    if isinstance(layers, ArchivedLayers):
        content |= {"layers": list(layers.digests), "archive": os.path.relpath(layers.archive, path.parent)}
    else:
        content["layers"] = [os.path.relpath(layer, path.parent) for layer in layers]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(canonical_json(content) + "\n", encoding="utf-8")
    temporary.replace(path)
