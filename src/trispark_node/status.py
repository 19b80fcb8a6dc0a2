"""Verb `status`: what is true on this node now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trispark_node import (
    baseline,
    canary,
    docker_client,
    engine,
    epoch,
    fleet_lock,
    generations,
    good,
    lock,
    packed_state,
    processes,
    records,
    rollback,
    shard_drift,
    share_bounded,
    status_engine,
)
from trispark_node.errors import AgentError
from trispark_node.fields import Fields
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_regular

ENGINE_S = 2.0
"""For all that the Docker Engine is asked of containers; it answers in some hundredths of a second."""
LOG_S = 1.2
SHARDS_S = 0.5
CANARY_S = 2.4
HANGS = {
    "unstartable": "see the Docker Engine of this node (docker info)",
    "engine": "see the Docker Engine of this node (docker info)",
    "packed": "see the Docker Engine of this node (docker logs)",
    "shards": "see the file system of site_engram_dir on this node",
}
"""What to look at when a part does not answer in time."""


@dataclass(frozen=True)
class StatusRequest:
    """`quick`: without records, memory, shards, log and canary, for who only has to choose what to go back to."""

    quick: bool

    @classmethod
    def parse(cls, fields: Fields) -> StatusRequest:
        return cls(fields.boolean("quick", False))


def status(node: Node, request: StatusRequest = StatusRequest(quick=False)) -> dict[str, Any]:
    """Reads only. A damaged part is named under `problems` and does not hide the rest; a damaged generation, which
    stands in nobody's way but a rollback's, under `damaged`.

    Whatever may hang (the Docker Engine, the engine, a disk) is asked in a process of its own with a bound; it makes a
    connection of its own to the Docker Engine (`replace(node)`), because it inherits no open file. `unknown`
    names `engine` when the Docker Engine did not tell: then that `engine` is null says nothing.
    """
    problems: list[str] = []
    answer: dict[str, Any] = {
        "current": None,
        "generations": [],
        "damaged": {},
        "unstartable": {},
        "good": [],
        "epoch": 0,
        "engine": None,
        "others": [],
        "foreign": [],
        "unknown": ["engine"],
        "memory": None,
        "packed": None,
        "drift": [],
        "canary": None,
        "pending": [],
        "lock": None,
        "rollback": None,
        "baseline": None,
        "host_boot": None,
        "record_head": None,
        "record_chain": "damaged",
        "last_verdict": None,
        "last_boot": None,
        "problems": problems,
    }

    def take(parts: Mapping[str, Callable[[], dict[str, Any]]]) -> None:
        for part, read in parts.items():
            answer.update(_read(part, read, problems))

    take(
        {
            "journal": lambda: _journal(node, problems),
            "generations": lambda: {"generations": generations.staged(node), "damaged": generations.damaged(node)},
            "rollback": lambda: rollback.show(node),
            "lock": lambda: {"lock": fleet_lock.show(node)},
            "good": lambda: _good(node, problems),
            "current": lambda: _current(node, problems),
            "epoch": lambda: {"epoch": epoch.read(node).number},
            "engine": lambda: _engine(node),
            "unstartable": lambda: _unstartable(node, answer),
            "baseline": lambda: baseline.show(node),
            "host": lambda: {"host_boot": node.boot_identity},
        }
    )
    if request.quick:
        return answer
    take({"memory": lambda: _memory(node), "records": lambda: _records(node, answer["engine"])})
    runs = answer["engine"]
    answer["drift"] += status_engine.against_the_node(runs, answer["current"], answer["epoch"], answer["damaged"])
    meant = _meant(answer)
    gates = _gates(node, meant) if meant else {}
    take({"shards": lambda: _shards(node, answer, gates)})
    if runs is not None:
        take({"packed": lambda: _packed(node, runs, gates), "canary": lambda: _canary(node, answer, gates)})
    return answer


def _read(part: str, read: Callable[[], dict[str, Any]], problems: list[str]) -> dict[str, Any]:
    """What a part of the answer says; nothing when it cannot be read, which is then among `problems`."""
    try:
        return read()
    except AgentError as error:
        problems.append(str(error))
    except share_bounded.Late as late:
        problems.append(f"{part}: {late}; {HANGS.get(part, 'see the disks of this node')}")
    except OSError as error:
        problems.append(f"{part}: {error.filename or 'a file'} cannot be read: {error.strerror or error}")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # What damaged data raises where no reader expected it; a defect of another kind still ends the verb.
        problems.append(" ".join(f"{part}: not readable: {type(error).__name__}: {error}".split()))
    return {}


def _damaged(path: Path, lines: tuple[int, ...]) -> list[str]:
    return [f"{path.stem}: lines {', '.join(map(str, lines))} of {path} cannot be read"] if lines else []


def _journal(node: Node, problems: list[str]) -> dict[str, Any]:
    history = node.journal.read()
    problems += _damaged(node.layout.journal, history.damaged_lines)
    pending = [
        {"seq": entry.seq, "time": entry.time, "verb": entry.verb, "detail": dict(entry.detail)}
        for entry in history.pending()
    ]
    return {"pending": pending}


def _unstartable(node: Node, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Not asked of a Docker Engine that does not answer."""
    if answer["unknown"] or not answer["generations"]:
        return {}
    return {"unstartable": share_bounded.call(lambda: engine.unstartable(replace(node)), ENGINE_S)}


