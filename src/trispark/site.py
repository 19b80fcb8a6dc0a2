"""A site as its inventory describes it: hosts.yml and group_vars/all/*.yml, plain YAML without templates."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trispark.allowlist import SITE_IMAGE, check_text, is_address, is_plain_path
from trispark.errors import TrisparkError
from trispark.plainyaml import BROKEN, NO_FIT, Rules, Strict, check_model, judge_model, read_yaml, wrong_keys
from trispark.share import DEFAULT as DEFAULT_SHARE
from trispark.share import CheckpointShare, unmountable
from trispark.site_time import SiteWindow

HOST_GROUP: Final = "sparks"
DIGEST_REFERENCE: Final = re.compile(
    r"(?=[a-z0-9])([a-z0-9._-]+:[0-9]+/)?[a-z0-9._-]+(/[a-z0-9._-]+)*@sha256:[0-9a-f]{64}"
)
LAB: Final = "lab"
DOCKERFILES: Final = "Dockerfiles"
BUILD_ARGUMENT: Final = r"^[A-Z][A-Z0-9_]{0,49}$"
BUILD_VALUE: Final = r"^[ -~]{0,400}$"
"""Printable and on one line."""
_IMAGE_PLACE: Final = "/opt/trispark"
"""In the container: the adapters' mount of experiments/engines.yml lies there."""
_SYSTEM_DIRECTORIES: Final = frozenset(
    ("/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin", "/sys",
     "/tmp", "/usr", "/var")
)  # fmt: skip
_KERNEL_DIRECTORIES: Final = ("/dev/", "/proc/", "/sys/")
_INTERFACE: Final = r"^[A-Za-z0-9_.-]{1,15}$"
ImageName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
_HCA: Final = r"^[A-Za-z0-9_]{1,63}$"


def _plain_path(value: str) -> str:
    if not is_plain_path(value):
        raise ValueError("an absolute path without . or .. is needed")
    check_text("the path", value, "the site")
    return value


def _own_directory(value: str) -> str:
    """Neither a directory of the system itself nor a place in the kernel's file systems."""
    if value in _SYSTEM_DIRECTORIES or value.startswith(_KERNEL_DIRECTORIES):
        raise ValueError(f"a directory of its own is needed, {value} belongs to the system")
    return _plain_path(value)


def _no_repeats(values: Sequence[Any], what: str) -> None:
    repeated = sorted({str(value) for value in values if values.count(value) > 1})
    if repeated:
        raise ValueError(f"{what} must differ from each other, {', '.join(repeated)} is there twice")


def _address(value: str) -> str:
    if not is_address(value):
        raise ValueError("a literal IP address is needed")
    return value


class PairLink(Strict):
    """The direct link of a node to one peer. `interface`, `hca`: the node's own port of that cable."""

    peer: int
    local: str
    remote: str
    interface: Annotated[str, Field(pattern=_INTERFACE)] | None = None
    hca: Annotated[str, Field(pattern=_HCA)] | None = None

    @field_validator("local", "remote")
    @classmethod
    def _addresses(cls, value: str) -> str:
        return _address(value)


