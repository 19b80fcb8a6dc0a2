"""`images context`: a folder from which an image is built without network. Everything in it comes from the lock.

    Dockerfile            the declared one, or the site's
    requirements.txt      NAME==VERSION --hash=sha256:... of each wheel, for pip --require-hashes
    wheels/, debs/        the files themselves; debs/SHA256SUMS
    tree/NAME/, file/NAME/  sources and single files, by the name of their input
    image_check.py, image_check.json   what the build looks at, docs/images.md
    build.json            what the image is to be, its inputs, and the command that builds it (context_file.py)

The same lock and the same project give the same bytes, times included.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from trispark.allowlist import CONTROLLED_PREFIXES
from trispark.errors import TrisparkError
from trispark.images.context_file import write_context_file
from trispark.images.declaration import DECLARATION, Declaration, Image, Variant, unresolved
from trispark.images.dockerfile import parse_dockerfile
from trispark.images.dockerfile_lint import controlled_names, expected_of, lint
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
from trispark.images.secret_arguments import require_no_secrets
from trispark.images.tree_hash import tree_hash
from trispark.images.wheel_cache import WheelCache, sha256_of
from trispark.plainyaml import read_yaml

ABSENT: Final = ("/etc/nccl.conf", "/root/.nccl.conf")
BY_MOUNT: Final = ("trispark_hooks", "trispark_adapters", "engram_store")
CHECK: Final = "src/trispark/images/image_check.py"
PACKAGES: Final[Mapping[str, tuple[str, str]]] = {"bench": ("src/trispark_bench", "trispark_bench")}
"""{image: (directory of the project, its name in the context)}: code of ours that an image holds."""
TIME: Final = 0
"""Of every file, in seconds since 1970: contexts that were made at other times are the same."""


@dataclass(frozen=True)
class Request:
    """`dockerfile` and `arguments` of the site take the place of the declared ones. `revision`: of the project."""

    name: str
    architecture: str
    out: Path
    version: str
    revision: str
    dockerfile: str | None = None
    arguments: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Context:
    """What was made. `hash`: over names and contents of all files; `command` builds the image from the folder, and
    writes it to `archive`, a path from there."""

    folder: Path
    hash: str
    command: list[str]
    archive: str
    inputs: dict[str, str]


def make_context(
    root: Path,
    declaration: Declaration,
    lock: LockFile,
    request: Request,
    cache: WheelCache,
    index: PackageIndex | None,
) -> Context:
    """`index` None: wheels that are not kept here are not fetched.

    Raises TS-IMAGES-NAME (no such image, or one of the lab), -UNRESOLVED (it cannot be built: what it is made of has no
    hash, or it is declared as not available), -OUT, -LINT, -ARGUMENT, -SECRET, -COPY (a tree or file is not here),
    -HASH, and as the cache does. A folder that could not be finished is removed.
    """
    image = _image(declaration, request)
    variant = _variant(image, request, lock)
    dockerfile = root / "Dockerfiles" / (request.dockerfile or image.dockerfile)
    _lint(root, image, dockerfile)
    base = lock.entries[variant.base]
    if not isinstance(base, ImageEntry):
        raise _name_error(request.name, "an image with a base from a registry", f"{variant.base} of the lab")
    arguments = _arguments(image, request, base, dockerfile)
    if request.out.exists() and (not request.out.is_dir() or any(request.out.iterdir())):
        raise TrisparkError(
            "TS-IMAGES-OUT",
            "the folder for a build context is not empty",
            where=str(request.out),
            expected="no such folder, or an empty one",
            observed="something in it",
            remedy="name another one with --out",
        )
    request.out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{request.out.name}-", dir=request.out.parent))
    try:
        shutil.copyfile(dockerfile, partial / "Dockerfile")
        entries = {name: lock.entries[name] for name in variant.inputs}
        _Inputs(root, partial, cache, index).put(entries)
        _own_code(root, request.name, partial)
        _check(root, image, partial)
        inputs = {name: _identity(lock.entries[name]) for name in (variant.base, *variant.inputs)}
        file = write_context_file(
            partial,
            {
                "name": request.name,
                "architecture": request.architecture,
                "dockerfile": dockerfile.relative_to(root).as_posix(),
                "version": request.version,
                "revision": request.revision,
                "base": base.repository,
                "base_digest": base.digest,
                "arguments": arguments,
                "inputs": inputs,
                "dependencies": list(_dependencies(entries)),
            },
        )
        _same_times(partial)
        if request.out.is_dir():
            request.out.rmdir()
        partial.rename(request.out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Context(request.out, tree_hash(request.out), file.command(), file.archive, inputs)


def _image(declaration: Declaration, request: Request) -> Image:
    buildable = [name for name, image in declaration.images.items() if image.made_by == "context"]
    if request.name not in buildable:
        raise _name_error(request.name, "one of " + ", ".join(buildable), request.name)
    return declaration.images[request.name]


def _name_error(where: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-IMAGES-NAME",
        "there is no such image to be built from a context",
        where=where,
        expected=expected,
        observed=observed,
        remedy="name one of them; ./trispark lab up builds the lab's",
    )


def _variant(image: Image, request: Request, lock: LockFile) -> Variant:
    variants: Mapping[str, Variant] = {str(name): variant for name, variant in image.variants.items()}
    variant = variants.get(request.architecture)
    if variant is None:
        raise TrisparkError(
            "TS-IMAGES-NAME",
            "the image is not declared for this architecture",
            where=f"{request.name} in {DECLARATION}",
            expected=f"--arch {' or '.join(image.variants)}{' alone' if len(image.variants) == 1 else ''}",
            observed=request.architecture,
            remedy="give that architecture, or declare what the image is made of on this one",
        )
    lacking = unresolved(variant, lock)
    if lacking or not variant.available:
        why = "; ".join(f"{name}: {reason}" for name, reason in sorted(lacking.items()))
        raise TrisparkError(
            "TS-IMAGES-UNRESOLVED",
            "an image cannot be built: not all that it is made of is known by hash",
            where=f"{request.name} on {request.architecture}",
            expected="a hash for each input, and available: true",
            observed=why or str(variant.reason),
            remedy=f"lock what is missing (./trispark images lock --update NAME), then declare it in {DECLARATION}",
        )
    return variant


def _lint(root: Path, image: Image, dockerfile: Path) -> None:
    if not dockerfile.is_file():
        found = ["it is not there"]
    else:
        found = [str(each) for each in lint(parse_dockerfile(dockerfile), expected_of(root, image))]
    if found:
        raise TrisparkError(
            "TS-IMAGES-LINT",
            "a Dockerfile breaks the rules",
            where=str(dockerfile),
            expected="nothing found by ./trispark images lint",
            observed=found[0] + (f" (and {len(found) - 1} more)" if len(found) > 1 else ""),
            remedy="correct it",
        )


def _arguments(image: Image, request: Request, base: ImageEntry, dockerfile: Path) -> dict[str, str]:
    """Of the build; the site's win over the declared ones, and what pins the image over both."""
    known = parse_dockerfile(dockerfile).declared()
    pinned = {
        "BASE": f"{base.repository}@{base.digest}",
        "BASE_NAME": base.repository,
        "BASE_DIGEST": str(base.digest),
        "TITLE": image.title,
        "VERSION": request.version,
        "REVISION": request.revision,
    }
    given = request.arguments or {}
    require_no_secrets(given, "site_build_args")
    require_no_secrets(image.arguments, f"{DECLARATION}, {request.name}")
    for name in given:
        if name in pinned or name not in known:
            raise TrisparkError(
                "TS-IMAGES-ARGUMENT",
                "a build argument cannot be given",
                where=f"site_build_args, {name}",
                expected="an ARG of the Dockerfile that the lock does not decide",
                observed="decided by the lock" if name in pinned else "no such ARG",
                remedy="remove it; a base is changed in Dockerfiles/images.yml",
            )
    return {name: value for name, value in sorted((image.arguments | dict(given) | pinned).items()) if name in known}


