"""Verbs `start` and `stop`: one engine container on this node, ours alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node import (
    ENGINE_NAME,
    autotune_image,
    engine_state,
    epoch,
    generations,
    logs,
    processes,
    room,
    stopped,
)
from trispark_node.containers import (
    ROLE_ENGINE,
    Identity,
    engine_config,
    identity,
    missing_sources,
    own,
    refuse_foreign,
    source_problem,
    substituted_mounts,
)
from trispark_node.docker_client import Container, MountPoint
from trispark_node.errors import AgentError
from trispark_node.fields import GENERATION_ID, NAME, Fields
from trispark_node.mutation import Plan
from trispark_node.node import Node
from trispark_node.spec import Spec

POLL_S = 0.1
LOOK_S = 1.0
"""For one mount's source in a status, which must not hang with a share."""
KILL_WAIT_S = 10.0
"""How long the kernel gets to end a killed container's processes before they are named as left over."""


@dataclass(frozen=True)
class StartRequest:
    """`clear_autotune`: begin without the tactics that lie there, whatever image they were made under. `generation`:
    the one that must be current, None for whichever is."""

    boot_id: str
    epoch: int
    clear_autotune: bool = False
    generation: str | None = None

    @classmethod
    def parse(cls, fields: Fields) -> StartRequest:
        return cls(
            fields.text("boot_id", pattern=NAME),
            fields.integer("epoch", low=1),
            fields.boolean("clear_autotune", False),
            fields.optional_text("generation", pattern=GENERATION_ID),
        )


@dataclass(frozen=True)
class StopRequest:
    """`cut_log`: where a full disk does not take the whole log its beginning and end are enough; a rollback asks so.
    `proof_s`: how long what is left may take to go."""

    deadline_s: float
    cut_log: bool = False
    proof_s: float = stopped.STOP_WAIT_S

    @classmethod
    def parse(cls, fields: Fields) -> StopRequest:
        return cls(fields.seconds("deadline_s", 15, high=3600))


def plan_start(node: Node, request: StartRequest) -> Plan:
    """Every refusal comes before the first effect."""
    generation = generations.require_current(node)
    if request.generation not in (None, generation):
        raise AgentError(
            "TS-AGENT-NOT-CURRENT",
            "another generation than the one to be started is current on this node",
            where=str(node.layout.current),
            expected=str(request.generation),
            observed=generation,
            remedy="see who changed it (the journal); then boot or roll back again",
        )
    generations.require_whole(node, generation)
    spec = generations.load_spec(node, generation)
    _check_epoch(node, request)
    who = Identity(ROLE_ENGINE, generation, request.boot_id, request.epoch, spec.rank)
    result = {
        "generation": generation,
        "boot_id": request.boot_id,
        "epoch": request.epoch,
        "rendezvous_port": spec.port(request.epoch),
    }
    refuse_foreign(node.docker, spec.container.name, ROLE_ENGINE)
    present = own(node.docker, ROLE_ENGINE)
    running = [container for container in present if container.alive]
    if running:
        _refuse_other_engine(running, who)
        return Plan(None, {**result, "container_id": running[0].id})
    _check_boot_unused(node, request.boot_id, present)
    _check_image(node, spec)
    _check_mounts(node, spec)
    if not request.clear_autotune:
        autotune_image.require(node, spec)
    stopped.prove(node, stopped.START_WAIT_S).require()

    return Plan(
        lambda: _apply_start(node, spec, who, present, clear_autotune=request.clear_autotune),
        result,
        {"generation": generation, "boot_id": request.boot_id, "epoch": request.epoch},
        ("engine absent\n", f"engine {spec.container.image} generation {generation} boot {request.boot_id}\n"),
    )


def can_start(node: Node, request: generations.GenerationRequest) -> dict[str, Any]:
    """Verb `can-start`: refuses, with `start`'s own errors, what `start` would refuse of this generation whatever the
    boot and the epoch. Reads only; the generation need not be the current one, and an engine may run."""
    generations.require_whole(node, request.generation)
    spec = generations.load_spec(node, request.generation)
    refuse_foreign(node.docker, spec.container.name, ROLE_ENGINE)
    _check_image(node, spec)
    _check_mounts(node, spec)
    proof = stopped.prove(node, stopped.START_WAIT_S, beside_engine=True)
    proof.require()
    return {
        "generation": request.generation,
        "image": spec.container.image,
        "mounts": [mount.source for mount in _mounts(node, spec)],
        "unchecked": list(proof.unchecked),
    }