class NodeValues(BaseModel):
    """What the inventory says of one host; attribute `x` is the key `node_x` of that host.

    rank                    0 is the head
    address                 on the management network; the rendezvous and the API are there
    pair_links              one to each other rank, or none where the engine needs no addresses of its own for them
    management_interface    of `address`; for the bootstrap of NCCL and gloo
    hcas, gid_index         RDMA devices of the fabric, and the entry of their GID tables
    mem_fraction            in place of the common MEM_FRACTION_STATIC, for a node that has less memory to give
    checkpoint_dir, engram_dir   in place of the site's directory of that name
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
        alias_generator=lambda name: f"node_{name}",
    )

    rank: int
    address: str
    pair_links: tuple[PairLink, ...] = ()
    management_interface: Annotated[str, Field(pattern=_INTERFACE)] | None = None
    hcas: tuple[Annotated[str, Field(pattern=_HCA)], ...] = ()
    gid_index: Annotated[int, Field(ge=0, le=255)] | None = None
    mem_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    checkpoint_dir: str | None = None
    engram_dir: str | None = None

    @field_validator("address")
    @classmethod
    def _literal(cls, value: str) -> str:
        return _address(value)

    @field_validator("pair_links")
    @classmethod
    def _by_peer(cls, links: tuple[PairLink, ...]) -> tuple[PairLink, ...]:
        return tuple(sorted(links, key=lambda link: link.peer))

    @field_validator("hcas")
    @classmethod
    def _devices(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        _no_repeats(values, "the devices")
        return values

    @field_validator("checkpoint_dir", "engram_dir")
    @classmethod
    def _paths(cls, value: str | None) -> str | None:
        return None if value is None else _own_directory(value)


class Node(NodeValues):
    """One host of the group `sparks`."""

    name: Annotated[str, Field(alias="name")]


_HOST_KEYS: Final = frozenset(f"node_{name}" for name in NodeValues.model_fields)


BENCH_TOKENS_PER_SECOND_AT_LEAST: Final = 5
BENCH_HOURS_AT_MOST: Final = 6


class BenchSettings(Strict):
    """site_bench: what the load client measures at this site, in at most six hours of a very slow engine."""

    repetitions: Annotated[int, Field(ge=1, le=1000)]
    max_tokens: Annotated[int, Field(ge=2, le=32768)]
    warmup_tokens: Annotated[int, Field(ge=1, le=32768)]
    concurrency: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field(min_length=1)
    workloads: tuple[str, ...] = Field(min_length=1)
    contexts: tuple[str, ...] = Field(default=("short",), min_length=1)
    """What is resident before each prompt: `short` for nothing, or names of experiments/workloads."""
    mixed: tuple[Annotated[int, Field(ge=1, le=63)], ...] = ()
    """Numbers of streams that decode while a long prompt arrives."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1
    """Orders the cells and draws sampled answers."""
    thinking: bool = False
    reasoning_effort: Annotated[str, Field(min_length=1, max_length=32)] | None = None

    @field_validator("concurrency", "workloads", "contexts", "mixed")
    @classmethod
    def _once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        _no_repeats(values, "the entries")
        return values

    @model_validator(mode="after")
    def _ends(self) -> BenchSettings:
        if self.deadline_s > BENCH_HOURS_AT_MOST * 3600:
            raise ValueError(
                f"this may take {self.deadline_s / 3600:.0f} hours at {BENCH_TOKENS_PER_SECOND_AT_LEAST} tokens a "
                f"second, {BENCH_HOURS_AT_MOST} are allowed: fewer repetitions, max_tokens, streams or workloads"
            )
        return self

    @property
    def deadline_s(self) -> float:
        """Seconds in which the measurement ends also on an engine that makes no more than 5 tokens a second in all.

        One that falls silent is not waited for so long: the load client ends the measurement then.
        """
        streams = sum(len(self.workloads) if width == 1 else width for width in self.concurrency)
        streams = len(self.contexts) * streams + sum(width + 1 for width in self.mixed)
        warm_up = self.warmup_tokens * (len(self.workloads) + max(self.concurrency))
        tokens = (self.repetitions + 1) * self.max_tokens * streams + warm_up
        return 30 + tokens / BENCH_TOKENS_PER_SECOND_AT_LEAST


