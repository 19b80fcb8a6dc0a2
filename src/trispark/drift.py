"""What two boots really ran, compared name by name: the one-change rule over the records of a trial's boots.

Both arms of a trial are planned from one site, image, adapter tree and commit. Whatever differs between their records
and is not among the declared names (`declared`) came in between, so the trial compares something else than it says.
What belongs to a boot alone is put aside: rendezvous port, generation id, container ids, times, counters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from trispark.errors import TrisparkError
from trispark.resolve import Difference, flag_groups
from trispark_node.spec import GENERATION_TOKEN, PORT_TOKEN

Record = Mapping[str, Any]
RESOLVED_NAMES: Final = ("engine", "image")
OBSERVED_NAMES: Final = ("image_id", "image_digests")
OF_THE_IMAGE: Final = ("image id", "image digests", "engine version", "package ")


@dataclass(frozen=True)
class Drift:
    """One name by which two boots differ; `part` is project, resolved or observed."""

    part: str
    name: str
    first: Any
    second: Any

    def words(self) -> str:
        """`image id of rank 1: sha256:... and sha256:...`."""
        return f"{self.name}: {in_words(self.first)} and {in_words(self.second)}"


def in_words(value: Any) -> str:
    """A value for a line: nothing, or short text."""
    if value is None or value == [] or value == {}:
        return "nothing"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))[:160]
    return str(value)[:160]


def declared_names(difference: Difference) -> frozenset[str]:
    """The names by which the planned configurations differ, as `boot_drift` gives them."""
    return frozenset({*difference.settings, *difference.other})


def boot_drift(first: Record, second: Record, declared: Collection[str] = ()) -> tuple[Drift, ...]:
    """All undeclared differences between the records of two boots; both are kind `boot`."""
    found = [
        *_project(first, second),
        *resolved_drift(first["resolved"], second["resolved"]),
        *_observed(first, second),
    ]
    return tuple(drift for drift in found if not _is_declared(drift.name, declared))


def _is_declared(name: str, declared: Collection[str]) -> bool:
    """Also what follows from a declared name: an adapter on every rank, what another image brings with it."""
    base = name.partition(" of rank ")[0]
    return name in declared or base in declared or ("image" in declared and base.startswith(OF_THE_IMAGE))


def require_no_drift(arms: Sequence[tuple[str, Record]], declared: Collection[str]) -> None:
    """Raises TS-TRIAL-DRIFT unless all boots of a trial differ in what is declared alone, and only between the arms.

    `arms`: (arm, record) of every boot in the order in which they ran.
    """
    if not arms:
        return
    first_arm, first = arms[0]
    for arm, record in arms[1:]:
        allowed = declared if arm != first_arm else ()
        drifts = boot_drift(first, record, allowed)
        if drifts:
            raise TrisparkError(
                "TS-TRIAL-DRIFT",
                f"{drifts[0].name} is not the same in both boots and is not the change that is tried",
                where=f"{first['boot_id']} ({first_arm}) and {record['boot_id']} ({arm})",
                expected=", ".join(sorted(declared)) + " and nothing else" if allowed else "no difference",
                observed="; ".join({drift.name: drift.words() for drift in drifts}.values()),
                remedy="bring all nodes and the project back to one state, then run the trial again",
            )


def _pairs(part: str, first: Mapping[str, Any], second: Mapping[str, Any], suffix: str = "") -> Iterator[Drift]:
    for name in sorted({*first, *second}):
        if first.get(name) != second.get(name):
            yield Drift(part, f"{name}{suffix}", first.get(name), second.get(name))


def _project(first: Record, second: Record) -> Iterator[Drift]:
    def named(record: Record) -> dict[str, Any]:
        project = record["project"]
        return {
            "site": record["site"],
            "project commit": project["commit"],
            "project version": project["version"],
            "changed files in the project": "some" if project["dirty"] else "none",
        }

    yield from _pairs("project", named(first), named(second))


def resolved_drift(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Drift]:
    """Differences between two resolved configurations in the form that records hold."""
    for name in RESOLVED_NAMES:
        if a[name] != b[name]:
            yield Drift("resolved", name, a[name], b[name])
    yield from _pairs("resolved", _settings(a), _settings(b))
    yield from _pairs("resolved", _prefixed(a["adapters"]), _prefixed(b["adapters"]))
    ranks_a, ranks_b = ({rank["rank"]: rank for rank in side["ranks"]} for side in (a, b))
    for rank in sorted({*ranks_a, *ranks_b}):
        one, other = ranks_a.get(rank), ranks_b.get(rank)
        if one is None or other is None:
            yield Drift("resolved", f"rank {rank}", one and one["node"], other and other["node"])
        else:
            yield from _pairs("resolved", _rank(one), _rank(other), f" of rank {rank}")


def _observed(first: Record, second: Record) -> Iterator[Drift]:
    """What ran, on the ranks that were seen in both boots."""
    sides = []
    for record in (first, second):
        planned = {rank["rank"]: rank for rank in record["resolved"]["ranks"]}
        generation = record["resolved"]["generation"]
        sides.append(
            {
                rank["rank"]: _seen(rank, planned[rank["rank"]], generation)
                for rank in record["observed"]["ranks"]
                if rank["seen"] and rank["rank"] in planned
            }
        )
    for rank in sorted(set(sides[0]) & set(sides[1])):
        yield from _pairs("observed", sides[0][rank], sides[1][rank], f" of rank {rank}")


def _settings(resolved: Mapping[str, Any]) -> dict[str, Any]:
    return {**resolved["settings"], **dict.fromkeys(resolved["settings_withheld"], "(withheld)")}


def _prefixed(adapters: Mapping[str, Any]) -> dict[str, Any]:
    return {f"adapters/{path}": digest for path, digest in adapters.items()}


def _rank(rank: Mapping[str, Any]) -> dict[str, Any]:
    """Names of one planned rank: its node, mounts, variables and flags."""
    env = {**rank["env"], **dict.fromkeys(rank["env_withheld"], "(withheld)")}
    return {"node": rank["node"], "mounts": _mounts(rank["mounts"]), **env, **flag_groups(rank["command"])}


def _seen(rank: Mapping[str, Any], planned: Mapping[str, Any], generation: str) -> dict[str, Any]:
    """Names of one observed rank, with the tokens of the plan where the node agent filled them in."""
    env = {
        name: planned["env"][name] if PORT_TOKEN in planned["env"].get(name, "") else value
        for name, value in rank["env"].items()
    }
    command = [
        argument if wanted is None or PORT_TOKEN not in wanted else wanted
        for argument, wanted in zip_longest(rank["command"], planned["command"][: len(rank["command"])])
    ]
    versions = rank["versions"]
    mounts = [
        {**mount, "source": str(mount["source"]).replace(generation, GENERATION_TOKEN)} for mount in rank["mounts"]
    ]
    return {
        **{name.replace("_", " "): rank[name] for name in OBSERVED_NAMES},
        **env,
        **dict.fromkeys(rank["env_withheld"], "(withheld)"),
        **flag_groups(command),
        "mounts": _mounts(mounts),
        **_prefixed(rank["adapters"]),
        "engine version": versions["engine"],
        "kernel": versions["kernel"],
        **{f"package {name}": version for name, version in versions["packages"].items()},
        **{f"kernel package {name}": version for name, version in versions["kernel_packages"].items()},
        **{f"Engram shard of layer {layer['layer']}": _shard(layer) for layer in rank["engram"]},
    }


def _mounts(mounts: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(f"{mount['source']}:{mount['target']}:{'ro' if mount['read_only'] else 'rw'}" for mount in mounts)


def _shard(layer: Mapping[str, Any]) -> str:
    """What the engine says of a shard. Its bytes were compared with the checkpoint's before each boot."""
    return f"packed={layer['packed']} rows [{layer['first_row']},{layer['end_row']})"
