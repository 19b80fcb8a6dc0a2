"""Verbs `stage`, `activate`, `generation-show`: complete generations on disk, and one link that says which is meant."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trispark_node import provenance, room
from trispark_node.canonical import canonical_json, generation_id, sha256_hex
from trispark_node.errors import AgentError, request_error
from trispark_node.fields import GENERATION_ID, RELATIVE_PATH, Fields
from trispark_node.layout import (
    SHARED_DIRECTORY_MODE,
    SHARED_FILE_MODE,
    STATE_DIRECTORY_MODE,
    STATE_FILE_MODE,
)
from trispark_node.mutation import Plan
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_regular
from trispark_node.spec import Spec, parse_spec

SUMS = "SHA256SUMS"
ADAPTERS = "adapters"
RENDERED = ("engine.env", "launch.args")
_STAGING = ".staging-"
_REPLACED = ".replaced-"


@dataclass(frozen=True)
class StageRequest:
    """`content`: every file of the generation by its path below the generation's directory, SHA256SUMS left out.
    `repair`: replace a generation of this id that is not what was staged, which is refused else."""

    generation: str
    content: Mapping[str, bytes]
    repair: bool = False

    @classmethod
    def parse(cls, fields: Fields) -> StageRequest:
        generation = fields.text("generation", pattern=GENERATION_ID)
        resolved = fields.mapping("resolved")
        spec = fields.mapping("spec")
        files = fields.text_mapping("files")
        adapters = fields.content_mapping("adapters", {})
        if sorted(files) != sorted(RENDERED):
            raise request_error(
                "the rendered files are not these",
                where="request.files",
                expected=", ".join(RENDERED),
                observed=", ".join(sorted(files)) or "none",
            )
        _check_id(generation, resolved)
        _check_adapters(adapters, resolved)
        _check_spec(parse_spec(spec), spec, generation, resolved)
        content = {
            "resolved.json": canonical_json(resolved) + b"\n",
            "spec.json": canonical_json(spec) + b"\n",
            **{name: text.encode("utf-8") for name, text in files.items()},
            **{f"{ADAPTERS}/{name}": data for name, data in adapters.items()},
        }
        return cls(generation, content, fields.boolean("repair", False))

    def sums(self) -> bytes:
        """In the format of sha256sum, so that a person can check it with `sha256sum -c`."""
        lines = (f"{sha256_hex(data)}  {name}\n" for name, data in sorted(self.content.items()))
        return "".join(lines).encode("utf-8")


def _check_id(generation: str, resolved: Mapping[str, Any]) -> None:
    computed = generation_id(resolved)
    if computed != generation:
        raise AgentError(
            "TS-AGENT-GENERATION",
            "the id is not the hash of the resolved configuration",
            where="request.generation",
            expected=computed,
            observed=generation,
            remedy="resolve again; controller and agent must be of one version",
        )


def _check_adapters(adapters: Mapping[str, bytes], resolved: Mapping[str, Any]) -> None:
    listed = resolved.get("adapters", {})
    sent = {name: sha256_hex(data) for name, data in adapters.items()}
    bad = [name for name in sent if not RELATIVE_PATH.fullmatch(name)]
    if bad:
        raise request_error(
            "an adapter's path has the wrong form",
            where="request.adapters",
            expected=RELATIVE_PATH.pattern,
            observed=", ".join(bad),
        )
    if sent != listed:
        odd = sorted(name for name in set(sent) | set(listed) if sent.get(name) != listed.get(name))
        raise AgentError(
            "TS-AGENT-ADAPTERS",
            "the adapters are not those of the resolved configuration",
            where=", ".join(odd),
            expected=", ".join(f"{listed.get(name, 'none')}" for name in odd),
            observed=", ".join(f"{sent.get(name, 'none')}" for name in odd),
            remedy="resolve again from a tree whose adapters do not change meanwhile",
        )


def _check_spec(spec: Spec, raw: Mapping[str, Any], generation: str, resolved: Mapping[str, Any]) -> None:
    """The id covers the resolved configuration only, so what is started must be what it says for this rank."""
    ranks = [entry for entry in resolved.get("ranks", ()) if entry.get("rank") == spec.rank]
    entry = ranks[0] if len(ranks) == 1 else {}
    expected = {
        "generation": generation,
        "image": resolved.get("image"),
        "env": entry.get("env"),
        "command": entry.get("command"),
        "mounts": entry.get("mounts"),
    }
    container = raw["container"]
    observed = {
        "generation": spec.generation,
        **{key: container.get(key) for key in ("image", "env", "command", "mounts")},
    }
    for key, value in expected.items():
        if observed[key] != value:
            raise AgentError(
                "TS-AGENT-SPEC",
                f"the spec's {key} is not the resolved configuration's for rank {spec.rank}",
                where=f"request.spec ({key})",
                expected=_shown(value),
                observed=_shown(observed[key]),
                remedy="resolve again; controller and agent must be of one version",
            )


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= 200 else f"{text[:160]}... sha256 {sha256_hex(text.encode())[:16]}"


def staged(node: Node) -> list[str]:
    """Ids of all generations on this node, complete or not, sorted."""
    try:
        names = [path.name for path in node.layout.generations.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(name for name in names if GENERATION_ID.fullmatch(name))


def damaged(node: Node) -> dict[str, str]:
    """{id: what is wrong} of the staged generations that are not whole."""
    found: dict[str, str] = {}
    for generation in staged(node):
        try:
            wrong = damage(node, generation)
        except OSError as error:
            wrong = f"{error.filename or 'a file'} cannot be read: {error.strerror or error}"
        if wrong is not None:
            found[generation] = wrong
    return found


def current(node: Node) -> str | None:
    """Id that `current` points to. Raises TS-AGENT-DAMAGED when it is something else than a link to a generation."""
    path = node.layout.current
    if not path.is_symlink() and not path.exists():
        return None
    target = os.readlink(path) if path.is_symlink() else ""  # noqa: PTH115 - the text, unresolved
    name = target.rpartition("/")[2]
    leads_to = os.path.normpath(node.layout.root / target)
    if not GENERATION_ID.fullmatch(name) or leads_to != os.path.normpath(node.layout.generation(name)):
        raise AgentError(
            "TS-AGENT-DAMAGED",
            "current is no link to a generation",
            where=str(path),
            expected="a link to generations/<id>",
            observed=f"a link to {target}" if target else "a file or directory",
            remedy="move it away and activate a generation",
        )
    return name


def require_current(node: Node) -> str:
    generation = current(node)
    if generation is None:
        raise AgentError(
            "TS-AGENT-NO-CURRENT",
            "no generation is active on this node",
            where=str(node.layout.current),
            expected="a link to a generation",
            observed="nothing",
            remedy="stage and activate a generation first",
        )
    return generation


def _walk(directory: Path) -> dict[str, Path]:
    """Everything below `directory` but directories, by relative path."""
    found: dict[str, Path] = {}
    for base, directories, names in os.walk(directory):
        # A link to a directory is not descended into; it has no place in a generation and is reported as a file.
        links = [name for name in directories if (Path(base) / name).is_symlink()]
        for name in [*names, *links]:
            path = Path(base) / name
            found[path.relative_to(directory).as_posix()] = path
    return found


@dataclass(frozen=True)
class Damage:
    """How a generation on the disk differs from what was staged. `changed`: (sha256 as staged, as it is) by path."""

    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unreadable: str = ""

    def text(self, *, hashes: bool = False) -> str | None:
        """`missing: a; changed: b, c`, with both hashes of each changed file where they are wanted; None when whole."""
        if self.unreadable:
            return self.unreadable
        changed = [_changed(name, *pair, hashes=hashes) for name, pair in self.changed.items()]
        parts = [
            f"{word}: {', '.join(names)}"
            for word, names in (("missing", self.missing), ("added", self.added), ("changed", changed))
            if names
        ]
        return "; ".join(parts) or None


def _changed(name: str, then: str, now: str, *, hashes: bool) -> str:
    if not then:  # what it is says it all
        return f"{name} ({now})"
    return f"{name} ({_short(now)}, staged as {_short(then)})" if hashes else name


def _short(digest: str) -> str:
    return f"sha256 {digest[:16]}" if re.fullmatch("[0-9a-f]{64}", digest) else digest


def damage(node: Node, generation: str) -> str | None:
    """What is wrong with a generation on the disk: files changed, lost or added, as text; None when it is whole."""
    return damage_of(node, generation).text()


def damage_of(node: Node, generation: str) -> Damage:
    """By its sums; adapters also by the resolved configuration, which its id covers, so that sums which somebody
    corrected after an edit hide nothing."""
    directory = node.layout.generation(generation)
    sums_path = directory / SUMS
    try:
        lines = sums_path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return Damage(unreadable=f"{SUMS}: {error.strerror if isinstance(error, OSError) else 'no text'}")
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    found = _walk(directory)
    found.pop(SUMS)
    digests = {name: _digest(found[name]) for name in sorted(set(listed) & set(found))}
    missing = sorted(set(listed) - set(found))
    added = sorted(set(found) - set(listed))
    changed = {name: (listed[name], digest) for name, digest in digests.items() if digest != listed[name]}
    if "resolved.json" not in {*missing, *changed}:
        try:
            resolved = parse_json(found["resolved.json"].read_bytes())
            computed = generation_id(resolved)
            planned = {f"{ADAPTERS}/{name}": str(digest) for name, digest in resolved.get("adapters", {}).items()}
        except (KeyError, ValueError, AttributeError):
            computed, planned = "none", {}
        if computed != generation:
            changed["resolved.json"] = ("", f"is {computed}")
        else:
            held = {name for name in digests if name.startswith(f"{ADAPTERS}/")}
            missing = sorted({*missing, *(set(planned) - set(found))})
            added = sorted({*added, *(held - set(planned))})
            changed.update(
                {name: (planned[name], digests[name]) for name in held & set(planned) if digests[name] != planned[name]}
            )
    return Damage(tuple(missing), tuple(added), dict(sorted(changed.items())))


def _digest(path: Path) -> str:
    if not stat.S_ISREG(path.lstat().st_mode):
        return "no regular file"
    return sha256_hex(path.read_bytes())


def require_whole(node: Node, generation: str) -> None:
    """Raises TS-AGENT-NOT-STAGED or TS-AGENT-DAMAGED."""
    directory = node.layout.generation(generation)
    if not directory.is_dir():
        raise AgentError(
            "TS-AGENT-NOT-STAGED",
            "the generation is not on this node",
            where=str(directory),
            expected="a staged generation",
            observed=f"staged here: {', '.join(staged(node)) or 'none'}",
            remedy="stage it first",
        )
    found = damage_of(node, generation).text(hashes=True)
    if found is not None:
        raise _not_as_staged(directory, found)


def _not_as_staged(directory: Path, observed: str) -> AgentError:
    return AgentError(
        "TS-AGENT-DAMAGED",
        "the generation is not what was staged",
        where=str(directory),
        expected=f"exactly the files of {SUMS}",
        observed=observed,
        remedy="find out why; ./trispark play site -e restage=true stages it again (of a candidate: play boot)",
    )


def load_spec(node: Node, generation: str) -> Spec:
    """The spec of a generation on this node. Raises TS-AGENT-DAMAGED when it cannot be read."""
    path = node.layout.generation(generation) / "spec.json"
    try:
        return parse_spec(parse_json(read_regular(path)))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, AgentError) as error:
        raise AgentError(
            "TS-AGENT-DAMAGED",
            "the generation's spec cannot be read",
            where=str(path),
            expected="the spec as staged",
            observed=str(error),
            remedy="stage the generation again",
        ) from error


def plan_stage(node: Node, request: StageRequest) -> Plan:
    directory = node.layout.generation(request.generation)
    there = directory.is_dir()
    wrong = damage_of(node, request.generation).text(hashes=True) if there else None
    if wrong is not None and not request.repair:
        raise _not_as_staged(directory, wrong)
    if there and wrong is None:
        if (directory / SUMS).read_bytes() == request.sums():
            return Plan(None, {"generation": request.generation})
        # Same resolved configuration, other rendering: only a controller of another version can do that.
        raise AgentError(
            "TS-AGENT-GENERATION",
            "a generation of this id is staged with other rendered files",
            where=str(directory),
            expected=request.sums().decode(),
            observed=(directory / SUMS).read_text(encoding="utf-8"),
            remedy="use the controller that staged it, or change the configuration",
        )
    before = "damaged\n" if there else "absent\n"
    return Plan(
        lambda: _apply_stage(node, request),
        {"generation": request.generation},
        {"generation": request.generation, "replaces": before.strip()},
        (before, request.sums().decode()),
    )


def _apply_stage(node: Node, request: StageRequest) -> dict[str, Any]:
    disk, generations = node.disk, node.layout.generations
    disk.make_directory(generations)
    remove_leftovers(node)
    room.keep(node)
    staging = generations / f"{_STAGING}{request.generation}"
    disk.make_directory(staging, STATE_DIRECTORY_MODE)
    disk.make_directory(staging / ADAPTERS, SHARED_DIRECTORY_MODE)
    for name, data in sorted({**request.content, SUMS: request.sums()}.items()):
        path = staging / name
        shared = name.startswith(f"{ADAPTERS}/")
        disk.make_directory(path.parent, SHARED_DIRECTORY_MODE)
        disk.write_new(path, data, SHARED_FILE_MODE if shared else STATE_FILE_MODE)
    for base, _directories, _names in os.walk(staging, topdown=False):
        disk.sync_directory(Path(base))
    target = node.layout.generation(request.generation)
    if target.exists():
        # Damaged, and a directory cannot be renamed over another: for one moment there is neither, which `activate`
        # and `start` refuse as they refuse the damaged one.
        disk.rename(target, generations / f"{_REPLACED}{request.generation}")
    disk.rename(staging, target)
    disk.remove_tree(generations / f"{_REPLACED}{request.generation}")
    return {}


def remove_leftovers(node: Node) -> None:
    """The lock is ours: what lies here under temporary names belongs to a process that died."""
    try:
        found = sorted(node.layout.generations.iterdir())
    except FileNotFoundError:
        return
    for leftover in found:
        if leftover.name.startswith((_STAGING, _REPLACED)):
            node.disk.remove_tree(leftover)


@dataclass(frozen=True)
class GenerationRequest:
    generation: str

    @classmethod
    def parse(cls, fields: Fields) -> GenerationRequest:
        return cls(fields.text("generation", pattern=GENERATION_ID))


def plan_activate(node: Node, request: GenerationRequest) -> Plan:
    require_whole(node, request.generation)
    before = current(node)
    if before == request.generation:
        return Plan(None, {"generation": before})

    def apply() -> dict[str, Any]:
        node.disk.replace_link(node.layout.current, f"generations/{request.generation}")
        return {"previous": before}

    return Plan(
        apply,
        {"generation": request.generation},
        {"from": before, "to": request.generation},
        (f"current {before or 'none'}\n", f"current {request.generation}\n"),
    )


def show(node: Node, request: GenerationRequest) -> dict[str, Any]:
    """Verb `generation-show`: what a rollback needs of a stored generation, after its checksums were verified.

    `provenance`: what was judged of its image when it was booted by choice, None where nothing was.
    """
    require_whole(node, request.generation)
    directory = node.layout.generation(request.generation)
    resolved = parse_json((directory / "resolved.json").read_bytes())
    fact = provenance.read_fact(node, str(resolved.get("image")))
    return {
        "generation": request.generation,
        "resolved": resolved,
        "provenance": None if fact is None else fact.json(),
        "spec": parse_json((directory / "spec.json").read_bytes()),
    }
