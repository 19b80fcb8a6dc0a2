"""Verb `prove-stopped`: that nothing of an engine is left on this node, asked of the kernel and not of Docker alone.

No container of ours is alive, no process is in the control group of one, nobody listens on the engine's ports, and the
memory is available again. What is left is named, with its PID where it has one; nothing is ever ended here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from trispark_node import listeners, node_memory, processes, site_facts
from trispark_node.containers import ROLE_ENGINE, own
from trispark_node.docker_client import Container
from trispark_node.errors import AgentError
from trispark_node.fields import Fields
from trispark_node.node import Node
from trispark_node.site_facts import SiteFacts

POLL_S = 0.2
STOP_WAIT_S = 15.0
"""After a stop: a driver gives memory back a little after the processes have ended."""
START_WAIT_S = 5.0
_SHOWN_PIDS = 8
_REMEMBERED = 20
REBOOT = "this node needs a reboot"


@dataclass(frozen=True)
class ProveRequest:
    wait_s: float

    @classmethod
    def parse(cls, fields: Fields) -> ProveRequest:
        return cls(fields.seconds("wait_s", 10, high=600))


@dataclass(frozen=True)
class Proof:
    """`unchecked`: what could not be judged, and why; it counts neither way."""

    problems: tuple[AgentError, ...]
    unchecked: tuple[str, ...]
    memory: node_memory.Memory | None
    waited_s: float

    @property
    def clean(self) -> bool:
        return not self.problems

    def answer(self) -> dict[str, Any]:
        return {
            "clean": self.clean,
            "problems": [problem.fields() for problem in self.problems],
            "unchecked": list(self.unchecked),
            "memory": None if self.memory is None else self.memory.json(),
            "waited_s": self.waited_s,
        }

    def require(self, extra: Mapping[str, Any] | None = None) -> None:
        """Raises the first problem; `extra` and the whole proof go into the answer beside it."""
        if self.problems:
            first = self.problems[0]
            raise AgentError(
                first.id,
                first.what,
                where=first.where,
                expected=first.expected,
                observed=first.observed,
                remedy=first.remedy,
                extra={**(extra or {}), "proof": self.answer()},
            )


def verb(node: Node, request: ProveRequest) -> dict[str, Any]:
    return prove(node, request.wait_s).answer()


def prove(node: Node, wait_s: float, *, beside_engine: bool = False) -> Proof:
    """Looks until nothing is left, for at most `wait_s`.

    `beside_engine`: an engine of ours may run; then what it holds is no problem and its memory is not judged.
    """
    began = node.clock.monotonic()
    while True:
        proof = _look(node, beside_engine, began)
        if proof.clean or node.clock.monotonic() - began >= wait_s:
            return proof
        node.clock.sleep(POLL_S)


def _look(node: Node, beside_engine: bool, began: float) -> Proof:
    problems: list[AgentError] = []
    unchecked: list[str] = []
    containers = own(node.docker, ROLE_ENGINE)
    alive = [container for container in containers if container.alive]
    if alive and not beside_engine:
        problems.append(_running(alive))
    ended = {container.id for container in containers if not container.alive} | _removed(node)
    ended -= {container.id for container in alive}
    problems += _processes(node, ended)
    facts = _facts(node, unchecked)
    memory = None
    if facts is not None:
        problems += _ports(node, facts, {container.id for container in containers} | ended, unchecked)
        memory = node_memory.read(node, facts.memory.source)
        problems += _memory(memory, facts, bool(alive), unchecked)
    return Proof(tuple(problems), tuple(unchecked), memory, round(node.clock.monotonic() - began, 3))


def _facts(node: Node, unchecked: list[str]) -> SiteFacts | None:
    try:
        facts = site_facts.read(node)
    except AgentError as error:
        unchecked.append(f"ports and memory: {error}")
        return None
    if facts is None:
        unchecked.append("ports and memory: the node was not told of its site yet")
    return facts


def _running(alive: list[Container]) -> AgentError:
    return AgentError(
        "TS-AGENT-RUNNING",
        "an engine of ours runs on this node",
        where=", ".join(f"container {container.name}" for container in alive),
        expected="none",
        observed=", ".join(f"{container.status} ({container.id[:12]})" for container in alive),
        remedy="stop it first (trispark-node stop)",
    )


def _removed(node: Node) -> set[str]:
    """Ids of containers that the last stops removed: a process can outlive Docker's memory of its container."""
    try:
        entries = node.journal.read().entries
    except OSError:
        return set()
    stops = [entry for entry in entries if isinstance(entry.detail.get("ids"), list)][-_REMEMBERED:]
    return {found for entry in stops for found in entry.detail["ids"] if isinstance(found, str) and len(found) == 64}


def _processes(node: Node, ended: Collection[str]) -> list[AgentError]:
    pids = processes.of_containers(node.procfs, ended) if ended else []
    if not pids:
        return []
    return [
        AgentError(
            "TS-AGENT-PROCESS-LEFT",
            "processes of an engine outlive its container",
            where="control groups of our containers",
            expected="no process",
            observed=named(node, pids),
            remedy=f"end them by hand (kill -KILL PID); one that stays waits in the kernel: {REBOOT}",
        )
    ]


def _ports(node: Node, facts: SiteFacts, ours: Collection[str], unchecked: list[str]) -> list[AgentError]:
    try:
        found = listeners.listening(node.procfs, facts.ports)
    except OSError as error:
        unchecked.append(f"ports: {error.filename or 'net/tcp'} cannot be read: {error.strerror or error}")
        return []
    problems = []
    for listener in found:
        foreign = [pid for pid in listener.pids if not processes.is_in_container(node.procfs, pid, ours)]
        if listener.pids and not foreign:
            continue  # of an engine that runs, or of its processes that are left: both were told of
        problems.append(
            AgentError(
                "TS-AGENT-PORT-LEFT",
                "a port of the engine is taken by a process that is not in a container of ours; it is left alone",
                where=f"TCP port {listener.port}",
                expected="nobody listens",
                observed=named(node, foreign) if foreign else "a process that cannot be seen from here",
                remedy="let its owner end it, or take an engine over (./trispark play adopt)",
            )
        )
    return problems


def _memory(memory: node_memory.Memory, facts: SiteFacts, serving: bool, unchecked: list[str]) -> list[AgentError]:
    wanted = facts.memory.available_bytes
    if wanted is None:
        unchecked.append("memory: the site gives no threshold (site_stopped_memory_gib)")
    elif memory.available is None:
        unchecked.append(f"memory: {memory.word}")
    elif serving:
        unchecked.append("memory: an engine runs")
    elif memory.available < wanted:
        return [
            AgentError(
                "TS-AGENT-MEMORY-LEFT",
                "the memory of the engine did not come back",
                where=f"{facts.node} ({memory.source})",
                expected=f"{gib(wanted)} GiB available",
                observed=f"{gib(memory.available)} of {gib(memory.total or 0)} GiB",
                remedy=f"end what else uses memory on the node; if nothing does, {REBOOT}",
            )
        ]
    return []


def named(node: Node, pids: Collection[int]) -> str:
    """`PID 12 (python3 -m engine), PID 13 (...)`."""
    shown = [f"PID {pid} ({processes.command(node.procfs, pid)})" for pid in list(pids)[:_SHOWN_PIDS]]
    more = len(pids) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def gib(count: int) -> str:
    return f"{count / 2**30:.2f}"
