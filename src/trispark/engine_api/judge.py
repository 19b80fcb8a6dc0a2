"""What an adapter finds in a build, and how that compares with the expected matrix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trispark.engine_api.interface import Interface, Symbol
from trispark.engine_api.model import AdapterNeeds, BuildsFile, Cell, Need, Status


@dataclass(frozen=True)
class Found:
    """The observed cell. `missing` of what is not there, `unknown` of what a description leaves open."""

    status: Status
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def text(self) -> str:
        """The status, with what is missing or not known."""
        words = self.missing or self.unknown
        return f"{self.status} ({'; '.join(words)})" if words else self.status


@dataclass(frozen=True)
class Difference:
    """A cell that is not as expected."""

    adapter: str
    build: str
    expected: Cell
    observed: Found

    def __str__(self) -> str:
        lacks = f" ({'; '.join(self.expected.lacks)})" if self.expected.lacks else ""
        return (
            f"{self.adapter} on {self.build}: expected {self.expected.status}{lacks}, observed {self.observed.text()}"
        )


def judge(adapter: AdapterNeeds, interface: Interface) -> Found:
    """native where the engine has the mechanism itself, else whether all needs are met."""
    if adapter.native:
        missing, unknown = _unmet(adapter.native, interface)
        if not missing and not unknown:
            return Found("native")
        if not missing:
            return Found("undescribed", unknown=tuple(unknown))
    missing, unknown = _unmet(adapter.needs, interface)
    for groups in adapter.any:
        judged = [_unmet(group, interface) for group in groups]
        if any(not lost and not open_ for lost, open_ in judged):
            continue
        possible = next((open_ for lost, open_ in judged if not lost), None)
        if possible is not None:
            unknown += possible
        else:
            missing += judged[0][0]
    if missing:
        return Found("not-applicable", missing=tuple(missing))
    if unknown:
        return Found("undescribed", unknown=tuple(unknown))
    return Found("binds")


def _unmet(needs: Iterable[Need], interface: Interface) -> tuple[list[str], list[str]]:
    """(labels of what is missing, labels of what the description leaves open)."""
    missing: list[str] = []
    unknown: list[str] = []
    for need in needs:
        there = interface.has_module(need.module)
        if not there:
            (missing if there is False else unknown).append(need.module)
            continue
        if need.symbol is None:
            continue
        found = interface.find(need.module, need.symbol)
        if not isinstance(found, Symbol):
            (unknown if found is None else missing).append(need.label)
            continue
        gone, open_ = found.lost(need.parameters)
        missing += [f"{need.label}({', '.join(gone)})"] if gone else []
        unknown += [f"{need.label}({', '.join(open_)})"] if open_ else []
        gone, open_ = found.lost(need.attributes, attributes=True)
        missing += [f"{need.label}.{name}" for name in gone]
        unknown += [f"{need.label}.{name}" for name in open_]
    return list(dict.fromkeys(missing)), list(dict.fromkeys(unknown))


def observe(needs: Mapping[str, AdapterNeeds], builds: Mapping[str, Interface]) -> dict[str, dict[str, Found]]:
    """{adapter: {build: what was found}}."""
    return {
        name: {build: judge(adapter, interface) for build, interface in builds.items()}
        for name, adapter in needs.items()
    }


def differences(file: BuildsFile, observed: Mapping[str, Mapping[str, Found]]) -> list[Difference]:
    """Every observed cell that is not as the matrix has it."""
    return [
        Difference(adapter, build, expected, cell)
        for adapter, cells in observed.items()
        for build, cell in cells.items()
        if (cell.status, set(cell.missing))
        != ((expected := file.adapters[adapter].builds[build]).status, set(expected.lacks))
    ]
