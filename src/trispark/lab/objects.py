"""Makes the lab's networks and removes its containers, networks and volumes; all of one kind at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import docker.errors
from docker.types import IPAMConfig, IPAMPool

from trispark.errors import TrisparkError
from trispark.lab import LAB_VERSION
from trispark.lab.engine_api import EngineWriter
from trispark.lab.layout import LABEL_LAB, LABEL_ROOT, LABEL_VERSION, root_id

WORKERS = 4
"""More of them only wait for each other inside the Engine."""


@dataclass(frozen=True)
class Change:
    """What to do, in this order; `networks` map name -> subnet.

    `abandoned`: root ids of other checkouts whose ended labs are part of the removal.
    """

    remove_containers: tuple[str, ...] = ()
    remove_networks: tuple[str, ...] = ()
    remove_volumes: tuple[str, ...] = ()
    networks: Mapping[str, str] | None = None
    abandoned: tuple[str, ...] = ()

    @property
    def some(self) -> bool:
        return bool(self.remove_containers or self.remove_networks or self.remove_volumes or self.networks)


def carry_out(repo: Path, client: EngineWriter, change: Change) -> list[str]:
    """Do it; one text for each object that was removed or made. What is gone already is no error.

    Raises TS-LAB-FOREIGN for an object without this checkout's labels and TS-LAB-OBJECT for what the Engine refuses;
    the other objects of the same kind are done nevertheless, those of the kinds after it are not.
    """
    root = root_id(repo.resolve())
    owners = (root, *change.abandoned)
    labels = {LABEL_LAB: "1", LABEL_VERSION: LAB_VERSION, LABEL_ROOT: root}

    def container(name: str) -> None:
        found = client.inspect_container(name)
        owner = _own("container", name, found["Config"].get("Labels"), owners)
        # Not by force when it is another checkout's: one that was started since the plan is refused by the Engine.
        client.remove_container(found["Id"], v=True, force=owner == root)

    def network(name: str) -> None:
        found = client.inspect_network(name)
        _own("network", name, found.get("Labels"), owners)
        client.remove_network(found["Id"])

    def volume(name: str) -> None:
        _own("volume", name, client.inspect_volume(name).get("Labels"), owners)
        client.remove_volume(name)

    def make_network(name: str) -> None:
        subnet = (change.networks or {})[name]
        ipam = IPAMConfig(pool_configs=[IPAMPool(subnet=subnet)])
        client.create_network(name, driver="bridge", ipam=ipam, labels=labels)

    return [
        *_all("container", "removed", change.remove_containers, container),
        *_all("network", "removed", change.remove_networks, network),
        *_all("volume", "removed", change.remove_volumes, volume),
        *_all("network", "made", change.networks or {}, make_network),
    ]


def _all(kind: str, verb: str, names: Iterable[str], act: Callable[[str], None]) -> list[str]:
    """Call `act` for every name; the first failure in the order of the names is raised when all have ended."""

    def one(name: str) -> str | TrisparkError:
        try:
            act(name)
        except docker.errors.NotFound:
            return ""
        except TrisparkError as error:
            return error
        except (docker.errors.APIError, OSError) as error:
            return TrisparkError(
                "TS-LAB-OBJECT",
                f"the Docker Engine refused: {kind} not {verb}",
                where=f"{kind} {name}",
                expected=f"{kind} {verb}",
                observed=str(getattr(error, "explanation", None) or error),
                remedy="mend what the Engine says, then the same command again; it goes on",
            )
        return f"{verb} {kind} {name}"

    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        results = list(pool.map(one, names))
    for result in results:
        if isinstance(result, TrisparkError):
            raise result
    return [result for result in results if isinstance(result, str) and result]


def _own(kind: str, name: str, labels: Mapping[str, str] | None, owners: tuple[str, ...]) -> str:
    """The root id on the object; TS-LAB-FOREIGN when it is none of `owners`."""
    owner = (labels or {}).get(LABEL_ROOT, "")
    if (labels or {}).get(LABEL_LAB) != "1" or owner not in owners:
        raise TrisparkError(
            "TS-LAB-FOREIGN",
            "this is not an object of this checkout's lab, so it is not removed",
            where=f"{kind} {name}",
            expected=f"labels {LABEL_LAB}=1 and {LABEL_ROOT}={' or '.join(owners)}",
            observed=str(dict(labels or {})),
            remedy="run the same command again: it reads what there is anew",
        )
    return owner
