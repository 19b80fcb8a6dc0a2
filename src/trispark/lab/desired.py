"""The lab's objects in full, as the playbook hands them to community.docker; nothing is left to a default."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any, Final

from trispark.lab import LAB_VERSION
from trispark.lab.layout import (
    LABEL_LAB,
    LABEL_ROOT,
    LABEL_SPEC,
    LABEL_VERSION,
    LOCAL,
    MANAGEMENT_NETWORK,
    PREFIX,
    REGISTRY_ADDRESS,
    REGISTRY_CONTAINER,
    REGISTRY_LOOPBACK,
    REGISTRY_PORT,
    Layout,
    Node,
    Paths,
    root_id,
)
from trispark.lab.prepared import Prepared

NODE_CAPABILITIES: Final = (
    "AUDIT_WRITE",
    "DAC_READ_SEARCH",
    "MKNOD",
    "NET_ADMIN",
    "NET_RAW",
    "SETFCAP",
    "SYS_ADMIN",
    "SYS_CHROOT",
    "SYS_PTRACE",
)
"""What an engine inside a container needs besides Docker's own set. Never privileged: that asks for all capabilities,
and fails where one of them is missing from the bounding set."""

NODE_MEMORY: Final = "4G"
"""What a node has to give, in all: an engine that takes more ends itself and not this machine, and that the memory came
back after a stop can be seen. The registry has no limit."""


@dataclass(frozen=True)
class Published:
    """One port on a loopback address of this machine."""

    address: str
    port: int
    container_port: int


@dataclass(frozen=True)
class Container:
    """One container: `definition` are the options of community.docker.docker_container without labels."""

    name: str
    addresses: dict[str, str]
    published: tuple[Published, ...]
    definition: dict[str, Any]

    @property
    def spec(self) -> str:
        """Hash of the definition; a running container with another one is made anew."""
        text = json.dumps(self.definition, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Desired:
    """Everything that `lab up` makes; networks map name -> subnet."""

    version: str
    root: str
    networks: dict[str, str]
    volumes: tuple[str, ...]
    containers: tuple[Container, ...]

    @property
    def labels(self) -> dict[str, str]:
        return {LABEL_LAB: "1", LABEL_VERSION: self.version, LABEL_ROOT: self.root}

    def options(self, container: Container) -> dict[str, Any]:
        """The container's definition with its labels and those of its volumes, for the playbook."""
        mounts = [{**mount, "labels": self.labels} for mount in container.definition["mounts"]]
        return {**container.definition, "mounts": mounts, "labels": {**self.labels, LABEL_SPEC: container.spec}}


def desired_lab(paths: Paths, layout: Layout, prepared: Prepared) -> Desired:
    """What the lab of this checkout should consist of."""
    volumes = tuple(f"{PREFIX}-{node.name}-{kind}" for node in layout.nodes for kind in ("docker", "engram", "state"))
    return Desired(
        version=LAB_VERSION,
        root=root_id(paths.repo),
        networks=layout.networks(),
        volumes=volumes,
        containers=(
            _registry(paths, prepared),
            *(_node(paths, layout, prepared, node) for node in layout.nodes),
        ),
    )


def _registry(paths: Paths, prepared: Prepared) -> Container:
    addresses = {MANAGEMENT_NETWORK: REGISTRY_ADDRESS}
    published = (Published(REGISTRY_LOOPBACK, REGISTRY_PORT, 5000),)
    return Container(
        name=REGISTRY_CONTAINER,
        addresses=addresses,
        published=published,
        definition={
            "name": REGISTRY_CONTAINER,
            "hostname": "registry",
            "image": prepared.images["lab-node"].reference,
            "entrypoint": ["/usr/bin/docker-registry", "serve", "/etc/docker/registry/lab.yml"],
            "user": f"{os.getuid()}:{os.getgid()}",
            "networks": _networks(addresses),
            "published_ports": _ports(published),
            "volumes": [f"{paths.cache / 'registry'}:/var/lib/registry:rw"],
            "mounts": [],
            "tmpfs": [],
            "capabilities": [],
            "security_opts": ["no-new-privileges"],
            "device_cgroup_rules": [],
            "memory": "0",
            "memory_swap": "0",
            "etc_hosts": {},
            "env": {},
        },
    )


def _node(paths: Paths, layout: Layout, prepared: Prepared, node: Node) -> Container:
    addresses = {MANAGEMENT_NETWORK: node.address}
    addresses.update({layout.pair_name(node.rank, link.peer): link.local for link in node.links})
    published = [Published(node.loopback, node.ssh_port, 22)]
    if node.rank == 0:
        published.append(Published(node.loopback, layout.api_port, layout.api_port))
    volume = f"{PREFIX}-{node.name}"
    # Over FUSE the head alone has the checkpoint, the workers mount what it shares.
    has_checkpoint = node.rank == 0 or layout.share == LOCAL
    return Container(
        name=node.name,
        addresses=addresses,
        published=tuple(published),
        definition={
            "name": node.name,
            "hostname": node.name,
            "image": prepared.images["lab-node"].reference,
            "entrypoint": ["/usr/bin/tini", "--", "/usr/local/sbin/lab-node"],
            "user": "0:0",
            "networks": _networks(addresses),
            "published_ports": _ports(tuple(published)),
            "volumes": [
                *([f"{prepared.checkpoint}:{layout.checkpoint_dir}:ro"] if has_checkpoint else []),
                f"{paths.ssh / node.name}:/etc/trispark-lab:ro",
            ],
            # As mounts, the engine makes the volumes with their labels while it makes the container.
            "mounts": [
                _volume(f"{volume}-docker", "/var/lib/docker"),
                _volume(f"{volume}-engram", layout.engram_dir),
                _volume(f"{volume}-state", layout.site_root),
            ],
            "tmpfs": ["/run:exec", "/tmp:exec"],
            "capabilities": list(NODE_CAPABILITIES),
            "security_opts": ["seccomp=unconfined", "apparmor=unconfined"],
            "device_cgroup_rules": ["c *:* rmw", "b *:* rmw"],
            "memory": NODE_MEMORY,
            "memory_swap": NODE_MEMORY,  # the same: no swap beside it
            "etc_hosts": {"registry": REGISTRY_ADDRESS, **{each.name: each.address for each in layout.nodes}},
            # Not an option of a container: a new key must reach the node, so it has to change the spec.
            "env": {"TRISPARK_LAB_KEYS": prepared.keys},
        },
    )


def _networks(addresses: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "ipv4_address": address} for name, address in sorted(addresses.items())]


def _volume(name: str, target: str) -> dict[str, Any]:
    return {"type": "volume", "source": name, "target": target, "no_copy": True}


def _ports(published: tuple[Published, ...]) -> list[str]:
    return [f"{port.address}:{port.port}:{port.container_port}" for port in published]