class Site(BaseModel):
    """The site. Attribute `x` is the inventory key `site_x`; `nodes` comes from hosts.yml, in rank order."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
        alias_generator=lambda name: f"site_{name}",
    )

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    configured: bool = False
    """Whether its files were filled in; verbs refuse a site other than the lab without it."""
    engine: str
    root: str
    api_port: Annotated[int, Field(ge=1, le=65535)]
    served_model_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=200)]
    checkpoint_dir: str
    checkpoint_mount: str
    checkpoint_share: CheckpointShare = DEFAULT_SHARE
    """How the workers see the checkpoint."""
    engram_dir: str
    engram_mount: str
    engram_layout: Literal["even", "column"] = "even"
    """By which layout the engine image divides the rows of an Engram table; a fact of the image."""
    engram_reserve_gib: Annotated[float, Field(ge=0, le=65536)] = 8.0
    """GiB that stay free on the shards' file system after packing."""
    engram_limit_mib_s: Annotated[float, Field(ge=0, le=1048576)] = 0.0
    """MiB a second at which shards are packed and hashed at most; 0 is no bound."""
    checkpoint_revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$")] | None = None
    """Name of the checkpoint's revision, which the shards' manifests then carry."""
    rendezvous_ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = Field(min_length=1)
    stats_seconds: float
    decode_log_interval: int
    start_deadline_s: Annotated[float, Field(gt=0, le=86400)]
    stop_deadline_s: Annotated[float, Field(gt=0, le=3600)]
    rollback_stop_s: Annotated[float, Field(gt=0, le=60)] = 20.0
    """How long an engine has to end by itself in a rollback, before it is killed."""
    watch_interval_s: Annotated[float, Field(gt=0, le=300)]
    memory_source: Literal["meminfo", "cgroup"] = "meminfo"
    """Where a node's available memory is read: of the machine, or of the control group of a node in a container."""
    stopped_memory_gib: Annotated[float, Field(gt=0, le=65536)] | None = None
    """GiB that must be available on each node when no engine runs; None is not judged."""
    keep_generations: Annotated[int, Field(ge=1, le=10000)] = 10
    """Generations that stay on a node beside those that are never removed."""
    keep_boots: Annotated[int, Field(ge=1, le=100000)] = 50
    """Boots whose logs stay on a node."""
    autotune_other_image: Literal["refuse", "clear"] = "refuse"
    """What a boot does where a rank has kernel tactics that were made under another image: it is refused, or they are
    cleared on every rank."""
    lock_lease_s: Annotated[float, Field(ge=5, le=3600)] = 60.0
    """Seconds after which a controller's lock of the fleet is stale when it is not renewed."""
    world_size: Annotated[int, Field(ge=1, le=8)]
    bench: BenchSettings
    engine_image: str | None = None
    engine_images: dict[ImageName, str] = Field(default_factory=dict)
    """Further images of the engine by the names that features give them (ENGINE_IMAGE)."""
    bench_image: str | None = None
    privileged: bool = False
    """Whether the engine's container is privileged, where the engine leaves that to the site."""
    memory_model: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")] | None = None
    """Name in experiments/memory.yml of what the nodes' memory is judged by; None judges no budget."""
    boot_minutes: Annotated[float, Field(gt=0, le=1440)] | None = None
    """How long a boot with its measurement takes here, in minutes; for planning alone."""
    trial_boots: Literal[1, 2, 4, 6] = 6
    """Counted boots an arm of a trial; one and two are for trying out, they decide nothing."""
    quality_repeats: tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], ...] = ()
    """Workloads of experiments/quality.yml whose greedy answers must be the same text each time."""
    unattended_window: SiteWindow | None = None
    """When a campaign may take the site out of service, and by when it serves again."""
    extra_container_env: dict[str, int | float | str | bool] = Field(default_factory=dict)
    """Variables of the allowlist whose source is site.extra_container_env."""
    build_dockerfile: str | None = None
    """Of the engine image, relative to Dockerfiles/."""
    image_signers: str | None = None
    """allowed_signers file, relative to the inventory directory: an image runs only when one of them signed its
    provenance. None or empty demands nothing."""
    image_revoked: str | None = None
    """Keys that are trusted no more (a key revocation list, or public keys), relative to the inventory directory."""
    image_key: str | None = None
    """Path on the controller of the key that signs what is built: a private one, or a public one of an SSH agent's."""
    build_args: dict[Annotated[str, Field(pattern=BUILD_ARGUMENT)], Annotated[str, Field(pattern=BUILD_VALUE)]] = Field(
        default_factory=dict
    )
    """{ARG of that Dockerfile: value}; a base is not given here, but in Dockerfiles/images.yml."""

    nodes: tuple[Node, ...] = Field(alias="nodes")
    path: Path = Field(alias="path")
    other_keys: dict[str, str] = Field(alias="other_keys")
    """Keys of others in the inventory (ansible_*, lab_*), each with the file that sets it."""

    @field_validator("root", "checkpoint_dir", "checkpoint_mount", "engram_dir", "engram_mount")
    @classmethod
    def _paths(cls, value: str) -> str:
        return _own_directory(value)

    @field_validator("build_dockerfile")
    @classmethod
    def _below_dockerfiles(cls, value: str | None) -> str | None:
        if value is not None and (not is_plain_path(f"/{value}") or value.startswith("/")):
            raise ValueError(f"a relative path below {DOCKERFILES}/ without . or .. is needed")
        return value

    @field_validator("image_signers", "image_revoked")
    @classmethod
    def _beside_hosts(cls, value: str | None) -> str | None:
        if value and (not is_plain_path(f"/{value}") or value.startswith("/")):
            raise ValueError("a path relative to the inventory directory without . or .. is needed")
        return value

    @field_validator("image_key")
    @classmethod
    def _on_the_controller(cls, value: str | None) -> str | None:
        if value and not is_plain_path(value.replace("~/", "/", 1) if value.startswith("~/") else value):
            raise ValueError("an absolute path, or one that begins with ~/, without . or .. is needed")
        return value

    @field_validator("engine_image", "bench_image")
    @classmethod
    def _digests(cls, value: str | None) -> str | None:
        if value is not None and DIGEST_REFERENCE.fullmatch(value) is None:
            raise ValueError("an image by digest alone is needed, NAME@sha256:..., without a tag")
        return value

    @field_validator("engine_images")
    @classmethod
    def _named_digests(cls, values: dict[str, str]) -> dict[str, str]:
        for name, value in values.items():
            if name == SITE_IMAGE:
                raise ValueError(f"{name} is the name of site_engine_image")
            if DIGEST_REFERENCE.fullmatch(value) is None:
                raise ValueError(f"{name}: an image by digest alone is needed, NAME@sha256:..., without a tag")
        return values

    @model_validator(mode="after")
    def _rules(self) -> Site:
        broken = [text for _, rule in _RULES for text in rule(self)]
        if broken:
            raise Rules(broken)
        return self

    @property
    def head(self) -> Node:
        """Rank 0."""
        return self.nodes[0]

    @property
    def time_zone(self) -> str | None:
        """In which times without a zone of their own are read; None where the site does not say."""
        return None if self.unattended_window is None else self.unattended_window.time_zone

    def checkpoint_dir_of(self, node: Node) -> str:
        """Where that node sees the checkpoint."""
        return node.checkpoint_dir or self.checkpoint_dir

    def engram_dir_of(self, node: Node) -> str:
        """Where that node keeps its packed shards."""
        return node.engram_dir or self.engram_dir

    def refuse_other_values(self, seen: Mapping[str, Any]) -> None:
        """Raises TS-PLAN-PLACE when a `site_` variable is seen with another value than the site's files give it.

        `-e site_engram_dir=...` would let the playbooks verify one directory while the engine mounts another.
        """
        own = self.model_dump(mode="json", by_alias=True)
        own["site_bench"] = self.bench.model_dump(mode="json", exclude_unset=True)
        for name, value in sorted(seen.items()):
            if name not in own or not _same(own[name], value):
                raise TrisparkError(
                    "TS-PLAN-PLACE",
                    f"{name} is set outside the site's files",
                    where="-e or another variable",
                    expected=f"{own.get(name, 'no such variable')}, as {self.path} says",
                    observed=str(value),
                    remedy="set it in the site's group_vars/all/site.yml",
                )

    def require_engine_image(self) -> str:
        """The engine image by digest. Raises TS-SITE-IMAGES."""
        if self.engine_image is None:
            raise _no_images(self.path, "site_engine_image")
        return self.engine_image

    @property
    def images(self) -> tuple[str, ...]:
        """Every image that the site names, each once: the engine's own, its further ones by name, the load client's."""
        named = (
            self.engine_image,
            *(self.engine_images[name] for name in sorted(self.engine_images)),
            self.bench_image,
        )
        return tuple(dict.fromkeys(image for image in named if image is not None))

    def image_named(self, name: str) -> str:
        """The engine image by digest that ENGINE_IMAGE names. Raises TS-SITE-IMAGES, TS-PLAN-IMAGE-MISSING."""
        if name == SITE_IMAGE:
            return self.require_engine_image()
        if name not in self.engine_images:
            raise TrisparkError(
                "TS-PLAN-IMAGE-MISSING",
                f"the site has no engine image named {name}",
                where=str(self.path / "group_vars" / "all"),
                expected=f"site_engine_images: {{{name}: name@sha256:...}}",
                observed=", ".join(sorted(self.engine_images)) or "no site_engine_images",
                remedy=self._way_to_image(name),
            )
        return self.engine_images[name]

    def _way_to_image(self, name: str) -> str:
        """What to do about a name of an engine image that the site has not."""
        there = f"name one that there is: {', '.join([SITE_IMAGE, *sorted(self.engine_images)])}"
        if self.path.name == LAB:
            # `lab up` makes all images of the lab at once, so where there are some it brings no further one.
            return there if self.engine_images else "run ./trispark lab up"
        return f"set site_engine_images.{name}, by digest" + (f"; or {there}" if self.engine_images else "")

    def require_bench_image(self) -> str:
        """The load client's image by digest. Raises TS-SITE-IMAGES."""
        if self.bench_image is None:
            raise _no_images(self.path, "site_bench_image")
        return self.bench_image