class _Inputs:
    """Puts locked inputs into a context; each is hashed as it lies there."""

    def __init__(self, root: Path, folder: Path, cache: WheelCache, index: PackageIndex | None) -> None:
        self._root = root
        self._folder = folder
        self._cache = cache
        self._index = index

    def put(self, entries: Mapping[str, AnyEntry]) -> None:
        requirements: list[str] = []
        sums: list[str] = []
        for name, entry in sorted(entries.items()):
            match entry:
                case WheelEntry():
                    self._wheel(entry)
                    requirements.append(f"{entry.project}=={entry.version} --hash=sha256:{entry.sha256}\n")
                case TreeEntry():
                    self._tree(name, entry)
                case FileEntry():
                    self._file(name, entry)
                case DebEntry():
                    file = self._deb(name, entry)
                    sums.append(f"{entry.sha256}  {file}\n")
                case ImageEntry() | VersionsEntry():
                    raise AssertionError(f"{name} is a base")
        if requirements:
            (self._folder / "requirements.txt").write_text("".join(sorted(requirements)), encoding="utf-8")
        if sums:
            (self._folder / "debs" / "SHA256SUMS").write_text("".join(sorted(sums)), encoding="utf-8")

    def _wheel(self, entry: WheelEntry) -> None:
        kept = self._cache.kept(entry)
        if kept is None and self._index is not None:
            kept = self._cache.fetch(entry, self._index).path
        if kept is None:
            raise _copy_error(str(entry.file), "./trispark images lock --check --download fetches it")
        (self._folder / "wheels").mkdir(exist_ok=True)
        target = self._folder / "wheels" / str(entry.file)
        shutil.copyfile(kept, target)
        _require(str(entry.file), str(entry.sha256), sha256_of(target))

    def _tree(self, name: str, entry: TreeEntry) -> None:
        source = self._cache.folder / "given" / name
        target = self._folder / "tree" / name
        if not source.is_dir():
            raise _copy_error(name, f"./trispark images lock --update {name} --from DIR keeps one")
        # `.git` is in no hash (tree_hash), so it comes into no image.
        shutil.copytree(source, target, symlinks=True, ignore=_git)
        _require(name, str(entry.sha256), tree_hash(target))

    def _file(self, name: str, entry: FileEntry) -> None:
        source = self._cache.folder / "given" / name if entry.path is None else self._root / entry.path
        target = self._folder / "file" / name / entry.file
        if not source.is_file():
            raise _copy_error(name, f"./trispark images lock --update {name} --from FILE keeps one")
        target.parent.mkdir(parents=True)
        shutil.copyfile(source, target)
        _require(name, str(entry.sha256), sha256_of(target))

    def _deb(self, name: str, entry: DebEntry) -> str:
        file = f"{entry.package}_{str(entry.version).replace(':', '%3a')}_{entry.architecture}.deb"
        source = self._cache.folder / "given" / name
        target = self._folder / "debs" / file
        if not source.is_file():
            raise _copy_error(name, f"put the package there: {source}")
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)
        _require(name, str(entry.sha256), sha256_of(target))
        return file


