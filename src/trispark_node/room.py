"""A reserve on the disk of the node's state: what a rollback has to write finds room there when the disk is full."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from trispark_node.errors import AgentError
from trispark_node.node import Node

RESERVE_BYTES = 512 * 2**10
"""For some lines of the journal, the epoch, a link and a record."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
T = TypeVar("T")


def keep(node: Node) -> None:
    """Have the reserve. Nothing fails for want of it: a disk that cannot take it is full already."""
    path = node.layout.reserve
    with suppress(OSError):
        if path.is_file() and path.stat().st_size == RESERVE_BYTES:
            return
        node.disk.replace(path, bytes(RESERVE_BYTES))


def with_room(node: Node, effect: Callable[[], T]) -> T:
    """`effect()`; when the disk is full, once more without the reserve. `effect` can be repeated."""
    try:
        return effect()
    except (OSError, AgentError) as error:
        if not _for_want_of_room(error) or not node.layout.reserve.exists():
            raise
    node.layout.reserve.unlink()
    return effect()


def _for_want_of_room(error: OSError | AgentError) -> bool:
    """Also where a verb has put its own words around it."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _FULL
