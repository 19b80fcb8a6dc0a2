"""Directories that the agent makes for an engine to write into: state of a generation, cache of an image.

`engine-state/<generation>/` goes with its generation: the first start after that was removed removes it.
`engine-cache/` holds a directory for each image, named by its digest: what one build compiles is of no use to another.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from trispark_node.docker_client import MountPoint
from trispark_node.errors import AgentError
from trispark_node.fields import GENERATION_ID
from trispark_node.layout import STATE_DIRECTORY_MODE
from trispark_node.node import Node
from trispark_node.spec import CACHE_TOKEN, GENERATION_TOKEN, STATE_TOKEN, Spec


def places(node: Node, spec: Spec) -> dict[str, Path]:
    """{token: directory that a mount's source stands for}."""
    return {
        GENERATION_TOKEN: node.layout.generation(spec.generation),
        STATE_TOKEN: node.layout.engine_state(spec.generation),
        CACHE_TOKEN: node.layout.engine_cache(spec.container.image.rpartition(":")[2][:16]),
    }


def made_by_agent(node: Node, mounts: Collection[MountPoint]) -> list[Path]:
    """Sources below the directories of this module, with what lies above them there, in the order to make them."""
    roots = (node.layout.engine_states, node.layout.engine_caches)
    found: list[Path] = []
    for mount in mounts:
        source = Path(mount.source)
        for root in roots:
            if source.is_relative_to(root):
                below = source.relative_to(root).parts
                found += [root.joinpath(*below[:count]) for count in range(len(below) + 1)]
    return list(dict.fromkeys(found))


def refuse_foreign_places(directories: Collection[Path]) -> None:
    """TS-AGENT-STATE when something else than a directory of root's lies where one has to be made; it is left alone."""
    for path in directories:
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            kind = "a link" if stat.S_ISLNK(found.st_mode) else f"mode {stat.filemode(found.st_mode)}"
            raise AgentError(
                "TS-AGENT-STATE",
                "the engine's state cannot lie here, this is not ours; it is left alone",
                where=str(path),
                expected="nothing, or a directory of the agent's user",
                observed=f"{kind}, user {found.st_uid}",
                remedy="move it away",
            )


def make(node: Node, directories: Collection[Path]) -> None:
    """Root alone may look into them; the engine sees its part through a mount."""
    for path in directories:
        node.disk.make_directory(path, STATE_DIRECTORY_MODE)


def prune(node: Node, kept: Collection[str]) -> list[str]:
    """Remove the state of generations that are not among `kept`; names of the removed ones.

    What is no directory, or not named like a generation, was not made here and stays.
    """
    try:
        entries = sorted(node.layout.engine_states.iterdir())
    except FileNotFoundError:
        return []
    removed = []
    for path in entries:
        is_ours = GENERATION_ID.fullmatch(path.name) is not None and not path.is_symlink() and path.is_dir()
        if is_ours and path.name not in kept:
            node.disk.remove_tree(path)
            removed.append(path.name)
    return removed
