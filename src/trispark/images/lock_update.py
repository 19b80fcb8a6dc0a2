"""`images lock --update NAME`: find out what one declared input is now, and lock it. Nothing else changes the lock."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trispark.errors import TrisparkError
from trispark.images.declaration import DECLARATION, Declaration
from trispark.images.image_members import RegistryUnreachable
from trispark.images.input_names import require_input
from trispark.images.lock_check import Sources
from trispark.images.lock_file import LOCK, changing, load_lock, write_lock
from trispark.images.lock_model import (
    ENTRY_OF,
    AnyEntry,
    AnyInput,
    DebInput,
    FileInput,
    ImageInput,
    LockFile,
    TreeInput,
    VersionsInput,
    WheelInput,
)
from trispark.images.tree_hash import tree_hash
from trispark.images.wheel_cache import sha256_of
from trispark.plainyaml import check_model


@dataclass(frozen=True)
class Change:
    """What an update did to one entry; either is None where there was, or is, none. `note`: what could not be asked."""

    name: str
    before: AnyEntry | None
    after: AnyEntry | None
    note: str = ""

    @property
    def lines(self) -> Iterator[str]:
        """`- key: value` for what goes, `+ key: value` for what comes."""
        old, new = _fields(self.before), _fields(self.after)
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                if key in old:
                    yield f"- {key}: {old[key]}"
                if key in new:
                    yield f"+ {key}: {new[key]}"

    @property
    def lacking(self) -> str | None:
        """Why the entry has no hash yet; None where it has one, or was removed."""
        return None if self.after is None or self.after.resolved else str(getattr(self.after, "unresolved", ""))


def update(root: Path, declaration: Declaration, name: str, sources: Sources, given: Path | None = None) -> Change:
    """Lock `name` as it is declared. `given`: a copy of a tree or file that this machine cannot fetch; it is kept.

    An entry that is declared no longer is removed. Raises TS-IMAGES-NAME, -BUSY, -NOT-FOUND, -SOURCE, -INDEX,
    -MANIFEST, -DIFFERS (another hash than the declaration states), and as the loader of the lock does.
    """
    with changing(root):
        lock = load_lock(root) if (root / LOCK).is_file() else LockFile.model_construct(schema_version=1, entries={})
        before = lock.entries.get(name)
        declared = declaration.inputs.get(name)
        require_input(declaration, {*declaration.inputs, *lock.entries}, name)
        after, note = (None, "") if declared is None else _resolve(name, declared, sources, given)
        entries = {key: entry for key, entry in lock.entries.items() if key != name}
        if after is not None:
            entries[name] = after
        write_lock(root, LockFile.model_construct(schema_version=1, entries=entries))
        return Change(name, before, after, note)


def way_to_a_hash(name: str, declared: AnyInput) -> str:
    """What somebody can do for an input of which nothing here knows a hash."""
    match declared:
        case ImageInput():
            if declared.index is None:  # then there is nothing that a registry could be asked for
                return f"write its index and digest in {DECLARATION}, then run this again"
            return f"run this where its registry answers, or write its digest in {DECLARATION} and run it again"
        case TreeInput() | FileInput():
            what = (
                f"DIR, its directory {declared.directory}" if isinstance(declared, TreeInput) else "FILE, a copy of it"
            )
            return f"./trispark images lock --update {name} --from {what}"
        case DebInput():
            return f"run this on a machine with the package lists of {declared.suite} for {declared.architecture}"
        case WheelInput() | VersionsInput():
            return f"correct what {DECLARATION} says of it, or run this where it is to be had"


def _fields(entry: AnyEntry | None) -> dict[str, str]:
    if entry is None:
        return {}
    return {key: str(value) for key, value in entry.model_dump(mode="json", exclude_none=True).items()}


def _resolve(name: str, declared: AnyInput, sources: Sources, given: Path | None) -> tuple[AnyEntry, str]:
    if given is not None and not isinstance(declared, TreeInput | FileInput):
        raise _source_error(name, f"an input of kind {declared.kind}", "--from is for trees and files")
    note = ""
    match declared:
        case WheelInput():
            found = _wheel(declared, sources)
        case ImageInput():
            found, note = _image(declared, sources)
        case TreeInput():
            found = {} if given is None else {"sha256": _kept_tree(given, sources.copies / name)}
        case FileInput():
            found = _file(name, declared, sources, given)
        case DebInput():
            found = _deb(declared, sources)
        case VersionsInput():
            found = _versions(declared, sources)
    fields = declared.model_dump(mode="json", exclude_none=True)
    if found:
        fields.pop("unresolved", None)
    elif "unresolved" not in fields:
        raise TrisparkError(
            "TS-IMAGES-NOT-FOUND",
            "an input is not to be had here",
            where=name,
            expected="a hash, from where the input comes from",
            observed="nothing",
            remedy=f"give a copy with --from, or say in {DECLARATION} why it stays unresolved",
        )
    made = check_model(ENTRY_OF[declared.kind], fields | found, name, "TS-IMAGES-SCHEMA")
    return made, note


def _wheel(declared: WheelInput, sources: Sources) -> dict[str, Any]:
    if sources.index is None:
        raise _source_error(declared.project, "an answer of the package index", "--offline")
    offered = sources.index.wheel(declared)
    if offered is None:
        return {}
    if offered.sha256 is None:
        raise _source_error(offered.name, "an index that states hashes", "no hash")
    return {"file": offered.name, "sha256": offered.sha256, **({"size": offered.size} if offered.size else {})}


def _image(declared: ImageInput, sources: Sources) -> tuple[dict[str, Any], str]:
    """As the registry says; as stated where it does not answer: a digest names its bytes whoever states it."""
    stated = {"digest": declared.digest} | ({"config": declared.config} if declared.config else {})
    if declared.index is None:
        return {}, ""
    if sources.members is None:
        return (stated if declared.digest else {}), "not fetched (--offline): as it is declared"
    try:
        found = sources.members.member(declared.repository, declared.index, declared.architecture)
    except RegistryUnreachable as error:
        return (stated if declared.digest else {}), f"not fetched (the registry: {error}): as it is declared"
    if found is None:
        return {}, ""
    seen = {"digest": found.digest, "config": found.config}
    for key, value in seen.items():
        said = getattr(declared, key)
        if said is not None and said != value:
            raise TrisparkError(
                "TS-IMAGES-DIFFERS",
                "the registry has another image than the declaration states",
                where=f"{declared.repository}, {key} for {declared.architecture}",
                expected=said,
                observed=value,
                remedy=f"find out which is right, then correct {DECLARATION}",
            )
    return seen, ""


def _file(name: str, declared: FileInput, sources: Sources, given: Path | None) -> dict[str, Any]:
    if declared.path is not None:
        path = sources.root / declared.path
        if not path.is_file():
            raise _source_error(name, f"the file {declared.path}", "no such file")
        return {"sha256": sha256_of(path)}
    if given is None:
        return {}
    if not given.is_file():
        raise _source_error(name, "a file after --from", "no such file")
    with _kept(sources.copies / name, given) as copy:
        shutil.copyfile(given, copy)
        return {"sha256": sha256_of(copy)}


def _kept_tree(given: Path, kept: Path) -> str:
    if not given.is_dir():
        raise _source_error(kept.name, "a directory after --from", "no such directory")
    with _kept(kept, given) as copy:
        shutil.copytree(given, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        return tree_hash(copy)


@contextmanager
def _kept(place: Path, given: Path) -> Iterator[Path]:
    """Where to put a copy that takes its place when it is whole and has its hash; `given` may be what is kept already.

    Raises TS-IMAGES-SOURCE where it cannot be copied.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as scratch:
        try:
            yield Path(scratch) / "new"
            if place.is_symlink() or place.exists():
                place.rename(Path(scratch) / "old")
            (Path(scratch) / "new").rename(place)
        except OSError as error:
            raise _source_error(str(given), "files that can be copied", str(error)[:200]) from None


