"""From a spec to the Engine API's JSON, and whose container is whose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node import share_bounded
from trispark_node.docker_client import Container, ContainerClient, MountPoint
from trispark_node.errors import AgentError
from trispark_node.spec import PORT_TOKEN, ContainerSpec, Healthcheck, Spec

OWNER_LABEL = {"trispark": "1"}
ROLE_ENGINE = "engine"
ROLE_BENCH = "bench"
NANOSECONDS = 10**9
LOG_BOUND = {"max-size": "256m", "max-file": "4"}
"""1 GiB a container, so that a log without an end fills no disk. When it is full the Engine drops the oldest quarter,
with what an engine said of itself at its start; the gates miss that and refuse: a cut log never passes."""
SOURCE_S = 20.0
"""For looking whether a mount's source exists; it may lie on a network file system whose server is gone."""


@dataclass(frozen=True)
class Identity:
    """What the labels of a container of ours say."""

    role: str
    generation: str
    boot_id: str
    epoch: int
    rank: int

    def labels(self) -> dict[str, str]:
        return {
            **OWNER_LABEL,
            "trispark.role": self.role,
            "trispark.generation": self.generation,
            "trispark.boot": self.boot_id,
            "trispark.epoch": str(self.epoch),
            "trispark.rank": str(self.rank),
        }


def identity(container: Container) -> Identity | None:
    """None when the container is not ours: it lacks the owner label or a role."""
    labels = container.labels
    role = labels.get("trispark.role", "")
    if labels.get("trispark") != "1" or role not in (ROLE_ENGINE, ROLE_BENCH):
        return None
    epoch, rank = labels.get("trispark.epoch", ""), labels.get("trispark.rank", "")
    return Identity(
        role,
        labels.get("trispark.generation", ""),
        labels.get("trispark.boot", ""),
        int(epoch) if epoch.isdecimal() else 0,
        int(rank) if rank.isdecimal() else 0,
    )


def own(client: ContainerClient, role: str) -> list[Container]:
    """Our containers of a role in any state, whatever their name."""
    return client.labelled({**OWNER_LABEL, "trispark.role": role})


def refuse_foreign(client: ContainerClient, name: str, role: str) -> None:
    """TS-AGENT-FOREIGN when `name` belongs to a container that is not ours with this role."""
    container = client.container(name)
    if container is None:
        return
    who = identity(container)
    if who is None or who.role != role:
        raise AgentError(
            "TS-AGENT-FOREIGN",
            "a container of someone else has our name; it is left alone",
            where=f"container {name} ({container.id[:12]})",
            expected="no container of this name, or one that trispark made",
            observed=f"{container.status}, image {container.image_ref}, no trispark labels of role {role}",
            remedy="let its owner stop and remove or rename it, or take an engine over (./trispark play adopt)",
        )


def substituted_mounts(spec: ContainerSpec, places: Mapping[str, Path]) -> tuple[MountPoint, ...]:
    """The mounts with each token of `places` replaced by its directory."""

    def source(text: str) -> str:
        for token, directory in places.items():
            if text.startswith(token):
                return f"{directory}{text.removeprefix(token)}"
        return text

    return tuple(MountPoint(source(mount.source), mount.target, mount.read_only) for mount in spec.mounts)


def missing_sources(mounts: tuple[MountPoint, ...]) -> list[str]:
    """Sources that do not exist. A short `-v` would make empty directories of them; we name them instead.

    TS-AGENT-MOUNT for one that does not answer: the Engine would wait for it as well.
    """
    return [mount.source for mount in mounts if not _is_there(mount.source)]


def source_problem(source: str, seconds: float) -> str | None:
    """What is wrong with a mount's source, in words; None when it is there."""
    try:
        there = bool(share_bounded.call(lambda: Path(source).exists(), seconds))
    except share_bounded.Late:
        return f"{source} does not answer"
    return None if there else f"{source} is missing"


def _is_there(source: str) -> bool:
    try:
        return bool(share_bounded.call(lambda: Path(source).exists(), SOURCE_S))
    except share_bounded.Late as late:
        raise AgentError(
            "TS-AGENT-MOUNT",
            "a mount's source does not answer",
            where=source,
            expected=f"an existing file or directory, seen within {late.seconds:g} s",
            observed="no answer; the look was left to itself",
            remedy="see the server of that file system; for the checkpoint: ./trispark play share",
        ) from late


def bind(mount: MountPoint) -> dict[str, Any]:
    """The long mount form, with which the Engine, too, refuses a missing source."""
    return {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}


def base_config(
    image: str, command: tuple[str, ...], env: Mapping[str, str], labels: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "Image": image,
        "Cmd": list(command),
        "Env": [f"{name}={value}" for name, value in sorted(env.items())],
        "Labels": dict(labels),
        "Tty": False,
        "OpenStdin": False,
    }


def base_host_config(network_mode: str, mounts: tuple[MountPoint, ...]) -> dict[str, Any]:
    return {
        "NetworkMode": network_mode,
        "Mounts": [bind(mount) for mount in mounts],
        # A second start by itself would hide that the first one died.
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        # Logs are evidence: they must be readable whatever the daemon's default driver is.
        "LogConfig": {"Type": "json-file", "Config": dict(LOG_BOUND)},
        "AutoRemove": False,
    }


def isolated_host_config(mounts: tuple[MountPoint, ...]) -> dict[str, Any]:
    """For code that nobody has read: no network, no capability, nothing to write but the mounts, little of the node."""
    return {
        **base_host_config("none", mounts),
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": 64,
        "Memory": 512 * 2**20,
        "MemorySwap": 512 * 2**20,
        "NanoCpus": 10**9,
    }


def _healthcheck(check: Healthcheck | None) -> dict[str, Any]:
    """Without one of the engine's own the image's is turned off: it would start an interpreter beside the engine every
    few seconds."""
    if check is None:
        return {"Test": ["NONE"]}
    return {
        "Test": list(check.test),
        "Interval": check.interval_s * NANOSECONDS,
        "Timeout": check.timeout_s * NANOSECONDS,
        "StartPeriod": check.start_period_s * NANOSECONDS,
        "Retries": check.retries,
    }


def engine_config(spec: Spec, places: Mapping[str, Path], who: Identity) -> dict[str, Any]:
    """The body of POST /containers/create for one rank of one boot."""
    container = spec.container
    port = str(spec.port(who.epoch))
    command = tuple(word.replace(PORT_TOKEN, port) for word in container.command)
    env = {name: value.replace(PORT_TOKEN, port) for name, value in container.env.items()}
    host = base_host_config(container.network_mode, substituted_mounts(container, places))
    host["Privileged"] = container.privileged
    host["CapAdd"] = list(container.cap_add)
    if container.ipc_mode is not None:
        host["IpcMode"] = container.ipc_mode
    if container.shm_bytes is not None:
        host["ShmSize"] = container.shm_bytes
    host["Ulimits"] = [{"Name": item.name, "Soft": item.soft, "Hard": item.hard} for item in container.ulimits]
    host["Devices"] = [
        {"PathOnHost": device, "PathInContainer": device, "CgroupPermissions": "rwm"} for device in container.devices
    ]
    if container.gpus:
        host["DeviceRequests"] = [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]
    # For the Engine, one empty word means none, and no word at all means the image's.
    entrypoint = {} if container.keep_entrypoint else {"Entrypoint": [""]}
    return {
        **base_config(container.image, command, env, who.labels()),
        **entrypoint,
        "StopSignal": "SIGTERM",
        "StopTimeout": container.stop_timeout_s,
        "Healthcheck": _healthcheck(container.healthcheck),
        "HostConfig": host,
    }
