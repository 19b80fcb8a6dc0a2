"""The model's sequences are the playbooks': the order of agents' verbs is read from the YAML files and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fleet_node import GENERATIONS, Fleet
from fleet_plays import FAILURES, Controller, Run, Steps, taken

from trispark_node import share_bounded

ROOT = Path(__file__).resolve().parents[3]
NOT_MODELLED = {"request", "request-batch", "boot-log", "share", "engram", "engram-job", "oneshot"}
"""Reading the engine, and what does not change who serves: checkpoint, shards, the load client."""
CATCH_UP = "record-list, record-show"


def playbook(name: str) -> list[str]:
    """The verbs of a playbook's tasks in order, what it imports and includes in place, a rescue after its block."""
    return [verb for verb in _of_file(ROOT / "playbooks" / f"{name}.yml", name) if verb not in NOT_MODELLED]


def _of_file(path: Path, purpose: str, never: frozenset[str] = frozenset()) -> Iterator[str]:
    """`never`: variables of a role that are false there."""
    for each in yaml.safe_load(path.read_text(encoding="utf-8")):
        if "ansible.builtin.import_playbook" in each or "import_playbook" in each:
            name = str(each.get("ansible.builtin.import_playbook") or each["import_playbook"])
            yield from _of_file(path.parent / name, purpose)
        elif "hosts" in each:
            yield from _of_tasks(each.get("tasks") or [], path, purpose)
        else:
            yield from _of_tasks([each], path, purpose, never)


def _of_tasks(
    tasks: list[dict[str, Any]], path: Path, purpose: str, never: frozenset[str] = frozenset()
) -> Iterator[str]:
    for task in tasks:
        when = task.get("when", [])
        conditions = when if isinstance(when, list) else [when]
        if "ansible_check_mode" in conditions:
            continue  # what it only shows
        if purpose == "rollback" and any(each.endswith("plan.purpose != 'rollback'") for each in conditions):
            continue
        for part in ("block", "rescue", "always"):
            yield from _of_tasks(task.get(part) or [], path, purpose)
        if "trispark_node" in task:
            for step in task["trispark_node"].get("steps", [task["trispark_node"]]):
                when = step.get("when", "")
                if any(name in when for name in never) or (purpose == "rollback" and "plan.purpose != " in when):
                    continue
                yield str(step["verb"])
        elif "trispark_lock" in task:
            yield {"seen": "lock-show", "taken": "lock-take", "free": "lock-release"}[task["trispark_lock"]["state"]]
        elif "trispark_catch_up" in task:
            yield CATCH_UP
        elif (role := task.get("ansible.builtin.include_role")) is not None:
            place = ROOT / "roles" / role["name"]
            defaults = yaml.safe_load((place / "defaults/main.yml").read_text(encoding="utf-8"))
            false = frozenset(each for each in defaults if defaults[each] is False and each not in task.get("vars", {}))
            yield from _of_file(place / "tasks" / f"{role.get('tasks_from', 'main')}.yml", purpose, false)
        elif (
            file := task.get("ansible.builtin.include_tasks") or task.get("ansible.builtin.import_tasks")
        ) is not None:
            yield from _of_file(path.parent / str(file), purpose)


class Stage:
    """A fleet on which playbooks are run to their end, or to a controller's death; the tapes by playbook."""

    def __init__(self, base: Path) -> None:
        self.fleet = Fleet(base)
        self.desk, self.van = Controller("desk"), Controller("van")
        self.tapes: dict[str, list[list[str]]] = {}

    def run(
        self,
        name: str,
        run: Run,
        steps: Steps,
        until: tuple[str, str] | None = None,
        before: tuple[str, Callable[[], Any]] | None = None,
    ) -> str:
        """How it ended; `until`: killed before this call; `before`: what happens before the first call of a verb."""
        value, end = None, "ok"
        try:
            while True:
                call = steps.send(value)  # type: ignore[arg-type]
                if before is not None and before[0] in call.verbs:
                    before[1]()
                    before = None
                if until is not None and until[0] in call.verbs and until[1] == call.node:
                    end = "killed"
                    break
                value = taken(self.fleet, run, call)
        except StopIteration:
            pass
        except FAILURES as failure:
            end = str(failure)
        self.fleet.time += 100  # whatever lock it left has ended
        tape = _shortened(run.tape)
        if name == "promote":
            tape = [verb for verb in tape if verb != "record-append"]  # of the trial's record, which trial.yml appends
        self.tapes.setdefault(name, []).append(tape)
        self.tapes.setdefault("rollback", []).extend(_shortened(child.tape) for child in run.children)
        return end

    def boot(self, controller: Controller, tag: str, ok: bool = True, until: tuple[str, str] | None = None) -> str:
        run = Run(self.fleet, controller, "boot")
        return self.run("boot", run, run.boot(tag, "serve", ok), until)

    def do(self, name: str, controller: Controller, *arguments: Any) -> str:
        run = Run(self.fleet, controller, name)
        return self.run(name, run, getattr(run, name)(*arguments))


