"""Verb `parity`: what must be the same on every rank, as it is here: the image, a generation as it lies on the disk,
and what the running engine has of them. Reads only, and runs nothing inside the container."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node import autotune_image, generations, libraries, processes
from trispark_node.containers import identity
from trispark_node.docker_client import Container
from trispark_node.errors import AgentError
from trispark_node.fields import GENERATION_ID, Fields
from trispark_node.file_tree import Tree, hash_directory
from trispark_node.inside import open_inside
from trispark_node.node import Node
from trispark_node.running import spec_of
from trispark_node.spec import GENERATION_TOKEN, Spec
from trispark_node.watching import engine

NOT_SEEN = "no process of the container is seen"


@dataclass(frozen=True)
class ParityRequest:
    """`generation`: which one is looked at on the disk, the current one when it is not given. `files`: with the hash of
    every file of the trees, which is wanted where two ranks differ. `running`: also what runs."""

    generation: str | None
    files: bool
    running: bool

    @classmethod
    def parse(cls, fields: Fields) -> ParityRequest:
        return cls(
            fields.optional_text("generation", pattern=GENERATION_ID),
            fields.boolean("files", False),
            fields.boolean("running", True),
        )


def parity(node: Node, request: ParityRequest) -> dict[str, Any]:
    """{"generation", "staged", "damage", "image", "storage_driver", "autotune", "running"}; null for what is not there.

    `damage`: how the generation on the disk differs from its plan, in words: ranks can be equal and all wrong."""
    generation = request.generation or generations.current(node)
    spec = None if generation is None else _spec(node, generation)
    staged = None if generation is None else _staged(node, generation)
    return {
        "generation": generation,
        "staged": staged,
        "damage": None if generation is None or staged is None else generations.damage(node, generation),
        "image": None if spec is None else _image(node, spec.container.image),
        "storage_driver": node.docker.server()["storage_driver"],
        "autotune": None if spec is None else autotune_image.look(node, spec),
        "running": _running(node, files=request.files) if request.running else None,
    }


def _spec(node: Node, generation: str) -> Spec | None:
    try:
        return generations.load_spec(node, generation)
    except AgentError:
        return None  # not staged or damaged: `start` and `status` say it


def _staged(node: Node, generation: str) -> dict[str, Any] | None:
    """The adapters' tree as it lies on this disk, with every file: there are few."""
    directory = node.layout.generation(generation) / generations.ADAPTERS
    try:
        descriptor = open_inside(directory, ".")
    except FileNotFoundError:
        return None
    return _answer_of(descriptor, listed=True)


def _answer_of(descriptor: int, *, listed: bool) -> dict[str, Any]:
    try:
        return hash_directory(descriptor).answer(listed)
    finally:
        os.close(descriptor)


def _image(node: Node, reference: str) -> dict[str, Any]:
    """`id` is null for an image that is not on this node."""
    image = node.docker.image(reference)
    digests = [] if image is None else list(image.digests)
    return {"reference": reference, "id": None if image is None else image.id, "digests": digests}


def _running(node: Node, *, files: bool) -> dict[str, Any] | None:
    container = engine(node)
    if container is None or container.status != "running":
        return None
    image = node.docker.image(container.image_id)
    who = identity(container)
    return {
        "container_id": container.id,
        "generation": who.generation if who else None,
        "boot_id": who.boot_id if who else None,
        "image_ref": container.image_ref,
        "image_id": container.image_id,
        "image_digests": [] if image is None else list(image.digests),
        "identity": inside(node, container, spec_of(node, container), files=files),
    }


def inside(node: Node, container: Container, spec: Spec, *, files: bool) -> dict[str, Any]:
    """What the running container has: {"source", "adapters", "libraries", "autotune", "seconds"}.

    A tree is {"hash", "files", "bytes"}, with `listed` where `files` says so, or {"problem": why it was not read};
    `source` and `autotune` are null where the engine does not say where they lie.
    """
    began = node.clock.monotonic()
    pids = processes.of_container(node.procfs, container.id)
    wanted = spec.identity
    answer = {
        "source": _tree(node, pids, wanted.sources, files=files) if wanted.sources else None,
        "adapters": _tree(node, pids, adapter_targets(spec), files=files, relative=True),
        "libraries": libraries.hashed(node.procfs, pids, (*_writable(container), *wanted.compiled)),
        "autotune": _tree(node, pids, (wanted.autotune,), files=True, relative=True) if wanted.autotune else None,
    }
    return {**answer, "seconds": round(node.clock.monotonic() - began, 3)}


def adapter_targets(spec: Spec) -> tuple[str, ...]:
    """Where the container sees the generation's adapters."""
    source = f"{GENERATION_TOKEN}/{generations.ADAPTERS}"
    return tuple(mount.target.rstrip("/") for mount in spec.container.mounts if mount.source.rstrip("/") == source)


def tree_inside(node: Node, pids: list[int], places: tuple[str, ...], *, relative: bool) -> Tree:
    """The files below those of the places that are there, by absolute path, or `relative` to their place.

    Raises OSError, ENOENT when none of them is there.
    """
    root = _root(node, pids)
    if root is None:
        raise FileNotFoundError(2, NOT_SEEN, ", ".join(places))
    found: dict[str, str] = {}
    size, seen = 0, False
    for place in places:
        try:
            descriptor = open_inside(root, place)
        except FileNotFoundError:
            continue
        try:
            tree = hash_directory(descriptor)
        finally:
            os.close(descriptor)
        seen = True
        size += tree.size
        found.update({path if relative else f"{place}/{path}": digest for path, digest in tree.files.items()})
    if places and not seen:
        raise FileNotFoundError(2, "no such directory", ", ".join(places))
    return Tree(found, size)


def _root(node: Node, pids: list[int]) -> Path | None:
    """The container's root as its first process that lives has it."""
    roots = (node.procfs / str(pid) / "root" for pid in pids)
    return next((root for root in roots if root.is_dir()), None)


def _tree(
    node: Node, pids: list[int], places: tuple[str, ...], *, files: bool, relative: bool = False
) -> Mapping[str, Any]:
    try:
        return tree_inside(node, pids, places, relative=relative).answer(files)
    except OSError as error:
        return {"problem": f"{error.filename or ', '.join(places)}: {error.strerror or error}"}


def _writable(container: Container) -> tuple[str, ...]:
    return tuple(mount.target for mount in container.mounts if not mount.read_only)
