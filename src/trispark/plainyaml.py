"""Plain YAML files and the models that check them: duplicate keys, aliases, surplus keys and wrong types are refused by
name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from trispark.errors import TrisparkError

MAX_DEPTH: Final = 50
"""Mappings and lists inside each other."""
NO_FIT: Final = "values do not go together"
BROKEN: Final = "values that break this rule"
"""What is said of a broken rule over several keys."""


class Strict(BaseModel):
    """Base of every file model: immutable, no surplus keys, no silent conversion of types.

    A model is built when it is first used, most of them as part of the model of their file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


Model = TypeVar("Model", bound=BaseModel)


class Opaque:
    """A value with a tag of someone else (for instance `!vault`); only its presence is known."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def __repr__(self) -> str:
        return f"a value tagged {self.tag}"


def _not_json(value: object) -> dict[str, str]:
    """A date or a tagged value: an object that no scalar field accepts."""
    return {"value": repr(value)}


class _Alias(Exception):
    """An alias in a file, with the number of its line."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.line = line


class _PlainKeys(yaml.constructor.SafeConstructor):
    """Mappings without merge keys and without a key that appears twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise _bad_key(key_node, "merge keys are not plain YAML")
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool):
                raise _bad_key(key_node, "a key must be a scalar")
            if key in seen:
                raise _bad_key(key_node, f"the key {key!r} appears twice")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


class _Loader(_PlainKeys, yaml.SafeLoader):
    """SafeLoader which refuses aliases, deep nesting and a key that appears twice, and keeps unknown tags opaque."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        """The scanner reads ahead, in a time that grows with the square of the nesting."""
        if self.flow_level >= MAX_DEPTH:
            raise RecursionError
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Aliases end here, before anything is built: a few of them make a value that holds itself or gigabytes."""
        if self.check_event(yaml.AliasEvent):
            event: yaml.AliasEvent = self.peek_event()  # type: ignore[no-untyped-call] # its stub has no types
            mark = event.start_mark
            raise _Alias(f"*{event.anchor} repeats another value", mark.line + 1 if mark else 1)
        if self._depth > MAX_DEPTH:
            raise RecursionError
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _bad_key(node: yaml.Node, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _opaque(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Opaque:
    return Opaque(f"!{suffix}")


_Loader.add_multi_constructor("!", _opaque)


_UNUSUAL: Final = re.compile("(?:^|[\\s\\[{,:])!|[|>][-+0-9]*#|[\t\r\x85\u2028\u2029\ufeff]")
"""A tag, or a blank or a line end that the two loaders read differently."""


def _quick(text: str) -> Any:
    """The value of a plain file by libyaml, which reads eight times as fast; anything unusual raises.

    Whatever it raises, the caller reads the text again with the loader above, whose words are the ones shown, and which
    stands alone where PyYAML was built without libyaml.
    """
    if _UNUSUAL.search(text):
        raise ValueError("a tag, a tab or an unusual line end")
    loader = _QuickLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_odd_nodes(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_odd_nodes(root: yaml.Node) -> None:
    """An alias is a node that is met twice, also inside itself."""
    seen: set[int] = set()
    waiting = [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        if id(node) in seen or depth > MAX_DEPTH:
            raise ValueError("an alias or deep nesting")
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            waiting += [(part, depth + 1) for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(part, depth + 1) for part in node.value]


if yaml.__with_libyaml__:

    class _QuickLoader(_PlainKeys, yaml.CSafeLoader):
        """libyaml's scanner, parser and composer; the same values."""


_UNREADABLE: Final = (yaml.YAMLError, ValueError, RecursionError, LookupError, AttributeError, TypeError)
"""What PyYAML raises for a file that is not plain; the last three for values such as `!!int ""`."""


def _parse(text: str) -> Any:
    if yaml.__with_libyaml__:
        with suppress(*_UNREADABLE):
            return _quick(text)
    return yaml.load(text, Loader=_Loader)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises TS-YAML-MISSING, -READ, -ALIAS, -SYNTAX or -SHAPE."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TrisparkError(
            "TS-YAML-MISSING",
            "a file is missing",
            where=str(path),
            expected="a YAML file",
            observed="no such file",
            remedy="restore it from git, or write it",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise TrisparkError(
            "TS-YAML-READ",
            "a file cannot be read",
            where=str(path),
            expected="readable UTF-8 text",
            observed=str(error),
            remedy="make it readable, saved as UTF-8",
        ) from None
    try:
        data = _parse(text)
    except _Alias as error:
        raise TrisparkError(
            "TS-YAML-ALIAS",
            "the file has an alias",
            where=f"{path} line {error.line}",
            expected="YAML without anchors and aliases",
            observed=str(error),
            remedy="write the value out",
        ) from None
    except _UNREADABLE as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        where = str(path) if mark is None else f"{path} line {mark.line + 1}"
        problem = getattr(error, "problem", None) or _words(error)
        raise TrisparkError(
            "TS-YAML-SYNTAX",
            "the file is not plain YAML",
            where=where,
            expected="valid YAML",
            observed=str(problem),
            remedy=f"correct {where}",
        ) from None
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise TrisparkError(
            "TS-YAML-SHAPE",
            "the file does not hold a mapping of names",
            where=str(path),
            expected="name: value",
            observed=type(data).__name__,
            remedy=f"correct {path}",
        )
    return data


def _words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"values nested too deeply, more than {MAX_DEPTH} levels"
    return str(error) if isinstance(error, ValueError | yaml.YAMLError) else "a value that does not fit its tag"


class Rules(ValueError):
    """Raised by a model for rules over several keys: every one that is broken, not just the first."""

    def __init__(self, broken: Sequence[str]) -> None:
        super().__init__(broken[0])
        self.broken = tuple(broken)


def check_model(model: type[Model], data: Mapping[str, Any], where: str, error_id: str) -> Model:
    """`data` as a model; an unknown key, else the first problem, becomes a TrisparkError with `error_id`."""
    checked, problems = judge_model(model, data, where, error_id)
    if checked is None:
        raise problems[0] if len(problems) == 1 else _with_more(problems)
    return checked


def judge_model(
    model: type[Model], data: Mapping[str, Any], where: str, error_id: str
) -> tuple[Model | None, list[TrisparkError]]:
    """(`data` as a model, no problem), or (None, every problem; unknown keys first).

    It goes through JSON, where lists are what a tuple is made of, so that strict models stay strict for scalars.
    """
    try:
        return model.model_validate_json(json.dumps(dict(data), default=_not_json)), []
    except ValidationError as error:
        found = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
        return None, [each for problem in found for each in _problems(problem, where, error_id)]


def wrong_keys(model: type[BaseModel], data: Mapping[str, Any]) -> frozenset[str]:
    """Keys of `data`, or missing in it, in which or below which something is wrong by itself."""
    try:
        model.model_validate_json(json.dumps(dict(data), default=_not_json))
    except ValidationError as error:
        return frozenset(str(problem["loc"][0]) for problem in error.errors() if problem["loc"])
    return frozenset()


def _problems(problem: ErrorDetails, where: str, error_id: str) -> Iterator[TrisparkError]:
    key = ".".join(str(part) for part in problem["loc"])
    cause = problem.get("ctx", {}).get("error")
    rules = cause.broken if isinstance(cause, Rules) else (problem["msg"].removeprefix("Value error, "),)
    for rule in rules:
        if problem["type"] == "extra_forbidden":
            what, expected, observed = f"unknown key {key}", "a key of the schema", key
        elif problem["type"] == "missing":
            what, expected, observed = f"the key {key} is missing", key, "nothing"
        elif not key:
            # A rule over several keys: it names what it saw; the input would be all of them.
            what, expected, observed = NO_FIT, rule, BROKEN
        elif problem["type"] == "value_error" and isinstance(problem["input"], Mapping):
            what, expected, observed = f"the values of {key} do not go together", rule, BROKEN
        else:
            what, expected, observed = f"the value of {key} is wrong", rule, repr(problem["input"])[:120]
        yield TrisparkError(
            error_id, what, where=where, expected=expected, observed=observed, remedy=f"correct {where}"
        )


def _with_more(problems: Sequence[TrisparkError]) -> TrisparkError:
    first = problems[0]
    return TrisparkError(
        first.id,
        f"{first.what} (and {len(problems) - 1} more)",
        where=first.where,
        expected=first.expected,
        observed=first.observed,
        remedy=first.remedy,
    )
