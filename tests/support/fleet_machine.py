"""The fleet under everything that can happen to it, as a hypothesis state machine.

Controllers of two hosts run playbooks (fleet_plays); each may be killed or held before any call, any agent may die at
any step of it, a node may be lost in the middle, come back with its engine or without, and leases end.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import fleet_checks
from fleet_node import GENERATIONS, NAMES, TAGS, Fleet, FleetNode, token_of_host
from fleet_plays import FAILURES, Cache, Call, Controller, Result, Run, Steps, taken
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trispark import fleet_lock
from trispark_node import fleet_lock_file, journal, share_bounded

HOSTS = ("desk", "van")
INCIDENT = ("stop", "rollback", "recover")
OF_LOCK = ("lock-take", "lock-release", "lock-show")
READING = ("status", "can-start", "generation-show", "record-list", "record-show")
KINDS = ("controller killed", "agent dies", "held", "node lost")
EVENTS = ("node lost", "node started again", "engine ended", "40 s pass", "90 s pass")
OK = "ok"
REACHABLE = st.sampled_from((True, True, False))


class Interruption(NamedTuple):
    """What happens when the run comes to its call number `at`; `step`: of the agent that dies."""

    kind: str
    at: int
    step: int


PARSED = lru_cache(4096)(journal._parse)
LOCK = lru_cache(4096)(fleet_lock_file._parsed)
"""A content means the same each time that it is read, and the model reads each one some dozen times."""
INTERRUPTIONS = st.one_of(
    st.none(), st.builds(Interruption, st.sampled_from(KINDS), st.integers(0, 45), st.integers(0, 30))
)


@dataclass
class Under:
    """A run that is under way, and the result that it waits for. `disturbed`: something befell it; `overtaken`: another
    one began, or something happened to a node, while it was held: its good end says nothing of the fleet then."""

    name: str
    run: Run
    steps: Steps
    done: int = 0
    value: Result | None = None
    disturbed: bool = False
    overtaken: bool = False


class Template:
    """A fleet that serves its first good boot, made once; each example begins with a copy."""

    fleet: ClassVar[Fleet | None] = None
    cache: ClassVar[Cache] = Cache()

    @classmethod
    def copy(cls, base: Path) -> tuple[Fleet, Cache]:
        if cls.fleet is None:
            fleet = Fleet(Path(tempfile.mkdtemp(prefix="trispark-test-template-", dir=memory())))
            controller = Controller(HOSTS[0])
            run = Run(fleet, controller, "boot")
            steps, value = run.boot("one", "serve", True), None
            try:
                while True:
                    value = taken(fleet, run, steps.send(value))  # type: ignore[arg-type]
            except StopIteration:
                pass
            assert run.valid_boot, "the first boot is valid"
            cls.fleet, cls.cache = fleet, controller.cache
        return cls.fleet.copied(base), Cache(cls.cache.records)


def memory() -> str | None:
    """A file system in memory, where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class FleetMachine(RuleBasedStateMachine):
    """`fired`, `ends` and `figures` count over all examples, so that a vacuous run is seen."""

    fired: ClassVar[Counter[str]] = Counter()
    ends: ClassVar[Counter[str]] = Counter()
    figures: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="trispark-test-", dir=memory()))
        self.controllers = {host: Controller(host) for host in HOSTS}
        self.held: list[Under] = []
        self.ended: set[str] = set()
        self.acting = HOSTS[0]
        self.epochs = dict.fromkeys(NAMES, 0)
        self.broken: set[tuple[str, str]] = set()
        self.replaced = (share_bounded.call, fleet_lock.has_ended, journal._parse, fleet_lock_file._parsed)
        share_bounded.call = lambda work, _deadline_s: work()  # no process for each look that could hang
        fleet_lock.has_ended = self.has_ended
        journal._parse = PARSED
        fleet_lock_file._parsed = LOCK
        self.figures["sequences"] += 1

    def teardown(self) -> None:
        share_bounded.call, fleet_lock.has_ended, journal._parse, fleet_lock_file._parsed = self.replaced
        if hasattr(self, "fleet"):
            self.figures["calls of agents"] += self.fleet.calls
        shutil.rmtree(self.base, ignore_errors=True)

    def has_ended(self, token: str) -> bool:
        """A host sees the end of its own processes alone."""
        own = fleet_host(self.acting)
        return token in self.ended and token.startswith(own)

    @initialize(booted=st.sampled_from((True, True, True, False)))
    def begin(self, booted: bool) -> None:
        place = self.base / "fleet"
        if booted:
            self.fleet, self.controllers[HOSTS[0]].cache = Template.copy(place)
            self.epochs = dict.fromkeys(NAMES, 1)
        else:
            self.fleet = Fleet(place)

    # --- what is done ---

    def begins(self, name: str, host: str, what: Callable[[Run], Steps], interruption: Interruption | None) -> None:
        self.count(name)
        run = Run(self.fleet, self.controllers[host], name)
        self.goes_on(Under(name, run, what(run)), interruption)

    def count(self, name: str) -> None:
        for under in self.held:
            under.overtaken = True
        self.fired[name] += 1
        self.figures["steps"] += 1

    def goes_on(self, under: Under, interruption: Interruption | None) -> None:
        self.acting = under.run.controller.host
        while True:
            try:
                call = under.steps.send(under.value)  # type: ignore[arg-type]
            except StopIteration:
                self.end(under, OK)
                return
            except FAILURES as failure:
                self.end(under, str(failure))
                return
            if interruption is not None and under.done == interruption.at:
                under.disturbed = True
                self.ends[interruption.kind] += 1
                if interruption.kind == "controller killed":
                    under.steps.close()
                    self.ended.add(under.run.token)
                    return
                if interruption.kind == "held":
                    self.held.append(under)
                    under.value = None
                    self.waits(under, call)
                    return
                if interruption.kind == "node lost":
                    self.fleet.nodes[call.node].up = False
                else:
                    self.fleet.nodes[call.node].fuse.left = interruption.step
            under.done += 1
            under.value = self.performs(under, call)

    def waits(self, under: Under, call: Call) -> None:
        """The call that a held run is about to do is done when it goes on."""
        inner = under.steps

        def resumed() -> Steps:
            result = yield call
            while True:
                try:
                    step = inner.send(result)
                except StopIteration:
                    return
                result = yield step

        under.steps = resumed()

    def performs(self, under: Under, call: Call) -> Result:
        node = self.fleet.nodes[call.node]
        if not node.up:
            node.fuse.left = None
            return {"unreachable": True, "msg": "no route to host"}
        run = under.run
        if set(call.verbs) <= {*OF_LOCK, *READING}:
            return taken(self.fleet, run, call)
        holder = holder_of(node)
        if holder is not None and holder["token"] != run.token:
            holder = node.answer("lock-show", {})[0]["holder"]
        result = taken(self.fleet, run, call)
        self.check_admission(run, call, holder, result)
        return result

    def check_admission(self, run: Run, call: Call, holder: dict[str, Any] | None, result: Result) -> None:
        """A changing call is done while its command holds the lock, and under nobody else's living one."""
        if result.get("failed"):
            return
        breaks = run.breaks and call.verb in INCIDENT
        if holder is not None and holder["token"] != run.token and not breaks:
            assert holder["lease_left_s"] == 0, (
                f"{call.verb} of {run.reason} beside {holder['reason']}, which holds the lock"
            )
        assert (call.node, run.token) not in self.broken, f"{call.verb} of {run.reason}, which has lost the lock"
        if (broke := result["answer"].get("broke")) is not None:
            self.broken.add((call.node, broke["token"]))
        after = holder_of(self.fleet.nodes[call.node])
        assert after is not None, f"{call.verb} without the lock"
        assert after["token"] == run.token, "who changes a node holds its lock"

    def end(self, under: Under, outcome: str) -> None:
        """The playbook's process has ended, in whatever way."""
        self.ended.add(under.run.token)
        word = outcome.partition(":")[0] if outcome != OK else OK
        self.ends[f"{under.name}: {'ok' if outcome == OK else 'failed'}"] += 1
        self.figures[f"end {under.name} {word}"[:60]] += 1
        if outcome == OK and not under.overtaken:
            getattr(self, f"after_{under.name}", lambda _under: None)(under)
        elif outcome != OK and not under.disturbed and under.name in ("boot", "rollback"):
            self.nothing_of_a_failed_boot_runs(under)

    def nothing_of_a_failed_boot_runs(self, under: Under) -> None:
        """Where nothing disturbed it and every node answers, a boot that was not judged valid leaves no engine."""
        runs = {boot for boot, _generation, _epoch in fleet_checks.boots(fleet_checks.engines(self.fleet).values())}
        own = runs & under.run.boot_ids
        if all(node.up for node in self.fleet.nodes.values()) and not under.overtaken:
            assert own <= self.judged(), f"engines of a boot that was not judged valid: {own}"

    def judged(self) -> set[str]:
        """Boots that some controller's record calls valid."""
        return {
            str(record["boot_id"])
            for controller in self.controllers.values()
            for record in controller.cache.list()
            if record["kind"] == "boot" and record["outcome"]["state"] == "valid"
        }

    # --- after a playbook that ended well ---

    def after_boot(self, under: Under) -> None:
        found = fleet_checks.boots(fleet_checks.engines(self.fleet).values())
        assert len(fleet_checks.engines(self.fleet)) == len(NAMES), "all ranks serve"
        assert {boot for boot, _generation, _epoch in found} == {under.run.valid_boot}
        assert len(found) == 1, f"one generation and one epoch serve: {found}"
        for name, node in self.fleet.nodes.items():
            assert str(under.run.valid_boot) in fleet_checks.files(node)["records"], f"the record is on {name}"
            assert fleet_checks.files(node)["rollback"] is None

    def after_rollback(self, under: Under) -> None:
        self.after_boot(under)
        (found,) = fleet_checks.boots(fleet_checks.engines(self.fleet).values())
        for node in self.fleet.nodes.values():
            assert fleet_checks.files(node)["current"] == found[1]

    def after_stop(self, _under: Under) -> None:
        assert not fleet_checks.engines(self.fleet), "stopped is stopped"

    def after_recover(self, _under: Under) -> None:
        found = fleet_checks.boots(fleet_checks.engines(self.fleet, only_up=True).values())
        assert {boot for boot, _generation, _epoch in found} <= self.judged(), "nothing serves without a record"
        assert len(found) <= 1, f"an older epoch beside a newer one: {found}"
        for node in self.fleet.nodes.values():
            if node.up:
                assert not node.node().journal.read().pending(), f"{node.name}: something is pending"
        if all(node.up for node in self.fleet.nodes.values()):
            left = {fleet_checks.files(node)["rollback"] for node in self.fleet.nodes.values()} - {None}
            assert not left, f"a rollback to {left} is not complete, though all nodes are there"

    # --- rules: few, so that each sequence has boots and rollbacks among what happens to them ---

    @rule(
        host=st.sampled_from(HOSTS),
        tag=st.sampled_from(TAGS),
        purpose=st.sampled_from(("serve", "serve", "trial")),
        gates_ok=st.sampled_from((True, True, True, False)),
        reachable=REACHABLE,
        interruption=INTERRUPTIONS,
    )
    def boot(
        self, host: str, tag: str, purpose: str, gates_ok: bool, reachable: bool, interruption: Interruption | None
    ) -> None:
        self.reach(reachable)
        self.begins("boot", host, lambda run: run.boot(tag, purpose, gates_ok), interruption)

    @rule(
        host=st.sampled_from(HOSTS),
        to=st.sampled_from(("", "", "good", "previous", "baseline", GENERATIONS["two"])),
        gates_ok=st.sampled_from((True, True, True, False)),
        reachable=REACHABLE,
        interruption=INTERRUPTIONS,
    )
    def rollback(self, host: str, to: str, gates_ok: bool, reachable: bool, interruption: Interruption | None) -> None:
        self.reach(reachable)
        self.begins("rollback", host, lambda run: run.rollback(to, gates_ok), interruption)

    @rule(host=st.sampled_from(HOSTS), reachable=REACHABLE, interruption=INTERRUPTIONS)
    def recover(self, host: str, reachable: bool, interruption: Interruption | None) -> None:
        self.reach(reachable)
        self.begins("recover", host, lambda run: run.recover(), interruption)

    @rule(
        host=st.sampled_from(HOSTS),
        name=st.sampled_from(("stop", "promote", "prune")),
        tag=st.sampled_from(TAGS),
        reachable=REACHABLE,
        interruption=INTERRUPTIONS,
    )
    def another_playbook(
        self, host: str, name: str, tag: str, reachable: bool, interruption: Interruption | None
    ) -> None:
        self.reach(reachable)
        whats: dict[str, Callable[[Run], Steps]] = {
            "stop": lambda run: run.stop(),
            "promote": lambda run: run.promote(tag),
            "prune": lambda run: run.prune(),
        }
        self.begins(name, host, whats[name], interruption)

    @rule(
        name=st.sampled_from(("boot", "rollback")),
        host=st.sampled_from(HOSTS),
        other=st.sampled_from(HOSTS),
        tag=st.sampled_from(TAGS),
        at=st.one_of(st.integers(12, 40), st.integers(25, 30)),
        step=st.integers(0, 20),
        kind=st.sampled_from(KINDS),
    )
    def is_cut_off_and_recovered(
        self, name: str, host: str, other: str, tag: str, at: int, step: int, kind: str
    ) -> None:
        """The whole story of an incident: a boot or a rollback in whose middle something befalls it; then `recover`."""
        self.reach(True)
        whats: dict[str, Callable[[Run], Steps]] = {
            "boot": lambda run: run.boot(tag, "serve", True),
            "rollback": lambda run: run.rollback(""),
        }
        self.begins(name, host, whats[name], Interruption(kind, at, step))
        self.fleet.time += 90.0
        self.reach(True)
        self.begins("recover", other, lambda run: run.recover(), None)

    @rule(tag=st.sampled_from(TAGS), at=st.integers(3, 40), waits_s=st.sampled_from((0.0, 90.0)))
    def is_overtaken(self, tag: str, at: int, waits_s: float) -> None:
        """Two operators: a rollback from another host while a boot is under way, which then goes on."""
        self.reach(True)
        self.begins("boot", HOSTS[0], lambda run: run.boot(tag, "serve", True), Interruption("held", at, 0))
        self.begins("rollback", HOSTS[1], lambda run: run.rollback("good"), None)
        self.fleet.time += waits_s
        if self.held:
            self.goes_on(self.held.pop(), None)

    @precondition(lambda self: self.held)
    @rule(interruption=INTERRUPTIONS)
    def a_held_one_goes_on(self, interruption: Interruption | None) -> None:
        under = self.held.pop(0)
        self.count("goes on")
        self.goes_on(under, interruption)

    @precondition(lambda self: self.held)
    @rule()
    def a_held_one_is_killed(self) -> None:
        self.count("held one killed")
        under = self.held.pop(0)
        under.steps.close()
        self.ended.add(under.run.token)

    @rule(event=st.sampled_from(EVENTS), name=st.sampled_from(NAMES))
    def happens(self, event: str, name: str) -> None:
        self.count(event)
        node = self.fleet.nodes[name]
        if event == "node lost":
            node.up = False
        elif event == "node started again":
            node.up = True
            self.check_start(node)
        elif event == "engine ended":
            node.engine_ends()
        else:
            self.fleet.time += 40.0 if event == "40 s pass" else 90.0

    def reach(self, reachable: bool) -> None:
        """Nodes that were lost come back, with what they ran."""
        if not reachable:
            return
        for node in self.fleet.nodes.values():
            if not node.up:
                self.fired["node back"] += 1
                node.up = True

    def check_start(self, node: Any) -> None:
        if not node.root.exists():
            return
        answer = node.starts_again()
        assert answer["ok"], answer
        assert not node.running(), "nothing starts by itself"

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "fleet"):
            return
        fleet_checks.after_every_step(self.fleet)
        for name, node in self.fleet.nodes.items():
            epoch = fleet_checks.files(node)["epoch"][0]
            assert epoch >= self.epochs[name], f"{name}: the epoch went back"
            self.epochs[name] = epoch


def holder_of(node: FleetNode) -> dict[str, Any] | None:
    """`owner` of whoever holds the node's lock, as its file says."""
    try:
        holder = json.loads((node.root / "fleet-lock.json").read_text())["holder"]
    except FileNotFoundError:
        return None
    return None if holder is None else dict(holder["owner"])


def fleet_host(host: str) -> str:
    """The part of a command's token that names its host."""
    return token_of_host(host, 0).partition("-")[0]
