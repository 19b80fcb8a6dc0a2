"""Where a registry is asked: HTTPS everywhere, plain HTTP on this machine alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from trispark.errors import TrisparkError
from trispark_node.image_name import HUB
from trispark_node.registry import HUB_API

_LOCAL: Final = re.compile(r"(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?")
_HOST: Final = re.compile(
    r"(?P<name>[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:]{2,39}\])(:(?P<port>[1-9][0-9]{0,4}))?"
)
_PATH: Final = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
"""As the distribution specification has names of repositories."""


def is_local(host: str) -> bool:
    """Whether `host[:port]` is this machine, whose traffic no wire carries."""
    return _LOCAL.fullmatch(host) is not None


@dataclass(frozen=True)
class Place:
    """A repository in a registry. `host`: as it is written in references, `host[:port]`; `path`: of the repository."""

    host: str
    path: str

    @property
    def reference(self) -> str:
        return f"{self.host}/{self.path}"

    @property
    def address(self) -> str:
        """`host[:port]` that is asked; Docker's own is asked elsewhere than it is called."""
        return HUB_API if self.host == HUB else self.host


def place_of(repository: str) -> Place:
    """Of `host[:port]/path`. Raises TS-IMAGES-REPOSITORY."""
    host, _, path = repository.partition("/")
    found = _HOST.fullmatch(host)
    named = found is not None and ("." in host or ":" in host or host == "localhost")
    if not named or len(repository) > 255 or _PATH.fullmatch(path) is None:
        raise TrisparkError(
            "TS-IMAGES-REPOSITORY",
            "this cannot be a repository of a registry",
            where="--to",
            expected="HOST[:PORT]/PATH in small letters, without scheme, tag and digest: registry.example:5000/engine",
            observed=repository[:120],
            remedy="name it as nodes pull from it",
        )
    return Place(host, path)


def split_address(address: str) -> tuple[str, int | None]:
    """(host without brackets, port) of `host[:port]`. Raises ValueError."""
    found = _HOST.fullmatch(address)
    if found is None or int(found["port"] or 1) > 65535:
        raise ValueError(f"no host and port: {address!r}")
    return found["name"].strip("[]"), int(found["port"]) if found["port"] else None
