"""What images are made of: the declared inputs, and the locked entries that name each of them by hash.

An input says what is wanted (Dockerfiles/images.yml); an entry says which bytes that is (Dockerfiles/images.lock.yml).
Either has the fields that identify it; an entry adds a hash, or `unresolved` with the reason why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, field_validator, model_validator

from trispark.plainyaml import Strict

Architecture = Literal["amd64", "arm64", "any"]
"""As OCI images name it; `any` for what holds no machine code."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,79}$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Repository = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.:-]*(/[a-z0-9][a-z0-9._-]*)+$")]
Project = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
"""Of the package index, in its normal form."""
Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+~:_-]{0,99}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+~%-]{0,199}$")]
Size = Annotated[int, Field(ge=1, le=2**36)]
"""Bytes; no input is larger than 64 GiB."""
Text = Annotated[str, Field(min_length=1, max_length=400, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]

MACHINES: Final[Mapping[str, str]] = {"amd64": "x86_64", "arm64": "aarch64"}
"""OCI architecture -> the name in wheels."""


class ImageInput(Strict):
    """A base image. `index` is known beforehand, or nothing is pinned; `digest` is the manifest of one architecture in
    it, `config` that manifest's image id. `known_as`: an abbreviated image id, where no more was published."""

    kind: Literal["image"]
    repository: Repository
    index: Digest | None = None
    architecture: Literal["amd64", "arm64"]
    digest: Digest | None = None
    config: Digest | None = None
    known_as: Annotated[str, Field(pattern=r"^[0-9a-f]{6,63}$")] | None = None
    unresolved: Text | None = None


class WheelInput(Strict):
    """A built distribution of the package index. `python`: its tag, cp312, where the file is made for one."""

    kind: Literal["wheel"]
    project: Project
    version: Version
    architecture: Architecture
    python: Annotated[str, Field(pattern=r"^(cp|py)[0-9]{1,4}$")] | None = None
    unresolved: Text | None = None


class TreeInput(Strict):
    """Files of a repository at a commit; the hash is over names, kinds and contents below `directory`."""

    kind: Literal["tree"]
    source: Text
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    directory: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$")]
    unresolved: Text | None = None


class FileInput(Strict):
    """A single file. `path`: in this repository, where it is part of it."""

    kind: Literal["file"]
    file: FileName
    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$")] | None = None
    unresolved: Text | None = None

    @field_validator("path")
    @classmethod
    def _inside(cls, value: str | None) -> str | None:
        if value is not None and ".." in value.split("/"):
            raise ValueError("a path below the repository is needed")
        return value


class DebInput(Strict):
    """A system package of a release image."""

    kind: Literal["deb"]
    package: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]+$")]
    suite: Annotated[str, Field(pattern=r"^[a-z][a-z-]*$")]
    architecture: Architecture
    unresolved: Text | None = None


class VersionsInput(Strict):
    """System packages of a lab image: versions are recorded, another one is a warning. `base`: in bases.yml."""

    kind: Literal["versions"]
    base: Name
    suite: Annotated[str, Field(pattern=r"^[a-z][a-z-]*$")]
    architecture: Literal["amd64", "arm64"]


class _Resolved(Strict):
    """An entry has every field of `_resolved_by`, or says why not."""

    _resolved_by: ClassVar[tuple[str, ...]]

    @model_validator(mode="after")
    def _hash_or_reason(self) -> _Resolved:
        missing = [name for name in self._resolved_by if getattr(self, name) is None]
        given = [name for name in self._resolved_by if getattr(self, name) is not None]
        reason = getattr(self, "unresolved", None)
        if reason is None and missing:
            raise ValueError(f"{', '.join(missing)} or unresolved with a reason is needed")
        if reason is not None and given == list(self._resolved_by):
            raise ValueError(f"unresolved, yet with {', '.join(given)}")
        return self

    @property
    def resolved(self) -> bool:
        return getattr(self, "unresolved", None) is None


class ImageEntry(_Resolved, ImageInput):
    _resolved_by = ("index", "digest")


class WheelEntry(_Resolved, WheelInput):
    """`size` in bytes, as the index states it; None where it does not."""

    _resolved_by = ("file", "sha256")
    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9._+-]+\.whl$")] | None = None
    sha256: Sha256 | None = None
    size: Size | None = None


class TreeEntry(_Resolved, TreeInput):
    _resolved_by = ("sha256",)
    sha256: Sha256 | None = None


class FileEntry(_Resolved, FileInput):
    _resolved_by = ("sha256",)
    sha256: Sha256 | None = None


class DebEntry(_Resolved, DebInput):
    _resolved_by = ("version", "sha256")
    version: Version | None = None
    sha256: Sha256 | None = None
    size: Size | None = None


class VersionsEntry(_Resolved, VersionsInput):
    """`packages`: {name: version}."""

    _resolved_by = ("packages",)
    packages: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]+$")], Version] | None = Field(
        default=None, min_length=1
    )


Input = Annotated[
    ImageInput | WheelInput | TreeInput | FileInput | DebInput | VersionsInput, Field(discriminator="kind")
]
AnyInput = ImageInput | WheelInput | TreeInput | FileInput | DebInput | VersionsInput
AnyEntry = ImageEntry | WheelEntry | TreeEntry | FileEntry | DebEntry | VersionsEntry
Entry = Annotated[AnyEntry, Field(discriminator="kind")]

ENTRY_OF: Final[Mapping[str, type[AnyEntry]]] = {
    "image": ImageEntry,
    "wheel": WheelEntry,
    "tree": TreeEntry,
    "file": FileEntry,
    "deb": DebEntry,
    "versions": VersionsEntry,
}
INPUT_OF: Final[Mapping[str, type[AnyInput]]] = {
    "image": ImageInput,
    "wheel": WheelInput,
    "tree": TreeInput,
    "file": FileInput,
    "deb": DebInput,
    "versions": VersionsInput,
}
_FOUND: Final[Mapping[str, frozenset[str]]] = {
    # What an update may find out, beside what was declared.
    "image": frozenset({"digest", "config", "unresolved"}),
    "wheel": frozenset({"unresolved"}),
    "tree": frozenset({"unresolved"}),
    "file": frozenset({"unresolved"}),
    "deb": frozenset({"unresolved"}),
    "versions": frozenset(),
}


def identity(value: AnyInput) -> dict[str, Any]:
    """What must be equal in an input and its entry: the declared fields without those that an update finds out."""
    declared = INPUT_OF[value.kind].model_fields
    return {name: getattr(value, name) for name in declared if name not in _FOUND[value.kind]}


def differs(declared: AnyInput, locked: AnyEntry) -> list[str]:
    """Names of what the declaration says otherwise than the lock; empty when the entry is that input's.

    Hashes that an image input states must be those of its entry.
    """
    if declared.kind != locked.kind:
        return ["kind"]
    own, theirs = identity(declared), identity(locked)
    names = [name for name in own if own[name] != theirs[name]]
    if isinstance(declared, ImageInput) and isinstance(locked, ImageInput):
        stated = {"digest": (declared.digest, locked.digest), "config": (declared.config, locked.config)}
        names += [name for name, (said, kept) in stated.items() if said is not None and said != kept]
    return names


class LockFile(Strict):
    """Dockerfiles/images.lock.yml."""

    schema_version: Literal[1]
    entries: dict[Name, Entry]
