"""Verbs `survey`, `adopt` and `adopt-back`: an engine that someone started by hand is looked at, taken over when that
is asked for explicitly, and can be started again as it was.

Everything else refuses such a container (TS-AGENT-FOREIGN). A take-over describes it, keeps the exact way back in a
file that only root can read, and stops it. The container itself stays, ended, unless its removal is asked for, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trispark_node import ENGINE_NAME, adopt_describe, engine
from trispark_node.adopt_describe import Raw
from trispark_node.canonical import canonical_json
from trispark_node.containers import ROLE_ENGINE, own
from trispark_node.errors import AgentError
from trispark_node.fields import NAME, Fields
from trispark_node.layout import STATE_FILE_MODE
from trispark_node.mutation import Plan
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_regular

ADOPTION = re.compile(r"a[0-9a-f]{16}")
STATE, DESCRIPTION, START, LOG = "state.json", "description.json", "start.json", "engine.log"
STOPPING, TAKEN, RETURNED = "stopping", "taken", "returned"


@dataclass(frozen=True)
class Taken:
    """What the agent keeps of a take-over beside description and start description. `container_id` is that of the
    container now: another one after it was made anew."""

    id: str
    phase: str
    time: str
    name: str
    container_id: str
    rank: int
    image_id: str
    fingerprint: str
    restart_policy: str
    restart_count: int

    @property
    def policy(self) -> dict[str, Any]:
        return {"Name": self.restart_policy, "MaximumRetryCount": self.restart_count}


@dataclass(frozen=True)
class SurveyRequest:
    """`names`: only these; none for all. `loggable`: variables whose value may be shown."""

    names: tuple[str, ...]
    loggable: tuple[str, ...]

    @classmethod
    def parse(cls, fields: Fields) -> SurveyRequest:
        return cls(fields.texts("names", []), fields.texts("loggable", []))


@dataclass(frozen=True)
class AdoptRequest:
    id: str
    container_id: str
    rank: int
    deadline_s: float
    remove: bool
    loggable: tuple[str, ...]

    @classmethod
    def parse(cls, fields: Fields) -> AdoptRequest:
        return cls(
            fields.text("id", pattern=ADOPTION),
            fields.text("container_id", pattern=re.compile("[0-9a-f]{64}")),
            fields.integer("rank", high=1023),
            fields.seconds("deadline_s", 15, high=3600),
            fields.boolean("remove", False),
            fields.texts("loggable", []),
        )


@dataclass(frozen=True)
class BackRequest:
    id: str

    @classmethod
    def parse(cls, fields: Fields) -> BackRequest:
        return cls(fields.text("id", pattern=ADOPTION))


# --- looking --------------------------------------------------------------------------------------------------------


def survey(node: Node, request: SurveyRequest) -> dict[str, Any]:
    """Containers that trispark did not make: those of `names`, else every rank of a group, with the names of the rest;
    and what was taken over before. Reads only."""
    engines, others = [], []
    for container_id in node.docker.all_ids():
        raw = node.docker.inspect(container_id)
        if raw is None:
            continue
        name = adopt_describe.name_of(raw)
        if _ours(raw):
            if name in request.names:
                raise _ours_already(name)
        elif name in request.names or (not request.names and adopt_describe.rank_of(raw)[0] is not None):
            engines.append(adopt_describe.describe(raw, node.docker.image(str(raw["Image"])), request.loggable))
        else:
            others.append(name)
    return {
        "containers": sorted(engines, key=lambda found: str(found["name"])),
        "others": sorted(others),
        "taken": [_shown(node, taken) for taken in _all(node)],
    }


def _ours(raw: Raw) -> bool:
    labels = raw["Config"].get("Labels") or {}
    return labels.get("trispark") == "1" and bool(labels.get("trispark.role"))


def _ours_already(name: str) -> AgentError:
    return AgentError(
        "TS-ADOPT-OURS",
        "trispark made this container itself",
        where=f"container {name}",
        expected="a container that someone started by hand",
        observed="the labels of trispark",
        remedy="./trispark play stop ends it",
    )


def _all(node: Node) -> list[Taken]:
    directory = node.layout.adopted
    names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    return [taken for name in names if ADOPTION.fullmatch(name) and (taken := _load(node, name)) is not None]


def taken_over(node: Node) -> list[Taken]:
    """What was taken over and not given back. Raises TS-ADOPT-DAMAGED."""
    return [taken for taken in _all(node) if taken.phase != RETURNED]


def _load(node: Node, adoption: str) -> Taken | None:
    path = node.layout.adoption(adoption) / STATE
    try:
        fields = Fields(parse_json(read_regular(path)), str(path))
        taken = Taken(
            id=fields.text("id", pattern=re.compile(adoption)),
            phase=fields.text("phase", pattern=re.compile(f"{STOPPING}|{TAKEN}|{RETURNED}")),
            time=fields.text("time"),
            name=fields.text("name", pattern=NAME),
            container_id=fields.text("container_id"),
            rank=fields.integer("rank"),
            image_id=fields.text("image_id"),
            fingerprint=fields.text("fingerprint"),
            restart_policy=fields.text("restart_policy"),
            restart_count=fields.integer("restart_count"),
        )
        fields.done()
        return taken
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError, AgentError) as error:
        raise AgentError(
            "TS-ADOPT-DAMAGED",
            "what is kept of a take-over cannot be read",
            where=str(path),
            expected="the file as the agent wrote it",
            observed=str(error)[:200],
            remedy=f"the way back is in {START} beside it, as the Engine API's create takes it; then move both away",
        ) from error


def _save(node: Node, taken: Taken) -> None:
    node.disk.replace(node.layout.adoption(taken.id) / STATE, canonical_json(asdict(taken)) + b"\n")


def _shown(node: Node, taken: Taken) -> dict[str, Any]:
    raw = node.docker.inspect(taken.container_id)
    state = "removed" if raw is None else str(raw["State"]["Status"])
    keys = ("id", "phase", "time", "name", "container_id", "rank")
    return {**{key: getattr(taken, key) for key in keys}, "container": state}


# --- taking over ----------------------------------------------------------------------------------------------------


def plan_adopt(node: Node, request: AdoptRequest) -> Plan:
    """Every refusal comes before the first effect. A take-over that was interrupted goes on where it stopped."""
    taken = _load(node, request.id)
    raw = node.docker.inspect(request.container_id)
    if taken is None:
        if raw is None:
            raise _gone(request)
        _refuse_unfit(raw, request)
        taken = _new(node, request, raw)
    elif taken.phase == RETURNED or taken.container_id != request.container_id:
        raise AgentError(
            "TS-ADOPT-RETURNED",
            "this take-over was gone back from, or was of another container",
            where=f"rank {request.rank}, take-over {request.id}",
            expected=f"container {request.container_id[:12]}, taken",
            observed=f"container {taken.container_id[:12]}, {taken.phase}",
            remedy="look again: ./trispark play adopt -e container=NAME",
        )
    result = {"id": request.id, "name": taken.name}
    ended = raw is None or not adopt_describe.alive(raw)
    if taken.phase == TAKEN and ended and (raw is None or not request.remove):
        return Plan(None, {**result, "seconds": 0.0, "killed": False, "removed": raw is None})
    if raw is not None and request.remove:
        _refuse_inexact(raw, request)
    found, kept = taken, raw

    def apply() -> dict[str, Any]:
        return _apply_adopt(node, request, found, kept)

    before = f"{taken.name} {raw['State']['Status'] if raw else 'removed'}\n"
    after = f"{taken.name} {'removed' if request.remove else 'ended and kept'}\n"
    return Plan(apply, result, {"id": request.id, "name": taken.name}, (before, after))


def _new(node: Node, request: AdoptRequest, raw: Raw) -> Taken:
    policy = adopt_describe.restart_policy(raw)
    return Taken(
        id=request.id,
        phase=STOPPING,
        time=node.clock.now(),
        name=adopt_describe.name_of(raw),
        container_id=str(raw["Id"]),
        rank=request.rank,
        image_id=str(raw["Image"]),
        fingerprint=adopt_describe.fingerprint(raw),
        restart_policy=policy["Name"],
        restart_count=policy["MaximumRetryCount"],
    )


def _gone(request: AdoptRequest) -> AgentError:
    return AgentError(
        "TS-ADOPT-GONE",
        "the container is not there any more",
        where=f"rank {request.rank}, container {request.container_id[:12]}",
        expected="the container that was surveyed",
        observed="no such container",
        remedy="look again: ./trispark play adopt -e container=NAME",
    )


def _refuse_unfit(raw: Raw, request: AdoptRequest) -> None:
    name = adopt_describe.name_of(raw)
    if _ours(raw):
        raise _ours_already(name)
    rank, _ = adopt_describe.rank_of(raw)
    if rank != request.rank:
        raise AgentError(
            "TS-ADOPT-NOENGINE",
            "this container is not this node's rank of an engine; it is left alone",
            where=f"rank {request.rank}, container {name}",
            expected=f"{adopt_describe.RANK_VARIABLE} or {adopt_describe.RANK_FLAG} with {request.rank}",
            observed="no rank" if rank is None else f"rank {rank}",
            remedy="name the engine's container; what else runs here, such as a file server, is its owner's to stop",
        )
    if adopt_describe.auto_remove(raw) and not request.remove:
        raise AgentError(
            "TS-ADOPT-AUTOREMOVE",
            "the Engine removes this container as soon as it ends",
            where=f"rank {request.rank}, container {name}",
            expected="a container started without --rm",
            observed="AutoRemove",
            remedy="with -e remove=true as well it is taken over, and made anew on the way back",
        )


def _refuse_inexact(raw: Raw, request: AdoptRequest) -> None:
    lacks = adopt_describe.inexact(raw)
    if lacks:
        raise AgentError(
            "TS-ADOPT-INEXACT",
            "made anew, this container would not be what it was; it is not removed",
            where=f"rank {request.rank}, container {adopt_describe.name_of(raw)}",
            expected="a container that its description says all of",
            observed="; ".join(lacks),
            remedy="take it over without -e remove=true: ended and kept, it can be started again",
        )


def _apply_adopt(node: Node, request: AdoptRequest, taken: Taken, raw: Raw | None) -> dict[str, Any]:
    started = node.clock.monotonic()
    directory = node.layout.adoption(taken.id)
    node.disk.make_directory(directory)
    if raw is not None and not (directory / STATE).exists():
        image = node.docker.image(taken.image_id)
        described = adopt_describe.describe(raw, image, request.loggable)
        reference = str(raw["Config"]["Image"])
        named = node.docker.image(reference)
        # A tag that moved meanwhile would make another engine of the same words.
        exact = reference if named is not None and named.id == taken.image_id else taken.image_id
        start = {"name": taken.name, "body": adopt_describe.start_body(raw, exact)}
        node.disk.replace(directory / START, canonical_json(start) + b"\n", STATE_FILE_MODE)
        node.disk.replace(directory / DESCRIPTION, canonical_json(described) + b"\n", STATE_FILE_MODE)
        _save(node, taken)
    killed, log = False, None
    if raw is not None:
        # One that removes itself takes its log with it, so that is kept up to here.
        early = _keep_log(node, taken) if adopt_describe.auto_remove(raw) else None
        killed = _end(node, request, raw)
        log = _put_away(node, request, taken) or early
    _save(node, replace(taken, phase=TAKEN))
    return {
        "seconds": round(node.clock.monotonic() - started, 3),
        "killed": killed,
        "removed": node.docker.inspect(taken.container_id) is None,
        "log": str(log) if log is not None else None,
        "way_back": str(directory / START),
    }


def _end(node: Node, request: AdoptRequest, raw: Raw) -> bool:
    """True when it had to be killed."""
    container = node.docker.container(request.container_id)
    if container is None:
        return False
    if adopt_describe.restart_policy(raw)["Name"] != "no":
        # Else the Engine would start it again by itself, at once or with the next boot of the node.
        node.docker.set_restart_policy(container.id, {"Name": "no", "MaximumRetryCount": 0})
    deadline = node.clock.monotonic() + request.deadline_s
    killed = engine.end(node, container, deadline, adopt_describe.stop_signal(raw))
    engine.prove_ended(node, container)
    if adopt_describe.auto_remove(raw):
        gone = node.clock.monotonic() + engine.KILL_WAIT_S
        while node.docker.inspect(container.id) is not None and node.clock.monotonic() < gone:
            node.clock.sleep(engine.POLL_S)
    return killed


def _put_away(node: Node, request: AdoptRequest, taken: Taken) -> Path | None:
    """Its log is kept; our name becomes free; the container goes only when that was asked for."""
    raw = node.docker.inspect(taken.container_id)
    if raw is None:
        return None
    log = _keep_log(node, taken)
    if request.remove:
        node.docker.remove(taken.container_id)
    elif adopt_describe.name_of(raw) == ENGINE_NAME:
        node.docker.rename(taken.container_id, aside(taken.id))
    return log


def aside(adoption: str) -> str:
    """The name of an ended container that had ours."""
    return f"trispark-adopted-{adoption}"


def _keep_log(node: Node, taken: Taken) -> Path:
    target = node.layout.adoption(taken.id) / LOG
    temporary = target.with_name(f".{LOG}.new")
    node.disk.remove_file(temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, STATE_FILE_MODE)
    try:
        for piece in node.docker.log(taken.container_id):
            node.disk.write_all(descriptor, temporary, piece)
        node.disk.sync_file(descriptor, temporary)
    finally:
        os.close(descriptor)
    node.disk.rename(temporary, target)
    return target


# --- the way back ---------------------------------------------------------------------------------------------------


def plan_back(node: Node, request: BackRequest) -> Plan:
    """Start it again as it was: the kept container, or one made from the start description and compared with it."""
    taken = _load(node, request.id)
    if taken is None:
        raise AgentError(
            "TS-ADOPT-UNKNOWN",
            "there is no such take-over on this node",
            where=f"take-over {request.id}",
            expected=", ".join(each.id for each in _all(node)) or "one that was made here, there is none",
            observed=request.id,
            remedy="./trispark play adopt shows them",
        )
    _refuse_our_engine(node, taken)
    raw = node.docker.inspect(taken.container_id)
    how = "made anew" if raw is None else "kept"
    result = {"id": taken.id, "name": taken.name, "how": how}
    if raw is not None and adopt_describe.alive(raw) and taken.phase == RETURNED:
        return Plan(None, {**result, "container_id": taken.container_id})
    if raw is not None and adopt_describe.fingerprint(raw) != taken.fingerprint:
        raise AgentError(
            "TS-ADOPT-CHANGED",
            "the kept container is not what it was when it was taken over",
            where=f"rank {taken.rank}, container {adopt_describe.name_of(raw)}",
            expected=f"fingerprint {taken.fingerprint[:16]}",
            observed=adopt_describe.fingerprint(raw)[:16],
            remedy=f"see its owner; the start description is {node.layout.adoption(taken.id) / START}",
        )
    start = _start_description(node, taken)
    _refuse_taken_name(node, taken)
    _refuse_missing(node, taken, raw, start)

    def apply() -> dict[str, Any]:
        return _apply_back(node, taken, raw, start)

    detail = {"id": taken.id, "name": taken.name, "how": how}
    return Plan(apply, result, detail, (f"{taken.name} ended\n", f"{taken.name} running\n"))


def _refuse_our_engine(node: Node, taken: Taken) -> None:
    running = [container for container in own(node.docker, ROLE_ENGINE) if container.alive]
    if running:
        raise AgentError(
            "TS-ADOPT-RUNNING",
            "an engine of ours runs on this node",
            where=f"rank {taken.rank}, container {running[0].name}",
            expected="no engine",
            observed=running[0].status,
            remedy="./trispark play stop first",
        )


def _start_description(node: Node, taken: Taken) -> Mapping[str, Any]:
    path = node.layout.adoption(taken.id) / START
    try:
        fields = Fields(parse_json(read_regular(path), any_text=True), str(path))
        body = fields.mapping("body")
        fields.text("name", pattern=re.compile(re.escape(taken.name)))
        fields.done()
        return body
    except (OSError, ValueError, AttributeError, AgentError) as error:
        raise AgentError(
            "TS-ADOPT-START",
            "the start description cannot be used",
            where=str(path),
            expected="the file as the agent wrote it",
            observed=type(error).__name__,  # not its text: it holds secrets
            remedy="where the ended container is still there, start it with docker start",
        ) from error


def _refuse_taken_name(node: Node, taken: Taken) -> None:
    other = node.docker.inspect(taken.name)
    if other is not None and other["Id"] != taken.container_id:
        raise AgentError(
            "TS-ADOPT-NAME",
            "another container has its name now",
            where=f"rank {taken.rank}, container {taken.name}",
            expected=f"container {taken.container_id[:12]}, or none",
            observed=f"container {other['Id'][:12]}, {other['State']['Status']}",
            remedy="./trispark play stop where it is an engine of ours, else its owner removes or renames it",
        )


def _refuse_missing(node: Node, taken: Taken, raw: Raw | None, start: Mapping[str, Any]) -> None:
    binds = [str(bind).partition(":")[0] for bind in start["HostConfig"].get("Binds") or ()]
    binds += [str(m["Source"]) for m in start["HostConfig"].get("Mounts") or () if m.get("Type") == "bind"]
    wanted = adopt_describe.bind_sources(raw) if raw is not None else [path for path in binds if path.startswith("/")]
    missing = [path for path in wanted if not os.path.lexists(path)]
    if missing:
        raise AgentError(
            "TS-ADOPT-MOUNT",
            "what it mounts is not there",
            where=f"rank {taken.rank}, container {taken.name}",
            expected=", ".join(missing),
            observed="nothing; the Engine would make empty directories",
            remedy="bring it back first, for instance with ./trispark play share",
        )
    if raw is None and node.docker.image(taken.image_id) is None:
        raise AgentError(
            "TS-ADOPT-IMAGE",
            "its image is not on this node any more",
            where=f"rank {taken.rank}, container {taken.name}",
            expected=taken.image_id,
            observed="absent",
            remedy="load that image again (docker load), then repeat",
        )


def _apply_back(node: Node, taken: Taken, raw: Raw | None, start: Mapping[str, Any]) -> dict[str, Any]:
    container_id = taken.container_id
    if raw is None:
        container_id = _made_anew(node, taken, start)
    else:
        if adopt_describe.name_of(raw) != taken.name:
            node.docker.rename(container_id, taken.name)
        if adopt_describe.restart_policy(raw) != taken.policy:
            node.docker.set_restart_policy(container_id, taken.policy)
    node.docker.start(container_id)
    _save(node, replace(taken, phase=RETURNED, container_id=container_id))
    return {"container_id": container_id}


def _made_anew(node: Node, taken: Taken, start: Mapping[str, Any]) -> str:
    """Created, compared before it runs, and taken away again when it is not the same."""
    container_id = node.docker.create(taken.name, start)
    made = node.docker.inspect(container_id)
    if made is not None and adopt_describe.fingerprint(made) == taken.fingerprint:
        return container_id
    node.docker.remove(container_id)
    raise AgentError(
        "TS-ADOPT-DIFFERS",
        "the container that was made anew is not what it was; it was removed before it ran",
        where=f"rank {taken.rank}, container {taken.name}",
        expected=f"fingerprint {taken.fingerprint[:16]}",
        observed=adopt_describe.fingerprint(made)[:16] if made is not None else "no container",
        remedy=f"compare it with {node.layout.adoption(taken.id) / START} on the node",
    )