def _same(own: Any, seen: Any) -> bool:
    """Equal, whatever the number's type; Ansible gives lists and mappings of its own kind."""
    if isinstance(own, dict):
        return isinstance(seen, Mapping) and set(own) == set(seen) and all(_same(own[key], seen[key]) for key in own)
    if isinstance(own, list):
        return isinstance(seen, Sequence) and len(own) == len(seen) and all(map(_same, own, seen))
    if isinstance(own, bool) or isinstance(seen, bool):
        return own is seen
    return bool(own == seen)


def _broken_places(site: Site) -> list[str]:
    broken = []
    for node in site.nodes:
        if site.checkpoint_dir_of(node) == site.engram_dir_of(node):
            own = node.checkpoint_dir or node.engram_dir
            names = f"the directories of {node.name}" if own else "site_checkpoint_dir and site_engram_dir"
            broken.append(f"{names} must differ, both are {site.engram_dir_of(node)}")
            if not own:
                break
    broken += unmountable(site.checkpoint_share, site.checkpoint_dir)
    elsewhere = [node.name for node in site.nodes if node.checkpoint_dir is not None]
    if elsewhere and site.checkpoint_share.kind != "local":
        broken.append(
            f"a shared checkpoint lies at one place, site_checkpoint_dir; {elsewhere[0]} has a node_checkpoint_dir"
        )
    mounts = {
        "site_checkpoint_mount": site.checkpoint_mount,
        "site_engram_mount": site.engram_mount,
        "the place of the engine image's own files": _IMAGE_PLACE,
    }
    for (name, path), (other, beside) in combinations(mounts.items(), 2):
        if f"{path}/".startswith(f"{beside}/") or f"{beside}/".startswith(f"{path}/"):
            broken.append(f"{name} and {other} must lie apart, they are {path} and {beside}")
    return broken


