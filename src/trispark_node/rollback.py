"""Verbs `rollback` and `rollback-clear`: this node's part of the way back, in one call.

Fence, stop our engine, point `current` at the target, prove that nothing is left. Nothing is started: three ranks serve
together or not at all. `rollback.json` says from the first effect on what this node was brought to and which nodes were
missing; it goes when the fleet serves again or a person has stopped it, so that no incomplete rollback is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trispark_node import ENGINE_NAME, engine, epoch, generations, good, room, stopped
from trispark_node.canonical import canonical_json
from trispark_node.containers import ROLE_ENGINE, own, refuse_foreign
from trispark_node.docker_client import Container
from trispark_node.errors import AgentError
from trispark_node.fields import GENERATION_ID, NAME, Fields
from trispark_node.mutation import Plan
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_regular

SCHEMA_VERSION = 1
GOOD = "good"
BY_HAND = "by hand"
"""`by` of a rollback that a person asked for on the node's shell."""


@dataclass(frozen=True)
class RollbackRequest:
    """`to`: a generation's id, or `good` for the newest good one that is whole here. `epoch` None: one more than this
    node's. `missing`: nodes that could not be reached."""

    to: str
    epoch: int | None
    boot_id: str | None
    deadline_s: float
    missing: tuple[str, ...]
    by: str

    @classmethod
    def parse(cls, fields: Fields) -> RollbackRequest:
        to = fields.text("to", GOOD)
        if to != GOOD:
            to = fields.text("to", pattern=GENERATION_ID)
        given = fields.has("epoch")
        epoch_given = fields.integer("epoch", low=1) if given else None
        if not given:
            fields.anything("epoch")
        return cls(
            to,
            epoch_given,
            fields.optional_text("boot_id", pattern=NAME),
            fields.seconds("deadline_s", 15, high=3600),
            fields.texts("missing", []),
            fields.text("by", BY_HAND),
        )


@dataclass(frozen=True)
class Pending:
    """rollback.json: where this node was brought, and that the fleet does not serve it yet."""

    target: str
    epoch: int
    boot_id: str | None
    since: str
    missing: tuple[str, ...]
    by: str

    @classmethod
    def parse(cls, fields: Fields) -> Pending:
        fields.integer("schema_version", low=SCHEMA_VERSION, high=SCHEMA_VERSION)
        found = cls(
            fields.text("target", pattern=GENERATION_ID),
            fields.integer("epoch", low=1),
            fields.optional_text("boot_id", pattern=NAME),
            fields.text("since"),
            fields.texts("missing"),
            fields.text("by"),
        )
        fields.done()
        return found

    def json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "target": self.target,
            "epoch": self.epoch,
            "boot_id": self.boot_id,
            "since": self.since,
            "missing": list(self.missing),
            "by": self.by,
        }


def read(node: Node) -> Pending | None:
    """The rollback that is not complete; None when there is none. Raises TS-AGENT-DAMAGED."""
    path = node.layout.rollback
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return None
    try:
        return Pending.parse(Fields(parse_json(content), str(path)))
    except (ValueError, TypeError, AttributeError, AgentError) as error:
        raise AgentError(
            "TS-AGENT-DAMAGED",
            "the state of the rollback cannot be read",
            where=str(path),
            expected="what a rollback wrote",
            observed=content[:80].decode("utf-8", "replace") or "an empty file",
            remedy="roll back again: ./trispark rollback",
        ) from error


def is_there(node: Node) -> bool:
    """Whether something lies in the place of rollback.json, readable or not."""
    return node.layout.rollback.is_symlink() or node.layout.rollback.exists()


def _pending_or_none(node: Node) -> Pending | None:
    """A damaged file is written anew by the rollback that is asked for."""
    try:
        return read(node)
    except AgentError:
        return None


def show(node: Node) -> dict[str, Any]:
    """{"rollback": rollback.json or null}, for `status`."""
    pending = read(node)
    return {"rollback": None if pending is None else pending.json()}


