"""What a build of the engine offers: its modules, their names and the parameters of functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Symbol:
    """A name of a module: parameters of a function (of a class: of its `__init__`), and what instances of a class have.

    `closed`: all of them are known. A description knows some, and of `without` that they are none.
    """

    parameters: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    closed: bool = True

    def lost(self, names: Iterable[str], *, attributes: bool = False) -> tuple[list[str], list[str]]:
        """(those of `names` that are not there, those of which it is not known)."""
        known = self.attributes if attributes else self.parameters
        away = [name for name in names if name not in known]
        gone = [name for name in away if self.closed or name in self.without]
        return gone, [name for name in away if name not in gone]


class Interface(Protocol):
    """One build."""

    def has_module(self, module: str) -> bool | None:
        """None: the description does not say."""
        ...

    def find(self, module: str, symbol: str) -> Symbol | bool | None:
        """The symbol; False when the module does not have it, None when the description does not say."""
        ...
