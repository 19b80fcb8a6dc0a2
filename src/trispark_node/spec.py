"""The container of one rank as the controller describes it, validated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trispark_node.docker_client import MountPoint
from trispark_node.errors import request_error
from trispark_node.fields import GENERATION_ID, NAME, Fields
from trispark_node.image_name import IMAGE

SPEC_VERSION = 1
GENERATION_TOKEN = "{generation}"
STATE_TOKEN = "{engine_state}"
CACHE_TOKEN = "{engine_cache}"
DIRECTORY_TOKENS = (GENERATION_TOKEN, STATE_TOKEN, CACHE_TOKEN)
"""At the beginning of a mount's source: a directory of the generation, of its state, of the image's cache."""
PORT_TOKEN = "{rendezvous_port}"
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CAPABILITY = re.compile(r"[A-Z][A-Z_]*")
_SIZE = re.compile(r"([0-9]+)([kmg]?)b?", re.IGNORECASE)
_UNIT = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True)
class Ulimit:
    name: str
    soft: int
    hard: int


@dataclass(frozen=True)
class Healthcheck:
    """The container's own check; no verb of the agent reads it."""

    test: tuple[str, ...]
    interval_s: int
    timeout_s: int
    start_period_s: int
    retries: int


@dataclass(frozen=True)
class ContainerSpec:
    """`keep_entrypoint`: false when `command` is the whole command, whatever the image says."""

    name: str
    image: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[MountPoint, ...]
    network_mode: str
    ipc_mode: str | None
    shm_bytes: int | None
    ulimits: tuple[Ulimit, ...]
    devices: tuple[str, ...]
    cap_add: tuple[str, ...]
    gpus: bool
    privileged: bool
    keep_entrypoint: bool
    healthcheck: Healthcheck | None
    stop_timeout_s: int


@dataclass(frozen=True)
class IdentitySpec:
    """Where the container has what must be the same on every rank; a spec of an older version says nothing of it.

    `sources`: directories of the engine's own Python, of which at least one is there. `compiled`: directories into
    which the engine compiles. `autotune`: the directory of its tactics.
    """

    sources: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    autotune: str | None = None


@dataclass(frozen=True)
class Spec:
    """One rank's spec.json."""

    generation: str
    rank: int
    world_size: int
    rendezvous_ports: tuple[int, ...]
    container: ContainerSpec
    ready_url: str
    packages: tuple[str, ...]
    version_command: tuple[str, ...]
    identity: IdentitySpec = IdentitySpec()

    def port(self, epoch: int) -> int:
        """The epoch only picks the rendezvous port, so that a stale rank cannot join a new group."""
        return self.rendezvous_ports[epoch % len(self.rendezvous_ports)]


def _bytes(fields: Fields, key: str) -> int | None:
    """`32g`, `64m` or a number of bytes."""
    value = fields.anything(key)
    if value is None:
        return None
    match = _SIZE.fullmatch(str(value)) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
    if match is None:
        raise request_error(
            f"{key} is no size", where=f"{fields.where}.{key}", expected="bytes, or like 32g", observed=str(value)
        )
    return int(match[1]) * _UNIT[match[2].lower()]


def _mount(fields: Fields) -> MountPoint:
    source = fields.text("source")
    target = fields.absolute_path("target")
    read_only = fields.boolean("read_only")
    fields.done()
    token = next((token for token in DIRECTORY_TOKENS if source.startswith(token)), "")
    tail = source.removeprefix(token)
    # The cache is mounted whole; of the generation's directories only what lies below.
    whole = token == CACHE_TOKEN and not tail
    if not whole and (not tail.startswith("/") or "/../" in f"{tail}/" or "{" in tail):
        raise request_error(
            "source is no path",
            where=f"{fields.where}.source",
            expected=f"an absolute path, or one below {', '.join(DIRECTORY_TOKENS)}",
            observed=source,
        )
    if token == GENERATION_TOKEN and not read_only:
        raise request_error(
            "a part of the generation would be writable",
            where=f"{fields.where}.read_only",
            expected="true, what was staged stays as it is",
            observed="false",
        )
    return MountPoint(source, target, read_only)


def _ulimit(fields: Fields) -> Ulimit:
    limit = Ulimit(
        fields.text("name", pattern=re.compile("[a-z]+")),
        fields.integer("soft", low=-1),
        fields.integer("hard", low=-1),
    )
    fields.done()
    return limit


