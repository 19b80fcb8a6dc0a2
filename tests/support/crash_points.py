"""A node whose agent dies at any step of a verb: its whole state is in files and outlives the agent.

A step is one operation of the operating system on the disk (trispark_node.disk names them; a write and the removal of a
directory also torn in their middle), or one effect in Docker: before it, and after it but before its acknowledgement.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from durable_docker import durable

from trispark_node import baseline, cli, fleet_lock, generations, good, pulled, records, rollback
from trispark_node.disk import Disk
from trispark_node.fields import Fields
from trispark_node.layout import Layout
from trispark_node.node import Node
from trispark_node.provenance import Fact

DIED = 99
BENCH_NAME = "trispark-bench"


class Steps:
    """Counts steps and ends the process, without any clean-up, before number `last`."""

    def __init__(self, last: int | None = None) -> None:
        self.done = 0
        self.last = last

    def __call__(self, *_what: object) -> None:
        if self.done == self.last:
            os._exit(DIED)
        self.done += 1


class TornDisk(Disk):
    """Each write, and each removal of a directory, is two steps: a process may die when half of it is done."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        super().__init__(steps)

    def write_all(self, descriptor: int, path: Path, data: Any) -> None:
        view = memoryview(data)
        half = len(view) // 2
        super().write_all(descriptor, path, view[:half])
        super().write_all(descriptor, path, view[half:])

    def remove_tree(self, path: Path) -> None:
        found = sorted(each for each in path.rglob("*") if not each.is_dir()) if path.is_dir() else []
        if found:
            self._steps("remove-tree", path)
            found[0].unlink()
        super().remove_tree(path)


@dataclass
class World:
    """`base` holds the node's state and its Docker Engine's."""

    bench: Any
    base: Path

    @property
    def docker_file(self) -> Path:
        return self.base / "docker.pickle"

    @property
    def root(self) -> Path:
        return self.base / "state"

    def node(self, steps: Steps | None = None) -> Node:
        counted = steps or Steps()
        docker = durable(type(self.bench.docker), self.docker_file, counted)
        docker.registry = self.bench.docker.registry
        docker.load()

        def ends_at_once(container_id: str) -> None:
            """A load client's work is over before anybody looks; an engine goes on."""
            if docker.containers[container_id].name == BENCH_NAME:
                docker.change(container_id, status="exited", exit_code=0)

        docker.on_start = ends_at_once
        return replace(self.bench.node, layout=Layout(self.root), disk=TornDisk(counted), connect=lambda: docker)

    def ask(self, verb: str, request: dict[str, Any], steps: Steps | None = None) -> dict[str, Any]:
        answer, _code = cli.answer(self.node(steps), verb, json.dumps(request))
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

    def copy(self, name: str) -> World:
        base = self.base.with_name(name)
        shutil.copytree(self.base, base, symlinks=True)
        return World(self.bench, base)

    def deaths(self, verb: str, request: dict[str, Any]) -> Iterator[World]:
        """The same world anew for each step, the agent dead at that step."""
        step = 0
        while True:
            here = self.copy(f"world{step}")
            died = here.dies(verb, request, step)
            if died:
                yield here
            shutil.rmtree(here.base)
            if not died:
                return
            step += 1

    def pending(self) -> list[str]:
        """Verbs that were begun and not ended."""
        return [entry.verb for entry in self.node().journal.read().pending()]

    def docker(self, change: Callable[[Any], None]) -> None:
        """Something happens to the Docker Engine besides the agent."""
        engine = self.node().docker
        change(engine)
        engine.store()  # type: ignore[attr-defined]

    def effects(self) -> list[str]:
        """What was done in Docker until now."""
        found: list[str] = pickle.loads(self.docker_file.read_bytes())["events"]
        return [event for event in found if event not in ("log", "tail")]

    def snapshot(self) -> dict[str, Any]:
        """What an operator and the next verb can tell of this node; no times, no journal."""
        node, root = self.node(), self.root
        engine: Any = node.docker
        places = ("generations/*", "boots/*", "run/*", "provenance/*/*")
        names = [path.name for place in places for path in root.glob(place)]
        damaged = generations.damaged(node)
        lock = fleet_lock.show(node)
        return {
            "current": generations.current(node),
            "generations": {name: damaged.get(name, "whole") for name in generations.staged(node)},
            "temporary": sorted(name for name in names if name.startswith(".") or name.endswith(".work")),
            "epoch": (root / "epoch").read_text(),
            "site": (root / "site.json").read_text() if (root / "site.json").exists() else None,
            "good": [mark.generation for mark in good.read(node).marks],
            "rollback": getattr(rollback.read(node), "target", None),
            "engines": sorted((each.labels["trispark.boot"], each.status) for each in engine.containers.values()),
            "logs": sorted(path.parent.name for path in root.glob("boots/*/engine.log")),
            "states": sorted(path.name for path in root.glob("engine-state/*")),
            "records": [each.id for each in records.chain(node)],
            "baseline": baseline.show(node),
            "provenance": {path.parent.name: _proven(path) for path in root.glob("provenance/*/fact.json")},
            "images": sorted(engine.images),
            "pulled": pulled.read(node),
            "lock": None if lock["holder"] is None else lock["holder"]["token"],
            "lost": [(each["token"], each["how"]) for each in lock["losses"]],
        }


def _proven(fact: Path) -> dict[str, str]:
    """The files of what was judged last of an image; not those of before, which a record may name."""
    found = Fact.parse(Fields(json.loads(fact.read_text()), str(fact)))
    return {path.name: path.read_text() for path in sorted((fact.parent / found.id).iterdir())}


def template(bench: Any, base: Path) -> World:
    """A world with the state that `bench` has now."""
    base.mkdir()
    found = World(bench, base)
    engine = durable(type(bench.docker), found.docker_file, lambda: None)
    for name in ("images", "containers", "logs", "configs", "events"):
        setattr(engine, name, getattr(bench.docker, name))
    engine.store()
    shutil.copytree(bench.root, found.root, symlinks=True)
    return found