def unstartable(node: Node) -> dict[str, str]:
    """{id: why} of the generations on this node that a start would refuse for their image or mounts: what a rollback
    passes over. Each image and source is looked at once, a source for a short time; a damaged generation is left out.
    """
    images: dict[str, bool] = {}
    sources: dict[str, str | None] = {}

    def image_wrong(image: str) -> str | None:
        if image not in images:
            images[image] = node.docker.image(image) is not None
        return None if images[image] else f"the image {image} is not on this node"

    def source_wrong(source: str) -> str | None:
        if source not in sources:
            sources[source] = source_problem(source, LOOK_S)
        return sources[source]

    found: dict[str, str] = {}
    for generation in generations.staged(node):
        try:
            spec = generations.load_spec(node, generation)
        except AgentError:
            continue
        mounts = _mounts(node, spec)
        made = engine_state.made_by_agent(node, mounts)
        wrong = [image_wrong(spec.container.image)]
        wrong += [source_wrong(mount.source) for mount in mounts if Path(mount.source) not in made]
        first = next((text for text in wrong if text is not None), None)
        if first is not None:
            found[generation] = first
    return found


def _check_epoch(node: Node, request: StartRequest) -> None:
    stored = epoch.read(node)
    if request.epoch != stored.number:
        raise epoch.stale("start", f"epoch {stored.number} as fenced", f"epoch {request.epoch}")
    here = node.boot_identity
    if stored.host_boot not in (None, here):
        raise epoch.of_another_host_boot(stored, here)
    if stored.boot_id not in (None, request.boot_id):
        raise epoch.stale("start", f"boot {stored.boot_id}, for which epoch {stored.number} was taken", request.boot_id)


def _refuse_other_engine(running: list[Container], who: Identity) -> None:
    """Only this very boot, already running, is no obstacle."""
    for container in running:
        if identity(container) != who:
            other = identity(container)
            raise AgentError(
                "TS-AGENT-RUNNING",
                "another engine of ours runs on this node",
                where=f"container {container.name}",
                expected=f"none, or boot {who.boot_id} of generation {who.generation}, epoch {who.epoch}",
                observed=f"{container.status}, {other}",
                remedy="stop it first (trispark-node stop)",
            )


def _check_boot_unused(node: Node, boot_id: str, present: list[Container]) -> None:
    """A boot is one start. A second one under its name would overwrite the evidence of the first."""
    ended = [c for c in present if c.status != "created" and logs.boot_of(c) == boot_id]
    log = node.layout.boot_log(boot_id)
    if ended or log.exists():
        raise AgentError(
            "TS-AGENT-BOOT-USED",
            "this boot has already run on this node",
            where=f"boot {boot_id}",
            expected="a boot id that was not used",
            observed=f"exit code {ended[0].exit_code}" if ended else f"its log {log}",
            remedy="take a new boot id",
        )


def _check_image(node: Node, spec: Spec) -> None:
    if node.docker.image(spec.container.image) is None:
        raise AgentError(
            "TS-AGENT-IMAGE",
            "the engine's image is not on this node",
            where=spec.container.image,
            expected="the image by its digest",
            observed="absent",
            remedy="bring it: ./trispark play images, or on the node trispark-node image-ensure",
        )


def _check_mounts(node: Node, spec: Spec) -> None:
    mounts = _mounts(node, spec)
    own = engine_state.made_by_agent(node, mounts)
    engine_state.refuse_foreign_places(own)
    missing = missing_sources(tuple(mount for mount in mounts if Path(mount.source) not in own))
    if missing:
        raise AgentError(
            "TS-AGENT-MOUNT",
            "a mount's source is missing",
            where=", ".join(missing),
            expected="an existing file or directory",
            observed="nothing there",
            remedy="mount or make it on the node; the agent makes no empty directory in its place",
        )


def _mounts(node: Node, spec: Spec) -> tuple[MountPoint, ...]:
    return substituted_mounts(spec.container, engine_state.places(node, spec))


def _apply_start(
    node: Node, spec: Spec, who: Identity, stale: list[Container], *, clear_autotune: bool
) -> dict[str, Any]:
    room.keep(node)  # the way back may need it
    for container in stale:
        if container.status != "created":  # one that never ran has no log, and its boot is not used up
            logs.save(node, container)
        node.docker.remove(container.id)
    removed = engine_state.prune(node, {spec.generation, *generations.staged(node)})
    cleared = clear_autotune and autotune_image.clear(node, spec)
    engine_state.make(node, engine_state.made_by_agent(node, _mounts(node, spec)))
    autotune_image.stamp(node, spec)
    config = engine_config(spec, engine_state.places(node, spec), who)
    container_id = node.docker.create(spec.container.name, config)
    try:
        node.docker.start(container_id)
    except AgentError as error:
        node.docker.remove(container_id)  # it never ran: there is no log to save
        raise AgentError(
            "TS-AGENT-START",
            "the engine's container does not start",
            where=spec.container.name,
            expected="a running container",
            observed=error.observed,
            remedy="correct what the Engine names; nothing is left of this start",
        ) from error
    return {
        "container_id": container_id,
        "removed_stale": [container.name for container in stale],
        "removed_state": removed,
        "cleared_autotune": cleared,
    }


