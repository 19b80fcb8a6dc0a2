"""Rules for Dockerfiles: everything by hash, nothing of an experiment inside. Each is a function that names lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trispark.allowlist import CONTROLLED_PREFIXES, AllowlistFile, Support
from trispark.images.declaration import Declaration, Image
from trispark.images.dockerfile import Dockerfile, Instruction, parse_dockerfile
from trispark.plainyaml import check_model, read_yaml

DIGEST: Final = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
_ARGUMENT: Final = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_COMMANDS: Final = re.compile(r"&&|\|\||[;|\n]")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_PIP: Final = re.compile(r"\bpip[0-9.]*[\"']?\s+(?:-\S+\s+)*(?:install|download|wheel)\b")
_APT: Final = re.compile(r"\b(?:apt-get|apt|aptitude)\s+(?:-\S+(?:\s+[A-Z]\S*=\S*)?\s+)*install\b(.*)", re.DOTALL)
_OTHER: Final = re.compile(
    r"\b(?:conda|mamba|npm|yarn|gem|cargo|go|apk|dnf|yum|microdnf|zypper|pacman|pipx|poetry|uv|uv\s+tool)"
    r"\s+(?:-\S+\s+)*(?:install|add|get|ci|sync)\b"
    r"|\b(?:apt-get|apt|aptitude)\s+(?:-\S+\s+)*(?:upgrade|dist-upgrade|full-upgrade)\b"
)
_FETCH: Final = re.compile(r"(?:^|[\s(\"'`;&|/])(?:curl|wget|aria2c)\s")
_CLONE: Final = re.compile(r"\bgit\s+(?:-\S+\s+)*(?:clone|fetch|pull|submodule)\b")
_CHECKED: Final = re.compile(r"\bsha(?:256|512)sum\s+(?:\S+\s+)*?(?:-\w*c\w*|--check)\b")
_COMMIT: Final = re.compile(r"\b[0-9a-f]{40}\b")
_LATEST: Final = re.compile(r"[a-z0-9]:latest\b")
_ADAPTERS: Final = frozenset(("adapters", "trispark_hooks", "trispark_adapters", "engram_store"))
NCCL: Final = "nccl.conf"
LABELS: Final = ("title", "version", "revision", "base.name", "base.digest")
ALLOWLIST: Final = "experiments/env_allowlist.yml"


@dataclass(frozen=True)
class Expected:
    """What the declaration says of the image. `variables`: names that no image sets; `user`: root, or a number."""

    variables: frozenset[str]
    engine: bool = False
    user: str = "root"
    labels: bool = True


@dataclass(frozen=True, order=True)
class Found:
    """One thing that a rule names."""

    line: int
    rule: str
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.rule}: {self.what}"


Line = tuple[int, str]
Rule = Callable[[Dockerfile, Expected], Iterator[Line]]


def lint(file: Dockerfile, expected: Expected) -> list[Found]:
    """Everything that a rule names, in order of lines."""
    return sorted(Found(line, name, what) for name, rule in RULES.items() for line, what in rule(file, expected))


def lint_all(root: Path, declaration: Declaration) -> dict[str, list[Found]]:
    """{Dockerfile below Dockerfiles/: what was found}, for every image that is made with it."""
    found: dict[str, set[Found]] = {}
    for image in declaration.images.values():
        expected = expected_of(root, image)
        judged = lint(parse_dockerfile(root / "Dockerfiles" / image.dockerfile), expected)
        found.setdefault(image.dockerfile, set()).update(judged)
    return {name: sorted(each) for name, each in sorted(found.items())}


def expected_of(root: Path, image: Image) -> Expected:
    """What holds for the Dockerfile of a declared image."""
    engine = image.serves == "sglang"
    return Expected(controlled_names(root, image.serves), engine, image.user, labels=engine)


def controlled_names(root: Path, engine: str | None) -> frozenset[str]:
    """What an experiment may set and an image therefore must not: names of the allowlist with a controlled prefix, and
    of an engine every variable that it is given."""
    loaded = check_model(AllowlistFile, read_yaml(root / ALLOWLIST), ALLOWLIST, "TS-CATALOG-SCHEMA")
    return frozenset(
        each.name
        for each in loaded.variables
        if each.name.startswith(CONTROLLED_PREFIXES)
        or (each.env and engine is not None and each.support(engine) is not Support.REFUSED)
    )


def _base_without_digest(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    names: set[str] = {"scratch"}
    if not file.stages:
        yield 1, "there is no FROM"
    for stage in file.stages:
        argument = _ARGUMENT.fullmatch(stage.base)
        if argument is not None:
            default = file.arguments.get(argument[1])
            if argument[1] not in file.arguments:
                yield stage.line, f"{stage.base} is no ARG before the first FROM"
            elif default is not None and not DIGEST.fullmatch(default):
                yield stage.line, f"{argument[1]} is {default!r} unless given: no digest"
        elif stage.base.lower() not in names and not DIGEST.fullmatch(stage.base):
            yield stage.line, f"{stage.base or 'nothing'} has no digest"
        names.add(stage.name)
    for each in file.instructions:
        for option in each.options if each.name == "COPY" else ():
            source = option.removeprefix("--from=")
            if option.startswith("--from=") and source.lower() not in names and not DIGEST.fullmatch(source):
                yield each.line, f"{source} is no stage and has no digest"


def _image_by_mount(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    """`RUN --mount=from=...` brings an image as a base does; ONBUILD runs in builds that no rule sees."""
    names = {"scratch", *(stage.name for stage in file.stages)}
    for each in file.instructions:
        for option in each.options if each.name == "RUN" else ():
            for part in option.removeprefix("--mount=").split(",") if option.startswith("--mount=") else ():
                source = part.removeprefix("from=")
                if part.startswith("from=") and source.lower() not in names and not DIGEST.fullmatch(source):
                    yield each.line, f"{source} is no stage and has no digest"
        if each.name == "ONBUILD":
            yield each.line, "ONBUILD runs in other builds"


def _moving_tag(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    for stage in file.stages:
        if _LATEST.search(stage.base):
            yield stage.line, stage.base
    for name, default in file.arguments.items():
        if default is not None and _LATEST.search(default):
            yield 1, f"{name}={default}"
    for each in file.instructions:
        if _LATEST.search(each.script):
            yield each.line, "a tag that moves"


def _frontend(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    """`# syntax=` makes the builder pull a program that reads the rest."""
    syntax = file.directives.get("syntax")
    if syntax is not None and not DIGEST.fullmatch(syntax):
        yield 1, f"{syntax} is pulled without a digest"


def _pip_without_hashes(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    for each, command in _commands(file):
        if _PIP.search(command) and "--require-hashes" not in command.split():
            yield each.line, command


def _unpinned_package(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    for each, command in _commands(file):
        installed = _APT.search(command)
        if installed is not None:
            loose = [word for word in installed[1].split() if not _is_pinned(word)]
            if loose or not installed[1].split():
                yield each.line, f"without a version: {' '.join(loose) or 'names from elsewhere'}"
        elif _OTHER.search(command):
            yield each.line, f"no hash can be given: {command}"


def _is_pinned(word: str) -> bool:
    """An option, a file, or a package with its version."""
    return word.startswith("-") or word.endswith(".deb") or "=" in word.strip("=")


def _unchecked_download(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    for each in file.instructions:
        if each.name == "RUN":
            checked = _CHECKED.search(_run(each)) is not None
            if _FETCH.search(each.script) and not checked:
                yield each.line, "a download whose hash is not compared in the same step"
            if _CLONE.search(each.script) and not _COMMIT.search(_run(each)):
                yield each.line, "sources without a commit"
        if each.name == "ADD":
            remote = [word for word in each.words if re.match(r"(?:https?|ftp|git)://|git@", word)]
            hashed = any(re.fullmatch(r"--checksum=sha256:[0-9a-f]{64}", option) for option in each.options)
            if remote and not hashed:
                yield each.line, f"ADD {remote[0]} without --checksum=sha256:..."


def _experiment_variable(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    for each in file.instructions:
        if each.name == "ENV":
            words = each.words
            # `ENV NAME value` is the old form; its first word has no equals sign.
            names = words[:1] if words and "=" not in words[0] else [word.partition("=")[0] for word in words]
            for name in names:
                if name in expected.variables or name.startswith(CONTROLLED_PREFIXES):
                    yield each.line, f"{name} comes from the launcher alone"


def _adapters_inside(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    for each in file.instructions:
        if each.name in ("COPY", "ADD"):
            for word in each.words:
                if _ADAPTERS & set(re.split(r"[/\\]", word)):
                    yield each.line, f"{word}: adapters come by mount"


def _nccl_configuration(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    """Nobody writes it, and an engine removes what its base may have."""
    removed = False
    for each in file.instructions:
        text = each.script
        if NCCL in text:
            removes = each.name == "RUN" and all(
                re.match(r"\s*(?:/bin/)?rm\s", command) for command in _COMMANDS.split(text) if NCCL in command
            )
            removed = removed or removes
            if not removes:
                yield each.line, f"{NCCL} changes what NCCL does, past the launcher"
    if expected.engine and not removed:
        yield file.stages[-1].line if file.stages else 1, f"{NCCL} of the base is not removed"


def _user(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    users = [
        each.words[0]
        for stage in file.final()
        for each in reversed(stage.instructions)
        if each.name == "USER" and each.words
    ]
    line = file.stages[-1].line if file.stages else 1
    last = {"0": "root", "0:0": "root", "root": "root"}.get(users[0], users[0]) if users else None
    if expected.engine and last is None:
        yield line, "an engine says as whom it runs"
    if last is not None and last != expected.user:
        yield line, f"it runs as {last}, declared is {expected.user}"
    if last is None and expected.user != "root":
        yield line, f"there is no USER, declared is {expected.user}"


def _import_check(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    """An engine's build looks at the image, and the last stage needs that it did: a builder skips what nobody needs."""
    if not expected.engine:
        return
    checking = {
        stage.name
        for stage in file.stages
        for each in stage.instructions
        if each.name == "RUN" and "image_check.py" in _run(each) and "||" not in each.script
    }
    needed = {
        option.removeprefix("--from=").lower()
        for stage in file.final()
        for each in stage.instructions
        if each.name == "COPY"
        for option in each.options
        if option.startswith("--from=")
    }
    own = {stage.name for stage in file.final()}
    if not checking & (needed | own):
        yield file.stages[-1].line if file.stages else 1, "the last stage does not need the result of image_check.py"


