"""When a hook is on: the variables that turn an adapter on, read as experiments/env_allowlist.yml describes them.

Nothing is guessed: a value outside of what the allowlist accepts ends the start (TS-ADAPTER-SWITCH). A test compares
every switch here with its entry in the allowlist.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

_INT: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_FLOAT: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,40})?")


class HookError(Exception):
    """A hook can not be installed; one line with a stable id."""


class Switch(Protocol):
    """A condition on one variable. `off` is how it is turned off, for a message."""

    @property
    def name(self) -> str: ...

    @property
    def off(self) -> str: ...

    def on(self, environ: Mapping[str, str]) -> bool:
        """HookError TS-ADAPTER-SWITCH for a value that the allowlist would refuse."""
        ...


@dataclass(frozen=True)
class Flag:
    """On for 1; off for 0, empty and unset."""

    name: str
    off: str = "0"

    def on(self, environ: Mapping[str, str]) -> bool:
        return _read(self, environ, "0 or 1", re.compile("[01]")) == "1"


@dataclass(frozen=True)
class Number:
    """On for every number but the neutral one; off for that, empty and unset. `whole`: no fraction is accepted."""

    name: str
    least: float
    most: float
    neutral: float
    whole: bool = False

    @property
    def off(self) -> str:
        return f"{self.neutral:g}"

    def on(self, environ: Mapping[str, str]) -> bool:
        kind = "a whole number" if self.whole else "a number"
        expected = f"{kind} from {self.least:g} to {self.most:g}"
        text = _read(self, environ, expected, _INT if self.whole else _FLOAT)
        if not text:
            return False
        value = float(text)
        if not self.least <= value <= self.most:
            raise _refusal(self.name, expected, text)
        return value != self.neutral


@dataclass(frozen=True)
class Text:
    """On for what `pattern` matches as a whole, but `off`; off for that, empty and unset."""

    name: str
    pattern: str
    off: str

    def on(self, environ: Mapping[str, str]) -> bool:
        return _read(self, environ, f"like {self.pattern}", re.compile(self.pattern)) not in ("", self.off)


@dataclass(frozen=True)
class OneOf:
    """On for the values of `on_for`; off for other `choices`, empty and unset."""

    name: str
    choices: tuple[str, ...]
    on_for: tuple[str, ...]

    @property
    def off(self) -> str:
        return next((choice for choice in self.choices if choice not in self.on_for), "")

    def on(self, environ: Mapping[str, str]) -> bool:
        pattern = re.compile("|".join(map(re.escape, self.choices)))
        return _read(self, environ, " or ".join(self.choices), pattern) in self.on_for


@dataclass(frozen=True)
class Given:
    """On when the variable has any value, an absolute path in practice; what it names is checked where it is used."""

    name: str
    off: str = ""

    def on(self, environ: Mapping[str, str]) -> bool:
        return bool(environ.get(self.name, ""))


def _read(switch: Switch, environ: Mapping[str, str], expected: str, pattern: re.Pattern[str]) -> str:
    text = environ.get(switch.name, "")
    if text and pattern.fullmatch(text) is None:
        raise _refusal(switch.name, expected, text)
    return text


def _refusal(name: str, expected: str, observed: str) -> HookError:
    return HookError(
        f"TS-ADAPTER-SWITCH: switch out of range [where: {name}] expected: {name}={expected}; "
        f"observed: {name}={observed!r}; remedy: set what experiments/env_allowlist.yml accepts"
    )
