"""Layers whose bytes depend on nothing but their files: a tar in one order, with one time, and not compressed."""

from __future__ import annotations

import hashlib
import math
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from trispark.errors import TrisparkError
from trispark_node.tar_members import members, open_tar

EPOCH: Final = 1_795_000_000
"""2026-11-18, in seconds since 1970. Times after it become it: they are of a build. Those before it are of packages,
which hold compiled files that are valid only with their sources' times."""
KEPT_PAX: Final = "SCHILY.xattr.security.capability"


@dataclass(frozen=True)
class Layer:
    """What was written: `digest` is `sha256:...` of the bytes, `size` their number."""

    digest: str
    size: int


class _Hashing:
    """A file that is written and hashed at once."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self._size += len(data)
        return self._target.write(data)

    def tell(self) -> int:
        return self._size

    def layer(self) -> Layer:
        return Layer(f"sha256:{self._hash.hexdigest()}", self._size)


def write_layer(source: BinaryIO, target: BinaryIO) -> Layer:
    """The layer of the tar `source` (seekable), written to `target`. Raises TS-IMAGES-LAYER when it is no layer.

    The same files give the same bytes, in whatever order and at whatever time they were packed: sorted by name, owners
    by number alone, no time after EPOCH. Of names of one file the first holds it and the others are links to that one.
    """
    hashing = _Hashing(target)
    try:
        with (
            open_tar(source) as found,
            # The types of tarfile want a whole file; it writes and asks for the place alone.
            tarfile.open(fileobj=hashing, mode="w:", format=tarfile.PAX_FORMAT, errors="surrogateescape") as written,  # type: ignore[call-overload]
        ):
            for member, content in _in_order(list(members(found))):
                data = found.extractfile(content) if member.isreg() else None
                written.addfile(member, data)
    except (tarfile.TarError, UnicodeError) as error:
        raise TrisparkError(
            "TS-IMAGES-LAYER",
            "a layer cannot be read",
            where=str(getattr(source, "name", "the layer")),
            expected="a tar",
            observed=str(error),
            remedy="build the image again; see the log of the Docker Engine",
        ) from error
    return hashing.layer()


def _in_order(members: list[tarfile.TarInfo]) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarInfo]]:
    """(what to write, the member that holds its bytes), by name; the last of several members of one name counts."""
    named = {_plain(member.name): member for member in members}
    holders = {name: _holder(named, name) for name in named}
    first: dict[int, str] = {}
    for name in sorted(named):
        member, holder = named[name], holders[name]
        header = _header(name, holder if holder.isreg() else member)
        if holder.isreg():
            earlier = first.setdefault(id(holder), name)
            if earlier != name:
                header.type, header.linkname, header.size = tarfile.LNKTYPE, earlier, 0
        yield header, holder


def _holder(named: dict[str, tarfile.TarInfo], name: str) -> tarfile.TarInfo:
    """The member with the bytes of a hard link, through links to links."""
    member = named[name]
    seen = {name}
    while member.islnk():
        target = _plain(member.linkname)
        if target not in named or target in seen:
            raise tarfile.TarError(f"{name} is a link to {target}, which holds no file")
        seen.add(target)
        member = named[target]
    return member


def _header(name: str, member: tarfile.TarInfo) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    for field in ("type", "mode", "uid", "gid", "linkname", "devmajor", "devminor"):
        setattr(header, field, getattr(member, field))
    header.size = member.size if member.isreg() else 0
    header.type = tarfile.REGTYPE if member.isreg() else member.type
    if not math.isfinite(member.mtime):
        raise tarfile.ReadError(f"{name}: a time that is none")
    header.mtime = min(int(member.mtime), EPOCH)
    header.pax_headers = {key: value for key, value in member.pax_headers.items() if key == KEPT_PAX}
    return header


def _plain(name: str) -> str:
    """Without `./` before and `/` behind: engines and tar write both ways."""
    plain = name.removeprefix("./").rstrip("/")
    return plain or "."
