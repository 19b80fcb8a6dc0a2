"""What the lab should be: names, addresses and paths, from `inventory/lab/hosts.yml` and the constants below."""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from trispark.errors import TrisparkError

PREFIX: Final = "trispark-lab"
MANAGEMENT_NETWORK: Final = f"{PREFIX}-mgmt"
REGISTRY_CONTAINER: Final = f"{PREFIX}-registry"
REGISTRY_ADDRESS: Final = "10.77.0.2"
REGISTRY_LOOPBACK: Final = "127.77.0.2"
REGISTRY_PORT: Final = 5000
PUSH_REGISTRY: Final = f"{REGISTRY_LOOPBACK}:{REGISTRY_PORT}"
"""How the controller's engine calls the registry; it treats 127.0.0.0/8 as insecure without configuration."""
NODE_REGISTRY: Final = f"registry:{REGISTRY_PORT}"
"""How the nodes call the same registry."""

LOCAL: Final = "local"
FUSE: Final = "fuse"

LABEL_LAB: Final = "trispark.lab"
LABEL_VERSION: Final = "trispark.lab.version"
LABEL_ROOT: Final = "trispark.lab.root"
LABEL_SPEC: Final = "trispark.lab.spec"
LABEL_CONTENT: Final = "trispark.content"
LABEL_IMAGE: Final = "trispark.lab.image"
"""On images instead of trispark.lab: a container inherits the labels of its image, whoever starts it."""


@dataclass(frozen=True)
class PairLink:
    """One end of the network between two ranks; addresses as text."""

    peer: int
    local: str
    remote: str


@dataclass(frozen=True)
class Node:
    """One lab node as the inventory declares it."""

    name: str
    rank: int
    loopback: str
    ssh_port: int
    address: str
    links: tuple[PairLink, ...]


@dataclass(frozen=True)
class Layout:
    """The whole lab; nodes in rank order."""

    nodes: tuple[Node, ...]
    api_port: int
    checkpoint_dir: str
    engram_dir: str
    site_root: str
    share: str = LOCAL
    """How the workers see the checkpoint: every node has it (local), or only the head, and they mount it (fuse)."""

    def pair_name(self, one: int, other: int) -> str:
        """Name of the network between two ranks, the lower rank first."""
        return f"{PREFIX}-pair{min(one, other)}{max(one, other)}"

    def networks(self) -> dict[str, str]:
        """Network name -> subnet: the management network and one for each pair, each a /24."""
        found = {MANAGEMENT_NETWORK: _subnet(self.nodes[0].address)}
        for node in self.nodes:
            for link in node.links:
                found[self.pair_name(node.rank, link.peer)] = _subnet(link.local)
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Paths:
    """Where the lab keeps its state in the repository root `repo`; all git-ignored."""

    repo: Path

    @property
    def cache(self) -> Path:
        return self.repo / ".trispark" / "cache"

    @property
    def state(self) -> Path:
        return self.repo / ".trispark" / "lab"

    @property
    def ssh(self) -> Path:
        return self.state / "ssh"

    @property
    def lease(self) -> Path:
        return self.state / "lease.json"

    @property
    def prepared(self) -> Path:
        return self.state / "prepared.json"

    @property
    def images_yml(self) -> Path:
        return self.repo / "inventory" / "lab" / "group_vars" / "all" / "images.yml"

    @property
    def share_yml(self) -> Path:
        """Only there while the lab's checkpoint is shared over FUSE."""
        return self.repo / "inventory" / "lab" / "group_vars" / "all" / "share.yml"


def root_id(repo: Path) -> str:
    """Label value that tells the labs of two checkouts apart: 16 hex digits of the hash of the real path."""
    return hashlib.sha256(str(repo.resolve()).encode()).hexdigest()[:16]


def load_layout(repo: Path) -> Layout:
    """Read `inventory/lab`; raises TS-LAB-LAYOUT when it does not describe a full mesh of ranks 0..n-1."""
    inventory = repo / "inventory" / "lab"
    hosts = _mapping(inventory / "hosts.yml")
    site = _mapping(inventory / "group_vars" / "all" / "site.yml")
    share_yml = Paths(repo).share_yml
    share = _mapping(share_yml) if share_yml.exists() else site
    try:
        nodes = sorted(
            (_node(name, values) for name, values in hosts["sparks"]["hosts"].items()), key=lambda node: node.rank
        )
        layout = Layout(
            nodes=tuple(nodes),
            api_port=int(site["site_api_port"]),
            checkpoint_dir=str(site["site_checkpoint_dir"]),
            engram_dir=str(site["site_engram_dir"]),
            site_root=str(site["site_root"]),
            share=str(share.get("site_checkpoint_share", {"kind": LOCAL})["kind"]),
        )
        _check_mesh(layout)
        if layout.share not in (LOCAL, FUSE):
            raise ValueError(f"the lab shares its checkpoint by {LOCAL} or {FUSE}, not {layout.share}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _layout_error(inventory, f"{type(error).__name__}: {error}") from error
    return layout


def _node(name: str, values: dict[str, Any]) -> Node:
    links = tuple(PairLink(int(link["peer"]), link["local"], link["remote"]) for link in values["node_pair_links"])
    return Node(
        name=name,
        rank=int(values["node_rank"]),
        loopback=str(values["ansible_host"]),
        ssh_port=int(values["ansible_port"]),
        address=str(values["node_address"]),
        links=links,
    )


def _check_mesh(layout: Layout) -> None:
    ranks = [node.rank for node in layout.nodes]
    if ranks != list(range(len(ranks))) or not ranks:
        raise ValueError(f"ranks {ranks} are not 0..n-1")
    ends = {(node.rank, link.peer): (link.local, link.remote) for node in layout.nodes for link in node.links}
    for one in ranks:
        for other in ranks:
            if one != other and ends[one, other] != ends[other, one][::-1]:
                raise ValueError(f"the two ends of the link between ranks {one} and {other} differ")
    for node in layout.nodes:
        if not ipaddress.ip_address(node.loopback).is_loopback:
            raise ValueError(f"{node.name} would be published at {node.loopback}, which is no loopback address")


def _subnet(address: str) -> str:
    return str(ipaddress.ip_network(f"{address}/24", strict=False))


def _mapping(path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise _layout_error(path, str(error)) from error
    if not isinstance(loaded, dict):
        raise _layout_error(path, type(loaded).__name__)
    return loaded


def _layout_error(where: Path, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-LAB-LAYOUT",
        "the lab's inventory cannot be used",
        where=str(where),
        expected="group sparks with ranks 0..n-1, a link for each pair, loopback addresses",
        observed=observed,
        remedy="restore inventory/lab from git",
    )
