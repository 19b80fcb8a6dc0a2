"""Verb `prune`: removes old generations, logs of old boots, the provenance of images that no record names, and, when
asked, images that nothing needs any more.

What is removed is renamed to `.pruned-<name>` first, so that a half-removed generation is never taken for one. What an
interrupted prune left is removed by `recover`, or by the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node import adopt, engine_state, generations, logs, protected, provenance, pulled, site_facts
from trispark_node.containers import ROLE_ENGINE, own
from trispark_node.errors import AgentError
from trispark_node.fields import NAME, Fields
from trispark_node.image_name import familiar
from trispark_node.lock import held
from trispark_node.mutation import Mode, Plan, mutate
from trispark_node.node import Node
from trispark_node.records import Stored
from trispark_node.site_facts import SiteFacts

PRUNED = ".pruned-"
KEEP_GENERATIONS = 10
KEEP_BOOTS = 50
"""Where the node was not told of its site yet."""


@dataclass(frozen=True)
class PruneRequest:
    """`keep`: generations that stay beside the protected ones; None for the site's number."""

    keep: int | None
    images: bool

    @classmethod
    def parse(cls, fields: Fields) -> PruneRequest:
        keep = fields.integer("keep", low=1, high=10000) if fields.has("keep") else None
        fields.anything("keep")
        return cls(keep, fields.boolean("images", False))


@dataclass(frozen=True)
class Choice:
    """What goes: generations, boots and images by name, and what lies here of an interrupted prune."""

    kept: dict[str, str]
    removed: tuple[str, ...]
    boots_kept: int
    boots: tuple[str, ...]
    images_kept: dict[str, str]
    images: tuple[str, ...]
    provenance: tuple[Path, ...]
    leftovers: tuple[Path, ...]

    @property
    def some(self) -> bool:
        return bool(self.removed or self.boots or self.images or self.provenance or self.leftovers)

    def answer(self) -> dict[str, Any]:
        return {
            "generations": {"removed": list(self.removed), "kept": self.kept},
            "boots": {"removed": list(self.boots), "kept": self.boots_kept},
            "images": {"removed": list(self.images), "kept": self.images_kept},
            "provenance": {"removed": _places(self.provenance)},
        }


def prune(node: Node, request: PruneRequest, mode: Mode) -> dict[str, Any]:
    """The list of pulled images belongs to whoever holds the images' lock, so a prune of images waits for a pull."""
    if not request.images or mode.check:
        return mutate(node, "prune", mode, lambda: _plan(node, request))
    node.disk.make_directory(node.layout.root)
    with held(node.layout.lock("image"), node.clock, mode.lock_wait_s, "prune") as note:
        note()
        return mutate(node, "prune", mode, lambda: _plan(node, request))


def _plan(node: Node, request: PruneRequest) -> Plan:
    choice = _choose(node, request)
    answer = {**choice.answer(), "line": _line(choice)}
    if not choice.some:
        return Plan(None, answer)
    return Plan(
        lambda: _apply(node, choice),
        answer,
        {
            "removed": list(choice.removed),
            "boots": len(choice.boots),
            "images": list(choice.images),
            "keep": request.keep,
        },
        ("".join(f"{name}\n" for name in _names(choice)), ""),
    )


def carry_on(node: Node, detail: Mapping[str, Any]) -> None:
    """What an interrupted prune had left to do, chosen anew: what is protected now stays. The caller holds the node's
    lock. Raises TS-AGENT-LOCKED while an image is pulled."""
    request = PruneRequest(detail["keep"], bool(detail["images"]))
    with ExitStack() as stack:
        if request.images:
            stack.enter_context(held(node.layout.lock("image"), node.clock, 0, "prune"))
        plan = _plan(node, request)
        if plan.apply is not None:
            plan.apply()


def _names(choice: Choice) -> list[str]:
    return [
        *(f"generation {name}" for name in choice.removed),
        *(f"boot {name}" for name in choice.boots),
        *(f"image {name}" for name in choice.images),
        *(f"provenance {name}" for name in _places(choice.provenance)),
        *(f"left over {path.name}" for path in choice.leftovers),
    ]


def _line(choice: Choice) -> str:
    return (
        f"{len(choice.removed)} generations, {len(choice.boots)} boots' logs and {len(choice.images)} images go; "
        f"{len(choice.kept)} generations and {choice.boots_kept} boots' logs stay"
    )


