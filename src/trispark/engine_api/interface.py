"""What a build of the engine offers: its modules, their names and the parameters of functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Symbol:
    """A name of a module: parameters of a function (of a class: of its `__init__`), and what instances of a class set;
    None where nothing is known of them."""

    parameters: tuple[str, ...] | None = None
    attributes: frozenset[str] | None = None


class Interface(Protocol):
    """One build."""

    def has_module(self, module: str) -> bool | None:
        """None: the description does not say."""
        ...

    def find(self, module: str, symbol: str) -> Symbol | bool | None:
        """The symbol; False when the module does not have it, None when the description does not say."""
        ...
