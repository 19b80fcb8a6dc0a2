"""The allowlist: which variables may reach an engine, of which type, how, and whether their value may be shown."""

from __future__ import annotations

import ipaddress
import math
import re
import unicodedata
from collections.abc import Collection
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final, Literal

from pydantic import field_validator, model_validator

from trispark.errors import TrisparkError
from trispark.plainyaml import Strict

CONTROLLED_PREFIXES: Final = ("DSV41_", "DSPARK_", "SGLANG_", "NCCL_", "CUDA_", "PYTORCH_")
"""An environment name of these comes from the allowlist or is a failure (also when an image sets it)."""

TOKENS: Final = ("{rendezvous_port}", "{generation}", "{engine_state}", "{engine_cache}")
"""Replaced by the node agent; no ordinary value may contain one."""

NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*")
FLAG: Final = re.compile(r"--[a-z][a-z0-9-]*")
_INT: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")

Value = int | float | str


class Kind(StrEnum):
    """Declared type of a variable."""

    INT = "int"
    FLOAT = "float"
    FLAG01 = "flag01"
    STR = "str"
    ENUM = "enum"
    PATH = "path"
    PAIR_LINK = "pair_link"


class Support(StrEnum):
    """What an engine makes of a variable."""

    IMPLEMENTED = "implemented"
    INERT = "inert"
    REFUSED = "refused"


class Scope(StrEnum):
    """Whether a value is the same on every rank."""

    COMMON = "common"
    RANK = "rank"


EXTRA_SOURCE: Final = "site.extra_container_env"
"""Of a variable that reaches the engine only where a site names it in `site_extra_container_env`."""
_RANK_SOURCES: Final = {
    "rank.rank": Kind.INT,
    "rank.pair_links": Kind.PAIR_LINK,
    "rank.address": Kind.STR,
    "rank.management_interface": Kind.STR,
    "rank.hcas": Kind.STR,
    "rank.gid_index": Kind.INT,
}
_NODE_SOURCES: Final = {"rank.mem_fraction": Kind.FLOAT}
"""What a node may have of its own in place of the value that all ranks share."""
_SOURCE: Final = re.compile(
    r"baseline|site\.[a-z][a-z0-9_]*|head\.rendezvous|engine\.(state_mount|adapters_mount)|"
    + "|".join(map(re.escape, _RANK_SOURCES))
)


