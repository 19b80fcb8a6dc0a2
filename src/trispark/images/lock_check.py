"""`images lock --check`: every locked entry against what the package index, the registry or the disk says now."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from trispark.errors import TrisparkError
from trispark.images.image_members import ImageMembers, RegistryUnreachable
from trispark.images.lock_model import (
    AnyEntry,
    DebEntry,
    FileEntry,
    ImageEntry,
    LockFile,
    TreeEntry,
    VersionsEntry,
    WheelEntry,
)
from trispark.images.package_index import PackageIndex
from trispark.images.system_packages import SystemPackages
from trispark.images.tree_hash import tree_hash
from trispark.images.wheel_cache import WheelCache, sha256_of

Status = Literal["ok", "MISMATCH", "UNRESOLVED", "unreachable", "drift"]

OFFLINE: Final = "not asked for (--offline), and not kept below .trispark"


@dataclass(frozen=True)
class Finding:
    """What is known of one entry. `how`: by what it was compared, or why it was not."""

    name: str
    kind: str
    status: Status
    how: str

    @property
    def line(self) -> str:
        return f"{self.status:<11} {self.name}: {self.how}"


@dataclass
class Sources:
    """Where entries are compared. `index` and `members` are None offline; `trees`: where copies of trees lie."""

    root: Path
    cache: WheelCache
    system: SystemPackages
    index: PackageIndex | None
    members: ImageMembers | None
    download: bool = False

    @property
    def copies(self) -> Path:
        return self.cache.folder / "given"


def check(lock: LockFile, stale: Mapping[str, str], sources: Sources) -> Iterator[Finding]:
    """One finding an entry, in order of names; what the declaration says otherwise is a mismatch, whatever its hash."""
    for name in sorted({*lock.entries, *stale}):
        entry = lock.entries.get(name)
        if name in stale:
            kind = "none" if entry is None else entry.kind
            yield Finding(name, kind, "MISMATCH", f"{stale[name]}; ./trispark images lock --update {name}")
        elif entry is not None:
            yield _entry(name, entry, sources)


def selected(lock: LockFile, stale: Mapping[str, str], names: Collection[str]) -> tuple[LockFile, dict[str, str]]:
    """Lock and differences of these entries alone."""
    entries = {name: entry for name, entry in lock.entries.items() if name in names}
    return LockFile.model_construct(schema_version=1, entries=entries), {n: stale[n] for n in names if n in stale}


def passed(findings: list[Finding]) -> bool:
    """Whether everything that is resolved was compared and matches. Versions of lab images never fail."""
    judged = [each for each in findings if each.kind != "versions" or each.status == "MISMATCH"]
    return not any(each.status in ("MISMATCH", "unreachable") for each in judged)


def _entry(name: str, entry: AnyEntry, sources: Sources) -> Finding:
    if not entry.resolved:
        return Finding(name, entry.kind, "UNRESOLVED", str(getattr(entry, "unresolved", "")))
    try:
        status, how = _compared(name, entry, sources)
    except RegistryUnreachable as error:
        status, how = "unreachable", f"the registry: {error}"
    except TrisparkError as error:
        broken = error.id in ("TS-IMAGES-HASH", "TS-IMAGES-MANIFEST")
        status, how = ("MISMATCH" if broken else "unreachable"), f"{error.id}: {error.what}, {error.observed}"
    return Finding(name, entry.kind, status, how)


def _compared(name: str, entry: AnyEntry, sources: Sources) -> tuple[Status, str]:
    match entry:
        case WheelEntry():
            return _wheel(entry, sources)
        case ImageEntry():
            return _image(entry, sources)
        case TreeEntry():
            return _given(sources.copies / name, str(entry.sha256), tree=True)
        case FileEntry(path=None):
            return _given(sources.copies / name, str(entry.sha256), tree=False)
        case FileEntry():
            return _given(sources.root / str(entry.path), str(entry.sha256), tree=False)
        case DebEntry():
            return _deb(entry, sources)
        case VersionsEntry():
            return _versions(entry, sources)


def _wheel(entry: WheelEntry, sources: Sources) -> tuple[Status, str]:
    if sources.index is None:
        kept = sources.cache.kept(entry)
        return ("ok", "the kept file has the locked hash") if kept is not None else ("unreachable", OFFLINE)
    if sources.download:
        done = sources.cache.fetch(entry, sources.index)
        size = done.path.stat().st_size
        if entry.size is not None and size != entry.size:
            return "MISMATCH", f"{size} bytes, locked are {entry.size}"
        if not done.fetched:
            return "ok", f"kept before, {size} bytes hashed"
        return "ok", f"downloaded and hashed, {size} bytes, {done.fetched} of them now in {done.seconds:.1f} s"
    offered = next((file for file in sources.index.files(entry.project) if file.name == entry.file), None)
    if offered is None:
        return "MISMATCH", f"the index has no {entry.file} any more"
    if offered.sha256 is None:
        return "unreachable", "the index states no hash of it; --download hashes the file itself"
    if offered.sha256 != entry.sha256:
        return "MISMATCH", f"the index states sha256 {offered.sha256}, locked is {entry.sha256}"
    if None not in (offered.size, entry.size) and offered.size != entry.size:
        return "MISMATCH", f"the index states {offered.size} bytes, locked are {entry.size}"
    return "ok", "the index states the locked hash"


def _image(entry: ImageEntry, sources: Sources) -> tuple[Status, str]:
    if sources.members is None:
        return "unreachable", OFFLINE
    found = sources.members.member(entry.repository, str(entry.index), entry.architecture)
    if found is None:
        return "MISMATCH", f"the index has no member for {entry.architecture}"
    if found.digest != entry.digest:
        return "MISMATCH", f"its member for {entry.architecture} is {found.digest}, locked is {entry.digest}"
    if entry.config is not None and found.config != entry.config:
        return "MISMATCH", f"its image id is {found.config}, locked is {entry.config}"
    return "ok", "the registry has both manifests with the locked digests"


def _given(path: Path, sha256: str, *, tree: bool) -> tuple[Status, str]:
    if not (path.is_dir() if tree else path.is_file()):
        return "unreachable", f"there is no copy of it at {path}"
    observed = tree_hash(path) if tree else sha256_of(path)
    return ("ok", "hashed") if observed == sha256 else ("MISMATCH", f"sha256 {observed}, locked is {sha256}")


def _deb(entry: DebEntry, sources: Sources) -> tuple[Status, str]:
    offered = sources.system.package(entry.package, entry.suite, entry.architecture)
    if offered is None:
        return "unreachable", f"this machine has no package lists of {entry.suite} for {entry.architecture}"
    if (offered.version, offered.sha256) != (entry.version, entry.sha256):
        return "MISMATCH", f"the suite has {offered.version} with sha256 {offered.sha256}"
    return "ok", "the suite states the locked hash"


def _versions(entry: VersionsEntry, sources: Sources) -> tuple[Status, str]:
    observed = sources.system.versions(list(entry.packages or {}), entry.suite, entry.architecture)
    if observed is None:
        return "unreachable", f"this machine has no package lists of {entry.suite} for {entry.architecture}"
    drifted = version_drift(entry, observed)
    if drifted:
        return "drift", "warning: " + "; ".join(drifted)
    return "ok", f"{len(observed)} versions as recorded"


def version_drift(entry: VersionsEntry, observed: Mapping[str, str]) -> list[str]:
    """A line for each package of a lab image that is not there, or in another version than was recorded."""
    return [
        f"{name} {recorded} was recorded, {observed.get(name, 'none')} is there"
        for name, recorded in sorted((entry.packages or {}).items())
        if observed.get(name) != recorded
    ]