def _shortened(tape: list[str]) -> list[str]:
    """A loop's turns are one task, and so is a catching up."""
    found: list[str] = []
    for verb in tape:
        verb = CATCH_UP if verb in ("record-list", "record-show") else verb
        if verb not in ("record-append", CATCH_UP) or found[-1:] != [verb]:
            found.append(verb)
    return found


@pytest.fixture(scope="module")
def tapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """Everything that a playbook can come to do, once at least."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share_bounded, "call", lambda work, _deadline_s: work())
        stage = Stage(tmp_path_factory.mktemp("fleet") / "fleet")
        assert stage.boot(stage.desk, "one") == "ok"
        assert "TS-GATE-MODEL" in stage.boot(stage.desk, "two", ok=False)
        assert stage.boot(stage.desk, "three", until=("record-append", "spark2")) == "killed"
        assert stage.boot(stage.van, "two") == "ok", "it gives the node that is behind what the other host's had"
        for ends_it in (lambda: stage.do("recover", stage.van), lambda: stage.boot(stage.van, "two")):
            assert stage.boot(stage.van, "three", until=("start", "spark0")) == "killed"
            interrupted_agent(stage)
            assert ends_it() == "ok"
        assert stage.do("prune", stage.van) == "ok"
        assert stage.do("promote", stage.van, "one") == "ok"
        assert stage.do("rollback", stage.van, "good", False) != "ok"
        assert stage.do("rollback", stage.van, "good") == "ok"
        assert stage.do("stop", stage.van) == "ok"
        for name, arguments in (("boot", ("one", "serve", True)), ("recover", ()), ("stop", ()), ("promote", ("one",))):
            refused_on_the_last_node(stage, name, *arguments)
        refused_on_the_last_node(stage, "prune")
        return stage.tapes


def interrupted_agent(stage: Stage) -> None:
    node = stage.fleet.nodes["spark0"]
    node.fuse.left = 4
    assert node.result("good-mark", {"generation": GENERATIONS["three"], "boot_id": "b1", "time": "now"})["failed"]
    assert node.node().journal.read().pending()


def refused_on_the_last_node(stage: Stage, name: str, *arguments: Any) -> None:
    """Where the other is seen nothing is taken; where it begins after the look, what was taken is given back."""
    other = Run(stage.fleet, stage.desk, "shards")

    def begins() -> None:
        stage.fleet.nodes["spark2"].result("lock-take", {"owner": other.owner()})

    begins()
    assert "TS-LOCK-HELD" in stage.do(name, stage.van, *arguments)
    assert stage.tapes[name][-1] == ["lock-show"]
    run = Run(stage.fleet, stage.van, name)
    assert "TS-LOCK-HELD" in stage.run(name, run, getattr(run, name)(*arguments), before=("lock-take", begins))
    assert stage.tapes[name][-1] == ["lock-show", "lock-take", "lock-release"]


@pytest.mark.parametrize("name", ["boot", "rollback", "recover", "stop", "prune", "promote"])
def test_the_model_calls_in_the_playbooks_order(tapes: dict[str, list[list[str]]], name: str) -> None:
    wanted = playbook(name)
    for tape in tapes[name]:
        place = 0
        for verb in tape:
            assert verb in wanted[place:], f"{verb} comes where {name}.yml has {wanted[place:]}; of {tape}"
            place = wanted.index(verb, place) + 1


@pytest.mark.parametrize("name", ["boot", "rollback", "recover", "stop", "prune", "promote"])
def test_the_model_comes_to_every_task_of_a_playbook(tapes: dict[str, list[list[str]]], name: str) -> None:
    """Not of one run: a boot that passes its gates needs no rescue."""
    wanted = playbook(name)
    reached: set[int] = set()
    for tape in tapes[name]:
        place = 0
        for verb in tape:
            place = wanted.index(verb, place) + 1
            reached.add(place - 1)
    left = [verb for number, verb in enumerate(wanted) if number not in reached and verb not in ELSEWHERE[name]]
    assert left == [], f"never reached in {name}.yml"


ELSEWHERE: dict[str, set[str]] = {
    # `parity` reads hashes and changes nothing; its gates are in tests/unit/controller/test_parity_launch.py.
    # An own rollback has no older one to recover.
    "rollback": {CATCH_UP, "parity"},
    # A boot outside a trial completes a rollback that was left before it begins, by a rollback of its own.
    "boot": {CATCH_UP, "rollback-clear", "parity"}, "recover": {CATCH_UP, "rollback-clear"},
    "stop": set(), "prune": set(), "promote": {CATCH_UP},
}  # fmt: skip
