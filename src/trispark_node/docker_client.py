"""What the agent needs of Docker, as a protocol, and its one implementation over the docker SDK's low-level client."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from trispark_node.errors import AgentError

API_TIMEOUT_S = 60
"""For one answer of the Engine; a pull or a log is a stream, where it bounds the silence between two pieces."""
QUICK_S = 20
"""For what an Engine that lives answers at once: who is there, a signal. A stop has to end also where the Engine hangs,
and says so then."""


@dataclass(frozen=True)
class MountPoint:
    source: str
    target: str
    read_only: bool


@dataclass(frozen=True)
class Container:
    """One container as `inspect` shows it. `status`: created, running, paused, restarting, exited, dead, removing."""

    id: str
    name: str
    status: str
    exit_code: int | None
    error: str
    started_at: str | None
    image_ref: str
    image_id: str
    env: Mapping[str, str]
    command: tuple[str, ...]
    labels: Mapping[str, str]
    mounts: tuple[MountPoint, ...]

    @property
    def alive(self) -> bool:
        """A process of it may exist."""
        return self.status in ("running", "paused", "restarting")


@dataclass(frozen=True)
class Image:
    id: str
    digests: tuple[str, ...]
    """`name@sha256:...` as pulled."""
    env: Mapping[str, str]
    platform: str = ""
    """`os/architecture` for which it was built; empty where it does not say."""


@dataclass(frozen=True)
class Storage:
    """Where the Engine keeps images, bytes that are free there, and the layers of each image (diff ids, the lowest
    first)."""

    root: str
    free_bytes: int
    layers: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Executed:
    exit_code: int
    stdout: str
    stderr: str


class ContainerClient(Protocol):
    def server(self) -> dict[str, str]:
        """{"version", "storage_driver"} of the Engine."""

    def platform(self) -> str:
        """`os/architecture` of this Engine, in the words of images."""

    def storage(self) -> Storage: ...

    def container(self, name_or_id: str) -> Container | None: ...

    def labelled(self, labels: Mapping[str, str]) -> list[Container]:
        """All containers in any state that carry all these labels."""

    def inspect(self, name_or_id: str) -> dict[str, Any] | None:
        """All that the Engine says of a container, in the Engine API's words."""

    def all_ids(self) -> list[str]:
        """Containers in any state, whoever made them."""

    def rename(self, container_id: str, name: str) -> None: ...

    def set_restart_policy(self, container_id: str, policy: Mapping[str, Any]) -> None: ...

    def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Create from the Engine API's JSON; the id. Raises TS-AGENT-DOCKER with the Engine's words."""

    def start(self, container_id: str) -> None: ...

    def signal(self, container_id: str, signal: str) -> None:
        """No error when the container has ended meanwhile."""

    def unpause(self, container_id: str) -> None: ...

    def remove(self, container_id: str) -> None: ...

    def log(self, container_id: str, tail: int | None = None) -> Iterator[bytes]:
        """stdout and stderr in order, in pieces; the last `tail` lines, or all."""

    def execute(self, container_id: str, argv: Sequence[str]) -> Executed: ...

    def image(self, reference: str) -> Image | None: ...

    def pull(self, repository: str, digest: str) -> None: ...

    def remove_image(self, reference: str) -> None:
        """Never by force: the Engine refuses one that a container uses. No error when it is gone."""


def split_env(items: Sequence[str] | None) -> dict[str, str]:
    """Docker's list of `NAME=value`; a later one wins, as in the Engine."""
    return {name: value for name, _, value in (item.partition("=") for item in items or ())}


def parse_container(raw: Mapping[str, Any]) -> Container:
    state = raw["State"]
    config = raw["Config"]
    status = state["Status"]
    started = state.get("StartedAt") or ""
    return Container(
        id=raw["Id"],
        name=raw["Name"].lstrip("/"),
        status=status,
        exit_code=state["ExitCode"] if status in ("exited", "dead") else None,
        error=state.get("Error") or "",
        started_at=None if started.startswith("0001-") or not started else started,
        image_ref=config["Image"],
        image_id=raw["Image"],
        env=split_env(config.get("Env")),
        command=tuple(config.get("Cmd") or ()),
        labels=dict(config.get("Labels") or {}),
        mounts=tuple(
            MountPoint(mount.get("Source", ""), mount["Destination"], not mount.get("RW", False))
            for mount in raw.get("Mounts") or ()
        ),
    )