def target(node: Node, to: str) -> str:
    """The generation that is meant and whole here. Raises TS-AGENT-NO-TARGET, TS-AGENT-NOT-STAGED, TS-AGENT-DAMAGED."""
    if to != GOOD:
        generations.require_whole(node, to)
        return to
    passed: list[str] = []
    for mark in reversed(good.read(node).marks):
        if mark.generation in passed:
            continue
        try:
            generations.require_whole(node, mark.generation)
        except AgentError:
            passed.append(mark.generation)
            continue
        return mark.generation
    raise AgentError(
        "TS-AGENT-NO-TARGET",
        "no good generation is whole on this node",
        where=str(node.layout.good),
        expected="a generation that passed its gates outside a trial",
        observed=f"none whole of {', '.join(passed)}" if passed else "none is marked",
        remedy="name one of the stored ones: trispark-node rollback --to ID (trispark-node status lists them)",
    )


def plan_rollback(node: Node, request: RollbackRequest) -> Plan:
    generation = target(node, request.to)
    stored = _stored_epoch(node, request)
    pending = _pending_or_none(node)
    before = _current_or_none(node)
    here = node.boot_identity
    of_this_start = stored.host_boot in (None, here)
    resumed = request.epoch is None and pending is not None and pending.target == generation and of_this_start
    wanted = stored.number if resumed else stored.number + 1 if request.epoch is None else request.epoch
    own_fence = resumed or (of_this_start and stored.boot_id == request.boot_id)
    if wanted < stored.number or (wanted == stored.number and not own_fence):
        owner = f" for boot {stored.boot_id}" if stored.boot_id else ""
        raise epoch.stale(str(node.layout.epoch), f"more than {stored.number}{owner}", str(wanted))
    fenced = stored if wanted == stored.number else epoch.Epoch(wanted, request.boot_id, here)
    file = Pending(
        generation,
        wanted,
        fenced.boot_id,
        pending.since if pending is not None and pending.target == generation else node.clock.now(),
        request.missing,
        request.by,
    )
    result = {"generation": generation, "previous": before, "epoch": wanted}
    there = _containers(node)
    if before == generation and there == [] and fenced == stored and pending == file:
        return Plan(None, {**result, "stop": None, "seconds": {}})
    return Plan(
        lambda: _apply(node, request, file, fenced if fenced != stored else None),
        result,
        {
            "from": before,
            "to": generation,
            "epoch": wanted,
            "boot_id": fenced.boot_id,
            "deadline_s": request.deadline_s,
            "missing": list(request.missing),
            "by": request.by,
            "ids": [container.id for container in there or ()],
        },
        (
            f"current {before or 'none'}\n" + "".join(f"engine {each.name} {each.status}\n" for each in there or ()),
            f"current {generation}\nengine absent\n",
        ),
        journal_required=False,
    )


def _containers(node: Node) -> list[Container] | None:
    """None while the Docker Engine does not tell; that hinders the stop, not the fence."""
    try:
        return own(node.docker, ROLE_ENGINE)
    except AgentError:
        return None


def _stored_epoch(node: Node, request: RollbackRequest) -> epoch.Epoch:
    """A damaged file does not stand in the way of an epoch that a controller gives: it knows those of all nodes."""
    try:
        return epoch.read(node)
    except AgentError:
        if request.epoch is None:
            raise
        return epoch.Epoch(0, None)


def _current_or_none(node: Node) -> str | None:
    """A link that leads astray is replaced; it must not hinder the way back."""
    try:
        return generations.current(node)
    except AgentError:
        return None


