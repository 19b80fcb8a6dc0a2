"""Verb `uninstall`: removes what trispark keeps on this node, below the node's root alone.

Its order lets it be repeated after a crash at any step: the journal, which tells of it, goes last. What the running
agent itself is made of, `bin` and `run`, is left to whoever called it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trispark_node.containers import ROLE_BENCH, ROLE_ENGINE, own
from trispark_node.docker_client import Container
from trispark_node.errors import AgentError
from trispark_node.fields import Fields
from trispark_node.journal import INTENT, previous
from trispark_node.layout import Layout
from trispark_node.lock import held, is_held
from trispark_node.logs import boot_of
from trispark_node.mutation import Mode
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_regular

KEEP, REMOVE = "keep", "remove"
LEFT = ("bin", "run")
"""The agent and its unpacked copy: whoever runs from them cannot remove them."""


@dataclass(frozen=True)
class UninstallRequest:
    """`records`: whether records, the provenance of images that they name, and the way back of engines that were taken
    over, go too."""

    records: str

    @classmethod
    def parse(cls, fields: Fields) -> UninstallRequest:
        return cls(fields.text("records", KEEP, pattern=re.compile(f"{KEEP}|{REMOVE}")))


@dataclass(frozen=True)
class Leaving:
    """What goes, what stays by request, and what nobody of ours made; names below the root. `containers`: ours, all
    ended."""

    remove: tuple[str, ...]
    keep: tuple[str, ...]
    foreign: tuple[str, ...]
    containers: tuple[Container, ...]

    def answer(self) -> dict[str, Any]:
        return {
            "changed": bool(self.remove or self.containers),
            "remove": list(self.remove),
            "keep": list(self.keep),
            "foreign": list(self.foreign),
            "containers": [container.name for container in self.containers],
        }


def uninstall(node: Node, request: UninstallRequest, mode: Mode) -> dict[str, Any]:
    """Raises TS-UNINSTALL-ENGINE, TS-UNINSTALL-SHARE and TS-UNINSTALL-BUSY before anything is removed."""
    if mode.check or not node.layout.root.is_dir():
        return _leaving(node, request).answer()
    with held(node.layout.lock("state"), node.clock, mode.lock_wait_s, "uninstall"):
        leaving = _leaving(node, request)
        if leaving.remove or leaving.containers:
            _apply(node, leaving)
        # After everything else, and while it is held: whoever waits for it finds a node without state.
        node.disk.remove_file(node.layout.lock("state"))
    return leaving.answer()


def _apply(node: Node, leaving: Leaving) -> None:
    journal = node.layout.journal
    node.journal.append("uninstall", INTENT, {"remove": list(leaving.remove)})
    for container in leaving.containers:
        node.docker.remove(container.id)
    for name in leaving.remove:
        path = node.layout.root / name
        if path == journal:
            continue
        if path.is_dir() and not path.is_symlink():
            node.disk.remove_tree(path)
        else:
            node.disk.remove_file(path)
    node.disk.remove_file(previous(journal))  # the line above may have made it
    node.disk.sync_directory(node.layout.root)
    node.disk.remove_file(journal)


def _leaving(node: Node, request: UninstallRequest) -> Leaving:
    _refuse_share(node)
    _refuse_busy(node)
    containers = _ended(node)
    own_past = {node.layout.records.name, node.layout.provenance.name, node.layout.adopted.name}
    kept = set() if request.records == REMOVE else own_past
    try:
        there = sorted(path.name for path in node.layout.root.iterdir())
    except FileNotFoundError:
        there = []
    ours = {name for name in there if _is_ours(node.layout, name)} - {*LEFT, node.layout.lock("state").name}
    return Leaving(
        remove=tuple(sorted(ours - kept)),
        keep=tuple(sorted(ours & kept)),
        foreign=tuple(name for name in there if not _is_ours(node.layout, name)),
        containers=containers,
    )


def _names(layout: Layout) -> Iterator[str]:
    """Every name that the layout gives to something directly below the root."""
    for name, kind in vars(Layout).items():
        if isinstance(kind, cached_property):
            yield getattr(layout, name).relative_to(layout.root).parts[0]
    yield layout.lock("state").name
    yield LEFT[0]


def _is_ours(layout: Layout, name: str) -> bool:
    """Also the temporary file that an interrupted replacement left of one of ours."""
    names = set(_names(layout))
    return (
        name in names
        or name.startswith("lock.")
        or (name.startswith(".") and name.endswith(".new") and name[1:-4] in names)
    )


def _ended(node: Node) -> tuple[Container, ...]:
    found = [*own(node.docker, ROLE_ENGINE), *own(node.docker, ROLE_BENCH)]
    alive = [container for container in found if container.alive]
    if alive:
        raise AgentError(
            "TS-UNINSTALL-ENGINE",
            "a container of trispark runs on this node",
            where=", ".join(f"container {container.name}" for container in alive),
            expected="none that runs",
            observed=", ".join(f"{container.status}, boot {boot_of(container)}" for container in alive),
            remedy="./trispark play stop, then again",
        )
    return tuple(found)


def _refuse_share(node: Node) -> None:
    """A mount that nobody would know any more as ours could not be taken away by us again."""
    try:
        kept = parse_json(read_regular(node.layout.share))
        boot = (node.procfs / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, ValueError):
        return
    if isinstance(kept, dict) and kept.get("boot_id") == boot:
        raise AgentError(
            "TS-UNINSTALL-SHARE",
            "the checkpoint's share is still mounted on this node",
            where=str(kept.get("directory")),
            expected="no mount of ours",
            observed=f"a mount of {kept.get('source')}",
            remedy="./trispark play share -e remove=true, then again",
        )


def _refuse_busy(node: Node) -> None:
    busy = [path for path in sorted(node.layout.root.glob("lock.*")) if is_held(path)]
    if busy:
        raise AgentError(
            "TS-UNINSTALL-BUSY",
            "the agent is at work on this node",
            where=", ".join(map(str, busy)),
            expected="no lock that is held",
            observed=f"{len(busy)} held",
            remedy="wait until it has ended, or end it (./trispark status says what it is), then again",
        )