def _broken_fleet(site: Site) -> list[str]:
    broken = []
    ports = site.rendezvous_ports
    if len(set(ports)) != len(ports) or site.api_port in ports:
        broken.append(
            f"rendezvous ports must differ from each other and from the API port {site.api_port}, "
            f"they are {', '.join(map(str, ports))}"
        )
    ranks = [node.rank for node in site.nodes]
    if sorted(ranks) != list(range(site.world_size)):
        broken.append(f"the hosts need ranks 0 to {site.world_size - 1} once each, not {sorted(ranks)}")
    owners: dict[object, str] = {}
    for node in site.nodes:
        first = owners.setdefault(ipaddress.ip_address(node.address), node.name)
        if first != node.name:
            broken.append(f"{first} and {node.name} have the same node_address {node.address}")
    return broken


def _broken_links(site: Site) -> list[str]:
    """Of pair links, where there are any: one to each peer, mirrored there, each over a port of its own."""
    if not any(node.pair_links for node in site.nodes):
        return []
    broken = []
    cables: dict[object, str] = {}
    management = {ipaddress.ip_address(node.address): node.name for node in site.nodes}
    by_rank = {node.rank: node for node in site.nodes}
    if len(by_rank) != len(site.nodes):
        return []  # a rank given twice is said by itself; of which node a link speaks is not known then
    for node in site.nodes:
        peers = [link.peer for link in node.pair_links]
        if sorted(peers) != [rank for rank in sorted(by_rank) if rank != node.rank]:
            broken.append(f"{node.name} needs one pair link to each other rank, it has {sorted(peers)}")
            continue
        for link in node.pair_links:
            what = f"the pair link of {node.name} to rank {link.peer}"
            owner = management.get(ipaddress.ip_address(link.local))
            if owner is not None:
                broken.append(f"{what} needs an address of its own, {link.local} is the node_address of {owner}")
            elsewhere = cables.setdefault(ipaddress.ip_address(link.local), node.name)
            if elsewhere != node.name:
                broken.append(f"{elsewhere} and {node.name} have the same address {link.local} in their pair links")
            if ipaddress.ip_address(link.local) == ipaddress.ip_address(link.remote):
                broken.append(f"{what} has one address for both ends, {link.local}")
                continue
            mirror = next((other for other in by_rank[link.peer].pair_links if other.peer == node.rank), None)
            if mirror is None or (mirror.local, mirror.remote) != (link.remote, link.local):
                broken.append(f"{what} is not mirrored there")
            if link.hca is not None and link.hca not in node.hcas:
                broken.append(f"{what} uses {link.hca}, which is not among its node_hcas")
            if link.interface is not None and link.interface == node.management_interface:
                broken.append(f"{what} uses {link.interface}, which is its node_management_interface")
        for name in ("hca", "interface"):
            used = [value for link in node.pair_links if (value := getattr(link, name)) is not None]
            if len(set(used)) != len(used):
                broken.append(f"two pair links of {node.name} have the same {name} {', '.join(sorted(set(used)))}")
    return broken


_RULES: Final[tuple[tuple[frozenset[str], Callable[[Site], list[str]]], ...]] = (
    (
        frozenset(
            {
                "nodes",
                "site_checkpoint_dir",
                "site_checkpoint_mount",
                "site_checkpoint_share",
                "site_engram_dir",
                "site_engram_mount",
            }
        ),
        _broken_places,
    ),
    (frozenset({"nodes", "site_api_port", "site_rendezvous_ports", "site_world_size"}), _broken_fleet),
    (frozenset({"nodes"}), _broken_links),
)
"""(the keys that a rule reads, the rule)."""