class Variable(Strict):
    """One line of the allowlist; the header of env_allowlist.yml explains the fields."""

    name: str
    type: Kind
    min: float | int | None = None
    max: float | int | None = None
    choices: tuple[str, ...] | None = None
    pattern: str | None = None
    env: bool = False
    flag: str | None = None
    scope: Scope
    source: str
    node_source: str | None = None
    engines: dict[str, Support]
    inert_value: int | float | str | None = None
    loggable: bool
    description: str
    origin: str

    @model_validator(mode="after")
    def _consistent(self) -> Variable:
        problems = [
            (NAME.fullmatch(self.name) is None, f"{self.name} is not an environment name"),
            (self.flag is not None and FLAG.fullmatch(self.flag) is None, f"{self.flag} is not a flag"),
            (not self.env and self.flag is None, "it is delivered neither as env nor as flag"),
            (_SOURCE.fullmatch(self.source) is None, f"unknown source {self.source}"),
            ((self.type is Kind.ENUM) != (self.choices is not None), "choices belong to an enum"),
            (self.pattern is not None and self.type is not Kind.STR, "a pattern belongs to a str"),
            (
                (self.min is not None or self.max is not None) and self.type not in (Kind.INT, Kind.FLOAT),
                "min and max belong to a number",
            ),
            ((self.scope is Scope.RANK) != (self.source in _RANK_SOURCES), "scope and source disagree"),
            (
                self.source in _RANK_SOURCES and _RANK_SOURCES.get(self.source) is not self.type,
                f"{self.source} has another type",
            ),
            (self.type is Kind.PAIR_LINK and (self.env or self.flag is None), "a pair_link is a repeated flag"),
            (
                self.node_source is not None
                and (self.scope is Scope.RANK or _NODE_SOURCES.get(self.node_source) is not self.type),
                f"{self.node_source} is nothing that a node has in place of this value",
            ),
            (
                self.source == EXTRA_SOURCE and (not self.env or self.flag is not None),
                f"{EXTRA_SOURCE} gives environment variables alone",
            ),
            (
                (Support.INERT in self.engines.values()) != (self.inert_value is not None),
                "inert_value belongs to an engine where the variable is inert",
            ),
            (not self.engines, "no engine is named"),
        ]
        for wrong, text in problems:
            if wrong:
                raise ValueError(text)
        if self.pattern is not None:
            re.compile(self.pattern)
        return self

    def support(self, engine: str) -> Support:
        """What `engine` makes of it; an engine that is not named refuses it."""
        return self.engines.get(engine, Support.REFUSED)

    def check(self, value: object, where: str) -> Value:
        """`value` (as YAML gives it) in its declared type. Raises TS-ENV-TYPE, TS-ENV-RANGE or TS-ENV-VALUE."""
        match self.type:
            case Kind.INT:
                number = self._integer(value, where)
                self._in_range(number, where)
                return number
            case Kind.FLOAT:
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    raise self._wrong("TS-ENV-TYPE", where, "a finite number", value)
                real = float(value) + 0.0  # -0.0 becomes 0.0
                self._in_range(real, where)
                return real
            case Kind.FLAG01:
                number = self._integer(value, where, "0 or 1, not yes/no/on/off")
                if number not in (0, 1):
                    raise self._wrong("TS-ENV-RANGE", where, "0 or 1", value)
                return number
            case Kind.PAIR_LINK:
                raise self._wrong("TS-ENV-TYPE", where, "the pair links of the node", value)
            case _:
                return self._text(value, where)

    def parse(self, text: str, where: str) -> Value:
        """A string, for instance of `-e`, by its declared type, strictly: ` 1`, `yes` and `1e3` are errors."""
        if self.type in (Kind.INT, Kind.FLAG01):
            if _INT.fullmatch(text) is None:
                expected = "0 or 1" if self.type is Kind.FLAG01 else "a whole number"
                raise self._wrong("TS-ENV-TYPE", where, expected, text)
            return self.check(int(text), where)
        if self.type is Kind.FLOAT:
            if _FLOAT.fullmatch(text) is None:
                raise self._wrong("TS-ENV-TYPE", where, "a decimal number like 0.95", text)
            return self.check(float(text), where)
        return self.check(text, where)

    def shown(self, value: object) -> str:
        """The value for a message, or a placeholder when it may not be shown."""
        return repr(value) if self.loggable else "(value not shown)"

    def _integer(self, value: object, where: str, expected: str = "a whole number") -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong("TS-ENV-TYPE", where, expected, value)
        return value

    def _in_range(self, number: int | float, where: str) -> None:
        low = -math.inf if self.min is None else self.min
        high = math.inf if self.max is None else self.max
        if not low <= number <= high:
            raise self._wrong("TS-ENV-RANGE", where, f"{low} to {high}", number)

    def _text(self, value: object, where: str) -> str:
        if not isinstance(value, str):
            raise self._wrong("TS-ENV-TYPE", where, "a text (quote it in YAML)", value)
        if value == "":
            raise self._wrong("TS-ENV-VALUE", where, "a text that is not empty", value)
        if self.source == "head.rendezvous":
            check_text(self.name, value.replace(TOKENS[0], ""), where)
        else:
            check_text(self.name, value, where)
        if self.choices is not None and value not in self.choices:
            raise self._wrong("TS-ENV-RANGE", where, "one of " + ", ".join(self.choices), value)
        if self.pattern is not None and re.fullmatch(self.pattern, value) is None:
            raise self._wrong("TS-ENV-RANGE", where, f"a text like {self.pattern}", value)
        if self.type is Kind.PATH and not is_plain_path(value):
            raise self._wrong("TS-ENV-RANGE", where, "an absolute path without . or ..", value)
        return value

    def _wrong(self, error_id: str, where: str, expected: str, observed: object) -> TrisparkError:
        return TrisparkError(
            error_id,
            f"{self.name} has a wrong value",
            where=where,
            expected=expected,
            observed=self.shown(observed),
            remedy=f"correct {self.name} in {where}",
        )


