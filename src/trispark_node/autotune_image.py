"""Under which image the kernel tactics of a generation were made.

Each generation has a directory of its own for its tactics, and its id covers the image's digest, so no image finds the
tactics of another one by itself. What is left is a directory that was brought there by a person or a restore: the agent
writes beside it for which image it made it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trispark_node import engine_state, records
from trispark_node.canonical import canonical_json
from trispark_node.errors import AgentError
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_bounded
from trispark_node.spec import Spec

_NOTE_BYTES = 4096
EMPTY, SAME, OTHER, UNKNOWN = "empty", "same", "other", "unknown"


def directory(node: Node, spec: Spec) -> Path | None:
    """Where the tactics lie on this node; None where the engine has none, or keeps them in no directory of ours."""
    wanted = spec.identity.autotune
    if wanted is None:
        return None
    best: tuple[int, Path] | None = None
    places = engine_state.places(node, spec)
    for mount in spec.container.mounts:
        target = mount.target.rstrip("/")
        token = next((each for each in places if mount.source.startswith(each)), None)
        if token is None or not f"{wanted}/".startswith(f"{target}/") or (best and len(target) < best[0]):
            continue
        source = Path(f"{places[token]}{mount.source.removeprefix(token)}")
        best = (len(target), source / wanted[len(target) :].lstrip("/"))
    return None if best is None else best[1]


def look(node: Node, spec: Spec) -> dict[str, Any] | None:
    """{"state", "image": of the generation, "made_under", "files": number}; None where there are no tactics of ours.

    `state`: `empty`, `same`, `other`, or `unknown` where nothing says for which image they were made.
    """
    place = directory(node, spec)
    if place is None:
        return None
    files = _number(place)
    damaged, made_under = _stamp(node, spec)
    if not files:
        state = EMPTY
    elif damaged:
        state = UNKNOWN
    elif made_under is None:
        # Agents before this one wrote nothing; a boot's record says that the directory was made by one.
        state = SAME if _booted(node, spec.generation) else UNKNOWN
    else:
        state = SAME if made_under == spec.container.image else OTHER
    return {"state": state, "image": spec.container.image, "made_under": made_under, "files": files}


def _number(place: Path) -> int:
    """Files below it; a link counts as one wherever it leads, as does what stands in the directory's own place."""
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        return 1
    found = 0
    for base, directories, names in os.walk(place, onerror=_raised):
        found += len(names) + sum((Path(base) / name).is_symlink() for name in directories)
    return found


def _raised(error: OSError) -> None:
    """A directory that cannot be looked at is not an empty one; one that is not there is."""
    if not isinstance(error, FileNotFoundError):
        raise error


def require(node: Node, spec: Spec) -> None:
    """Raises TS-AGENT-AUTOTUNE unless the tactics were made under the generation's image, or there are none."""
    found = look(node, spec)
    if found is None or found["state"] in (EMPTY, SAME):
        return
    raise AgentError(
        "TS-AGENT-AUTOTUNE",
        "the autotune cache of this generation was not made under its image",
        where=str(directory(node, spec)),
        expected=spec.container.image,
        observed=f"{found['files']} files made under {found['made_under'] or 'an unknown image'}",
        remedy="remove it on all nodes, or set site_autotune_other_image: clear, and boot again",
    )


def clear(node: Node, spec: Spec) -> bool:
    """Remove the tactics; whether there were any."""
    place = directory(node, spec)
    if place is None or not (place.is_symlink() or place.exists()):
        return False
    if place.is_dir() and not place.is_symlink():
        node.disk.remove_tree(place)
    else:
        node.disk.remove_file(place)
    return True


def stamp(node: Node, spec: Spec) -> None:
    """Note for which image the directories of the generation are."""
    if directory(node, spec) is not None and _stamp(node, spec) != (False, spec.container.image):
        node.disk.replace(_path(node, spec), canonical_json({"image": spec.container.image}) + b"\n")


def _path(node: Node, spec: Spec) -> Path:
    """Beside what the engine sees, so that it cannot change it."""
    return node.layout.engine_state(spec.generation) / "image.json"


def _stamp(node: Node, spec: Spec) -> tuple[bool, str | None]:
    """(whether there is a note that cannot be read, the image that it names)."""
    try:
        return False, str(parse_json(read_bounded(_path(node, spec), _NOTE_BYTES))["image"])
    except FileNotFoundError:
        return False, None
    except (OSError, ValueError, LookupError, TypeError):
        return True, None


def _booted(node: Node, generation: str) -> bool:
    try:
        chain = records.chain(node)
    except AgentError:
        return False
    return any((each.record.get("resolved") or {}).get("generation") == generation for each in chain)
