"""build.json of a build context: what the image is to be, which files it is made of, and the command that builds it.

One hash, `id`, is over all of it. The command puts it into the image as a label, so that an archive says by itself of
which context it was made.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from trispark.canonical import canonical_sha256
from trispark.errors import TrisparkError
from trispark.images.bounded import read_json
from trispark.images.built import Dependency
from trispark.images.layers import EPOCH
from trispark.images.lock_model import Digest, Sha256
from trispark.images.tree_hash import tree_hash
from trispark.plainyaml import Strict, check_model

FILE: Final = "build.json"
LABEL: Final = "trispark.context"
"""Of the image: the id of its context."""
MOST_BYTES: Final = 16 * 2**20
_REMEDY: Final = "make it anew (./trispark images context), build from that, and change nothing in it"


class _Dependency(Strict):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    version: Annotated[str, Field(min_length=1, max_length=200)]
    purl: Annotated[str, Field(pattern=r"^pkg:[a-z]+/", max_length=500)]
    sha256: Sha256


class ContextFile(Strict):
    """`tree`: hash of all other files (tree_hash); `revision`: of the project; `base`: None of no image."""

    schema_version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    architecture: Literal["amd64", "arm64"]
    dockerfile: Annotated[str, Field(min_length=1, max_length=300)]
    version: Annotated[str, Field(min_length=1, max_length=100)]
    revision: Annotated[str, Field(min_length=1, max_length=100)]
    base: Annotated[str, Field(min_length=1, max_length=500)]
    base_digest: Digest
    arguments: dict[str, str]
    inputs: dict[str, str]
    dependencies: tuple[_Dependency, ...]
    tree: Sha256

    @property
    def id(self) -> str:
        return canonical_sha256(self.model_dump(mode="json"))

    @property
    def locked(self) -> tuple[Dependency, ...]:
        return tuple(Dependency(each.name, each.version, each.purl, each.sha256) for each in self.dependencies)

    @property
    def commit(self) -> str | None:
        """Of the project's sources; None where they were changed, or are no git tree."""
        plain = len(self.revision) in range(40, 65) and not set(self.revision) - set("0123456789abcdef")
        return self.revision if plain else None

    @property
    def archive(self) -> str:
        """Where the command writes the image, seen from the folder: beside it, as it is part of no context."""
        return f"../{self.name}-{self.architecture}.oci.tar"

    def command(self) -> list[str]:
        """For the folder itself. Without network: a step that wants some fails instead of fetching what has no hash.

        Times are fixed, and new layers not compressed, so that a second build can have the same digest; layers of the
        base stay as they are. No attestations of the builder: they have times in them, and make an index of the image.
        """
        given = {**self.arguments, "SOURCE_DATE_EPOCH": str(EPOCH)}
        return [
            *("docker", "buildx", "build", "--platform", f"linux/{self.architecture}", "--network", "none"),
            *("--provenance=false", "--sbom=false"),
            *(part for name, value in given.items() for part in ("--build-arg", f"{name}={value}")),
            *("--label", f"{LABEL}={self.id}"),
            *("--tag", f"trispark/{self.name}:{self.version}"),
            *("--output", f"type=oci,dest={self.archive},compression=uncompressed,rewrite-timestamp=true"),
            ".",
        ]


class _Written(Strict):
    id: Sha256
    command: tuple[str, ...]
    context: ContextFile


def write_context_file(folder: Path, fields: Mapping[str, Any]) -> ContextFile:
    """Of a folder that is otherwise complete. `fields`: those of ContextFile without `tree`."""
    try:
        found = ContextFile.model_validate_json(json.dumps({**fields, "tree": tree_hash(folder)}))
    except ValidationError as error:
        raise AssertionError(f"a context that no lock allows: {error}") from error
    said = {"id": found.id, "command": found.command(), "context": found.model_dump(mode="json")}
    (folder / FILE).write_text(json.dumps(said, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return found


@dataclass(frozen=True)
class BuildContext:
    """A folder as it was made. `files`: {path: sha256}, of a link the sha256 of where it leads; without build.json."""

    folder: Path
    file: ContextFile
    files: Mapping[str, str]


def read_context(folder: Path) -> BuildContext:
    """Raises TS-IMAGES-CONTEXT where the folder is none, or is not as it was made; TS-IMAGES-TREE."""
    path = folder / FILE
    try:
        data = read_json(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        raise _error(path, "what images context wrote", getattr(error, "strerror", None) or str(error)[:200]) from None
    written = check_model(_Written, data, str(path), "TS-IMAGES-CONTEXT")
    file = written.context
    if written.id != file.id or list(written.command) != file.command():
        raise _error(path, "an id and a command that are those of its content", "others: it was changed")
    observed = tree_hash(folder, without=FILE)
    if observed != file.tree:
        raise _error(folder, f"files with the hash {file.tree}", f"{observed}: a file was added, removed or changed")
    return BuildContext(folder, file, _files(folder))


def _files(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name == ".git" and not path.is_symlink():
            raise _error(path, "nothing that no hash covers", "a directory of git")
        if path.is_symlink():
            found[name] = hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
        elif path.is_file() and name != FILE:
            with path.open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _error(where: Path, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-IMAGES-CONTEXT",
        "a build context is not as it was made",
        where=str(where),
        expected=expected,
        observed=observed,
        remedy=_REMEDY,
    )
