"""Which defaults of roles have an effect on a playbook, read from playbooks/ and roles/ alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

RUNS: Final[Mapping[str, tuple[str, ...]]] = {
    "trial": ("boot",),
    "campaign": (*(f"stage_{letter}" for letter in "bcdefg"), "confirm"),
}
"""Playbooks that one runs with what it was given itself, without importing them (walk_child.py)."""

ONLY_WITH: Final[Mapping[str, tuple[str, str]]] = {
    "engram_repair": ("engram_action", "ensure"),
    "engram_reserve_gib": ("engram_action", "ensure"),
}
"""Defaults without effect where the role is included with another value of another default."""


@dataclass(frozen=True)
class _Playbook:
    name: str


@dataclass(frozen=True)
class _Role:
    """`given`: the variables that the playbook itself sets around its inclusion."""

    name: str
    given: Mapping[str, object]


def role_defaults(root: Path, playbook: str) -> set[str]:
    """The defaults of the roles that a playbook, those that it imports or runs, and those roles include.

    One that every inclusion sets by itself is left out: it is no caller's. A name that is a template counts for none,
    and a file that cannot be read for one that includes nothing.
    """
    playbooks = root / "playbooks"
    found: set[str] = set()
    seen: set[Path] = set()
    places = [playbooks / f"{playbook}.yml"]
    while places:
        path = places.pop()
        if path in seen:
            continue
        seen.add(path)
        if path.parent == playbooks:
            places += [playbooks / f"{name}.yml" for name in RUNS.get(path.stem, ())]
        for each in _included(_read(path), {}):
            if isinstance(each, _Playbook):
                places.append(path.parent / each.name)
            else:
                role = root / "roles" / each.name
                places += [*sorted(role.glob("tasks/**/*.yml")), role / "meta" / "main.yml"]
                found |= {name for name in _defaults(role) if _is_open(name, each.given)}
    return found


def _is_open(name: str, given: Mapping[str, object]) -> bool:
    if name in given:
        return False
    other, value = ONLY_WITH.get(name, ("", ""))
    return given.get(other, value) == value


def _included(read: object, given: Mapping[str, object]) -> Iterator[_Playbook | _Role]:
    """Everything that a part of a file names as included; `given`: the variables set around that part."""
    if isinstance(read, list):
        for each in read:
            yield from _included(each, given)
    if not isinstance(read, Mapping):
        return
    given = _with_vars(given, read)
    for key, value in read.items():
        match str(key).removeprefix("ansible.builtin."):
            case "import_playbook" if isinstance(value, str):
                yield _Playbook(value)
            case "include_role" | "import_role" if isinstance(value, Mapping):
                yield _Role(str(value.get("name")), given)
            case "roles" | "dependencies" if isinstance(value, list):
                for role in value:
                    if isinstance(role, Mapping):
                        yield _Role(str(role.get("role", role.get("name"))), _with_vars(given, role))
                    else:
                        yield _Role(str(role), given)
            case "tasks" | "pre_tasks" | "post_tasks" | "handlers" | "block" | "rescue" | "always":
                yield from _included(value, given)


def _with_vars(given: Mapping[str, object], part: Mapping[object, object]) -> Mapping[str, object]:
    own = part.get("vars")
    return {**given, **{str(name): value for name, value in own.items()}} if isinstance(own, Mapping) else given


def _defaults(role: Path) -> set[str]:
    read = _read(role / "defaults" / "main.yml")
    return set(map(str, read)) if isinstance(read, Mapping) else set()


def _read(path: Path) -> object:
    try:
        read: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    return read
