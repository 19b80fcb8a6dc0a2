"""How the workers see the checkpoint: what a site declares, and what each node is asked to do for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from trispark.allowlist import is_plain_path
from trispark.plainyaml import Strict

if TYPE_CHECKING:
    from trispark.site import Node, Site

_QUOTELESS: Final = re.compile(r"[A-Za-z0-9._+@/-]+")
"""Paths that go into a mount option as they are; the agent refuses others, too."""
_NEEDED: Final = "an absolute path of letters, digits and . _ + @ - is needed"


class LocalShare(Strict):
    """Every node has the checkpoint in site_checkpoint_dir by itself: a copy, or a mount that is not ours to make."""

    kind: Literal["local"]


class NfsShare(Strict):
    """The head exports site_checkpoint_dir as the root of NFS 4.2, each worker mounts it at the same path."""

    kind: Literal["nfs"]
    network: Literal["pair", "management"]
    """By which of the head's addresses a worker reaches it."""
    managed: bool
    """Whether the export is ours to make. false: someone else exports it, for instance a container."""


class FuseShare(Strict):
    """Each worker mounts site_checkpoint_dir of the head over ssh (sshfs) at the same path."""

    kind: Literal["fuse"]
    network: Literal["pair", "management"]
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]
    """On the head; it needs no more than to read by sftp."""
    port: Annotated[int, Field(ge=1, le=65535)]
    identity_file: str
    """On each worker: the private key."""
    known_hosts_file: str
    """On each worker: the head's host key, under the address by which the worker reaches it."""

    @field_validator("identity_file", "known_hosts_file")
    @classmethod
    def _paths(cls, value: str) -> str:
        if not is_plain_path(value) or _QUOTELESS.fullmatch(value) is None:
            raise ValueError(_NEEDED)
        return value


def unmountable(share: LocalShare | NfsShare | FuseShare, directory: str) -> list[str]:
    """Why `directory` cannot be mounted as the share says; empty when it can."""
    if share.kind != "local" and _QUOTELESS.fullmatch(directory) is None:
        return [f"site_checkpoint_dir is shared by {share.kind}, so {_NEEDED}, not {directory}"]
    return []


DEFAULT: Final = LocalShare(kind="local")
"""Of a site that does not say it."""


def over_network(declared: Mapping[str, Any]) -> bool:
    """Whether the share, as a site declares it (empty where it does not), can be lost between two verbs."""
    return str(declared.get("kind", DEFAULT.kind)) != DEFAULT.kind


CheckpointShare = Annotated[LocalShare | NfsShare | FuseShare, Field(discriminator="kind")]


def share_requests(site: Site) -> dict[str, dict[str, Any]]:
    """{node: the `share` of the agent's verb}. The head is told its workers' addresses, a worker the head's."""
    return {node.name: _share(site, node) for node in site.nodes}


def _share(site: Site, node: Node) -> dict[str, Any]:
    declared = site.checkpoint_share
    found: dict[str, Any] = {"kind": declared.kind, "directory": site.checkpoint_dir}
    if isinstance(declared, LocalShare):
        return found
    if node.rank == site.head.rank:
        found["clients"] = [_address(worker, declared.network) for worker in site.nodes if worker.rank != node.rank]
    else:
        found["server"] = _head_address(site, node, declared.network)
    if isinstance(declared, NfsShare):
        return {**found, "managed": declared.managed}
    return {
        **found,
        "user": declared.user,
        "port": declared.port,
        "identity_file": declared.identity_file,
        "known_hosts_file": declared.known_hosts_file,
    }


def _address(worker: Node, network: str) -> str:
    """The worker's own address towards the head."""
    return worker.address if network == "management" else _link(worker, 0).local


def _head_address(site: Site, worker: Node, network: str) -> str:
    return site.head.address if network == "management" else _link(worker, site.head.rank).remote


def _link(node: Node, peer: int) -> Any:
    return next(link for link in node.pair_links if link.peer == peer)


Answers = Mapping[str, Mapping[str, Any] | None]
"""The agent's answers by node; None where a node was not asked."""


def share_lines(site: Site, read: Answers, verified: Answers) -> list[str]:
    """What was compared, one line a node; empty when nothing was."""
    found = published(site, read, verified)
    if not found["revision"]:
        return []
    how = {"local": "its own copy", "nfs": "mounted by NFS", "fuse": "mounted by sshfs"}[site.checkpoint_share.kind]
    lines = [f"{site.head.name} rank 0: revision {found['revision']}, {found['files']} files, {found['bytes']} bytes"]
    for node in site.nodes:
        answer = verified.get(node.name)
        if answer:
            lines.append(
                f"{node.name} rank {node.rank}: {how}, equal in sizes and headers of {answer['files']} files and in "
                f"{answer['ranges']} byte ranges ({answer['bytes_read']} bytes)"
            )
    return lines


def published(site: Site, read: Answers, verified: Answers) -> dict[str, Any]:
    """The same for a program; `revision` is null when nothing was read."""
    head = read.get(site.head.name) or {}
    return {
        "kind": site.checkpoint_share.kind,
        "revision": head.get("revision"),
        "files": len(head.get("files") or ()),
        "bytes": head.get("bytes", 0),
        "verified": sorted(name for name, answer in verified.items() if answer),
    }