def _choose(node: Node, request: PruneRequest) -> Choice:
    facts = site_facts.read(node)
    chain = protected.chain_of(node)
    keep = request.keep if request.keep is not None else facts.keep_generations if facts else KEEP_GENERATIONS
    kept = {name: why for name, why in protected.reasons(node, chain).items() if name in set(generations.staged(node))}
    # One without a record was staged for a boot to come, or its boot was never recorded: newer than what has one.
    ran = protected.ran(chain)
    others = [name for name in generations.staged(node) if name not in kept]
    others.sort(key=lambda name: (name not in ran, ran.get(name, 0), _age(node.layout.generation(name)), name))
    removed = others[: max(0, len(others) - keep)]
    kept |= {name: "among the newest" for name in others[len(removed) :]}

    boots = _boots(node)
    keep_boots = facts.keep_boots if facts else KEEP_BOOTS
    stay = {logs.boot_of(container) for container in own(node.docker, ROLE_ENGINE)}
    stay |= set(protected.recorded_boots(chain)[:keep_boots])
    free = [name for name in boots if name not in stay]
    gone = free[: max(0, len(free) - max(0, keep_boots - (len(boots) - len(free))))]

    images_kept, images = _images(node, kept, facts) if request.images else ({}, ())
    leftovers = [*_leftovers(node.layout.generations), *_leftovers(node.layout.boots)]
    for directory in (node.layout.provenance, *_entries(node.layout.provenance)):
        leftovers += _leftovers(directory)
    return Choice(
        dict(sorted(kept.items())),
        tuple(sorted(removed)),
        len(boots) - len(gone),
        tuple(gone),
        images_kept,
        tuple(images),
        tuple(_unproven(node, chain, removed)),
        tuple(leftovers),
    )


def _unproven(node: Node, chain: list[Stored], removed: Iterable[str]) -> list[Path]:
    """Provenance that goes; none while it cannot be said which image a generation that stays runs."""
    if not node.layout.provenance.is_dir():
        return []
    try:
        specs = [generations.load_spec(node, each) for each in set(generations.staged(node)) - set(removed)]
    except AgentError:
        return []
    return provenance.unneeded(node, chain, {spec.container.image for spec in specs})


def _places(paths: Iterable[Path]) -> list[str]:
    """Below `provenance`: a digest, or a digest and an id of it."""
    return [path.name if path.parent.name == "provenance" else f"{path.parent.name}/{path.name}" for path in paths]


def _age(path: Path) -> int:
    return path.lstat().st_mtime_ns


def _boots(node: Node) -> list[str]:
    """Boots of which something is kept, the oldest first."""
    paths = [path for path in _entries(node.layout.boots) if NAME.fullmatch(path.name) and path.is_dir()]
    return [path.name for path in sorted(paths, key=lambda path: (_age(path), path.name)) if not path.is_symlink()]


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def _leftovers(directory: Path) -> list[Path]:
    return [path for path in _entries(directory) if path.name.startswith(PRUNED) and not path.is_symlink()]


def _images(node: Node, kept: Iterable[str], facts: SiteFacts | None) -> tuple[dict[str, str], list[str]]:
    """({image: why it stays}, images that go), of those that the agent pulled."""
    stays: dict[str, str] = {familiar(image): "the site's" for image in (facts.images if facts else ())}
    for generation in sorted(kept):
        image = generations.load_spec(node, generation).container.image
        stays.setdefault(familiar(image), f"generation {generation}")
    in_use = _ids_in_use(node)
    going: list[str] = []
    kept_images: dict[str, str] = {}
    for reference in pulled.read(node):
        found = node.docker.image(reference)
        why = stays.get(familiar(reference)) or (in_use.get(found.id) if found is not None else None)
        if why is not None:
            kept_images[reference] = why
        else:
            going.append(reference)  # one that is gone already leaves the list
    return kept_images, going


def _ids_in_use(node: Node) -> dict[str, str]:
    """{image id: by what} of containers, whoever made them, and of engines that were taken over."""
    found = {taken.image_id: f"taken over: {taken.name}" for taken in adopt.taken_over(node)}
    for container_id in node.docker.all_ids():
        container = node.docker.container(container_id)
        if container is not None:
            found[container.image_id] = f"container {container.name}"
    return found


def _apply(node: Node, choice: Choice) -> dict[str, Any]:
    disk = node.disk
    for path in choice.leftovers:
        disk.remove_tree(path)
    for name in choice.removed:
        _remove(node, node.layout.generation(name))
    engine_state.prune(node, set(generations.staged(node)))
    for name in choice.boots:
        _remove(node, node.layout.boots / name)
    for path in choice.provenance:
        _remove(node, path)
    return _remove_images(node, choice)


def _remove(node: Node, path: Path) -> None:
    aside = path.with_name(f"{PRUNED}{path.name}")
    node.disk.rename(path, aside)
    node.disk.remove_tree(aside)


def _remove_images(node: Node, choice: Choice) -> dict[str, Any]:
    if not choice.images:
        return {}
    refused: dict[str, str] = {}
    for reference in choice.images:
        try:
            node.docker.remove_image(reference)
        except AgentError as error:
            refused[reference] = error.observed  # it stays and is named: the rest of the prune has been done
        else:
            pulled.write(node, [image for image in pulled.read(node) if image != reference])
    removed = [image for image in choice.images if image not in refused]
    return {"images": {"removed": removed, "kept": {**choice.images_kept, **refused}}}
