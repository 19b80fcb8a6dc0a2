"""What `./trispark lab status` and `./trispark lab shell` need; reads only."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from trispark.errors import TrisparkError
from trispark.lab import LAB_VERSION
from trispark.lab.engine_api import EngineApi, Json
from trispark.lab.layout import (
    LABEL_LAB,
    LABEL_ROOT,
    LABEL_VERSION,
    REGISTRY_CONTAINER,
    Layout,
    Node,
    Paths,
    load_layout,
    root_id,
)
from trispark.lab.observe import engine_versions, observe

REPO = Path(__file__).resolve().parents[3]


def lab_status(client: EngineApi, repo: Path = REPO) -> dict[str, Any]:
    """One object: state up|partial|down|foreign, version, root, nodes (state, addresses, engine), registry, images.

    `engine` is the version of the node's own Docker Engine, null when it does not answer. `up` means that every
    container of this checkout's lab runs and every engine answers; `foreign` that something else has one of the names.
    """
    paths = Paths(repo.resolve())
    layout, root = load_layout(paths.repo), root_id(paths.repo)
    names = (*(node.name for node in layout.nodes), REGISTRY_CONTAINER)
    observed = observe(client, frozenset(names))
    containers = {str(each["Name"]).lstrip("/"): each for each in observed.containers}
    ours = {name: each for name, each in containers.items() if name in names and _label(each, LABEL_ROOT) == root}
    running = {name for name, each in ours.items() if each["State"]["Status"] == "running"}
    asked = tuple(node.name for node in layout.nodes if node.name in running)
    engines = engine_versions(client, asked)
    networks = _networks(observed.networks, root)
    nodes = {node.name: _node(node, ours.get(node.name), engines.get(node.name, "")) for node in layout.nodes}
    if set(containers) & set(names) - set(ours):
        state = "foreign"
    elif not ours and not networks:
        state = "down"
    elif running == set(names) and all(engines.values()) and set(networks) == set(layout.networks()):
        state = "up"
    else:
        state = "partial"
    return {
        "state": state,
        "version": next((_label(each, LABEL_VERSION) for each in ours.values()), None),
        "expected_version": LAB_VERSION,
        "root": root,
        "nodes": nodes,
        "registry": _state(ours.get(REGISTRY_CONTAINER)),
        "networks": networks,
        "images": _images(paths.images_yml),
        "foreign": sorted(set(containers) & set(names) - set(ours)),
    }


def no_node_runs(client: EngineApi, repo: Path = REPO) -> bool:
    """Whether none of this checkout's nodes runs; it asks the nodes nothing, so it takes one call of the Engine."""
    repo = repo.resolve()
    names = {node.name for node in load_layout(repo).nodes}
    root = root_id(repo)
    return not any(
        each.get("State") == "running"
        and _labelled(each, LABEL_ROOT) == root
        and names & {str(name).lstrip("/") for name in each.get("Names") or ()}
        for each in client.containers(all=True)
    )


def require_version(client: EngineApi, repo: Path = REPO) -> None:
    """TS-LAB-VERSION when the lab of this checkout was made by another version; silent where there is none."""
    root = root_id(repo.resolve())
    versions = {
        _labelled(summary, LABEL_VERSION)
        for summary in client.containers(all=True)
        if _labelled(summary, LABEL_LAB) == "1" and _labelled(summary, LABEL_ROOT) == root
    }
    if others := sorted(versions - {LAB_VERSION}):
        raise version_error(", ".join(others))


def version_error(observed: str) -> TrisparkError:
    """TS-LAB-VERSION: what to do with a lab of another version."""
    return TrisparkError(
        "TS-LAB-VERSION",
        "the lab was made by another version of trispark",
        where="the lab of this checkout",
        expected=f"lab version {LAB_VERSION}",
        observed=f"lab version {observed or 'unknown'}",
        remedy="./trispark lab up makes it anew, and what its nodes hold is lost: copy what you need before",
    )


def _networks(found: Iterable[Json], root: str) -> list[str]:
    """Names of the networks of this checkout's lab."""
    return sorted(
        str(each["Name"]) for each in found if _labelled(each, LABEL_LAB) == "1" and _labelled(each, LABEL_ROOT) == root
    )


def _labelled(summary: Json, label: str) -> str:
    return str((summary.get("Labels") or {}).get(label, ""))


def shell_command(node: str, repo: Path = REPO, words: Sequence[str] = ()) -> list[str]:
    """`ssh` command line for a shell on `node` with the lab's key and pinned host key; TS-LAB-NAME, TS-LAB-DOWN.

    `words`: a command in its place. ssh hands its words on as one text, so several are quoted; a single one is a text
    for the node's shell already.
    """
    paths = Paths(repo.resolve())
    layout = load_layout(paths.repo)
    found = _find(layout, node)
    key = paths.ssh / "id_ed25519"
    if not key.is_file():
        raise TrisparkError(
            "TS-LAB-DOWN",
            "there is no lab",
            where=str(key),
            expected="the lab's key",
            observed="no such file",
            remedy="./trispark lab up",
        )
    return [
        "ssh",
        *("-F", "/dev/null", "-i", str(key), "-p", str(found.ssh_port)),
        *("-o", "StrictHostKeyChecking=yes", "-o", f'UserKnownHostsFile="{paths.ssh / "known_hosts"}"'),
        *("-o", "GlobalKnownHostsFile=/dev/null", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"),
        *("-o", "ConnectTimeout=5", f"trispark@{found.loopback}"),
        *([words[0] if len(words) == 1 else shlex.join(words)] if words else []),
    ]


def _find(layout: Layout, node: str) -> Node:
    for each in layout.nodes:
        if each.name == node:
            return each
    names = ", ".join(each.name for each in layout.nodes)
    raise TrisparkError(
        "TS-LAB-NAME",
        "no such lab node",
        where="inventory/lab",
        expected=names,
        observed=node,
        remedy="name one of them",
    )


def _node(node: Node, container: Json | None, engine: str) -> dict[str, Any]:
    return {
        "rank": node.rank,
        "state": _state(container),
        "engine": engine or None,
        "ssh": f"{node.loopback}:{node.ssh_port}",
        "address": node.address,
        "links": {str(link.peer): link.local for link in node.links},
    }


def _state(container: Json | None) -> str:
    return "absent" if container is None else str(container["State"]["Status"])


def _label(container: Json, label: str) -> str | None:
    value = (container["Config"].get("Labels") or {}).get(label)
    return None if value is None else str(value)


def _images(path: Path) -> dict[str, str]:
    """Contents of images.yml; empty before the first `up`."""
    if not path.is_file():
        return {}
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {str(key): str(value) for key, value in loaded.items()} if isinstance(loaded, dict) else {}
