"""What is there against what should be there: a pure function over the Engine's JSON."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.lab.desired import Container, Desired
from trispark.lab.layout import LABEL_LAB, LABEL_ROOT, LABEL_SPEC, LABEL_VERSION

Json = dict[str, Any]

ENDED: Final = frozenset({"exited", "dead"})
"""States in which a container does nothing more by itself; lab containers have no restart policy."""


@dataclass(frozen=True)
class Observed:
    """Inspect JSON: `containers` in full, `networks` and `volumes` as their lists give them."""

    containers: tuple[Json, ...] = ()
    networks: tuple[Json, ...] = ()
    volumes: tuple[Json, ...] = ()


@dataclass(frozen=True)
class Assessment:
    """Names to remove and to make, in any order within a kind, and why; `refusals` forbid doing anything.

    `reasons` maps each removed name to one phrase. `abandoned`: the root ids of other checkouts whose ended labs are
    among what is removed.
    """

    refusals: tuple[TrisparkError, ...] = ()
    remove_containers: tuple[str, ...] = ()
    remove_networks: tuple[str, ...] = ()
    remove_volumes: tuple[str, ...] = ()
    create_containers: tuple[str, ...] = ()
    create_networks: tuple[str, ...] = ()
    create_volumes: tuple[str, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)
    abandoned: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Nothing to do and nothing in the way."""
        return not (
            self.refusals
            or self.remove_containers
            or self.remove_networks
            or self.remove_volumes
            or self.create_containers
            or self.create_networks
            or self.create_volumes
        )


def assess(desired: Desired, observed: Observed) -> Assessment:
    """Compare. Objects of ours that are stale are removed and made again; objects of anyone else refuse the whole.

    One exception: a lab of another checkout all of whose containers have ended (the machine went down under it) holds
    the names and networks and serves nobody, so it is removed.
    """
    abandoned = _abandoned_roots(desired.root, observed)
    refusals = _refusals(desired, observed, abandoned)
    if refusals:
        return Assessment(refusals=refusals)
    ours = _of_roots({desired.root}, observed)
    left = _of_roots(abandoned, observed)
    versions = {_labels(thing).get(LABEL_VERSION, "") for thing in (*ours.containers, *ours.networks, *ours.volumes)}
    stale_version = versions - {desired.version}
    reasons: dict[str, str] = {}
    if stale_version:
        why = f"made by lab version {', '.join(sorted(stale_version))}, this is {desired.version}"
        gone_containers = {_container_name(thing) for thing in ours.containers}
        gone_networks = {str(thing["Name"]) for thing in ours.networks}
        gone_volumes = {str(thing["Name"]) for thing in ours.volumes}
        reasons = dict.fromkeys(sorted(gone_containers | gone_networks | gone_volumes), why)
    else:
        gone_networks = _stale_networks(desired, ours, reasons)
        gone_containers = _stale_containers(desired, ours, gone_networks, reasons)
        gone_volumes = {str(thing["Name"]) for thing in ours.volumes} - set(desired.volumes)
        reasons.update(dict.fromkeys(gone_volumes, "no volume of this lab"))
    left_names = [
        tuple(str(thing["Name"]).lstrip("/") for thing in things)
        for things in (left.containers, left.networks, left.volumes)
    ]
    for names in left_names:
        reasons.update(dict.fromkeys(names, "of another checkout's lab, none of whose containers runs any more"))
    kept_containers = {_container_name(thing) for thing in ours.containers} - gone_containers
    kept_networks = {str(thing["Name"]) for thing in ours.networks} - gone_networks
    kept_volumes = {str(thing["Name"]) for thing in ours.volumes} - gone_volumes
    return Assessment(
        remove_containers=tuple(sorted(gone_containers.union(left_names[0]))),
        remove_networks=tuple(sorted(gone_networks.union(left_names[1]))),
        remove_volumes=tuple(sorted(gone_volumes.union(left_names[2]))),
        create_containers=tuple(each.name for each in desired.containers if each.name not in kept_containers),
        create_networks=tuple(name for name in desired.networks if name not in kept_networks),
        create_volumes=tuple(name for name in desired.volumes if name not in kept_volumes),
        reasons=reasons,
        abandoned=tuple(sorted(abandoned)),
    )


