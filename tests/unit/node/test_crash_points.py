"""Crash points: the agent dies at every single step of every changing verb, and `recover` ends it.

A step is one operation of the operating system on the disk (trispark_node.disk names them; a write also torn in its
middle), or one effect in Docker: before it, and after it but before its acknowledgement. After each death the node must
come, by `recover` alone, into one of the two states that the verb has: that before it, or that after it. Verbs that
stop an engine may not leave it half stopped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from durable_docker import durable

from trispark_node import baseline, cli, generations, good, records, rollback
from trispark_node.disk import Disk
from trispark_node.layout import Layout
from trispark_node.node import Node

DIED = 99
TIME = "2026-01-02T03:04:05Z"


class Steps:
    """Counts steps and ends the process, without any clean-up, before number `last`."""

    def __init__(self, last: int | None) -> None:
        self.done = 0
        self.last = last

    def __call__(self, *_what: object) -> None:
        if self.done == self.last:
            os._exit(DIED)
        self.done += 1


class TornDisk(Disk):
    """Each write is two steps: a process may die when half of it is on the disk."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        super().__init__(steps)

    def write_all(self, descriptor: int, path: Path, data: Any) -> None:
        view = memoryview(data)
        half = len(view) // 2
        super().write_all(descriptor, path, view[:half])
        super().write_all(descriptor, path, view[half:])


