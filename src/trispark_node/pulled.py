"""Which images the agent pulled by itself: no other one is ever removed by it.

`pulled.json` is written after a pull has ended. Whoever is killed in between leaves an image that stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trispark_node.canonical import canonical_json
from trispark_node.errors import AgentError
from trispark_node.fields import Fields
from trispark_node.image_name import IMAGE
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_bounded

SCHEMA_VERSION = 1
_MAX_BYTES = 2**20


def read(node: Node) -> list[str]:
    """References by digest, oldest first. Raises TS-AGENT-DAMAGED."""
    path = node.layout.pulled
    try:
        fields = Fields(parse_json(read_bounded(path, _MAX_BYTES)), str(path))
        fields.integer("schema_version", low=SCHEMA_VERSION, high=SCHEMA_VERSION)
        images = list(fields.texts("images"))
        fields.done()
        if not all(IMAGE.fullmatch(image) for image in images):
            raise ValueError("no image by digest")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, AttributeError, AgentError) as error:
        raise AgentError(
            "TS-AGENT-DAMAGED",
            "the list of pulled images cannot be read",
            where=str(path),
            expected="what image-ensure wrote",
            observed=error.observed if isinstance(error, AgentError) else str(error),
            remedy="move it away: images pulled until now then stay until a person removes them",
        ) from error
    return images


def add(node: Node, image: str) -> None:
    """A damaged list is left as it is: the image then stays on the node, which harms nobody."""
    try:
        images = read(node)
    except AgentError:
        return
    if image not in images:
        write(node, [*images, image])


def write(node: Node, images: Sequence[str]) -> None:
    content: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "images": list(images)}
    node.disk.replace(node.layout.pulled, canonical_json(content) + b"\n")
