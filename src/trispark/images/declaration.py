"""Dockerfiles/images.yml: the inputs of images, and which image is made of which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from trispark.images.lock_model import Input, LockFile, Name, Text, differs
from trispark.plainyaml import Strict, check_model, read_yaml
from trispark.site import BUILD_ARGUMENT

DECLARATION: Final = "Dockerfiles/images.yml"
SCHEMA_ID: Final = "TS-IMAGES-SCHEMA"

Dockerfile = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*/Dockerfile(\.[a-z0-9-]+)?$")]


class Variant(Strict):
    """An image on one architecture. `base`: the input that its FROM is; `inputs`: what is copied into it."""

    base: Name
    inputs: tuple[Name, ...] = ()
    available: bool
    reason: Text | None = None

    @model_validator(mode="after")
    def _says_why(self) -> Variant:
        if self.available is (self.reason is not None):
            raise ValueError("a reason belongs to available: false, and only there")
        return self


class Imports(Strict):
    """What a build must show of the image while it is made. `packages`: {distribution: version}."""

    modules: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")], ...] = ()
    packages: dict[Name, str] = Field(default_factory=dict)


class Image(Strict):
    """`made_by`: lab images are made by `lab up`, all others from a build context. `serves`: the engine that it is.
    `user`: as whom it runs; `root` with the reason why nothing less is known to work."""

    title: Text
    dockerfile: Dockerfile
    made_by: Literal["context", "lab"] = "context"
    serves: Literal["sglang", "lab"] | None = None
    user: Annotated[str, Field(pattern=r"^(root|[1-9][0-9]{0,8}(:[1-9][0-9]{0,8})?)$")]
    root_because: Text | None = None
    arguments: dict[Annotated[str, Field(pattern=BUILD_ARGUMENT)], Text] = Field(default_factory=dict)
    checks: Imports = Imports()
    variants: dict[Literal["amd64", "arm64"], Variant] = Field(min_length=1)

    @model_validator(mode="after")
    def _root(self) -> Image:
        if (self.user == "root") is (self.root_because is None):
            raise ValueError("root_because belongs to user: root, and only there")
        return self


class Declaration(Strict):
    """Dockerfiles/images.yml."""

    schema_version: Literal[1]
    inputs: dict[Name, Input]
    images: dict[Name, Image]

    @field_validator("images")
    @classmethod
    def _some(cls, value: dict[str, Image]) -> dict[str, Image]:
        if not value:
            raise ValueError("an image is needed")
        return value

    @model_validator(mode="after")
    def _known(self) -> Declaration:
        used: set[str] = set()
        for name, image in self.images.items():
            for architecture, variant in image.variants.items():
                where = f"{name} on {architecture}"
                own = [variant.base, *variant.inputs]
                used.update(own)
                if odd := sorted(set(own) - set(self.inputs)):
                    raise ValueError(f"{where}: {', '.join(odd)} is no input")
                if len(own) != len(set(own)):
                    raise ValueError(f"{where}: an input is there twice")
                if self.inputs[variant.base].kind not in ("image", "versions"):
                    raise ValueError(f"{where}: {variant.base} is no base image")
                for each in own:
                    made_for = getattr(self.inputs[each], "architecture", "any")
                    if made_for not in ("any", architecture):
                        raise ValueError(f"{where}: {each} is for {made_for}")
        if unused := sorted(set(self.inputs) - used):
            raise ValueError(f"no image is made of {', '.join(unused)}")
        return self


def load_declaration(root: Path) -> Declaration:
    """Raises TS-YAML-*, TS-IMAGES-SCHEMA."""
    path = root / DECLARATION
    return check_model(Declaration, read_yaml(path), str(path), SCHEMA_ID)


def stale(declaration: Declaration, lock: LockFile) -> dict[str, str]:
    """{input or entry: how lock and declaration differ}; empty when each input has its own entry."""
    found = {name: "declared, but not locked" for name in declaration.inputs if name not in lock.entries}
    found |= {name: "locked, but no longer declared" for name in lock.entries if name not in declaration.inputs}
    for name, declared in declaration.inputs.items():
        if name in lock.entries and (names := differs(declared, lock.entries[name])):
            found[name] = "declared otherwise than locked: " + ", ".join(names)
    return found


def unresolved(variant: Variant, lock: LockFile) -> dict[str, str]:
    """{input of the variant: why it has no hash}."""
    found = {}
    for name in (variant.base, *variant.inputs):
        entry = lock.entries.get(name)
        if entry is None:
            found[name] = "not locked"
        elif not entry.resolved:
            found[name] = str(getattr(entry, "unresolved", ""))
    return found


def overstated(declaration: Declaration, lock: LockFile) -> Iterator[str]:
    """A line for each image that is called available while something that it is made of has no hash."""
    for name, image in declaration.images.items():
        for architecture, variant in image.variants.items():
            lacking = unresolved(variant, lock)
            if variant.available and lacking:
                yield f"{name} on {architecture} is called available, without {', '.join(sorted(lacking))}"
