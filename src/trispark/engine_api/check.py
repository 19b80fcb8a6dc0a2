"""`./trispark adapters check`: what every adapter finds in every build, against the matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark.engine_api.interface import Interface
from trispark.engine_api.judge import Difference, Found, differences, observe
from trispark.engine_api.model import (
    BUILDS,
    INTERFACES,
    NEEDS,
    BuildsFile,
    load_builds,
    load_interfaces,
    load_needs,
)
from trispark.engine_api.sources import SourceInterface
from trispark.engine_api.wheels import wheel_path
from trispark.errors import TrisparkError


@dataclass(frozen=True)
class Checked:
    """`observed`: {adapter: {build: cell}}; `refused`: {build: {adapter: why it did not bind when it was imported}}."""

    file: BuildsFile
    observed: Mapping[str, Mapping[str, Found]]
    differences: Sequence[Difference]
    refused: Mapping[str, Mapping[str, str]]

    @property
    def equal(self) -> bool:
        return not self.differences and not any(self.refused.values())

    def problems(self) -> list[str]:
        """A line for each cell that is not as expected."""
        imported = [
            f"{adapter} on {build}: did not bind when imported: {why}"
            for build, refused in self.refused.items()
            for adapter, why in refused.items()
        ]
        return [*map(str, self.differences), *imported]

    def as_dict(self) -> dict[str, Any]:
        return {
            "equal": self.equal,
            "builds": {name: self.file.builds[name].title for name in self.builds},
            "adapters": {
                adapter: {
                    build: {
                        "observed": cell.status,
                        "expected": self.file.adapters[adapter].builds[build].status,
                        "reason": self.file.adapters[adapter].builds[build].reason,
                        "missing": list(cell.missing),
                        "unknown": list(cell.unknown),
                    }
                    for build, cell in cells.items()
                }
                for adapter, cells in self.observed.items()
            },
            "images": {name: image.model_dump(mode="json") for name, image in self.file.images.items()},
            "imported": {build: {"refused": dict(refused)} for build, refused in self.refused.items()},
            "differences": self.problems(),
        }

    @property
    def builds(self) -> list[str]:
        return list(next(iter(self.observed.values()), {}))


def interfaces(root: Path, file: BuildsFile, names: Sequence[str]) -> dict[str, Interface]:
    """Of the named builds. Raises TS-ADAPTERS-WHEEL, TS-ADAPTERS-HASH, TS-ADAPTERS-DESCRIPTION."""
    described = load_interfaces(root)
    found: dict[str, Interface] = {}
    for name in names:
        wheel = file.builds[name].wheel
        if wheel is not None:
            found[name] = SourceInterface.of_wheel(wheel_path(root, wheel))
        elif name in described:
            found[name] = described[name]
        else:
            raise TrisparkError(
                "TS-ADAPTERS-DESCRIPTION",
                "a build has no description",
                where=INTERFACES,
                expected=name,
                observed=", ".join(described) or "none",
                remedy=f"describe it there, or give it a wheel in {BUILDS}",
            )
    return found


def check(root: Path, engines: Sequence[str] = ()) -> Checked:
    """The static check of the named builds, of all without a name; nothing is imported.

    Raises TS-ADAPTERS-ENGINE (an unknown build), TS-ADAPTERS-ROWS (matrix and needs name other adapters), and as
    `interfaces` and the loaders do.
    """
    file, needs = load_builds(root), load_needs(root)
    for name in engines:
        if name not in file.builds:
            raise TrisparkError(
                "TS-ADAPTERS-ENGINE",
                "the build is unknown",
                where="--engine",
                expected="one of " + ", ".join(file.builds),
                observed=name,
                remedy="name one of them, or leave --engine out for all",
            )
    if odd := sorted(set(file.adapters) ^ set(needs)):
        raise TrisparkError(
            "TS-ADAPTERS-ROWS",
            "the matrix and what the adapters need name other adapters",
            where=BUILDS,
            expected="the adapters of " + NEEDS,
            observed=", ".join(odd),
            remedy="add the row, or what the adapter needs",
        )
    observed = observe(needs, interfaces(root, file, engines or list(file.builds)))
    return Checked(file, observed, differences(file, observed), {})