def plan_stop(node: Node, request: StopRequest) -> Plan:
    containers = own(node.docker, ROLE_ENGINE)
    # A container of someone else in our place may well be serving: "stopped" would be a lie.
    refuse_foreign(node.docker, ENGINE_NAME, ROLE_ENGINE)
    if not containers:
        nothing: dict[str, Any] = {"seconds": 0.0, "killed": False, "log": None, "exit_code": None}
        return Plan(None, {**nothing, "proof": _prove_stopped(node, nothing, request.proof_s)})
    names = [container.name for container in containers]
    return Plan(
        lambda: _apply_stop(node, request, containers),
        {},
        {
            "containers": names,
            "boots": [logs.boot_of(container) for container in containers],
            "deadline_s": request.deadline_s,
            "ids": [container.id for container in containers],
        },
        ("".join(f"engine {container.name} {container.status}\n" for container in containers), "engine absent\n"),
        journal_required=False,
    )


def _apply_stop(node: Node, request: StopRequest, containers: list[Container]) -> dict[str, Any]:
    done = stop_containers(node, request.deadline_s, containers, cut_log=request.cut_log)
    return {**done, "proof": _prove_stopped(node, done, request.proof_s)}


def stop_containers(
    node: Node, deadline_s: float, containers: list[Container], *, cut_log: bool = False
) -> dict[str, Any]:
    """End, keep the log, remove; {"seconds", "killed", "log", "exit_code"} of the first. No proof beyond that."""
    started = node.clock.monotonic()
    killed = False
    for container in containers:
        killed = end(node, container, started + deadline_s) or killed
    for container in containers:
        prove_ended(node, container)
    ended = [node.docker.container(container.id) or container for container in containers]
    saved = [_save(node, container, cut_log) for container in ended]
    for container in ended:
        node.docker.remove(container.id)
        _prove_removed(node, container)
    return {
        "seconds": round(node.clock.monotonic() - started, 3),
        "killed": killed,
        "log": str(saved[0]),
        "exit_code": ended[0].exit_code,
    }


def _prove_stopped(node: Node, done: Mapping[str, Any], wait_s: float) -> dict[str, Any]:
    """Raises what is left, with what was done nevertheless: the container is gone and its log is kept."""
    proof = stopped.prove(node, wait_s)
    proof.require({"stopped": dict(done)})
    return proof.answer()


def _save(node: Node, container: Container, cut: bool) -> Path:
    try:
        return logs.save(node, container)
    except AgentError:
        if not cut:
            raise
        return room.with_room(node, lambda: logs.save_cut(node, container))


def end(node: Node, container: Container, deadline: float, polite: str = "SIGTERM") -> bool:
    """TERM, then KILL at the deadline. True when it had to be killed."""
    if not container.alive:
        return False
    if container.status == "paused":
        node.docker.unpause(container.id)  # a frozen process receives no signal
    node.docker.signal(container.id, polite)
    if _until(node, deadline, lambda: _ended(node, container)):
        return False
    node.docker.signal(container.id, "SIGKILL")
    if not _until(node, node.clock.monotonic() + KILL_WAIT_S, lambda: _ended(node, container)):
        raise _leftover(node, container, "the Engine still calls it running")
    return True


def _ended(node: Node, container: Container) -> bool:
    now = node.docker.container(container.id)
    return now is None or not now.alive


def _until(node: Node, deadline: float, condition: Callable[[], bool]) -> bool:
    while not condition():
        if node.clock.monotonic() >= deadline:
            return False
        node.clock.sleep(POLL_S)
    return True


def prove_ended(node: Node, container: Container) -> None:
    deadline = node.clock.monotonic() + KILL_WAIT_S
    if not _until(node, deadline, lambda: not processes.of_container(node.procfs, container.id)):
        raise _leftover(node, container, "the Engine calls it ended")


def _leftover(node: Node, container: Container, said: str) -> AgentError:
    pids = processes.of_container(node.procfs, container.id)
    return AgentError(
        "TS-AGENT-PROCESS-LEFT",
        "processes of the engine outlive SIGKILL; its container is kept",
        where=f"container {container.name} ({container.id[:12]})",
        expected="no process",
        observed=f"{said}; PIDs {', '.join(map(str, pids)) or 'unknown'}",
        remedy="a process that cannot be killed waits in the kernel: this node needs a reboot",
    )


def _prove_removed(node: Node, container: Container) -> None:
    if node.docker.container(container.id) is not None:
        raise AgentError(
            "TS-AGENT-CONTAINER-LEFT",
            "the engine's container is still there after its removal",
            where=f"container {container.name} ({container.id[:12]})",
            expected="no such container",
            observed="the Engine still lists it",
            remedy="see the Engine's log on this node",
        )