def _healthcheck(fields: Fields) -> Healthcheck:
    check = Healthcheck(
        fields.texts("test"),
        fields.integer("interval_s", low=1, high=3600),
        fields.integer("timeout_s", low=1, high=3600),
        fields.integer("start_period_s", high=86400),
        fields.integer("retries", low=1, high=100),
    )
    fields.done()
    if check.test[:1] not in (("CMD",), ("CMD-SHELL",)) or len(check.test) < 2:
        raise request_error(
            "test has the wrong form",
            where=f"{fields.where}.test",
            expected="CMD or CMD-SHELL and what to run",
            observed=", ".join(check.test) or "nothing",
        )
    return check


def _container(fields: Fields) -> ContainerSpec:
    env = fields.text_mapping("env")
    for name in env:
        if not ENV_NAME.fullmatch(name):
            raise request_error(
                "a variable's name has the wrong form",
                where=f"{fields.where}.env",
                expected=ENV_NAME.pattern,
                observed=name,
            )
    devices = fields.texts("devices", [])
    for device in devices:
        if not device.startswith("/dev/"):
            raise request_error(
                "a device has the wrong form", where=f"{fields.where}.devices", expected="/dev/...", observed=device
            )
    capabilities = fields.texts("cap_add", [])
    for capability in capabilities:
        if not CAPABILITY.fullmatch(capability):
            raise request_error(
                "a capability has the wrong form",
                where=f"{fields.where}.cap_add",
                expected=CAPABILITY.pattern,
                observed=capability,
            )
    container = ContainerSpec(
        name=fields.text("name", pattern=NAME),
        image=fields.text("image", pattern=IMAGE),
        command=fields.texts("command"),
        env=env,
        mounts=tuple(_mount(item) for item in fields.inners("mounts")),
        network_mode=fields.text("network_mode", pattern=re.compile("host|none|bridge")),
        ipc_mode=fields.optional_text("ipc_mode", pattern=re.compile("host|private|none|shareable")),
        shm_bytes=_bytes(fields, "shm_size"),
        ulimits=tuple(_ulimit(item) for item in fields.inners("ulimits", [])),
        devices=devices,
        cap_add=capabilities,
        gpus=fields.boolean("gpus", False),
        privileged=fields.boolean("privileged", False),
        keep_entrypoint=fields.boolean("keep_entrypoint", True),
        healthcheck=_healthcheck(fields.inner("healthcheck")) if fields.has("healthcheck") else None,
        stop_timeout_s=fields.integer("stop_timeout_s", high=3600),
    )
    fields.anything("healthcheck")  # null is as good as absent
    fields.done()
    return container


def _places(fields: Fields, key: str) -> tuple[str, ...]:
    places = fields.texts(key, [])
    for place in places:
        if not place.startswith("/") or "/../" in f"{place}/":
            raise request_error(
                "a place has the wrong form",
                where=f"{fields.where}.{key}",
                expected="an absolute path without ..",
                observed=place,
            )
    return places


def _identity(fields: Fields) -> IdentitySpec:
    found = IdentitySpec(
        _places(fields, "sources"),
        _places(fields, "compiled"),
        fields.absolute_path("autotune") if fields.has("autotune") else None,
    )
    fields.anything("autotune")  # null is as good as absent
    fields.done()
    return found


def parse_spec(value: Mapping[str, Any]) -> Spec:
    """Raises TS-AGENT-REQUEST naming the field."""
    fields = Fields(value, "spec")
    fields.integer("spec_version", low=SPEC_VERSION, high=SPEC_VERSION)
    ready = fields.inner("ready")
    observe = fields.inner("observe")
    spec = Spec(
        generation=fields.text("generation", pattern=GENERATION_ID),
        rank=fields.integer("rank"),
        world_size=fields.integer("world_size", low=1),
        rendezvous_ports=fields.integers("rendezvous_ports", low=1, high=65535),
        container=_container(fields.inner("container")),
        ready_url=ready.text("url", pattern=re.compile(r"http://[^/\s]+/\S*")),
        packages=observe.texts("packages", []),
        version_command=observe.texts("version_command"),
        identity=_identity(observe.inner("identity")) if observe.has("identity") else IdentitySpec(),
    )
    ready.done()
    observe.done()
    fields.done()
    return spec
