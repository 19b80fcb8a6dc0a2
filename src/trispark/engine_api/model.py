"""The files of the check: builds and the expected matrix, what adapters need, and interfaces that were described."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from trispark.engine_api.interface import Symbol
from trispark.errors import TrisparkError
from trispark.plainyaml import Strict, check_model, read_yaml

BUILDS: Final = "experiments/engine_builds.yml"
INTERFACES: Final = "experiments/engine_interfaces.yml"
NEEDS: Final = "adapters/trispark_hooks/needs.json"

Id = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._=@-]*$")]
AdapterName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Module = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Status = Literal["binds", "native", "not-applicable", "undescribed"]


class Wheel(Strict):
    """A release: the file that is read, whatever machine reads it, and its hash."""

    version: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+\.whl$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    python: str
    platform: str


class Build(Strict):
    """One build of the engine: a wheel, or an interface that was described. `images`: digests that hold it."""

    title: str
    wheel: Wheel | None = None
    described: bool = False
    images: tuple[Digest, ...] = ()

    @model_validator(mode="after")
    def _one_source(self) -> Build:
        if (self.wheel is None) is not self.described:
            raise ValueError("a build has a wheel, or is described")
        return self


class Cell(Strict):
    """What is expected of an adapter on a build. `lacks`: what of its needs is not there, or not described."""

    status: Status
    reason: str | None = None
    lacks: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _reasons(self) -> Cell:
        without = self.status == "binds"
        if without is not (self.reason is None) or bool(self.lacks) is not (
            self.status in ("not-applicable", "undescribed")
        ):
            raise ValueError("a reason belongs to every status but binds; lacks to not-applicable and undescribed")
        return self


class Adapter(Strict):
    """A row of the matrix; every build has its cell."""

    title: str
    builds: dict[Id, Cell]


class BuildsFile(Strict):
    """experiments/engine_builds.yml."""

    schema_version: Literal[1]
    builds: dict[Id, Build] = Field(min_length=1)
    adapters: dict[AdapterName, Adapter]

    @model_validator(mode="after")
    def _whole(self) -> BuildsFile:
        for name, row in self.adapters.items():
            if set(row.builds) != set(self.builds):
                odd = sorted(set(row.builds) ^ set(self.builds))
                raise ValueError(f"{name} has no cell for {odd[0]}, or one for a build that is not there")
        digests = [digest for build in self.builds.values() for digest in build.images]
        if len(set(digests)) != len(digests):
            raise ValueError("an image digest is there twice")
        return self

    def build_of(self, image: str) -> str | None:
        """The build that an image reference (with digest) holds; None when nobody said."""
        digest = image.rpartition("@")[2]
        return next((name for name, build in self.builds.items() if digest in build.images), None)


class Need(Strict):
    """A symbol of a module, with parameters that it takes and attributes that instances of it have."""

    module: Module
    symbol: str | None = None
    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """How it is named in the matrix and in messages."""
        return self.module if self.symbol is None else f"{self.module}:{self.symbol}"


class AdapterNeeds(Strict):
    """What trispark_hooks/needs.py explains."""

    needs: tuple[Need, ...] = ()
    any: tuple[tuple[tuple[Need, ...], ...], ...] = ()
    native: tuple[Need, ...] = ()


class NeedsFile(Strict):
    """adapters/trispark_hooks/needs.json."""

    schema_version: Literal[1]
    adapters: dict[AdapterName, AdapterNeeds]


class DescribedSymbol(Strict):
    """What the source of a description says of a symbol; without `parameters` it only says that it is there."""

    parameters: tuple[str, ...] | None = None
    attributes: tuple[str, ...] | None = None
    absent: bool = False


class Description(Strict):
    """One build: {module: {symbol: what is known}}; what is not named is not known. `absent`: modules that it lacks."""

    source: str
    modules: dict[Module, dict[str, DescribedSymbol]]
    absent: tuple[Module, ...] = ()

    def has_module(self, module: str) -> bool | None:
        return False if module in self.absent else True if module in self.modules else None

    def find(self, module: str, symbol: str) -> Symbol | bool | None:
        if module in self.absent:
            return False
        known = self.modules.get(module, {}).get(symbol)
        if known is None:
            return None
        if known.absent:
            return False
        return Symbol(known.parameters, None if known.attributes is None else frozenset(known.attributes))


class InterfacesFile(Strict):
    """experiments/engine_interfaces.yml."""

    schema_version: Literal[1]
    interfaces: dict[Id, Description]


def load_builds(root: Path) -> BuildsFile:
    """Raises TS-YAML-*, TS-CATALOG-SCHEMA."""
    path = root / BUILDS
    return check_model(BuildsFile, read_yaml(path), str(path), "TS-CATALOG-SCHEMA")


def load_interfaces(root: Path) -> Mapping[str, Description]:
    """Raises TS-YAML-*, TS-CATALOG-SCHEMA."""
    path = root / INTERFACES
    return check_model(InterfacesFile, read_yaml(path), str(path), "TS-CATALOG-SCHEMA").interfaces


def load_needs(root: Path) -> Mapping[str, AdapterNeeds]:
    """Raises TS-ADAPTERS-NEEDS."""
    path = root / NEEDS
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrisparkError(
            "TS-ADAPTERS-NEEDS",
            "what the adapters need cannot be read",
            where=NEEDS,
            expected="the file as trispark_hooks/needs.py explains it",
            observed=" ".join(str(error).split()),
            remedy="correct it, or restore it from git",
        ) from None
    return check_model(NeedsFile, data, NEEDS, "TS-ADAPTERS-NEEDS").adapters
