"""A site as its inventory describes it: hosts.yml and group_vars/all/*.yml, plain YAML without templates."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trispark.allowlist import check_text, is_address, is_plain_path
from trispark.errors import TrisparkError
from trispark.plainyaml import Strict, check_model, read_yaml
from trispark.share import CheckpointShare, LocalShare, refuse_unmountable

HOST_GROUP: Final = "sparks"
DIGEST_REFERENCE: Final = re.compile(r"[a-z0-9][a-z0-9._:/-]*@sha256:[0-9a-f]{64}")
_IMAGE_KEYS: Final = ("site_engine_image", "site_bench_image")
_IMAGE_PLACE: Final = "/opt/trispark"
"""In the container: the adapters' mount of experiments/engines.yml lies there."""
_SYSTEM_DIRECTORIES: Final = frozenset(
    ("/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin", "/sys",
     "/tmp", "/usr", "/var")
)  # fmt: skip
_KERNEL_DIRECTORIES: Final = ("/dev/", "/proc/", "/sys/")
_HOST_KEYS: Final = {"node_rank": "rank", "node_address": "address", "node_pair_links": "pair_links"}


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
    """The direct link of a node to one peer."""

    peer: int
    local: str
    remote: str

    @field_validator("local", "remote")
    @classmethod
    def _addresses(cls, value: str) -> str:
        return _address(value)


class Node(Strict):
    """One host of the group `sparks`."""

    name: str
    rank: int
    address: str
    pair_links: tuple[PairLink, ...]


class BenchSettings(Strict):
    """site_bench: what the load client measures at this site."""

    repetitions: Annotated[int, Field(ge=1, le=1000)]
    max_tokens: Annotated[int, Field(ge=2, le=32768)]
    warmup_tokens: Annotated[int, Field(ge=1, le=32768)]
    concurrency: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field(min_length=1)
    workloads: tuple[str, ...] = Field(min_length=1)

    @field_validator("concurrency", "workloads")
    @classmethod
    def _once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        _no_repeats(values, "the entries")
        return values