def assess_removal(root: str, observed: Observed) -> Assessment:
    """What `lab down` removes: everything with our label and this root, whatever its name or version.

    Refused when a container that is not ours sits on one of our networks (`Containers` of the network's inspect JSON).
    """
    ours = _of_roots({root}, observed)
    names = {_container_name(thing) for thing in ours.containers}
    guests = sorted(
        {
            (str(endpoint.get("Name")), str(network["Name"]))
            for network in ours.networks
            for endpoint in (network.get("Containers") or {}).values()
            if endpoint.get("Name") not in names
        }
    )
    return Assessment(
        refusals=tuple(
            _foreign("container", name, f"is attached to our network {network}") for name, network in guests
        ),
        remove_containers=tuple(sorted(names)),
        remove_networks=tuple(sorted(str(thing["Name"]) for thing in ours.networks)),
        remove_volumes=tuple(sorted(str(thing["Name"]) for thing in ours.volumes)),
    )


def _abandoned_roots(root: str, observed: Observed) -> frozenset[str]:
    """Roots of other labs whose containers have all ended. One without a container may be about to start: not that."""
    states: dict[str, set[str]] = {}
    for container in observed.containers:
        if _is_lab(container):
            states.setdefault(_labels(container).get(LABEL_ROOT, ""), set()).add(container["State"]["Status"])
    return frozenset(other for other, its in states.items() if other not in ("", root) and its <= ENDED)


def _refusals(desired: Desired, observed: Observed, abandoned: frozenset[str]) -> tuple[TrisparkError, ...]:
    accepted = {desired.root, *abandoned}
    found: list[TrisparkError] = []
    wanted = {each.name for each in desired.containers}
    for container in observed.containers:
        name = _container_name(container)
        if _is_lab(container):
            found.extend(_other_root(accepted, desired.root, "container", name, container))
        elif name in wanted:
            found.append(_foreign("container", name, "has the name of one of ours without our label"))
    for network in observed.networks:
        name = str(network["Name"])
        if _is_lab(network):
            found.extend(_other_root(accepted, desired.root, "network", name, network))
            continue
        if name in desired.networks:
            found.append(_foreign("network", name, "has the name of one of ours without our label"))
            continue
        for subnet in _subnets(network):
            clash = [ours for ours in desired.networks.values() if _overlap(subnet, ours)]
            if clash:
                found.append(_foreign("network", name, f"its subnet {subnet} overlaps {', '.join(clash)}"))
    for volume in observed.volumes:
        name = str(volume["Name"])
        if _is_lab(volume):
            found.extend(_other_root(accepted, desired.root, "volume", name, volume))
        elif name in desired.volumes:
            found.append(_foreign("volume", name, "has the name of one of ours without our label"))
    return tuple(found)


def _stale_networks(desired: Desired, ours: Observed, reasons: dict[str, str]) -> set[str]:
    stale = set()
    for network in ours.networks:
        name = str(network["Name"])
        subnets = _subnets(network)
        if name not in desired.networks:
            reasons[name] = "no network of this lab"
        elif subnets != [desired.networks[name]]:
            reasons[name] = f"subnet {', '.join(subnets) or 'none'} instead of {desired.networks[name]}"
        else:
            continue
        stale.add(name)
    return stale


def _stale_containers(desired: Desired, ours: Observed, gone_networks: set[str], reasons: dict[str, str]) -> set[str]:
    wanted = {each.name: each for each in desired.containers}
    network_ids = {str(each["Name"]): str(each["Id"]) for each in ours.networks if each["Name"] not in gone_networks}
    volumes = {str(each["Name"]) for each in ours.volumes}
    stale = set()
    for container in ours.containers:
        name = _container_name(container)
        reason = (
            _container_fault(wanted[name], container, network_ids, gone_networks, volumes)
            if name in wanted
            else "no container of this lab"
        )
        if reason:
            reasons[name] = reason
            stale.add(name)
    return stale


