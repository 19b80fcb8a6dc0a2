"""What is installed in an image's root file system: Debian packages and Python distributions, as they themselves say.

Read from a directory, or from the members of one tar or of the layers of an image, lowest first. Nothing is unpacked.
"""

from __future__ import annotations

import email.parser
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Final

from trispark.errors import TrisparkError
from trispark.images.bounded import read_file
from trispark_node.canonical import sha256_hex
from trispark_node.regular_file import open_regular
from trispark_node.tar_members import members, open_tar

MOST_BYTES: Final = 64 * 2**20
"""Of one file that is read; the status of a full Debian has some MB."""
MOST_TOTAL: Final = 512 * 2**20
"""Bytes of all files that are kept."""
MOST_FILES: Final = 50_000
"""Files that are read in all."""
_STATUS: Final = re.compile(r"var/lib/dpkg/status(\.d/[^/]+)?")
"""`status.d` is how images without a package manager list theirs."""
_SUMS: Final = re.compile(r"var/lib/dpkg/status\.d/[^/]+\.md5sums")
_DIST: Final = re.compile(r"(?:.+/)?[^/]+\.dist-info/(METADATA|RECORD)")
_RELEASE: Final = re.compile(r"(etc|usr/lib)/os-release")
_INSTALLED: Final = "install ok installed"
_HIDES: Final = ".wh."
"""Begins the name of a layer's entry that removes another one; `.wh..wh..opq` removes all below its directory."""
_OPAQUE: Final = ".wh..wh..opq"


@dataclass(frozen=True, order=True)
class DebianPackage:
    name: str
    version: str
    architecture: str


@dataclass(frozen=True, order=True)
class PythonDist:
    """`path`: of its dist-info directory in the image; `record_sha256`: of its RECORD, the hashes of its files."""

    name: str
    version: str
    path: str
    record_sha256: str | None


@dataclass(frozen=True)
class RootInventory:
    """Sorted: the order of members changes nothing. `distribution`: ID of os-release, for example debian."""

    distribution: str | None
    packages: tuple[DebianPackage, ...]
    dists: tuple[PythonDist, ...]


def inventory_of(*layers: Path) -> RootInventory:
    """Of one directory, or of tars (also compressed ones), lowest first. Raises TS-PROVENANCE-ROOT."""
    with unreadable(", ".join(map(str, layers))[:500] or "no layer"):
        if len(layers) == 1 and layers[0].is_dir():
            return inventory_of_directory(layers[0])
        return inventory_of_files(os.fdopen(open_regular(layer), "rb") for layer in layers)