class Site(BaseModel):
    """The site. Attribute `x` is the inventory key `site_x`; `nodes` comes from hosts.yml, in rank order."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, alias_generator=lambda name: f"site_{name}"
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
    checkpoint_share: CheckpointShare = LocalShare(kind="local")
    """How the workers see the checkpoint."""
    engram_dir: str
    engram_mount: str
    rendezvous_ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = Field(min_length=1)
    stats_seconds: float
    decode_log_interval: int
    start_deadline_s: Annotated[float, Field(gt=0, le=86400)]
    stop_deadline_s: Annotated[float, Field(gt=0, le=3600)]
    watch_interval_s: Annotated[float, Field(gt=0, le=300)]
    world_size: Annotated[int, Field(ge=1, le=8)]
    bench: BenchSettings
    engine_image: str | None = None
    bench_image: str | None = None

    nodes: tuple[Node, ...] = Field(alias="nodes")
    path: Path = Field(alias="path")
    other_keys: dict[str, str] = Field(alias="other_keys")
    """Keys of others in the inventory (ansible_*, lab_*), each with the file that sets it."""

    @field_validator("root", "checkpoint_dir", "checkpoint_mount", "engram_dir", "engram_mount")
    @classmethod
    def _paths(cls, value: str) -> str:
        return _own_directory(value)

    @field_validator("engine_image", "bench_image")
    @classmethod
    def _digests(cls, value: str | None) -> str | None:
        if value is not None and DIGEST_REFERENCE.fullmatch(value) is None:
            raise ValueError("an image reference with @sha256: digest is needed")
        return value

    @model_validator(mode="after")
    def _places(self) -> Site:
        if self.checkpoint_dir == self.engram_dir:
            raise ValueError(f"site_checkpoint_dir and site_engram_dir must differ, both are {self.engram_dir}")
        refuse_unmountable(self.checkpoint_share, self.checkpoint_dir)
        mounts = {
            "site_checkpoint_mount": self.checkpoint_mount,
            "site_engram_mount": self.engram_mount,
            "the place of the engine image's own files": _IMAGE_PLACE,
        }
        for (name, path), (other, beside) in combinations(mounts.items(), 2):
            if f"{path}/".startswith(f"{beside}/") or f"{beside}/".startswith(f"{path}/"):
                raise ValueError(f"{name} and {other} must lie apart, they are {path} and {beside}")
        return self

    @model_validator(mode="after")
    def _fleet(self) -> Site:
        ports = self.rendezvous_ports
        if len(set(ports)) != len(ports) or self.api_port in ports:
            raise ValueError(
                f"rendezvous ports must differ from each other and from the API port {self.api_port}, "
                f"they are {', '.join(map(str, ports))}"
            )
        ranks = [node.rank for node in self.nodes]
        if sorted(ranks) != list(range(self.world_size)):
            raise ValueError(f"the hosts need ranks 0 to {self.world_size - 1} once each, not {sorted(ranks)}")
        management: dict[object, str] = {}
        for node in self.nodes:
            first = management.setdefault(ipaddress.ip_address(node.address), node.name)
            if first != node.name:
                raise ValueError(f"{first} and {node.name} have the same node_address {node.address}")
        by_rank = {node.rank: node for node in self.nodes}
        for node in self.nodes:
            peers = [link.peer for link in node.pair_links]
            if sorted(peers) != [rank for rank in sorted(by_rank) if rank != node.rank]:
                raise ValueError(f"{node.name} needs one pair link to each other rank, it has {sorted(peers)}")
            for link in node.pair_links:
                owner = management.get(ipaddress.ip_address(link.local))
                if owner is not None:
                    raise ValueError(
                        f"the pair link of {node.name} to rank {link.peer} needs an address of its own, "
                        f"{link.local} is the node_address of {owner}"
                    )
                mirror = next((other for other in by_rank[link.peer].pair_links if other.peer == node.rank), None)
                if mirror is None or (mirror.local, mirror.remote) != (link.remote, link.local):
                    raise ValueError(f"the pair link of {node.name} to rank {link.peer} is not mirrored there")
        return self

    @property
    def head(self) -> Node:
        """Rank 0."""
        return self.nodes[0]

    def refuse_other_values(self, seen: Mapping[str, Any]) -> None:
        """Raises TS-PLAN-PLACE when a `site_` variable is seen with another value than the site's files give it.

        `-e site_engram_dir=...` would let the playbooks verify one directory while the engine mounts another.
        """
        own = self.model_dump(mode="json", by_alias=True)
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


class _HostFile(Strict):
    """The three keys that this project reads of a host."""

    node_rank: int
    node_address: str
    node_pair_links: tuple[PairLink, ...]

    @field_validator("node_address")
    @classmethod
    def _literal(cls, value: str) -> str:
        return _address(value)


def load_site(path: Path, images: Literal["required", "optional"] = "required") -> Site:
    """The site in the inventory directory `path` (or the one of the hosts.yml given).

    With images="required" a site without images.yml is refused (TS-SITE-IMAGES). Other errors: TS-SITE-MISSING,
    TS-SITE-SCHEMA (wrong, missing or unknown site key), TS-SITE-TEMPLATE, TS-SITE-PLACE, TS-SITE-TWICE, TS-YAML-*.
    """
    directory = path.parent if path.suffix in (".yml", ".yaml") else path
    hosts_file = directory / "hosts.yml"
    if not hosts_file.is_file():
        raise TrisparkError(
            "TS-SITE-MISSING",
            "there is no site here",
            where=str(directory),
            expected="hosts.yml and group_vars/all/",
            observed="no hosts.yml",
            remedy="give the inventory directory of a site, for instance inventory/lab",
        )
    keys: dict[str, Any] = {}
    origin: dict[str, str] = {}
    others: dict[str, str] = {}
    for file in _yaml_files(directory / "group_vars" / "all"):
        for key, value in read_yaml(file).items():
            if key in origin or key in others:
                raise TrisparkError(
                    "TS-SITE-TWICE",
                    f"{key} is set twice",
                    where=str(file),
                    expected="one place",
                    observed=f"also in {origin.get(key) or others[key]}",
                    remedy="remove one of them",
                )
            if key.startswith("site_"):
                _refuse_template(key, value, file)
                keys[key] = value
                origin[key] = str(file)
            elif key in _HOST_KEYS:
                raise _misplaced(key, file, "the host in hosts.yml")
            else:
                others[key] = str(file)
    nodes = _nodes(hosts_file, others)
    _refuse_elsewhere(directory, others)
    _numbers_as_floats(keys)
    if images == "required":
        for key in _IMAGE_KEYS:
            if keys.get(key) is None:
                raise _no_images(directory, key)
    return check_model(
        Site,
        {**keys, "nodes": [node.model_dump() for node in nodes], "path": str(directory), "other_keys": others},
        where=str(directory),
        error_id="TS-SITE-SCHEMA",
    )


def _numbers_as_floats(keys: dict[str, Any]) -> None:
    """YAML writes 1 for a number of seconds; the model is strict."""
    for key, value in keys.items():
        if key.endswith(("_s", "_seconds")) and type(value) is int and abs(value) < 2**53:
            keys[key] = float(value)


def _yaml_files(directory: Path) -> list[Path]:
    if directory.with_suffix(".yml").is_file():
        raise _misplaced("group_vars/all.yml", directory.with_suffix(".yml"), "group_vars/all/")
    return sorted(p for p in directory.glob("*") if p.suffix in (".yml", ".yaml") and p.is_file())


def _nodes(hosts_file: Path, others: dict[str, str]) -> list[Node]:
    """The hosts of the group `sparks` in rank order; their other variables are added to `others`."""
    found: dict[str, dict[str, Any]] = {}
    in_group: set[str] = set()

    def walk(name: str, group: object) -> None:
        content = _names(group, f"the group {name}", hosts_file, "hosts, vars, children")
        for key in _names(content.get("vars"), f"vars of the group {name}", hosts_file, "name: value"):
            if key.startswith("site_") or key in _HOST_KEYS:
                raise _misplaced(key, hosts_file, "group_vars/all/ (site_) or the host itself (node_)")
            others.setdefault(key, str(hosts_file))
        hosts = _names(content.get("hosts"), f"hosts of the group {name}", hosts_file, "host names with variables")
        for host, variables in hosts.items():
            merged = found.setdefault(host, {})
            for key, value in _names(variables, f"the host {host}", hosts_file, "name: value").items():
                if key in merged and merged[key] != value:
                    raise TrisparkError(
                        "TS-SITE-TWICE", f"{key} of {host} has two values", where=str(hosts_file), expected="one place"
                    )
                merged[key] = value
            if name == HOST_GROUP:
                in_group.add(host)
        children = _names(content.get("children"), f"children of the group {name}", hosts_file, "group names")
        for child, below in children.items():
            walk(child, below)

    for name, group in read_yaml(hosts_file).items():
        walk(name, group)
    _refuse_shared_host({host: found[host].get("ansible_host") for host in sorted(in_group)}, hosts_file)
    nodes = []
    for host in sorted(in_group):
        own = {}
        for key, value in found[host].items():
            if key.startswith("node_"):
                _refuse_template(f"{host}.{key}", value, hosts_file)
                own[key] = value
            elif key.startswith("site_"):
                raise _misplaced(key, hosts_file, "group_vars/all/")
            else:
                others.setdefault(key, str(hosts_file))
        checked = check_model(_HostFile, own, where=f"{hosts_file} host {host}", error_id="TS-SITE-SCHEMA")
        node = {
            "name": host,
            "rank": checked.node_rank,
            "address": checked.node_address,
            "pair_links": [link.model_dump() for link in sorted(checked.node_pair_links, key=lambda link: link.peer)],
        }
        nodes.append(check_model(Node, node, where=f"{hosts_file} host {host}", error_id="TS-SITE-SCHEMA"))
    return sorted(nodes, key=lambda node: node.rank)


def _names(value: object, what: str, file: Path, expected: str) -> Mapping[str, Any]:
    """A mapping with names as keys; nothing is an empty one. Raises TS-SITE-SCHEMA."""
    if value is None:
        return {}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return value
    odd = [key for key in value if not isinstance(key, str)] if isinstance(value, Mapping) else []
    raise TrisparkError(
        "TS-SITE-SCHEMA",
        f"{what}: names are needed" if odd else f"{what}: a mapping is needed",
        where=str(file),
        expected=f"a mapping: {expected}",
        observed=f"the key {odd[0]!r}" if odd else repr(value)[:120],
        remedy=f"correct {file}",
    )


def _refuse_shared_host(hosts: Mapping[str, object], file: Path) -> None:
    """Two names for one machine would make it two ranks."""
    seen: dict[str, str] = {}
    for host, address in hosts.items():
        if address is None:
            continue
        first = seen.setdefault(str(address).lower(), host)
        if first != host:
            raise TrisparkError(
                "TS-SITE-SCHEMA",
                f"{first} and {host} have the same ansible_host",
                where=str(file),
                expected="one machine a host",
                observed=str(address)[:120],
                remedy=f"correct {file}",
            )


def _refuse_elsewhere(directory: Path, others: dict[str, str]) -> None:
    """Keys in host_vars or in another group's variables would be ignored here but used by Ansible."""
    files = [*(directory / "host_vars").rglob("*.yml"), *(directory / "group_vars").rglob("*.yml")]
    for file in sorted(files):
        if (directory / "group_vars" / "all") in file.parents:
            continue
        for key in read_yaml(file):
            if key.startswith("site_") or key in _HOST_KEYS:
                raise _misplaced(key, file, "group_vars/all/ (site_) or hosts.yml (node_)")
            others.setdefault(key, str(file))


def _refuse_template(key: str, value: object, file: Path) -> None:
    """No Jinja in what the resolver reads."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _refuse_template(f"{key}.{name}", item, file)
    elif isinstance(value, list):
        for item in value:
            _refuse_template(key, item, file)
    elif isinstance(value, str) and ("{{" in value or "{%" in value):
        raise TrisparkError(
            "TS-SITE-TEMPLATE",
            f"{key} is a template",
            where=str(file),
            expected="a plain value, it is read without Ansible",
            observed=value,
            remedy="write the value itself",
        )


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
    return TrisparkError(
        "TS-SITE-IMAGES",
        "the site has no images yet",
        where=str(directory / "group_vars" / "all" / "images.yml"),
        expected=key,
        observed="nothing",
        remedy="run ./trispark lab up",
    )