@dataclass
class World:
    """A node whose whole state is in files, so that it can be copied and outlives its agent."""

    bench: Any
    base: Path

    @property
    def docker_file(self) -> Path:
        return self.base / "docker.pickle"

    def node(self, steps: Steps) -> Node:
        docker = durable(type(self.bench.docker), self.docker_file, steps)
        docker.registry = self.bench.docker.registry
        docker.load()
        return replace(
            self.bench.node, layout=Layout(self.base / "state"), disk=TornDisk(steps), connect=lambda: docker
        )

    def ask(self, verb: str, request: dict[str, Any], steps: Steps | None = None) -> dict[str, Any]:
        answer, _code = cli.answer(self.node(steps or Steps(None)), verb, json.dumps(request))
        return answer

    def dies(self, verb: str, request: dict[str, Any], step: int) -> bool:
        """Whether the agent died there; False when it came to its end before."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if self.ask(verb, request, Steps(step))["ok"] else 2
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, DIED), f"{verb} failed in the child: {status}"
        return status == DIED

    def pending(self) -> list[str]:
        """Verbs that were begun and not ended."""
        return [entry.verb for entry in self.node(Steps(None)).journal.read().pending()]

    def snapshot(self) -> dict[str, Any]:
        """What an operator and the next verb can tell of this node; no times, no journal."""
        node, root = self.node(Steps(None)), self.base / "state"
        names = sorted(path.name for path in (root / "generations").iterdir())
        damaged = generations.damaged(node)
        docker = node.docker
        return {
            "current": generations.current(node),
            "generations": {name: damaged.get(name, "whole") for name in generations.staged(node)},
            "temporary": [name for name in names if name.startswith(".")],
            "epoch": (root / "epoch").read_text(),
            "good": [mark.generation for mark in good.read(node).marks],
            "rollback": getattr(rollback.read(node), "target", None),
            "engines": sorted((each.labels["trispark.boot"], each.status) for each in docker.containers.values()),
            "logs": sorted(path.parent.name for path in root.glob("boots/*/engine.log")),
            "records": [each.id for each in records.chain(node)],
            "baseline": baseline.show(node),
        }


@pytest.fixture
def world(bench, active, stage_request, quick_path) -> World:
    """Two generations, one good and one current, whose engine runs as boot b1."""
    other = stage_request("two")
    bench.ask("stage", **other)
    bench.ask("good-mark", generation=active["generation"], boot_id="b0", time=TIME)
    bench.ask("activate", generation=other["generation"])
    bench.ask("start", boot_id="b1", epoch=5)
    base = quick_path / "template"
    base.mkdir()
    found = World(bench, base)
    engine = durable(type(bench.docker), found.docker_file, lambda: None)
    for name in ("images", "containers", "logs", "configs", "events"):
        setattr(engine, name, getattr(bench.docker, name))
    engine.store()
    shutil.copytree(bench.root, base / "state", symlinks=True)
    return found


def record(seq: int = 1) -> dict[str, Any]:
    content = {"id": "b0", "seq": seq, "previous": None, "kind": "boot"}
    return {"record": content, "previous": None}


@dataclass(frozen=True)
class Case:
    """A verb and what is done before it; `request` gets the good generation and the stage request of a new one."""

    verb: str
    request: Callable[[str, dict[str, Any]], dict[str, Any]]
    before: tuple[tuple[str, dict[str, Any]], ...] = ()
    damage: str = ""
    only_after_intent: bool = False


NEXT = {"epoch": 6, "boot_id": "b2"}
STOPS = {"only_after_intent": True}
CASES = {
    "stage": Case("stage", lambda _good, new: new),
    "stage over a damaged one": Case("stage", lambda _good, new: new, damage="launch.args"),
    "activate": Case("activate", lambda good, _new: {"generation": good}),
    "fence": Case("fence", lambda _good, _new: NEXT),
    "start": Case("start", lambda _good, _new: NEXT, (("stop", {}), ("fence", NEXT))),
    "stop": Case("stop", lambda _good, _new: {"deadline_s": 5}, **STOPS),
    "rollback": Case("rollback", lambda good, _new: {**NEXT, "to": good, "missing": ["spark2"]}, **STOPS),
    "rollback by hand": Case("rollback", lambda _good, _new: {}, **STOPS),
    "rollback of a stopped node": Case("rollback", lambda _good, _new: {"epoch": 6}, (("stop", {}),), **STOPS),
    "rollback-clear": Case("rollback-clear", lambda _good, _new: {"why": "serves"}, (("rollback", {}),)),
    "good-mark": Case("good-mark", lambda _good, new: {"generation": new["generation"], "boot_id": "b1", "time": TIME}),
    "record-append": Case("record-append", lambda _good, _new: record()),
}


@pytest.mark.parametrize("name", CASES)
def test_recover_ends_in_one_of_the_two_states_wherever_the_agent_dies(world, stage_request, tmp_path, name):
    case = CASES[name]
    target = good.read(world.bench.node).marks[-1].generation
    new = stage_request("two" if case.verb == "good-mark" else "three")
    if case.damage:
        world.ask("stage", new)
        (world.base / "state/generations" / new["generation"] / case.damage).write_text("damaged\n")
    for verb, request in case.before:
        assert world.ask(verb, request)["ok"], verb
    request = case.request(target, new)
    before = world.snapshot()
    after = _after(world, case, request)
    assert before != after, "the verb does something"
    deaths, seen = 0, []
    for here in _deaths(world, case.verb, request):
        deaths += 1
        begun = here.pending() != []
        answer = here.ask("recover", {})
        assert answer["ok"], (deaths, answer)
        assert all(each["outcome"] in ("finished", "undone") for each in answer["recovered"]), (deaths, answer)
        state = here.snapshot()
        if case.damage:  # the damaged one may be gone already, or there still
            state = _same_damage(state, new["generation"], before)
        assert state in (before, after), (deaths, state)
        if begun and case.only_after_intent:
            assert state == after, f"step {deaths}: half done is carried out"
        seen.append(state == after)
        assert here.pending() == []
        assert not here.ask("recover", {})["changed"], "a second one finds nothing to do"
        repeated = here.ask(case.verb, request)
        assert repeated["ok"], (deaths, repeated)
        assert here.snapshot() == after, f"step {deaths}: repeated, it ends as it should"
    assert deaths > 8, "too few steps"
    assert seen[0] is False
    assert seen[-1] is True


def _same_damage(state: dict[str, Any], generation: str, before: dict[str, Any]) -> dict[str, Any]:
    """A damaged generation that is being replaced is refused by every verb, and so is one that is not there."""
    if generation in state["generations"] and state["generations"][generation] == "whole":
        return state
    kept = {**state["generations"], generation: before["generations"][generation]}
    return {**state, "generations": dict(sorted(kept.items()))}


def _copies(world: World) -> Iterator[World]:
    """The same world anew for each death."""
    number = 0
    while True:
        base = world.base.with_name(f"world{number}")
        shutil.copytree(world.base, base, symlinks=True)
        yield World(world.bench, base)
        shutil.rmtree(base)
        number += 1


def _after(world: World, case: Case, request: dict[str, Any]) -> dict[str, Any]:
    base = world.base.with_name("after")
    shutil.copytree(world.base, base, symlinks=True)
    done = World(world.bench, base)
    answer = done.ask(case.verb, request)
    assert answer["ok"], answer
    return done.snapshot()


def _deaths(world: World, verb: str, request: dict[str, Any]) -> Iterator[World]:
    for step, here in enumerate(_copies(world)):
        if not here.dies(verb, request, step):
            return
        yield here


@pytest.mark.parametrize("interrupted_at", [12, 20])
def test_recover_itself_may_die_at_every_step(world, interrupted_at):
    request = {"epoch": 6, "boot_id": "b2"}
    assert world.dies("rollback", request, interrupted_at)
    assert world.pending(), "the rollback was begun"
    reference = world.base.with_name("reference")
    shutil.copytree(world.base, reference, symlinks=True)
    whole = World(world.bench, reference)
    assert whole.ask("recover", {})["ok"]
    after = whole.snapshot()
    deaths = 0
    for here in _deaths(world, "recover", {}):
        deaths += 1
        assert here.ask("recover", {})["ok"]
        assert here.snapshot() == after
        assert here.pending() == []
    assert deaths > 8


def outcomes(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["verb"], each["outcome"]) for each in answer["recovered"]]


def test_an_interrupted_stop_does_not_end_an_engine_that_was_started_after_it(world):
    journal = world.node(Steps(None)).journal
    journal.append("stop", "intent", {"containers": ["trispark-engine"], "boots": ["b0"], "deadline_s": 5})
    journal.append("start", "intent", {"generation": "x", "boot_id": "b1", "epoch": 5})
    answer = world.ask("recover", {})
    assert [(each["verb"], each["outcome"]) for each in answer["recovered"]] == [
        ("stop", "undone"),
        ("start", "finished"),
    ]
    assert world.snapshot()["engines"] == [("b1", "running")]


def test_what_cannot_be_ended_stays_pending_and_is_named(world):
    """A foreign container took our name: the interrupted stop cannot prove that nothing of ours serves there."""
    assert world.dies("stop", {"deadline_s": 5}, 8)
    node = world.node(Steps(None))
    node.docker.containers.clear()
    node.docker.add("trispark-engine")
    node.docker.store()
    answer = world.ask("recover", {})
    assert answer["ok"]
    (left,) = answer["recovered"]
    assert (left["verb"], left["outcome"]) == ("stop", "left")
    assert left["why"].startswith("TS-AGENT-FOREIGN: ")
    assert world.pending() == ["stop"]


@pytest.mark.parametrize("detail", [{}, {"epoch": "x"}, {"to": 7, "epoch": 6}])
def test_an_intent_that_cannot_be_read_is_closed_and_named(world, detail):
    world.node(Steps(None)).journal.append("rollback", "intent", detail)
    (ended,) = world.ask("recover", {})["recovered"]
    assert ended["outcome"] in ("undone", "left")
    assert ended["why"]


def test_long_work_is_left_to_its_own_verb(world):
    journal = world.node(Steps(None)).journal
    journal.append("adopt", "intent", {})
    journal.append("engram", "intent", {})
    answer = world.ask("recover", {})
    assert [(each["verb"], each["outcome"]) for each in answer["recovered"]] == [
        ("adopt", "left"),
        ("engram", "undone"),
    ]
    assert world.pending() == ["adopt"]