def _container_fault(
    wanted: Container, container: Json, network_ids: dict[str, str], gone_networks: set[str], volumes: set[str]
) -> str:
    """Why the container must be made anew, or an empty text."""
    state = container["State"]
    if state["Status"] != "running":
        return f"state {state['Status']}, exit code {state.get('ExitCode')}"
    if _labels(container).get(LABEL_SPEC) != wanted.spec:
        return "made from another definition"
    attached = container["NetworkSettings"]["Networks"]
    if set(attached) & gone_networks:
        return f"attached to {', '.join(sorted(set(attached) & gone_networks))}, which goes"
    if set(attached) != set(wanted.addresses):
        found = ", ".join(sorted(attached)) or "no network"
        return f"attached to {found} instead of {', '.join(sorted(wanted.addresses))}"
    for network, address in sorted(wanted.addresses.items()):
        end = attached[network]
        if network not in network_ids or end["NetworkID"] != network_ids[network]:
            return f"attached to an earlier {network}"
        if end["IPAddress"] != address:
            return f"address {end['IPAddress'] or 'none'} on {network} instead of {address}"
    mounted = {str(mount["Name"]) for mount in container.get("Mounts", []) if mount.get("Type") == "volume"}
    if mounted - volumes:
        return f"uses the volume {', '.join(sorted(mounted - volumes))}, which is not of this lab"
    return ""


def _of_roots(roots: Collection[str], observed: Observed) -> Observed:
    def theirs(things: tuple[Json, ...]) -> tuple[Json, ...]:
        return tuple(thing for thing in things if _is_lab(thing) and _labels(thing).get(LABEL_ROOT) in roots)

    return Observed(theirs(observed.containers), theirs(observed.networks), theirs(observed.volumes))


def _labels(thing: Json) -> dict[str, str]:
    """Labels of a container (Config.Labels), network or volume (Labels); the Engine gives null for none."""
    found = thing["Config"].get("Labels") if "Config" in thing else thing.get("Labels")
    return dict(found or {})


def _is_lab(thing: Json) -> bool:
    return _labels(thing).get(LABEL_LAB) == "1"


def _container_name(container: Json) -> str:
    return str(container["Name"]).lstrip("/")


def _subnets(network: Json) -> list[str]:
    configured = (network.get("IPAM") or {}).get("Config") or []
    return [str(entry["Subnet"]) for entry in configured if entry.get("Subnet")]


def _overlap(one: str, other: str) -> bool:
    first, second = ipaddress.ip_network(one, strict=False), ipaddress.ip_network(other, strict=False)
    return first.version == second.version and first.overlaps(second)


def _foreign(kind: str, name: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-LAB-FOREIGN",
        f"a {kind} that is not ours is in the lab's place",
        where=f"{kind} {name}",
        expected="only objects labelled trispark.lab=1",
        observed=observed,
        remedy=f"remove or rename it yourself (docker {kind} inspect {name}); the lab never touches it",
    )


def _other_root(accepted: Collection[str], root: str, kind: str, name: str, thing: Json) -> list[TrisparkError]:
    owner = _labels(thing).get(LABEL_ROOT, "")
    if owner in accepted:
        return []
    return [
        TrisparkError(
            "TS-LAB-OTHERROOT",
            "the lab of another checkout runs on this machine",
            where=f"{kind} {name}",
            expected=f"label {LABEL_ROOT}={root}",
            observed=f"label {LABEL_ROOT}={owner or 'missing'}",
            remedy="run ./trispark lab down in that checkout, or, when it is gone, remove what "
            f"docker ps -a, network ls and volume ls show for --filter label={LABEL_ROOT}={owner}",
        )
    ]
