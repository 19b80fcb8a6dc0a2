"""One image under the names that people and Docker give it."""

from __future__ import annotations

import re
from typing import Final

HUB: Final = "docker.io"
"""Docker's own registry, as it is written in references."""
_HUB_NAMES: Final = (f"{HUB}/", f"index.{HUB}/")
_OFFICIAL: Final = "library/"
IMAGE: Final = re.compile(
    r"(?=[a-z0-9])([a-zA-Z0-9._-]+:[0-9]+/)?[a-zA-Z0-9._-]+(/[a-zA-Z0-9._-]+)*@sha256:[0-9a-f]{64}"
)
"""`[HOST:PORT/]NAME@sha256:...`: by digest alone, without a tag, which says nothing beside one and could mislead."""


def familiar(reference: str) -> str:
    """As Docker lists it among the digests of an image (`RepoDigests`): docker.io/library/x@... is x@... there."""
    for name in _HUB_NAMES:
        if reference.startswith(name):
            return reference.removeprefix(name).removeprefix(_OFFICIAL)
    return reference.removeprefix(_OFFICIAL)


def is_among(reference: str, digests: list[str] | tuple[str, ...]) -> bool:
    """Whether an image with these digests, as Docker lists them, is the one that is meant."""
    return familiar(reference) in map(familiar, digests)