def load_site(path: Path, images: Literal["required", "optional"] = "required") -> Site:
    """The site in the inventory directory `path` (or the one of the hosts.yml given).

    With images="required" a site without an engine image is refused (TS-SITE-IMAGES). Other errors: TS-SITE-MISSING,
    TS-SITE-SCHEMA (wrong, missing or unknown site key), TS-SITE-TEMPLATE, TS-SITE-PLACE, TS-SITE-TWICE, TS-YAML-*.
    """

    def stop(error: TrisparkError) -> None:
        raise error

    reader = _read(path, images, stop, _first_problem)
    assert reader is not None, "whatever is wrong was raised"
    return check_model(Site, reader.data(), str(reader.directory), "TS-SITE-SCHEMA")


@dataclass(frozen=True)
class JudgedSite:
    """What can be known of a site whose files may be wrong.

    site        with stand-ins for what is wrong by itself; None when too little of it could be read
    wrong       keys of those values (`site_…`, `nodes`)
    problems    what `load_site` raises, all of it
    configured  what site_configured says, None where its file cannot be read
    reached_at  {host: ansible_host} of the hosts that have one
    """

    site: Site | None
    wrong: frozenset[str]
    problems: tuple[TrisparkError, ...]
    configured: bool | None
    reached_at: Mapping[str, str] = field(default_factory=dict)


def judge_site(path: Path, stand_ins: Mapping[str, Any]) -> JudgedSite:
    """`stand_ins`: a right value for every `site_` key that a site must have."""
    found: list[TrisparkError] = []
    reader = _read(path, "optional", found.append, _every_problem)
    if reader is None:
        return JudgedSite(None, frozenset(), tuple(found), configured=False)
    configured = reader.configured()
    if reader.unread:
        return JudgedSite(
            None, frozenset(), tuple(found), configured
        )  # what is missing in what was read would be no news
    data, where = reader.data(), str(reader.directory)
    wrong = wrong_keys(_Unruled, data)
    found += judge_model(_Unruled, data, where, "TS-SITE-SCHEMA")[1]
    patched = {key: value for key, value in data.items() if key not in wrong}
    patched |= {key: stand_ins[key] for key in wrong if key in stand_ins}
    if reader.hosts_wrong:
        wrong |= {"nodes"}
    site, _ = judge_model(_Unruled, patched, where, "TS-SITE-SCHEMA")
    if site is None or not site.nodes:
        return JudgedSite(None, wrong, tuple(found), configured)
    for keys, rule in _RULES:
        if not keys & wrong:
            found += [_broken_rule(text, where) for text in rule(site)]
    return JudgedSite(site, wrong, tuple(found), configured, reader.reached_at)


def _broken_rule(text: str, where: str) -> TrisparkError:
    return TrisparkError(
        "TS-SITE-SCHEMA",
        NO_FIT,
        where=where,
        expected=text,
        observed=BROKEN,
        remedy=f"correct {where}",
    )


class _Unruled(Site):
    """A site whose rules over several keys are judged one by one."""

    @model_validator(mode="after")
    def _rules(self) -> _Unruled:
        return self


Report = Callable[[TrisparkError], None]


JudgeNode = Callable[[Mapping[str, Any], str], tuple[Node | None, list[TrisparkError]]]


def _every_problem(own: Mapping[str, Any], where: str) -> tuple[Node | None, list[TrisparkError]]:
    return judge_model(Node, own, where, "TS-SITE-SCHEMA")


def _first_problem(own: Mapping[str, Any], where: str) -> tuple[Node | None, list[TrisparkError]]:
    """It is raised, and says how many more there are."""
    return check_model(Node, own, where, "TS-SITE-SCHEMA"), []


def _read(path: Path, images: Literal["required", "optional"], report: Report, judge: JudgeNode) -> _Reader | None:
    """`report` gets each problem and may raise it; where it does not, reading goes on as far as that makes sense."""
    directory = path.parent if path.suffix in (".yml", ".yaml") else path
    hosts_file = directory / "hosts.yml"
    if not hosts_file.is_file():
        report(
            TrisparkError(
                "TS-SITE-MISSING",
                "there is no site here",
                where=str(directory),
                expected="hosts.yml and group_vars/all/",
                observed="no hosts.yml",
                remedy="give the inventory directory of a site, for instance inventory/lab",
            )
        )
        return None
    reader = _Reader(directory, hosts_file, report, judge)
    reader.group_vars()
    reader.read_nodes()
    reader.elsewhere()
    if images == "required" and reader.keys.get("site_engine_image") is None:
        report(_no_images(directory, "site_engine_image"))
    return reader