def check_text(name: str, value: str, where: str) -> None:
    """Refuse (TS-ENV-VALUE) what cannot arrive as it is: control characters, lone surrogates, the agent's tokens."""
    observed = ""
    for character in value:
        category = unicodedata.category(character)
        if category in ("Cc", "Cs") or character in ("\u2028", "\u2029"):
            observed = f"the character U+{ord(character):04X}"
            break
    if not observed and any(token in value for token in TOKENS):
        observed = "a token of the node agent"
    if observed:
        raise TrisparkError(
            "TS-ENV-VALUE",
            f"{name} holds something that cannot be delivered",
            where=where,
            expected="one line of printable text",
            observed=observed,
            remedy=f"correct {name} in {where}",
        )


def is_plain_path(value: str) -> bool:
    """An absolute POSIX path in its shortest form."""
    return (
        value.startswith("/")
        and not value.startswith("//")
        and str(PurePosixPath(value)) == value
        and ".." not in (PurePosixPath(value).parts)
    )


def format_value(value: Value) -> str:
    """The text that reaches the engine: whole floats without a fraction, others in their shortest exact form."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value)


def is_address(value: str) -> bool:
    """A literal IP address."""
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


class AllowlistFile(Strict):
    """experiments/env_allowlist.yml."""

    schema_version: Literal[1]
    variables: tuple[Variable, ...]

    @field_validator("variables")
    @classmethod
    def _unique(cls, variables: tuple[Variable, ...]) -> tuple[Variable, ...]:
        names = [variable.name for variable in variables]
        flags = [variable.flag for variable in variables if variable.flag is not None]
        for label, entries in (("name", names), ("flag", flags)):
            doubled = sorted({entry for entry in entries if entries.count(entry) > 1})
            if doubled:
                raise ValueError(f"the {label} {doubled[0]} appears twice")
        return variables


class Allowlist:
    """The allowlist with look-ups by name and by flag."""

    def __init__(self, file: AllowlistFile, fixed_flags: Collection[str] = ()) -> None:
        """`fixed_flags`: flags that an engine is always given with the same value, which is no secret."""
        self._by_name = {variable.name: variable for variable in file.variables}
        self._by_flag = {variable.flag: variable for variable in file.variables if variable.flag is not None}
        self._fixed_flags = frozenset(fixed_flags)

    @classmethod
    def nothing(cls) -> Allowlist:
        """An allowlist without names: nothing may be logged by value."""
        return cls(AllowlistFile.model_construct(variables=()))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def names(self) -> frozenset[str]:
        """Every name of the list."""
        return frozenset(self._by_name)

    def variables(self) -> tuple[Variable, ...]:
        """All variables, sorted by name, so that the file's order has no effect."""
        return tuple(self._by_name[name] for name in sorted(self._by_name))

    def get(self, name: str) -> Variable | None:
        """The variable, or None."""
        return self._by_name.get(name)

    def by_flag(self, flag: str) -> Variable | None:
        """The variable which a launch flag delivers, or None."""
        return self._by_flag.get(flag)

    def require(self, name: str, where: str) -> Variable:
        """The variable. Raises TS-ENV-UNLISTED."""
        variable = self._by_name.get(name)
        if variable is None:
            raise TrisparkError(
                "TS-ENV-UNLISTED",
                f"{name} is not in the allowlist",
                where=where,
                expected="a name of experiments/env_allowlist.yml",
                observed=name,
                remedy="remove it, or describe it in the allowlist first",
            )
        return variable

    def split_env(self, env: dict[str, str]) -> tuple[dict[str, str], list[str]]:
        """(loggable variables with value, names of all others): what a record may hold of an environment."""
        shown = {
            name: value
            for name, value in sorted(env.items())
            if (variable := self._by_name.get(name)) is not None and variable.loggable and variable.env
        }
        return shown, sorted(set(env) - set(shown))

    def withhold_command(self, command: list[str]) -> list[str]:
        """A command with every value withheld whose flag is neither listed as loggable nor fixed for an engine."""
        result: list[str] = []
        hide = False
        for argument in command:
            if hide and argument not in self._by_flag and argument not in self._fixed_flags:
                result.append("(withheld)")
                hide = False
                continue
            flag, equals, _ = argument.partition("=")
            hide = False
            if flag.startswith("--"):
                variable = self._by_flag.get(flag)
                hide = flag not in self._fixed_flags and (variable is None or not variable.loggable)
                if hide and equals:
                    hide = False
                    result.append(f"{flag}=(withheld)")
                    continue
            result.append(argument)
        return result