def _git(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name == ".git" and not (Path(folder) / name).is_symlink()}


def _require(name: str, expected: str, observed: str) -> None:
    if expected != observed:
        raise TrisparkError(
            "TS-IMAGES-HASH",
            "an input is not what was locked",
            where=name,
            expected=expected,
            observed=observed,
            remedy="remove the copy below .trispark/cache/images/given and give the right one",
        )


def _copy_error(where: str, remedy: str) -> TrisparkError:
    return TrisparkError(
        "TS-IMAGES-COPY",
        "an input is known by hash, but there is no copy of it here",
        where=where,
        expected="the file, or the tree",
        observed="none",
        remedy=remedy,
    )


def _own_code(root: Path, name: str, folder: Path) -> None:
    if name in PACKAGES:
        source, target = PACKAGES[name]
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
        shutil.copytree(root / source, folder / target, ignore=ignored)


def _check(root: Path, image: Image, folder: Path) -> None:
    if image.serves is None:
        return
    engine = read_yaml(root / "experiments/engines.yml")["engines"][image.serves]
    shutil.copyfile(root / CHECK, folder / "image_check.py")
    expected = {
        "variables": sorted(controlled_names(root, image.serves)),
        "prefixes": list(CONTROLLED_PREFIXES),
        "says_itself": list(engine["image_env"]),
        "absent": list(ABSENT),
        "not_importable": list(BY_MOUNT),
        "modules": list(image.checks.modules),
        "packages": dict(image.checks.packages),
    }
    _write(folder / "image_check.json", expected)


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _identity(entry: AnyEntry) -> str:
    match entry:
        case ImageEntry():
            return f"{entry.repository}@{entry.digest}"
        case VersionsEntry():
            return ", ".join(f"{name}={version}" for name, version in sorted((entry.packages or {}).items()))
        case _:
            return f"sha256:{entry.sha256}"


SUITES: Final[Mapping[str, str]] = {"noble": "ubuntu", "jammy": "ubuntu"}
"""{suite: its distribution}; all others are Debian's."""


def _dependencies(entries: Mapping[str, AnyEntry]) -> Iterator[dict[str, str]]:
    """What a statement names by its file's hash; of a tree it is the hash that the lock has. Bases are named apart."""
    for name, entry in sorted(entries.items()):
        match entry:
            case WheelEntry():
                purl = f"pkg:pypi/{entry.project}@{quote(entry.version, safe='')}"
                yield _dependency(entry.project, entry.version, purl, entry.sha256)
            case DebEntry():
                version, vendor = str(entry.version), SUITES.get(entry.suite, "debian")
                purl = f"pkg:deb/{vendor}/{entry.package}@{quote(version, safe='')}?arch={entry.architecture}"
                yield _dependency(entry.package, version, purl, entry.sha256)
            case TreeEntry():
                yield _dependency(name, entry.commit, f"pkg:generic/{name}@{entry.commit}", entry.sha256)
            case FileEntry():
                yield _dependency(name, entry.file, f"pkg:generic/{name}", entry.sha256)
            case ImageEntry() | VersionsEntry():
                raise AssertionError(f"{name} is a base")


def _dependency(name: str, version: str, purl: str, sha256: str | None) -> dict[str, str]:
    return {"name": name, "version": version, "purl": purl, "sha256": str(sha256)}


def _same_times(folder: Path) -> None:
    for path in _below(folder):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (TIME, TIME), follow_symlinks=False)


def _below(folder: Path) -> Iterator[Path]:
    """Contents before their directories, whose times change with them."""
    yield from sorted(folder.rglob("*"), reverse=True)
    yield folder
