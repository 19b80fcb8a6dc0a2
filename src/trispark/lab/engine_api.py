"""The part of the docker SDK's low-level client that the lab uses, as protocols, and the way to get one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

import docker
import docker.errors

from trispark.errors import TrisparkError
from trispark.images.build import BuildEngine

CALL_TIMEOUT_S: Final = 300
"""An import of a root file system of 350 MB is one call."""

Json = dict[str, Any]


class EngineApi(Protocol):
    """Methods of docker.APIClient; answers are the Engine's JSON."""

    def containers(self, *, all: bool) -> list[Json]: ...

    def inspect_container(self, container: str) -> Json: ...

    def networks(self) -> list[Json]: ...

    def inspect_network(self, net_id: str) -> Json: ...

    def volumes(self) -> Json: ...

    def images(self, *, filters: Mapping[str, Any]) -> list[Json]: ...

    def inspect_image(self, image: str) -> Json: ...

    def exec_create(self, container: str, cmd: Sequence[str]) -> Json: ...

    def exec_start(self, exec_id: str) -> bytes: ...

    def exec_inspect(self, exec_id: str) -> Json: ...

    def logs(self, container: str, *, tail: int) -> bytes: ...

    def import_image_from_file(self, filename: str, *, repository: str, tag: str, changes: Sequence[str]) -> str: ...

    def pull(self, repository: str) -> str: ...

    def tag(self, image: str, repository: str, tag: str) -> bool: ...


class EngineWriter(Protocol):
    """The methods of docker.APIClient that change something; the lab's other changes are tasks of the playbook."""

    def inspect_container(self, container: str) -> Json: ...

    def inspect_network(self, net_id: str) -> Json: ...

    def inspect_volume(self, name: str) -> Json: ...

    def remove_container(self, container: str, *, v: bool, force: bool) -> None: ...

    def remove_network(self, net_id: str) -> None: ...

    def remove_volume(self, name: str) -> None: ...

    def remove_image(self, image: str, *, force: bool) -> Any: ...

    def create_network(self, name: str, *, driver: str, ipam: Any, labels: Mapping[str, str]) -> Json: ...


class Engine(EngineApi, EngineWriter, BuildEngine, Protocol):
    """What :func:`connect` gives."""


def connect() -> Engine:
    """A client of this machine's Docker Engine; raises TS-LAB-ENGINE when none answers."""
    url = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        client = docker.APIClient(base_url=url, version="auto", timeout=CALL_TIMEOUT_S)
        client.ping()
    except docker.errors.DockerException as error:
        raise TrisparkError(
            "TS-LAB-ENGINE",
            "no Docker Engine answers on this machine",
            where=url,
            expected="an answer to a ping",
            observed=str(error),
            remedy="./trispark lab up starts one on a Debian-family machine; elsewhere start it for this user",
        ) from error
    return cast(Engine, client)


def image_exists(client: EngineApi, reference: str) -> bool:
    """Whether the Engine holds an image of this name."""
    try:
        client.inspect_image(reference)
    except docker.errors.ImageNotFound:
        return False
    return True


def run_inside(client: EngineApi, container: str, command: Sequence[str]) -> tuple[int, str]:
    """Run `command` in a running container: (exit status, output); (-1, reason) when it could not be started."""
    try:
        started = client.exec_create(container, command)["Id"]
        output = client.exec_start(started).decode("utf-8", "replace")
        status = client.exec_inspect(started)["ExitCode"]
    except docker.errors.APIError as error:
        return -1, str(error)
    return (-1 if status is None else int(status)), output.strip()