class _Reader:
    """Working state of reading one inventory directory."""

    def __init__(self, directory: Path, hosts_file: Path, report: Report, judge: JudgeNode) -> None:
        self.directory = directory
        self.hosts_file = hosts_file
        self.report = report
        self.judge = judge
        self.keys: dict[str, Any] = {}
        self.origin: dict[str, str] = {}
        self.others: dict[str, str] = {}
        self.nodes: list[Node] = []
        self.reached_at: dict[str, str] = {}
        self.unread = False
        self.hosts_wrong = False

    def configured(self) -> bool | None:
        """What site_configured says; None where a file that may hold it could not be read."""
        given = self.keys.get("site_configured")
        return None if given is None and self.unread else given is True

    def data(self) -> dict[str, Any]:
        """What the model of a site takes."""
        nodes = [{**node.model_dump(by_alias=True), "name": node.name} for node in self.nodes]
        return {**self.keys, "nodes": nodes, "path": str(self.directory), "other_keys": self.others}

    def _yaml(self, file: Path) -> dict[str, Any]:
        try:
            return read_yaml(file)
        except TrisparkError as error:
            self.unread = True
            self.report(error)
            return {}

    def group_vars(self) -> None:
        """site_ keys of group_vars/all/ into `keys`, names of all others into `others`."""
        for file in self._group_files():
            for key, value in self._yaml(file).items():
                if key in self.origin or key in self.others:
                    self.report(
                        TrisparkError(
                            "TS-SITE-TWICE",
                            f"{key} is set twice",
                            where=str(file),
                            expected="one place",
                            observed=f"also in {self.origin.get(key) or self.others[key]}",
                            remedy="remove one of them",
                        )
                    )
                elif key.startswith("site_"):
                    self._no_template(key, value, file)
                    self.keys[key] = _as_float(key, value)
                    self.origin[key] = str(file)
                elif key in _HOST_KEYS:
                    self.report(_misplaced(key, file, "the host in hosts.yml"))
                else:
                    self.others[key] = str(file)

    def _group_files(self) -> list[Path]:
        directory = self.directory / "group_vars" / "all"
        if directory.with_suffix(".yml").is_file():
            self.report(_misplaced("group_vars/all.yml", directory.with_suffix(".yml"), "group_vars/all/"))
        return sorted(p for p in directory.glob("*") if p.suffix in (".yml", ".yaml") and p.is_file())

    def read_nodes(self) -> None:
        """The hosts of the group `sparks` in rank order into `nodes`, those that can be read."""
        found: dict[str, dict[str, Any]] = {}
        in_group: set[str] = set()
        for name, group in self._yaml(self.hosts_file).items():
            self._walk(name, group, found, in_group)
        for problem in _shared_hosts({host: found[host] for host in sorted(in_group)}, self.hosts_file):
            self.report(problem)
        self.reached_at = {
            host: str(found[host]["ansible_host"]) for host in sorted(in_group) if "ansible_host" in found[host]
        }
        nodes = [node for host in sorted(in_group) if (node := self._node(host, found[host])) is not None]
        self.nodes = sorted(nodes, key=lambda node: node.rank)

    def _walk(self, name: str, group: object, found: dict[str, dict[str, Any]], in_group: set[str]) -> None:
        content = self._names(group, f"the group {name}", "hosts, vars, children")
        for key in self._names(content.get("vars"), f"vars of the group {name}", "name: value"):
            if key.startswith("site_") or key in _HOST_KEYS:
                self.report(_misplaced(key, self.hosts_file, "group_vars/all/ (site_) or the host itself (node_)"))
            self.others.setdefault(key, str(self.hosts_file))
        hosts = self._names(content.get("hosts"), f"hosts of the group {name}", "host names with variables")
        for host, variables in hosts.items():
            merged = found.setdefault(host, {})
            for key, value in self._names(variables, f"the host {host}", "name: value").items():
                if key in merged and merged[key] != value:
                    self.report(
                        TrisparkError(
                            "TS-SITE-TWICE",
                            f"{key} of {host} has two values",
                            where=str(self.hosts_file),
                            expected="one place",
                            observed="two groups that give it different values",
                            remedy=f"leave one of them in {self.hosts_file}",
                        )
                    )
                merged[key] = value
            if name == HOST_GROUP:
                in_group.add(host)
        children = self._names(content.get("children"), f"children of the group {name}", "group names")
        for child, below in children.items():
            self._walk(child, below, found, in_group)

    def _node(self, host: str, variables: Mapping[str, Any]) -> Node | None:
        own: dict[str, Any] = {"name": host}
        for key, value in variables.items():
            if key.startswith("node_"):
                self._no_template(f"{host}.{key}", value, self.hosts_file)
                own[key] = value
            elif key.startswith("site_"):
                self.report(_misplaced(key, self.hosts_file, "group_vars/all/"))
            else:
                self.others.setdefault(key, str(self.hosts_file))
        node, problems = self.judge(own, f"{self.hosts_file} host {host}")
        self.hosts_wrong = self.hosts_wrong or node is None
        for problem in problems:
            self.report(problem)
        return node

    def elsewhere(self) -> None:
        """Keys in host_vars or in another group's variables would be ignored here but used by Ansible."""
        of_all = self.directory / "group_vars" / "all"
        files = [*(self.directory / "host_vars").rglob("*.yml"), *(self.directory / "group_vars").rglob("*.yml")]
        for file in sorted(files):
            if of_all in file.parents or file == of_all.with_suffix(".yml"):
                continue
            for key in self._yaml(file):
                if key.startswith("site_") or key in _HOST_KEYS:
                    self.report(_misplaced(key, file, "group_vars/all/ (site_) or hosts.yml (node_)"))
                self.others.setdefault(key, str(file))

    def _names(self, value: object, what: str, expected: str) -> Mapping[str, Any]:
        """A mapping with names as keys; nothing is an empty one, and so is what was reported (TS-SITE-SCHEMA)."""
        if value is None:
            return {}
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return value
        self.hosts_wrong = True
        odd = [key for key in value if not isinstance(key, str)] if isinstance(value, Mapping) else []
        self.report(
            TrisparkError(
                "TS-SITE-SCHEMA",
                f"{what}: names are needed" if odd else f"{what}: a mapping is needed",
                where=str(self.hosts_file),
                expected=f"a mapping: {expected}",
                observed=f"the key {odd[0]!r}" if odd else repr(value)[:120],
                remedy=f"correct {self.hosts_file}",
            )
        )
        return {}

    def _no_template(self, key: str, value: object, file: Path) -> None:
        """No Jinja in what the resolver reads."""
        if isinstance(value, Mapping):
            for name, item in value.items():
                self._no_template(f"{key}.{name}", item, file)
        elif isinstance(value, list):
            for item in value:
                self._no_template(key, item, file)
        elif isinstance(value, str) and ("{{" in value or "{%" in value):
            self.report(
                TrisparkError(
                    "TS-SITE-TEMPLATE",
                    f"{key} is a template",
                    where=str(file),
                    expected="a plain value, it is read without Ansible",
                    observed=value,
                    remedy="write the value itself",
                )
            )


