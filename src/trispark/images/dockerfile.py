"""A Dockerfile as its instructions: continued lines joined, comments left out, documents of `RUN <<EOF` kept."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PINNED: Final = frozenset(("BASE", "BASE_NAME", "BASE_DIGEST", "TITLE", "VERSION", "REVISION"))
"""Arguments of a build that the lock and the project decide, nobody else."""
_DIRECTIVE: Final = re.compile(r"#\s*([a-zA-Z]+)\s*=\s*(\S.*?)\s*")
_DOCUMENT: Final = re.compile(r"<<-?\s*[\"']?([A-Za-z_][A-Za-z0-9_]*)[\"']?")
_TAKES_DOCUMENTS: Final = frozenset(("RUN", "COPY", "ADD"))
_OPTION: Final = re.compile(r"--[a-z][a-z-]*(=\S*)?")


@dataclass(frozen=True)
class Instruction:
    """`name` in capitals; `text`: all that follows it, on one line; `documents`: lines of its here-documents."""

    name: str
    text: str
    line: int
    documents: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """Leading words such as `--from=stage`."""
        found = []
        for word in self.text.split():
            if not _OPTION.fullmatch(word):
                break
            found.append(word)
        return tuple(found)

    @property
    def arguments(self) -> str:
        """The text without its leading options."""
        rest = self.text
        for option in self.options:
            rest = rest.lstrip()[len(option) :]
        return rest.strip()

    @property
    def words(self) -> list[str]:
        """Of the arguments, as a shell would split them; by blanks where quotes do not close."""
        text = self.arguments
        if text.startswith("["):
            text = text.strip("[]").replace(",", " ")
        try:
            return shlex.split(text)
        except ValueError:
            return text.split()

    @property
    def script(self) -> str:
        """What a RUN runs: its arguments and documents."""
        return "\n".join((self.arguments, *self.documents))


@dataclass(frozen=True)
class Stage:
    """From a FROM to the next. `base` as it is written; `name` in small letters, empty without one."""

    base: str
    name: str
    line: int
    instructions: list[Instruction] = field(default_factory=list)


@dataclass(frozen=True)
class Dockerfile:
    """`directives`: first lines, as syntax and escape; `arguments`: {name: default} of ARG before the first FROM."""

    directives: dict[str, str]
    arguments: dict[str, str | None]
    stages: tuple[Stage, ...]

    @property
    def instructions(self) -> list[Instruction]:
        return [each for stage in self.stages for each in stage.instructions]

    def final(self) -> list[Stage]:
        """The last stage and those that it is FROM, the last one first."""
        chain: list[Stage] = []
        name: str | None = None
        for stage in reversed(self.stages):
            if not chain or stage.name == name:
                chain.append(stage)
                name = stage.base.lower()
        return chain

    def declared(self) -> set[str]:
        """Names of every ARG."""
        names = set(self.arguments)
        for each in self.instructions:
            if each.name == "ARG":
                names |= {word.partition("=")[0] for word in each.words}
        return names


def parse_dockerfile(path: Path) -> Dockerfile:
    return parse(path.read_text(encoding="utf-8"))


def parse(text: str) -> Dockerfile:
    """Never fails: an instruction that is unknown is kept as it is, for a rule to name."""
    directives, rest = _directives(text.splitlines())
    arguments: dict[str, str | None] = {}
    stages: list[Stage] = []
    for each in _instructions(rest, directives.get("escape", "\\")):
        if each.name == "FROM":
            words = each.arguments.split()
            named = words[2].lower() if len(words) >= 3 and words[1].upper() == "AS" else ""
            stages.append(Stage(words[0] if words else "", named, each.line))
        elif stages:
            stages[-1].instructions.append(each)
        elif each.name == "ARG":
            for word in each.words:
                name, given, value = word.partition("=")
                arguments[name] = value if given else None
    return Dockerfile(directives, arguments, tuple(stages))


Numbered = list[tuple[int, str]]


def _directives(lines: list[str]) -> tuple[dict[str, str], Numbered]:
    """Comments of the form `# name=value` count until the first line of another form."""
    numbered = list(enumerate(lines, 1))
    found: dict[str, str] = {}
    for number, line in numbered:
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None or match[1].lower() in found:
            return found, numbered[number - 1 :]
        found[match[1].lower()] = match[2]
    return found, []


def _instructions(lines: Numbered, escape: str) -> Iterator[Instruction]:
    waiting = iter(lines)
    for number, line in waiting:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        text = line.rstrip()
        while text.endswith(escape):
            following = next(waiting, None)
            if following is None:
                text = text[:-1]
                break
            if not following[1].lstrip().startswith("#") and following[1].strip():
                text = text[:-1] + following[1].rstrip()
        name, _, rest = text.strip().partition(" ")
        documents: list[str] = []
        if name.upper() in _TAKES_DOCUMENTS:
            for end in _DOCUMENT.findall(rest):
                for _, inner in waiting:
                    if inner.strip() == end:
                        break
                    documents.append(inner)
        yield Instruction(name.upper(), " ".join(rest.split("\t")).strip(), number, tuple(documents))