def _labels(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    given = " ".join(each.text for stage in file.final() for each in stage.instructions if each.name == "LABEL")
    missing = [name for name in LABELS if f"org.opencontainers.image.{name}=" not in given]
    if expected.labels and missing:
        yield file.stages[-1].line if file.stages else 1, "no label org.opencontainers.image." + ", ".join(missing)


def _one_stage(file: Dockerfile, expected: Expected) -> Iterator[Line]:
    if expected.engine and len(file.stages) < 2:
        yield 1, "an engine is built in stages, so that what builds it does not stay in it"


def _commands(file: Dockerfile) -> Iterator[tuple[Instruction, str]]:
    """Every single command of every RUN."""
    for each in file.instructions:
        if each.name == "RUN":
            script = " ".join(each.words) if each.arguments.startswith("[") else _run(each)
            for command in _COMMANDS.split(script):
                if command.strip():
                    yield each, command.strip()


def _run(each: Instruction) -> str:
    """What a RUN runs, without the shell's comments."""
    return "\n".join(_COMMENT.sub("", line) for line in each.script.split("\n"))


RULES: Final[Mapping[str, Rule]] = {
    "base-without-digest": _base_without_digest,
    "image-by-mount": _image_by_mount,
    "moving-tag": _moving_tag,
    "frontend-without-digest": _frontend,
    "pip-without-hashes": _pip_without_hashes,
    "unpinned-package": _unpinned_package,
    "unchecked-download": _unchecked_download,
    "experiment-variable": _experiment_variable,
    "adapters-inside": _adapters_inside,
    "nccl-configuration": _nccl_configuration,
    "user": _user,
    "import-check": _import_check,
    "labels": _labels,
    "one-stage": _one_stage,
}