def without_certificate_file() -> None:
    """Keep `requests` from unpacking certifi's bundle out of the zipapp into /tmp at each start.

    The agent speaks to a local socket and over plain HTTP. A full /tmp would else keep an engine from being stopped.
    """
    stand_in = ModuleType("certifi")
    stand_in.where = lambda: "/etc/ssl/certs/ca-certificates.crt"  # type: ignore[attr-defined]
    sys.modules.setdefault("certifi", stand_in)


def preload(connect: Callable[[], ContainerClient]) -> None:
    """Import the SDK where `connect` would, without asking an Engine: before children that each connect."""
    if connect is SdkClient:
        importlib.import_module("docker")


class SdkClient:
    """`ContainerClient` over docker.APIClient. Engine errors become TS-AGENT-DOCKER with the Engine's own words."""

    def __init__(self, base_url: str | None = None) -> None:
        """`base_url`: of the Engine; None for the socket of this machine."""
        # Imported here: half of the verbs need no Docker, and the SDK is most of the start time.
        sdk: Any = importlib.import_module("docker")
        self._not_found: type[Exception] = sdk.errors.NotFound
        self._errors: tuple[type[Exception], ...] = (
            sdk.errors.DockerException,
            importlib.import_module("requests").exceptions.RequestException,
        )
        try:
            self._api: Any = sdk.APIClient(base_url, version="auto", timeout=QUICK_S)
            self._api.timeout = API_TIMEOUT_S
        except self._errors as error:
            raise self._failure("the Docker Engine does not answer", "docker", error) from error

    def _failure(self, what: str, where: str, error: Exception) -> AgentError:
        observed = str(getattr(error, "explanation", None) or error)
        return AgentError(
            "TS-AGENT-DOCKER",
            what,
            where=where,
            expected="the Docker Engine does it",
            observed=observed,
            remedy="see `docker info` and the Engine's log on this node",
        )

    @contextmanager
    def _quick(self) -> Iterator[None]:
        self._api.timeout = QUICK_S
        try:
            yield
        finally:
            self._api.timeout = API_TIMEOUT_S

    def server(self) -> dict[str, str]:
        try:
            info = self._api.info()
        except self._errors as error:
            raise self._failure("the Docker Engine does not answer", "docker info", error) from error
        return {"version": info["ServerVersion"], "storage_driver": info["Driver"]}

    def platform(self) -> str:
        try:
            found = self._api.version()
        except self._errors as error:
            raise self._failure("the Docker Engine does not answer", "docker version", error) from error
        return f"{found['Os']}/{found['Arch']}"

    def storage(self) -> Storage:
        try:
            root = str(self._api.info()["DockerRootDir"])
            found = [self._api.inspect_image(row["Id"]) for row in self._api.images()]
        except self._errors as error:
            raise self._failure("the images cannot be listed", "docker images", error) from error
        try:
            free = shutil.disk_usage(root).free
        except OSError as error:
            raise self._failure("the Engine's disk cannot be looked at", root, error) from error
        return Storage(root, free, tuple(tuple((raw.get("RootFS") or {}).get("Layers") or ()) for raw in found))

    def container(self, name_or_id: str) -> Container | None:
        try:
            with self._quick():
                return parse_container(self._api.inspect_container(name_or_id))
        except self._not_found:
            return None
        except self._errors as error:
            raise self._failure("a container cannot be inspected", name_or_id, error) from error

    def labelled(self, labels: Mapping[str, str]) -> list[Container]:
        filters = {"label": [f"{key}={value}" for key, value in labels.items()]}
        try:
            with self._quick():
                rows = self._api.containers(all=True, filters=filters)
        except self._errors as error:
            raise self._failure("containers cannot be listed", "docker ps", error) from error
        found = (self.container(row["Id"]) for row in rows)
        return [container for container in found if container is not None]

    def inspect(self, name_or_id: str) -> dict[str, Any] | None:
        try:
            return dict(self._api.inspect_container(name_or_id))
        except self._not_found:
            return None
        except self._errors as error:
            raise self._failure("a container cannot be inspected", name_or_id, error) from error

    def all_ids(self) -> list[str]:
        try:
            return [str(row["Id"]) for row in self._api.containers(all=True)]
        except self._errors as error:
            raise self._failure("containers cannot be listed", "docker ps", error) from error

    def rename(self, container_id: str, name: str) -> None:
        try:
            self._api.rename(container_id, name)
        except self._errors as error:
            raise self._failure("the container cannot be renamed", f"{container_id} to {name}", error) from error

    def set_restart_policy(self, container_id: str, policy: Mapping[str, Any]) -> None:
        try:
            self._api.update_container(container_id, restart_policy=dict(policy))
        except self._errors as error:
            raise self._failure("the container's restart policy cannot be set", container_id, error) from error

    def create(self, name: str, config: Mapping[str, Any]) -> str:
        try:
            return str(self._api.create_container_from_config(dict(config), name)["Id"])
        except self._errors as error:
            raise self._failure("the container cannot be created", name, error) from error

    def start(self, container_id: str) -> None:
        try:
            self._api.start(container_id)
        except self._errors as error:
            raise self._failure("the container cannot be started", container_id, error) from error

    def signal(self, container_id: str, signal: str) -> None:
        try:
            with self._quick():
                self._api.kill(container_id, signal)
        except self._errors as error:
            # 409: not running any more; 404: gone. Both are what a signal is for.
            if getattr(getattr(error, "response", None), "status_code", None) not in (404, 409):
                raise self._failure(f"{signal} cannot be sent", container_id, error) from error

    def unpause(self, container_id: str) -> None:
        try:
            with self._quick():
                self._api.unpause(container_id)
        except self._errors as error:
            raise self._failure("the container cannot be unpaused", container_id, error) from error

    def remove(self, container_id: str) -> None:
        try:
            self._api.remove_container(container_id, v=True)
        except self._not_found:
            return
        except self._errors as error:
            raise self._failure("the container cannot be removed", container_id, error) from error

    def log(self, container_id: str, tail: int | None = None) -> Iterator[bytes]:
        try:
            # The SDK follows a stream unless told otherwise: on a running engine that would never end.
            lines = "all" if tail is None else tail
            yield from self._api.logs(container_id, stream=True, follow=False, tail=lines)
        except self._errors as error:
            raise self._failure("the log cannot be read", container_id, error) from error

    def execute(self, container_id: str, argv: Sequence[str]) -> Executed:
        try:
            handle = self._api.exec_create(container_id, list(argv))["Id"]
            stdout, stderr = self._api.exec_start(handle, demux=True)
            exit_code = self._api.exec_inspect(handle)["ExitCode"]
        except self._errors as error:
            raise self._failure(f"{argv[0]} cannot be run in the container", container_id, error) from error
        return Executed(
            exit_code, (stdout or b"").decode("utf-8", "replace"), (stderr or b"").decode("utf-8", "replace")
        )

    def image(self, reference: str) -> Image | None:
        try:
            raw = self._api.inspect_image(reference)
        except self._not_found:
            return None
        except self._errors as error:
            raise self._failure("the image cannot be inspected", reference, error) from error
        env = split_env((raw.get("Config") or {}).get("Env"))
        system, architecture = raw.get("Os"), raw.get("Architecture")
        platform = f"{system}/{architecture}" if system and architecture else ""
        return Image(raw["Id"], tuple(raw.get("RepoDigests") or ()), env, platform)

    def remove_image(self, reference: str) -> None:
        try:
            self._api.remove_image(reference, force=False)
        except self._not_found:
            return
        except self._errors as error:
            raise self._failure("the image cannot be removed", reference, error) from error

    def pull(self, repository: str, digest: str) -> None:
        where = f"{repository}@{digest}"
        try:
            for event in self._api.pull(repository, tag=digest, stream=True, decode=True):
                if "error" in event:
                    raise self._failure("the image cannot be pulled", where, RuntimeError(event["error"]))
        except self._errors as error:
            raise self._failure("the image cannot be pulled", where, error) from error
