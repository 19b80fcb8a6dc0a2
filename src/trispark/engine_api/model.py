"""The files of the check: builds and the expected matrix, what adapters need, and interfaces that were described."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

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
    """What is expected of an adapter on a build; written as the status alone where it needs no reason. `lacks`: exactly
    what an adapter that does not apply misses there."""

    status: Status
    reason: str | None = None
    lacks: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if not isinstance(value, str | dict):
            return value
        if isinstance(value, str):
            return {"status": value}
        # What a validator hands on is no longer JSON, where a list is what a tuple is made of.
        return {**value, "lacks": tuple(value["lacks"])} if isinstance(value.get("lacks"), list) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"const": "binds"}, handler(core_schema)]}

    @model_validator(mode="after")
    def _reasons(self) -> Cell:
        if (self.status == "binds") is not (self.reason is None):
            raise ValueError("a reason belongs to every status but binds")
        if bool(self.lacks) is not (self.status == "not-applicable"):
            raise ValueError("lacks belongs to not-applicable, and only there")
        return self


class Adapter(Strict):
    """A row of the matrix; every build has its cell."""

    title: str
    builds: dict[Id, Cell]


class Image(Strict):
    """An image that could be made of builds. `lacks`: {what it still lacks: in a few words}; while there is any, it is
    not available."""

    title: str
    builds: tuple[Id, ...] = Field(min_length=1)
    available: bool
    lacks: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _says_why(self) -> Image:
        if self.available is bool(self.lacks):
            raise ValueError("lacks belongs to available: false, and only there")
        return self


class BuildsFile(Strict):
    """experiments/engine_builds.yml."""

    schema_version: Literal[1]
    engine: str
    builds: dict[Id, Build] = Field(min_length=1)
    images: dict[Id, Image] = Field(default_factory=dict)
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
        for image, entry in self.images.items():
            if odd := sorted(set(entry.builds) - set(self.builds)):
                raise ValueError(f"the image {image} names {odd[0]}, which is no build here")
        return self

    def build_of(self, image: str) -> str | None:
        """The build that an image reference (with digest) holds; None when nobody said."""
        digest = image.rpartition("@")[2]
        return next((name for name, build in self.builds.items() if digest in build.images), None)

    def unavailable(self, build: str) -> tuple[str, Image] | None:
        """The image of `build` that is not available, with its name."""
        return next(
            ((name, image) for name, image in self.images.items() if build in image.builds and not image.available),
            None,
        )

    def binding(self, adapters: Iterable[str]) -> tuple[str, ...]:
        """The builds on which all of these adapters bind. A native mechanism does not count: its switch is the engine's
        own flag, which no setting gives."""
        rows = [self.adapters[name] for name in adapters]
        return tuple(build for build in self.builds if all(row.builds[build].status == "binds" for row in rows))


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
    """Parameters and attributes that are known to be there, `without`: known not to be; `absent`: no such symbol."""

    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    absent: bool = False


class Statement(Strict):
    """What is known of some builds, and on what basis."""

    builds: tuple[Id, ...] = Field(min_length=1)
    basis: str
    modules: dict[Module, dict[str, DescribedSymbol]] = Field(default_factory=dict)
    absent: tuple[Module, ...] = ()


class InterfacesFile(Strict):
    """experiments/engine_interfaces.yml."""

    schema_version: Literal[1]
    statements: tuple[Statement, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _said_once(self) -> InterfacesFile:
        said: set[tuple[str, str, str]] = set()
        for statement in self.statements:
            for build in statement.builds:
                for module, symbols in statement.modules.items():
                    for symbol in symbols:
                        if (build, module, symbol) in said:
                            raise ValueError(f"{module}:{symbol} of {build} is stated twice")
                        said.add((build, module, symbol))
        return self


@dataclass(frozen=True)
class Description:
    """All statements on one build; what none of them names is not known."""

    statements: tuple[Statement, ...]

    def has_module(self, module: str) -> bool | None:
        if any(module in each.absent for each in self.statements):
            return False
        return True if any(module in each.modules for each in self.statements) else None

    def find(self, module: str, symbol: str) -> Symbol | bool | None:
        if self.has_module(module) is False:
            return False
        known = next((found for each in self.statements if (found := each.modules.get(module, {}).get(symbol))), None)
        if known is None:
            return None
        if known.absent:
            return False
        return Symbol(frozenset(known.parameters), frozenset(known.attributes), frozenset(known.without), closed=False)


def load_builds(root: Path) -> BuildsFile:
    """Raises TS-YAML-*, TS-CATALOG-SCHEMA."""
    path = root / BUILDS
    return check_model(BuildsFile, read_yaml(path), str(path), "TS-CATALOG-SCHEMA")


def load_interfaces(root: Path) -> Mapping[str, Description]:
    """{build: what is described of it}. Raises TS-YAML-*, TS-CATALOG-SCHEMA."""
    path = root / INTERFACES
    file = check_model(InterfacesFile, read_yaml(path), str(path), "TS-CATALOG-SCHEMA")
    builds = dict.fromkeys(build for statement in file.statements for build in statement.builds)
    return {
        build: Description(tuple(statement for statement in file.statements if build in statement.builds))
        for build in builds
    }


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