def _good(node: Node, problems: list[str]) -> dict[str, Any]:
    found = good.read(node)
    problems += _damaged(node.layout.good, found.damaged_lines)
    return {"good": [asdict(mark) for mark in found.marks]}


def _current(node: Node, problems: list[str]) -> dict[str, Any]:
    generation = generations.current(node)
    if generation is not None and not node.layout.generation(generation).is_dir():
        problems.append(f"current: {node.layout.current} leads to generation {generation}, which is not on this node")
    return {"current": generation}


def _records(node: Node, runs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of the whole chain: a head behind which a record is damaged proves nothing. `record` of the engine is how its
    boot was judged, null when it was not."""
    found = records.chain(node)
    judged = {} if runs is None else {"engine": {**runs, "record": _outcome(found, runs["boot_id"])}}
    return {
        "record_head": found[-1].head() if found else None,
        "record_chain": "ok" if found else "empty",
        "last_verdict": _verdict(_newest(found, "trial")),
        "last_boot": _boot(_newest(found, "boot")),
        **judged,
    }


def _outcome(found: list[records.Stored], boot: str | None) -> str | None:
    own = [each.record for each in found if boot is not None and each.record.get("boot_id") == boot]
    return None if not own else (own[-1].get("outcome") or {}).get("state")


def _newest(found: list[records.Stored], kind: str) -> Mapping[str, Any] | None:
    return next((stored.record for stored in reversed(found) if stored.record.get("kind") == kind), None)


def _verdict(record: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if record is None:
        return None
    requested, outcome = record.get("requested") or {}, record.get("outcome") or {}
    return {
        "id": record.get("id"),
        "feature": requested.get("feature"),
        "value": requested.get("value"),
        "verdict": outcome.get("verdict"),
    }


def _boot(record: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if record is None:
        return None
    outcome = record.get("outcome") or {}
    return {
        "id": record.get("id"),
        "boot_id": record.get("boot_id"),
        "state": outcome.get("state"),
        "reason": outcome.get("reason"),
    }


def _engine(node: Node) -> dict[str, Any]:
    docker_client.preload(node.connect)  # once, not in each child
    found: dict[str, Any] = share_bounded.call(lambda: status_engine.engine_part(replace(node)), ENGINE_S)
    return {**found, "unknown": []}


def _memory(node: Node) -> dict[str, Any]:
    found = processes.memory(node.procfs)
    return {
        "memory": {
            "available_bytes": found["memory_available_bytes"],
            "total_bytes": found["memory_total_bytes"],
            "source": "meminfo",
        }
    }


def _gates(node: Node, generation: str) -> dict[str, Any]:
    """What the generation's resolved configuration says of its gates; empty when it cannot be read: its damage is named
    elsewhere."""
    try:
        resolved = parse_json(read_regular(node.layout.generation(generation) / "resolved.json"))
        return dict(resolved["gates"])
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _packed(node: Node, engine: Mapping[str, Any], gates: Mapping[str, Any]) -> dict[str, Any]:
    layers, container = list(gates.get("layers") or ()), str(engine["id"])
    found = share_bounded.call(lambda: packed_state.packed(replace(node), container, layers), LOG_S)
    return {"packed": found}


def _shards(node: Node, answer: Mapping[str, Any], gates: Mapping[str, Any]) -> dict[str, Any]:
    layers, generation = list(gates.get("layers") or ()), _meant(answer)
    if not layers or generation is None:
        return {}
    try:
        spec = generations.load_spec(node, generation)
    except AgentError:
        return {}  # damaged: named elsewhere
    found = share_bounded.call(lambda: shard_drift.differences(node.procfs, spec, layers), SHARDS_S)
    return {"drift": [*answer["drift"], *found]}


def _meant(answer: Mapping[str, Any]) -> str | None:
    """The generation that runs, else the current one."""
    engine = answer["engine"]
    return str(engine["generation"]) if engine and engine["generation"] else answer["current"]


def _canary(node: Node, answer: Mapping[str, Any], gates: Mapping[str, Any]) -> dict[str, Any]:
    """The head's alone."""
    engine = answer["engine"]
    if engine["rank"] != 0 or engine["state"] != "running":
        return {}
    if engine["health"] != "ready":
        return {"canary": canary.not_asked(f"not asked: the engine is {engine['health'] or 'not known to be ready'}")}
    command = canary.at_work(answer["lock"])
    if command is not None:
        return {"canary": canary.not_asked(f"not asked: {command} is at work")}
    if lock.is_held(node.layout.lock("disk")):
        return {"canary": canary.not_asked("not asked: a measurement, or work on whole shards, is going on here")}
    try:
        return {"canary": share_bounded.call(lambda: canary.ask(node.http, node.clock, gates), CANARY_S)}
    except share_bounded.Late as late:
        return {"canary": {**canary.not_asked(str(late)), "ok": False}}
