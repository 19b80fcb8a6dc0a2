"""Verbs `rollback` and `rollback-clear`: this node's part of the way back, in one call.

Fence, stop our engine, prove it stopped, point `current` at the target. Nothing is started: three ranks serve together
or not at all. `rollback.json` says from the first effect on what this node was brought to and which nodes were missing;
it goes when the fleet serves again (or a person stopped it), so that a rollback which did not end is never forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trispark_node import engine, epoch, generations, good, host, room
from trispark_node.canonical import canonical_json
from trispark_node.containers import ROLE_ENGINE, own
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
    stored = _stored_epoch(node)
    pending = _pending_or_none(node)
    before = _current_or_none(node)
    here = host.boot_identity(node)
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
    there = own(node.docker, ROLE_ENGINE)
    if before == generation and not there and fenced == stored and pending == file:
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
            "ids": [container.id for container in there],
        },
        (
            f"current {before or 'none'}\n" + "".join(f"engine {each.name} {each.status}\n" for each in there),
            f"current {generation}\nengine absent\n",
        ),
        journal_required=False,
    )


def _stored_epoch(node: Node) -> epoch.Epoch:
    return epoch.read(node)


def _current_or_none(node: Node) -> str | None:
    """A link that leads astray is replaced; it must not hinder the way back."""
    try:
        return generations.current(node)
    except AgentError:
        return None


def _apply(node: Node, request: RollbackRequest, file: Pending, fence: epoch.Epoch | None) -> dict[str, Any]:
    clock = node.clock
    began = clock.monotonic()
    unwritten: list[str] = []

    def note(name: str, write: Any) -> None:
        """Neither a full nor a read-only disk keeps an engine from being stopped; what it refused is named."""
        try:
            room.with_room(node, write)
        except OSError as error:
            unwritten.append(f"{name}: {error.strerror or error}")

    if fence is not None:
        note("epoch", lambda: epoch.write(node, fence))
    note("rollback.json", lambda: node.disk.replace(node.layout.rollback, canonical_json(file.json()) + b"\n"))
    stop, left = _stop(node, request.deadline_s)
    seconds = {"stopped": round(clock.monotonic() - began, 3)}
    if _current_or_none(node) != file.target:
        room.with_room(node, lambda: _point(node, file.target))
    seconds["repointed"] = round(clock.monotonic() - began, 3)
    if left is not None:
        left.extra.update(seconds=seconds, repointed=True)
        raise left
    if unwritten:
        raise AgentError(
            "TS-AGENT-UNWRITTEN",
            "the engine is stopped and the target current, but the disk did not take all of the rollback's state",
            where=str(node.layout.root),
            expected="epoch and rollback.json on the disk",
            observed="; ".join(unwritten),
            remedy="make room or mend the file system, then roll back again",
            extra={"stop": stop, "seconds": seconds, "repointed": True},
        )
    return {"stop": stop, "seconds": seconds}


def _stop(node: Node, deadline_s: float) -> tuple[dict[str, Any], AgentError | None]:
    """What the stop did; and what it found left beside the engine that is gone (a port, memory), which hinders the next
    boot, but not that the target becomes current. Raises what keeps the engine from being stopped."""
    try:
        plan = engine.plan_stop(node, engine.StopRequest(deadline_s, cut_log=True, proof_s=proof_s(deadline_s)))
        return {**plan.result, **(plan.apply() if plan.apply is not None else {})}, None
    except AgentError as error:
        if "stopped" not in error.extra:
            raise
        return dict(error.extra["stopped"]), error


def proof_s(deadline_s: float) -> float:
    """How long ports and memory may take to come back: in an incident no longer than the caller waits (rollback.yml
    gives the call its deadline and 15 s)."""
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
    """`why`: the fleet serves again, or what else made the rollback moot."""

    why: str

    @classmethod
    def parse(cls, fields: Fields) -> ClearRequest:
        return cls(fields.text("why"))


def plan_clear(node: Node, request: ClearRequest) -> Plan:
    path = node.layout.rollback
    if not is_there(node):
        return Plan(None, {"cleared": None})
    found = _pending_or_none(node)

    def apply() -> dict[str, Any]:
        node.disk.remove_file(path)
        node.disk.sync_directory(node.layout.root)
        return {}

    name = found.target if found is not None else "damaged"
    return Plan(
        apply,
        {"cleared": name},
        {"target": name, "why": request.why},
        (f"rollback to {name}\n", ""),
        journal_required=False,
    )
