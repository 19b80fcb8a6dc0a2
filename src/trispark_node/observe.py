"""Verb `observe`: what really runs, read from the Engine and inside the container, never from what was asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trispark_node import logs, parity, processes
from trispark_node.docker_client import Container, Executed
from trispark_node.errors import AgentError
from trispark_node.fields import Fields
from trispark_node.node import Node
from trispark_node.redaction import Redactor
from trispark_node.running import spec_of
from trispark_node.spec import Spec
from trispark_node.watching import engine

# Run with -S: the site's hooks are the adapters themselves, and reading a version must not start them. PYTHONPATH holds
# with -S; the interpreter's own site directories are looked through without running their .pth files.
PACKAGE_VERSIONS = """
import importlib.metadata, json, site, sys
path = sys.path + site.getsitepackages()
found = {}
for name in sys.argv[1:]:
    hits = list(importlib.metadata.distributions(name=name, path=path))
    found[name] = hits[0].version if hits else None
print(json.dumps(found))
"""


@dataclass(frozen=True)
class ObserveRequest:
    """`identity`: also the hashes of what runs (parity.inside), which is asked for once a boot."""

    log: logs.LogRequest
    identity: bool

    @classmethod
    def parse(cls, fields: Fields) -> ObserveRequest:
        return cls(logs.LogRequest.parse(fields), fields.boolean("identity", False))


def observe(node: Node, request: ObserveRequest) -> dict[str, Any]:
    container = engine(node)
    if container is None or container.status != "running":
        raise AgentError(
            "TS-AGENT-ABSENT",
            "no engine of ours runs on this node",
            where="containers labelled trispark.role=engine",
            expected="one running container",
            observed="none" if container is None else f"{container.name} is {container.status}",
            remedy="start one, or read the kept log of its boot",
        )
    spec = spec_of(node, container)
    image = node.docker.image(container.image_id)
    redactor = Redactor(container.env, container.command)
    image_env = dict(image.env) if image is not None else {}
    return {
        "container_id": container.id,
        "image_id": container.image_id,
        "image_ref": container.image_ref,
        "image_digests": list(image.digests) if image is not None else [],
        "env": redactor.env(container.env),
        "image_env": redactor.env(image_env),
        "command": redactor.command(container.command),
        "mounts": [
            {"source": mount.source, "target": mount.target, "read_only": mount.read_only} for mount in container.mounts
        ],
        "labels": dict(container.labels),
        "started_at": container.started_at,
        "memory": {
            "resident_bytes": processes.resident_bytes(node.procfs, processes.of_container(node.procfs, container.id)),
            **processes.memory(node.procfs),
        },
        "adapters": adapter_hashes(node, container, spec),
        "versions": {
            "engine": _executed(node, container, spec.version_command).stdout.strip(),
            "packages": package_versions(node, container, spec.packages),
            "kernel": kernel(),
        },
        **({"identity": parity.inside(node, container, spec, files=False)} if request.identity else {}),
        **logs.view(node.docker.log(container.id), request.log, redactor),
    }


def _executed(node: Node, container: Container, argv: Sequence[str]) -> Executed:
    result = node.docker.execute(container.id, argv)
    if result.exit_code != 0:
        said = (result.stderr.strip() or result.stdout.strip() or "nothing").splitlines()[-1]
        raise AgentError(
            "TS-AGENT-OBSERVE",
            "a command inside the container failed",
            where=f"container {container.name}: {argv[0]} {' '.join(argv[1:3])}",
            expected="exit status 0",
            observed=f"exit status {result.exit_code}, {said}",
            remedy="run it by hand with docker exec",
        )
    return result


def adapter_hashes(node: Node, container: Container, spec: Spec) -> dict[str, str]:
    """{path below the adapters' mount: sha256}, read through the container's own mount from outside.

    Everything that is no directory is listed, so that a file which nobody staged shows up.
    """
    pids = processes.of_container(node.procfs, container.id)
    places = parity.adapter_targets(spec)
    try:
        return dict(parity.tree_inside(node, pids, places, relative=True).files)
    except OSError as error:
        raise AgentError(
            "TS-AGENT-OBSERVE",
            "the adapters inside the container cannot be read",
            where=f"container {container.name}: {', '.join(places)}",
            expected="the generation's adapters, through the container's mount",
            observed=f"{error.strerror or error}",
            remedy="see the container's mounts with docker inspect, boot again",
        ) from error


def package_versions(node: Node, container: Container, packages: Sequence[str]) -> dict[str, str | None]:
    """Versions as the container's python3 finds them; None for a package that is not there."""
    if not packages:
        return {}
    result = _executed(node, container, ["python3", "-S", "-c", PACKAGE_VERSIONS, *packages])
    versions: dict[str, str | None] = json.loads(result.stdout)
    return versions


def kernel() -> dict[str, Any]:
    """{"release": running kernel, "packages": {installed linux-image package: version}} of this node."""
    packages: dict[str, str] = {}
    if shutil.which("dpkg-query"):
        query = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\\n", "linux-image-*"]
        listed = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)  # 1: none installed
        rows = [line.split() for line in listed.stdout.splitlines()]
        packages = {row[1]: row[2] for row in rows if len(row) == 3 and row[0] == "installed"}
    return {"release": os.uname().release, "packages": packages}