def _as_float(key: str, value: object) -> object:
    """YAML writes 1 for a number of seconds; the model is strict."""
    if key.endswith(("_s", "_seconds")) and type(value) is int and abs(value) < 2**53:
        return float(value)
    return value


def _shared_hosts(hosts: Mapping[str, Mapping[str, Any]], file: Path) -> list[TrisparkError]:
    """Two names for one machine would make it two ranks; this machine is one, whatever it is called."""
    seen: dict[str, str] = {}
    problems = []
    for host, variables in hosts.items():
        local = variables.get("ansible_connection") == "local"
        address = "this machine (ansible_connection: local)" if local else variables.get("ansible_host")
        if address is None:
            continue
        first = seen.setdefault(str(address).lower(), host)
        if first != host:
            what = "are both this machine" if local else "have the same ansible_host"
            problems.append(
                TrisparkError(
                    "TS-SITE-SCHEMA",
                    f"{first} and {host} {what}",
                    where=str(file),
                    expected="one machine a host",
                    observed=str(address)[:120],
                    remedy=f"correct {file}",
                )
            )
    return problems


def _misplaced(key: str, file: Path, place: str) -> TrisparkError:
    return TrisparkError(
        "TS-SITE-PLACE",
        f"{key} is in the wrong place",
        where=str(file),
        expected=place,
        observed=file.name,
        remedy=f"move it to {place}",
    )


def _no_images(directory: Path, key: str) -> TrisparkError:
    lab = directory.name == LAB
    return TrisparkError(
        "TS-SITE-IMAGES",
        "the site has no images yet",
        # The lab's own are written by `lab up`, a fleet's stand in the file of the template.
        where=str(directory / "group_vars" / "all" / ("images.yml" if lab else "site.yml")),
        expected=key,
        observed="nothing",
        remedy="run ./trispark lab up" if lab else f"set {key} there, by digest",
    )