def _apply(node: Node, request: RollbackRequest, file: Pending, fence: epoch.Epoch | None) -> dict[str, Any]:
    """Fence and note first, then the engine, then the link, and the proof last: whoever is ended while it waits for
    memory to come back leaves a node that is stopped and repointed. Neither a full nor a read-only disk, nor a Docker
    Engine that does not answer, keeps the other steps from being done; what could not be done is raised at the end."""
    clock = node.clock
    began = clock.monotonic()
    unwritten: list[str] = []

    def write(name: str, change: Callable[[], None]) -> None:
        try:
            room.with_room(node, change)
        except OSError as error:
            unwritten.append(f"{name}: {error.strerror or error}")

    if fence is not None:
        write("epoch", lambda: epoch.write(node, fence))
    write("rollback.json", lambda: node.disk.replace(node.layout.rollback, canonical_json(file.json()) + b"\n"))
    stop, left = _stop(node, request.deadline_s)
    seconds = {"stopped": round(clock.monotonic() - began, 3)}
    if _current_or_none(node) != file.target:
        write("current", lambda: _point(node, file.target))
    seconds["repointed"] = round(clock.monotonic() - began, 3)
    done = {"stop": stop, "seconds": seconds, "repointed": _current_or_none(node) == file.target}
    if left is None:
        left = _beside(node, request.deadline_s)
    if left is not None:
        left.extra.update(done)
        raise left
    if unwritten:
        raise AgentError(
            "TS-AGENT-UNWRITTEN",
            "the engine is stopped, but the disk did not take all of the rollback's state",
            where=str(node.layout.root),
            expected="epoch, rollback.json and current on the disk",
            observed="; ".join(unwritten),
            remedy="make room or mend the file system, then roll back again",
            extra=done,
        )
    return {"stop": stop, "seconds": seconds}


def _stop(node: Node, deadline_s: float) -> tuple[dict[str, Any], AgentError | None]:
    """What was done to our engines, and what kept one from being stopped."""
    nothing: dict[str, Any] = {"seconds": 0.0, "killed": False, "log": None, "exit_code": None}
    try:
        containers = own(node.docker, ROLE_ENGINE)
        if not containers:
            return nothing, None
        return engine.stop_containers(node, deadline_s, containers, cut_log=True), None
    except AgentError as error:
        return nothing, error


def _beside(node: Node, deadline_s: float) -> AgentError | None:
    """What hinders the next boot although our engine is gone: a container in our place, a port, memory."""
    try:
        refuse_foreign(node.docker, ENGINE_NAME, ROLE_ENGINE)
        stopped.prove(node, proof_s(deadline_s)).require()
    except AgentError as error:
        return error
    return None


def proof_s(deadline_s: float) -> float:
    """How long ports and memory may take to come back; trispark.rollback.call_s gives the whole call time for it."""
    return min(10.0, max(6.0, deadline_s / 2))


def _point(node: Node, generation: str) -> None:
    path = node.layout.current
    if path.exists() and not path.is_symlink():
        raise AgentError(
            "TS-AGENT-DAMAGED",
            "current is no link, it is left alone",
            where=str(path),
            expected="a link to generations/<id>",
            observed="a file or directory",
            remedy="move it away, then roll back again",
        )
    node.disk.replace_link(path, f"generations/{generation}")


def again(detail: Mapping[str, Any]) -> RollbackRequest:
    """The request of an interrupted rollback, from what its intent says."""
    return RollbackRequest(
        str(detail["to"]),
        int(detail["epoch"]),
        detail["boot_id"],
        float(detail["deadline_s"]),
        tuple(map(str, detail["missing"])),
        str(detail["by"]),
    )


@dataclass(frozen=True)
class ClearRequest:
    """`why`: the fleet serves again, or what else made the rollback moot. `fence`: a person gave it up; this node's
    epoch grows, so that a node which could not be told does not bring it back (trispark.recovery)."""

    why: str
    fence: bool

    @classmethod
    def parse(cls, fields: Fields) -> ClearRequest:
        return cls(fields.text("why"), fields.boolean("fence", False))


def plan_clear(node: Node, request: ClearRequest) -> Plan:
    path = node.layout.rollback
    if not path.is_symlink() and not path.exists():
        return Plan(None, {"cleared": None})
    found = _pending_or_none(node)

    fence = epoch.Epoch(epoch.read(node).number + 1, None, node.boot_identity) if request.fence else None

    def apply() -> dict[str, Any]:
        if fence is not None:
            epoch.write(node, fence)
        node.disk.remove_file(path)
        node.disk.sync_directory(node.layout.root)
        return {}

    name = found.target if found is not None else "damaged"
    detail = {"target": name, "why": request.why, "epoch": fence.number if fence is not None else None}
    return Plan(apply, {"cleared": name}, detail, (f"rollback to {name}\n", ""), journal_required=False)
