"""The allowlist: which variables may reach an engine, of which type, how, and whether their value may be shown."""

from __future__ import annotations

import ipaddress
import math
import re
import unicodedata
from collections.abc import Collection
from decimal import Decimal
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final, Literal

from pydantic import field_validator, model_validator

from trispark.errors import TrisparkError
from trispark.plainyaml import Strict
from trispark_node.spec import DIRECTORY_TOKENS, PORT_TOKEN

CONTROLLED_PREFIXES: Final = ("DSV41_", "DSPARK_", "SGLANG_", "SPARK_", "B12X_", "NCCL_", "CUDA_", "PYTORCH_")
"""An environment name of these comes from the allowlist or is a failure (also when an image sets it)."""

TOKENS: Final = (PORT_TOKEN, *DIRECTORY_TOKENS)
"""Replaced by the node agent; no ordinary value may contain one."""

NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*")
FLAG: Final = re.compile(r"--[a-z][a-z0-9-]*")
_INT: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_FLOAT: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,40})?")

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


ENGINE_IMAGE: Final = "ENGINE_IMAGE"
"""The variable that says which of the site's engine images a configuration runs, by its name."""
SITE_IMAGE: Final = "site"
"""Its value for `site_engine_image`; every other one is a name of `site_engine_images`."""
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
    r"baseline|site\.[a-z][a-z0-9_]*|head\.rendezvous|engine\.(state_mount|adapters_mount)|never|"
    + "|".join(map(re.escape, _RANK_SOURCES))
)
NEVER: Final = "never"
"""Source of a name that is only known: no engine is given it, and its description says what stands in its place."""
_SAYS_OFF: Final = frozenset({"0", "off", "false", "no"})
_SAYS_ON: Final = frozenset({"1", "on", "true", "yes"})


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
    switch: bool = False
    omit_value: int | float | str | None = None
    default: int | float | str | None = None
    ranks: Literal["all", "head", "workers"] = "all"
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
            (
                not self.env and self.flag is None and self.source != NEVER and self.name != ENGINE_IMAGE,
                "it is delivered neither as env nor as flag",
            ),
            (
                self.name == ENGINE_IMAGE
                and (self.env or self.flag is not None or self.type is not Kind.STR or self.source != "baseline"),
                "it is the name of an image in the baseline, which no engine is given",
            ),
            (
                self.source == NEVER and set(self.engines.values()) != {Support.REFUSED},
                "what is never delivered is refused by every engine",
            ),
            (
                # Plans, module results and the events of a run hold whatever is delivered, in clear.
                not self.loggable and self.source != NEVER,
                "a secret is delivered to no engine: give the path of a private file on the node in its place",
            ),
            (
                self.switch and (self.flag is None or self.env or self.type is not Kind.FLAG01),
                "a switch is a flag01 that is a flag alone",
            ),
            (self.switch and self.omit_value != 0, "a switch is left out at 0, so its omit_value is 0"),
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
            (
                self.min is not None and self.max is not None and self.min > self.max,
                f"min {self.min} is above max {self.max}",
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
            require_expression(self.pattern)
        return self

    def support(self, engine: str) -> Support:
        """What `engine` makes of it; an engine that is not named refuses it."""
        return self.engines.get(engine, Support.REFUSED)

    def reaches(self, engine: str, rank: int) -> bool:
        """Whether the engine of this rank is given it at all."""
        return self.support(engine) is not Support.REFUSED and (
            self.ranks == "all" or (self.ranks == "head") is (rank == 0)
        )

    def is_omitted(self, value: Value) -> bool:
        """Whether a value is the neutral one that must not be delivered."""
        return self.omit_value is not None and value == self.omit_value

    def arguments(self, value: Value) -> list[str]:
        """What the command line gets for a value: nothing, the switch, or the flag with its value."""
        if self.flag is None or self.is_omitted(value):
            return []
        return [self.flag] if self.switch else [self.flag, format_value(value)]

    def check(self, value: object, where: str) -> Value:
        """`value` (as YAML gives it) in its declared type. Raises TS-ENV-TYPE, TS-ENV-RANGE or TS-ENV-VALUE."""
        try:
            return self._typed(value, where)
        except _Wrong as wrong:
            raise self._error(wrong, where) from None

    def parse(self, text: str, where: str) -> Value:
        """A string, for instance of `-e`, by its declared type, strictly: ` 1`, `yes` and `1e3` are errors.

        The refusal names the spelling that was probably meant.
        """
        try:
            return self._parsed(text, where)
        except _Wrong as wrong:
            raise self._error(wrong, where) from None

    def right_spelling(self, value: object) -> str | None:
        """How a value that was refused is probably meant, as it must be written; None when that is anyone's guess."""
        if not self.loggable or self.type is Kind.PAIR_LINK:
            return None
        text = str(value).strip().strip("'\"").strip()
        lower = text.lower()
        guesses = [text, *(choice for choice in self.choices or () if choice.lower() == lower)]
        if self.type in (Kind.FLAG01, Kind.STR):
            guesses += ["0"] if lower in _SAYS_OFF else ["1"] if lower in _SAYS_ON else []
        if self.type is Kind.FLOAT:
            guesses += _plain_number(text)
        for guess in guesses:
            if self._accepts(guess):
                return f"'{guess}'" if self.type in (Kind.STR, Kind.ENUM) and not isinstance(value, str) else guess
        return None

    def shown(self, value: object) -> str:
        """The value for a message, or a placeholder when it may not be shown."""
        return repr(value) if self.loggable else "(value not shown)"

    def _accepts(self, text: str) -> bool:
        try:
            self._parsed(text, "a guess")
        except (_Wrong, TrisparkError):
            return False
        return True

    def _parsed(self, text: str, where: str) -> Value:
        if self.type in (Kind.INT, Kind.FLAG01):
            if _INT.fullmatch(text) is None:
                raise _Wrong("TS-ENV-TYPE", "0 or 1" if self.type is Kind.FLAG01 else "a whole number", text)
            return self._typed(int(text), where)
        if self.type is Kind.FLOAT:
            if _FLOAT.fullmatch(text) is None:
                raise _Wrong("TS-ENV-TYPE", "a decimal number like 0.95", text)
            return self._typed(float(text), where)
        return self._typed(text, where)

    def _typed(self, value: object, where: str) -> Value:
        match self.type:
            case Kind.INT:
                number = _integer(value)
                self._in_range(number)
                return number
            case Kind.FLOAT:
                if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
                    raise _Wrong("TS-ENV-TYPE", "a finite number", value)
                real = float(value) + 0.0  # -0.0 becomes 0.0
                self._in_range(real)
                return real
            case Kind.FLAG01:
                number = _integer(value, "0 or 1, not yes/no/on/off")
                if number not in (0, 1):
                    raise _Wrong("TS-ENV-RANGE", "0 or 1", value)
                return number
            case Kind.PAIR_LINK:
                raise _Wrong("TS-ENV-TYPE", "the pair links of the node", value)
            case _:
                return self._text(value, where)

    def _in_range(self, number: int | float) -> None:
        low = -math.inf if self.min is None else self.min
        high = math.inf if self.max is None else self.max
        if not low <= number <= high:
            raise _Wrong("TS-ENV-RANGE", f"{low} to {high}", number)

    def _text(self, value: object, where: str) -> str:
        if not isinstance(value, str):
            raise _Wrong("TS-ENV-TYPE", "a text (quote it in YAML)", value)
        if value == "":
            raise _Wrong("TS-ENV-VALUE", "a text that is not empty", value)
        if self.source == "head.rendezvous":
            check_text(self.name, value.replace(PORT_TOKEN, ""), where)
        else:
            check_text(self.name, value, where)
        if self.choices is not None and value not in self.choices:
            raise _Wrong("TS-ENV-RANGE", "one of " + ", ".join(self.choices), value)
        if self.pattern is not None and re.fullmatch(self.pattern, value) is None:
            raise _Wrong("TS-ENV-RANGE", f"a text like {self.pattern}", value)
        if self.type is Kind.PATH and not is_plain_path(value):
            raise _Wrong("TS-ENV-RANGE", "an absolute path without . or ..", value)
        return value

    def _error(self, wrong: _Wrong, where: str) -> TrisparkError:
        right = self.right_spelling(wrong.observed)
        correct = f"the value of {self.name}" if where.endswith(self.name) else f"{self.name} in {where}"
        return TrisparkError(
            wrong.error_id,
            f"{self.name} has a wrong value",
            where=where,
            expected=wrong.expected,
            observed=self.shown(wrong.observed),
            remedy=f"correct {correct}" if right is None else f"write {self.name}={right} in {where}",
        )


class _Wrong(Exception):
    """A value that is refused: the id of the error, what was expected, what was seen."""

    def __init__(self, error_id: str, expected: str, observed: object) -> None:
        super().__init__(error_id)
        self.error_id, self.expected, self.observed = error_id, expected, observed


def _integer(value: object, expected: str = "a whole number") -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Wrong("TS-ENV-TYPE", expected, value)
    return value


def _is_finite(value: int | float) -> bool:
    """Whether a float can hold it; math.isfinite raises for a whole number beyond a float's range."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _plain_number(text: str) -> list[str]:
    """`.95` and `1e-1` in the spelling that is read."""
    try:
        number = float(text)
    except ValueError:
        return []
    return [format_value(number)] if math.isfinite(number) and "_" not in text else []


def require_expression(text: str) -> str:
    """The text, a regular expression. Raises ValueError, which models turn into a refusal."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


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
        return str(int(value)) if value.is_integer() else format(Decimal(repr(value)), "f")
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