def _deb(declared: DebInput, sources: Sources) -> dict[str, Any]:
    found = sources.system.package(declared.package, declared.suite, declared.architecture)
    return {} if found is None else {"version": found.version, "sha256": found.sha256, "size": found.size}


def _versions(declared: VersionsInput, sources: Sources) -> dict[str, Any]:
    names = base_packages(sources.root, declared.base)
    found = sources.system.versions(names, declared.suite, declared.architecture)
    if found is None or set(found) != set(names):
        raise _source_error(
            declared.base,
            f"a machine with the package lists of {declared.suite} for {declared.architecture}",
            "none of them" if not found else f"no {', '.join(sorted(set(names) - set(found)))}",
        )
    return {"packages": found}


def base_packages(root: Path, base: str) -> list[str]:
    """Names of the packages that Dockerfiles/bases.yml gives a base of the lab."""
    text = (root / "Dockerfiles" / "bases.yml").read_text(encoding="utf-8")
    bases = yaml.safe_load(text)["bases"]
    return sorted(str(package) for package in bases[base]["packages"]) if base in bases else []


def _source_error(where: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-IMAGES-SOURCE",
        "an input cannot be locked from this",
        where=where,
        expected=expected,
        observed=observed,
        remedy="correct the command, or run it where the source can be reached",
    )