@contextmanager
def unreadable(where: str) -> Iterator[None]:
    """TS-PROVENANCE-ROOT for whatever reading of layers can raise."""
    try:
        yield
    except (OSError, EOFError, tarfile.TarError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise TrisparkError(
            "TS-PROVENANCE-ROOT",
            "the image's root file system cannot be read",
            where=where,
            expected="a directory or tars, with the usual files of dpkg and of Python's packages",
            observed=" ".join(f"{type(error).__name__}: {error}".split())[:200],
            remedy="build the image again",
        ) from None


def inventory_of_files(layers: Iterable[IO[bytes]]) -> RootInventory:
    """Of open tars, lowest first; each is closed before the next one is asked for. As `inventory_of_layers`."""
    return inventory_of_layers(_tars(layers))


def _tars(files: Iterable[IO[bytes]]) -> Iterator[tarfile.TarFile]:
    for file in files:
        with file, open_tar(file, "r:*") as tar:
            yield tar


def inventory_of_directory(root: Path) -> RootInventory:
    """Links are not followed: what they lead to is either below the root, and read there, or not of the image.

    Raises OSError, and ValueError for what is not as dpkg or Python write it.
    """
    found = _Found()
    for base, directories, names in os.walk(root):
        directories.sort()
        for name in sorted(names):
            path = Path(base) / name
            inside = path.relative_to(root).as_posix()
            if _wanted(inside) and not path.is_symlink() and path.is_file():
                found.add(inside, partial(read_file, path, MOST_BYTES))
    return found.inventory()


def inventory_of_layers(layers: Iterable[tarfile.TarFile]) -> RootInventory:
    """Of the layers of an image, lowest first; one tar of a whole root file system is one layer.

    Each is read once from its beginning to its end, as going back in a compressed one means to unpack it again.
    Raises tarfile.TarError, OSError, and ValueError for what is not as dpkg or Python write it.
    """
    found = _Found()
    for layer in layers:
        # A layer's removals are of the layers below it, wherever they stand among its members.
        here = _Found()
        for path, read in _members(layer):
            found.hide(path)
            for each in (found, here):
                each.forget(path)
            if read is not None and _wanted(path):
                here.add(path, read)
        found.put(here)
    return found.inventory()


def _members(layer: tarfile.TarFile) -> Iterator[tuple[str, Callable[[], bytes] | None]]:
    """(path without leading ./, how to read it); None for what is no regular file, such as a directory."""
    files: dict[str, tarfile.TarInfo] = {}
    for member in members(layer):
        path = _path(member.name)
        if member.islnk():  # another name of a file before it
            member = files.get(_path(member.linkname), member)
        if member.isreg():
            files[path] = member
            yield path, partial(_content, layer, member)
        elif not member.isdir():
            yield path, None


def _path(name: str) -> str:
    path = str(PurePosixPath("/", name)).lstrip("/")
    if ".." in PurePosixPath(path).parts:
        raise ValueError(f"{name!r} leads out of the image")
    return path


def _content(layer: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if member.size > MOST_BYTES:
        raise ValueError(f"{member.name}: more than {MOST_BYTES} bytes")
    file = layer.extractfile(member)
    return b"" if file is None else file.read()


def _wanted(path: str) -> bool:
    return any(pattern.fullmatch(path) for pattern in (_STATUS, _DIST, _RELEASE)) and not _SUMS.fullmatch(path)


class _Found:
    """Files of interest by path, the newest layer's alone."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._size = 0
        self._places: set[str] = set()
        """Directories above the files, so that most members of a layer are known to hide nothing."""

    def add(self, path: str, read: Callable[[], bytes]) -> None:
        if len(self._files) >= MOST_FILES:
            raise ValueError(f"more than {MOST_FILES} files of packages")
        if not path.isprintable():
            raise ValueError(f"{path!r} is no name of a package's file")
        self._keep(path, read())

    def put(self, above: _Found) -> None:
        """The files of a layer above, which has forgotten here already what it replaces."""
        for path, content in above._files.items():
            if len(self._files) >= MOST_FILES:
                raise ValueError(f"more than {MOST_FILES} files of packages")
            self._keep(path, content)

    def _keep(self, path: str, content: bytes) -> None:
        self._size += len(content) - len(self._files.get(path, b""))
        if self._size > MOST_TOTAL:
            raise ValueError(f"more than {MOST_TOTAL} bytes of packages' files")
        self._files[path] = content
        self._places.update(map(str, PurePosixPath(path).parents))

    def forget(self, path: str) -> None:
        """Something new stands there; a file also hides what a directory of its name held."""
        self._drop(path)

    def hide(self, path: str) -> None:
        place, _, name = path.rpartition("/")
        if name == _OPAQUE:
            self._drop_below(place)
        elif name.startswith(_HIDES):
            self._drop(f"{place}/{name.removeprefix(_HIDES)}".lstrip("/"))

    def _drop(self, path: str) -> None:
        self._size -= len(self._files.pop(path, b""))
        self._drop_below(path)

    def _drop_below(self, place: str) -> None:
        if (place or ".") not in self._places:
            return
        for path in [path for path in self._files if path.startswith(f"{place}/" if place else "")]:
            self._size -= len(self._files.pop(path))

    def inventory(self) -> RootInventory:
        packages = [
            each
            for path, content in self._files.items()
            if _STATUS.fullmatch(path)
            for each in _packages(_text(path, content), listed=path != "var/lib/dpkg/status")
        ]
        dists = [
            self._dist(path, content) for path, content in self._files.items() if path.endswith(".dist-info/METADATA")
        ]
        return RootInventory(self._distribution(), tuple(sorted(set(packages))), tuple(sorted(dists)))

    def _dist(self, path: str, content: bytes) -> PythonDist:
        fields = email.parser.HeaderParser().parsestr(_text(path, content))
        name, version = fields.get("Name"), fields.get("Version")
        if not name or not version:
            raise ValueError(f"{path}: no Name or no Version")
        place = path.rpartition("/")[0]
        record = self._files.get(f"{place}/RECORD")
        return PythonDist(
            re.sub(r"[-_.]+", "-", str(name).strip()).lower(),
            str(version).strip(),
            place,
            None if record is None else sha256_hex(record),
        )

    def _distribution(self) -> str | None:
        for path in ("etc/os-release", "usr/lib/os-release"):
            for line in _text(path, self._files.get(path, b"")).splitlines():
                if match := re.fullmatch(r"ID=[\"']?([a-z0-9._-]+)[\"']?", line.strip()):
                    return match[1]
        return None


def _text(path: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: no UTF-8") from None


def _packages(text: str, *, listed: bool) -> Iterable[DebianPackage]:
    """Of dpkg's status, those that are installed; in `listed` files, which say no state, all."""
    for stanza in re.split(r"\n[ \t]*\n", text):
        fields = dict(
            (line.split(":", 1)[0], line.split(":", 1)[1].strip())
            for line in stanza.splitlines()
            if ":" in line and not line[:1].isspace()
        )
        if not fields or (not listed and fields.get("Status") != _INSTALLED):
            continue
        try:
            yield DebianPackage(fields["Package"], fields["Version"], fields["Architecture"])
        except KeyError as error:
            raise ValueError(f"a package without {error.args[0]}: {stanza[:80]!r}") from None
