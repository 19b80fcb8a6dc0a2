"""Environment file and launch arguments from the shared templates, and the way back from text to values.

The specification of a container is made from the parsed text of the files, so that the files on a node say exactly
what the engine gets. Format of both: UTF-8, one entry a line, lines end with one "\\n", no quoting and no expansion.
engine.env may hold whole-line comments (#), launch.args may not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import jinja2

from trispark.allowlist import NAME
from trispark.errors import TrisparkError

ENV_FILE: Final = "engine.env"
ARGS_FILE: Final = "launch.args"


class Templates:
    """The two templates of templates/, with undefined names as errors."""

    def __init__(self, root: Path) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(root / "templates"),
            undefined=jinja2.StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )

    def render_env(self, env: Mapping[str, str]) -> str:
        """engine.env of one rank. Raises TS-RENDER-VALUE when a value would not come back as it is."""
        for name, value in env.items():
            if NAME.fullmatch(name) is None:
                raise _refused(ENV_FILE, name, "an environment name", name)
            _one_line(ENV_FILE, name, value)
        text = self._render(f"{ENV_FILE}.j2", env=sorted(env.items()))
        if parse_env(text) != dict(env):
            raise _refused(ENV_FILE, "the file", "the same values when read back", "other values")
        return text

    def render_args(self, command: Sequence[str]) -> str:
        """launch.args of one rank. Raises TS-RENDER-VALUE when an argument would not come back as it is."""
        for index, argument in enumerate(command):
            _one_line(ARGS_FILE, f"argument {index}", argument)
        text = self._render(f"{ARGS_FILE}.j2", command=list(command))
        if parse_args(text) != list(command):
            raise _refused(ARGS_FILE, "the file", "the same arguments when read back", "other arguments")
        return text

    def _render(self, template: str, **values: object) -> str:
        try:
            return self._environment.get_template(template).render(**values)
        except jinja2.TemplateError as error:
            raise TrisparkError(
                "TS-RENDER-TEMPLATE",
                "a template cannot be rendered",
                where=f"templates/{template}",
                expected="a template of the values it gets",
                observed=f"{type(error).__name__}: {error}",
                remedy=f"correct templates/{template}",
            ) from None


def parse_env(text: str) -> dict[str, str]:
    """The variables of an engine.env. Raises TS-RENDER-PARSE."""
    env: dict[str, str] = {}
    for number, line in enumerate(_lines(text, ENV_FILE), start=1):
        if line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or NAME.fullmatch(name) is None or name in env:
            raise TrisparkError(
                "TS-RENDER-PARSE",
                "a line is not one new NAME=value",
                where=f"{ENV_FILE} line {number}",
                expected="NAME=value",
                observed=name[:80],
                remedy=f"correct templates/{ENV_FILE}.j2",
            )
        env[name] = value
    return env


def parse_args(text: str) -> list[str]:
    """The command of a launch.args. Raises TS-RENDER-PARSE."""
    return _lines(text, ARGS_FILE)


def _lines(text: str, file: str) -> list[str]:
    """Lines by "\\n" alone: str.splitlines would also break at characters which are part of a value."""
    if text == "":
        return []
    if not text.endswith("\n"):
        raise TrisparkError(
            "TS-RENDER-PARSE",
            "the last line does not end",
            where=file,
            expected="a newline at the end",
            observed="none",
            remedy=f"correct templates/{file}.j2",
        )
    return text[:-1].split("\n")


def _one_line(file: str, name: str, value: str) -> None:
    for character, label in (("\n", "a newline"), ("\r", "a carriage return"), ("\0", "a NUL")):
        if character in value:
            raise _refused(file, name, "one line of text", label)


def _refused(file: str, name: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-RENDER-VALUE",
        f"{name} cannot be written to {file}",
        where=file,
        expected=expected,
        observed=observed,
        remedy=f"correct the value of {name}, or templates/{file}.j2",
    )
