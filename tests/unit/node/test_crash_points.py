"""Crash points: the agent dies at every single step of every changing verb, and `recover` ends it.

After each death (tests/support/crash_points.py says what a step is) the node must come, by `recover` alone, into one of
the two states that the verb has: that before it, or that after it. Verbs that stop an engine may not leave it half
stopped, and no other one touches an engine that serves. ELSEWHERE names the verbs whose steps another test enumerates.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from crash_points import Steps, World, template

from trispark_node import cli, good
from trispark_node.canonical import sha256_hex
from trispark_node.docker_client import Image
from trispark_node.plain_json import parse_json

TESTS = Path(__file__).resolve().parents[2]
TIME = "2026-01-02T03:04:05Z"
LOAD_IMAGE = "registry:5000/trispark/bench@sha256:" + "c" * 64
OTHER_IMAGE = "registry:5000/trispark/other@sha256:" + "d" * 64


@pytest.fixture
def world(bench, active, stage_request, quick_path) -> World:
    """Two generations, one good and one current, whose engine runs as boot b1."""
    other = stage_request("two")
    bench.ask("stage", **other)
    bench.ask("good-mark", generation=active["generation"], boot_id="b0", time=TIME)
    bench.ask("activate", generation=other["generation"])
    bench.ask("start", boot_id="b1", epoch=5)
    for reference, number in ((LOAD_IMAGE, "c"), (OTHER_IMAGE, "d")):
        bench.docker.registry[reference] = Image("sha256:" + number * 63 + "0", (reference,), {})
    return template(bench, quick_path / "template")


def record() -> dict[str, Any]:
    content = {"id": "b0", "seq": 1, "previous": None, "kind": "boot"}
    return {"record": content, "previous": None}


def proof(tag: str) -> dict[str, Any]:
    """What is judged of an image; another `tag` is another judgement of the same image."""
    files = {"statement.json": f'{{"tag":"{tag}"}}\n', "sbom.cdx.json": "{}\n"}
    hashes = {f"{name}_sha256": sha256_hex(files[file].encode()) for name, file in PROVEN.items()}
    return {"files": files, "fact": {"image": LOAD_IMAGE, **hashes}}


def owner(number: int) -> dict[str, Any]:
    return {"token": f"{number:016x}-1-1", "host": "desk", "pid": 1, "user": "ops", "reason": "boot"}


@dataclass(frozen=True)
class Case:
    """A verb and what is done before it; `request` gets the good generation and the stage request of a new one.

    `only_after_intent`: what was begun is carried out. `same_after`: nothing of the verb is to stay. `third`: parts of
    the snapshot in which a death may leave what neither state has, with no harm that `request` repeated would not end.
    """

    verb: str
    request: Callable[[str, dict[str, Any]], dict[str, Any]]
    before: tuple[tuple[str, dict[str, Any]], ...] = ()
    prepare: Callable[[World], None] = lambda _world: None
    damage: str = ""
    only_after_intent: bool = False
    same_after: bool = False
    third: tuple[str, ...] = ()


def engine_has_ended(world: World) -> None:
    world.docker(lambda engine: engine.change(next(iter(engine.containers)), status="exited", exit_code=1))


def old_things(world: World) -> None:
    """Four more generations, with state of an engine, and the logs of four old boots."""
    for number in range(4):
        request = world.bench.make_request(f"old{number}")
        assert world.ask("stage", request)["ok"]
        (world.root / "engine-state" / request["generation"]).mkdir(parents=True)
        kept = world.root / "boots" / f"old{number}"
        kept.mkdir(parents=True)
        (kept / "engine.log").write_text("log\n")


def a_site(**values: Any) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    return lambda _good, new: {**new["site"], **values}


NEXT = {"epoch": 6, "boot_id": "b2"}
STOPS = {"only_after_intent": True}
HASH = "HASH"
PROVEN = {"statement": "statement.json", "sbom": "sbom.cdx.json"}
PROMOTED = {"schema_version": 1, "settings": {"MAX_X": 2}, "record": "b0", "record_hash": HASH, "time": TIME}
TAKEN = (("lock-take", {"owner": owner(1)}),)
BREAKS = {"owner": owner(2), "break": True, "why": "its desk is empty"}
CASES = {
    "stage": Case("stage", lambda _good, new: new["stage"]),
    "stage over a damaged one": Case(
        "stage", lambda _good, new: {**new["stage"], "repair": True}, damage="launch.args"
    ),
    "activate": Case("activate", lambda good, _new: {"generation": good}),
    "fence": Case("fence", lambda _good, _new: NEXT),
    "start": Case("start", lambda _good, _new: NEXT, (("stop", {}), ("fence", NEXT))),
    "stop": Case("stop", lambda _good, _new: {"deadline_s": 5}, **STOPS),
    "rollback": Case("rollback", lambda good, _new: {**NEXT, "to": good, "missing": ["spark2"]}, **STOPS),
    "rollback by hand": Case("rollback", lambda _good, _new: {}, **STOPS),
    "rollback of a stopped node": Case("rollback", lambda _good, _new: {"epoch": 6}, (("stop", {}),), **STOPS),
    "rollback-clear": Case("rollback-clear", lambda _good, _new: {"why": "serves"}, (("rollback", {}),)),
    "good-mark": Case(
        "good-mark", lambda _good, new: {"generation": new["two"]["generation"], "boot_id": "b1", "time": TIME}
    ),
    "record-append": Case("record-append", lambda _good, _new: record()),
    "provenance-store": Case("provenance-store", lambda _good, _new: proof("one")),
    "provenance-store anew": Case(
        "provenance-store", lambda _good, _new: proof("two"), (("provenance-store", proof("one")),)
    ),
    "site-set": Case("site-set", a_site()),
    "site-set again": Case("site-set", a_site(keep_boots=3), (("site-set", {"keep_boots": 7}),)),
    "baseline-set": Case("baseline-set", lambda _good, _new: {"baseline": PROMOTED}, (("record-append", record()),)),
    "baseline-set back": Case(
        "baseline-set",
        lambda _good, _new: {"baseline": None},
        (("record-append", record()), ("baseline-set", {"baseline": PROMOTED})),
    ),
    "prune": Case("prune", lambda _good, _new: {"keep": 1}, (("site-set", {"keep_boots": 1}),), old_things, **STOPS),
    "prune of images": Case(
        "prune",
        lambda _good, _new: {"images": True},
        (("image-ensure", {"image": LOAD_IMAGE}), ("image-ensure", {"image": OTHER_IMAGE})),
        **STOPS,
    ),
    # Whoever is killed between the pull and the list of pulled images leaves one that no prune removes.
    "image-ensure": Case("image-ensure", lambda _good, _new: {"image": LOAD_IMAGE}, third=("pulled",)),
    "oneshot": Case(
        "oneshot",
        lambda _good, _new: {"image": LOAD_IMAGE, "command": ["bench"], "input": {"n": 1}, "deadline_s": 5},
        (("image-ensure", {"image": LOAD_IMAGE}),),
        same_after=True,
    ),
    "save-log": Case("save-log", lambda _good, _new: {}),
    "at-boot of an ended engine": Case("at-boot", lambda _good, _new: {}, prepare=engine_has_ended, **STOPS),
    "at-boot of a stale engine": Case("at-boot", lambda _good, _new: {}, (("fence", NEXT),), **STOPS),
    "lock-take": Case("lock-take", lambda _good, _new: {"owner": owner(1)}),
    "lock-take by breaking": Case("lock-take", lambda _good, _new: BREAKS, TAKEN),
    "lock-release": Case("lock-release", lambda _good, _new: {"owner": owner(1)}, TAKEN),
    "lock-release of another's": Case("lock-release", lambda _good, _new: {"why": "its desk is empty"}, TAKEN),
}
NODE = "unit/node/"
ELSEWHERE = {
    "steps": NODE + "test_steps.py::test_each_has_its_own_answer_and_its_own_place_in_the_journal",
    "recover": NODE + "test_crash_points.py::test_recover_itself_may_die_at_every_step",
    "engram": NODE + "test_engram.py::test_packing_killed_at_every_step",
    "engram-job": NODE
    + "test_engram_job.py::test_killed_at_random_moments_a_job_leaves_the_old_state_or_a_complete_file",
    "share": NODE + "test_share.py::test_killed_at_any_step_the_same_again_mounts_it_or_takes_it_away",
    "adopt": NODE + "test_adopt.py::test_a_take_over_killed_at_any_step_is_finished_by_the_next",
    "adopt-back": NODE + "test_adopt.py::test_a_way_back_killed_at_any_step_is_finished_by_the_next",
    "restore": NODE + "test_backup_restore.py::test_after_a_crash_at_every_step_the_same_again_completes_it",
    "uninstall": NODE + "test_uninstall.py::test_after_a_crash_at_every_step_the_same_again_ends_it",
}
"""Verbs that `recover` leaves to themselves, repeated; or whose state lies outside the node's root."""


def test_every_changing_verb_has_its_crash_points_enumerated():
    changing = {name for name, verb in cli.VERBS.items() if verb.changes}
    here = {case.verb for case in CASES.values()}
    assert here | set(ELSEWHERE) == changing
    assert not here & set(ELSEWHERE)
    for verb, place in ELSEWHERE.items():
        file, _, name = place.partition("::")
        text = (TESTS / file).read_text(encoding="utf-8")
        assert f"def {name}(" in text, verb


@pytest.mark.parametrize("name", CASES)
def test_recover_ends_in_one_of_the_two_states_wherever_the_agent_dies(world, stage_request, name):
    case = CASES[name]
    world.bench.make_request = stage_request
    world.bench.ask("site-set", **(site := _site(world)))
    target = good.read(world.bench.node).marks[-1].generation
    new = {"stage": stage_request("three"), "two": stage_request("two"), "site": site}
    if case.damage:
        world.ask("stage", new["stage"])
        (world.root / "generations" / new["stage"]["generation"] / case.damage).write_text("damaged\n")
    for verb, request in case.before:
        filled = {**site, **request} if verb == "site-set" else _filled(world, request)
        assert (answer := world.ask(verb, filled))["ok"], answer
    case.prepare(world)
    request = _filled(world, case.request(target, new))
    before = world.snapshot()
    after, steps = _after(world, case, request)
    assert (before == after) is case.same_after, "whether the verb leaves something"
    deaths, seen = 0, []
    for here in world.deaths(case.verb, request):
        deaths += 1
        begun = here.pending() != []
        effects = here.effects()
        answer = here.ask("recover", {})
        assert answer["ok"], (deaths, answer)
        assert all(each["outcome"] in ("finished", "undone") for each in answer["recovered"]), (deaths, answer)
        state = here.snapshot()
        if case.damage:  # the damaged one may be gone already, or there still
            state = _same_damage(state, new["stage"]["generation"], before)
        state |= {part: after[part] for part in case.third if state not in (before, after)}
        assert state in (before, after), (deaths, state)
        if begun and case.only_after_intent:
            assert state == after, f"step {deaths}: half done is carried out"
        if before["engines"] == after["engines"] and not case.same_after:
            assert not _on_engines(here.effects()[len(effects) :]), f"step {deaths}: what serves rightly is left alone"
        seen.append(state == after)
        assert here.pending() == []
        assert not here.ask("recover", {})["changed"], "a second one finds nothing to do"
        repeated = here.ask(case.verb, request)
        assert repeated["ok"], (deaths, repeated)
        ended = here.snapshot()
        ended |= {part: after[part] for part in case.third}
        assert ended == after, f"step {deaths}: repeated, it ends as it should"
    print(f"{name}: {deaths} crash points")
    assert deaths == steps, "each step that the whole verb counts was a death"
    assert deaths > 4, "too few steps"
    assert seen[0] is case.same_after
    assert seen[-1] is True


def _site(world: World) -> dict[str, Any]:
    return {**SITE, "nodes": ["spark0", "spark1", "spark2"]}


SITE = {
    "schema_version": 1, "site": "lab", "node": "spark1", "rank": 1, "world_size": 3, "ports": [8888],
    "memory": {"source": "meminfo", "available_bytes": None}, "stop_deadline_s": 15.0, "lock_lease_s": 60.0,
    "keep_generations": 10, "keep_boots": 50,
}  # fmt: skip


def _filled(world: World, request: dict[str, Any]) -> dict[str, Any]:
    """With the hash of the record that is there."""
    if HASH not in json.dumps(request):
        return request
    found = world.ask("record-head", {})["head"]["hash"]
    return dict(parse_json(json.dumps(request).replace(HASH, found)))


def _on_engines(effects: list[str]) -> list[str]:
    return [effect for effect in effects if "trispark-engine" in effect]


def _same_damage(state: dict[str, Any], generation: str, before: dict[str, Any]) -> dict[str, Any]:
    """A damaged generation that is being replaced is refused by every verb, and so is one that is not there."""
    if generation in state["generations"] and state["generations"][generation] == "whole":
        return state
    kept = {**state["generations"], generation: before["generations"][generation]}
    return {**state, "generations": dict(sorted(kept.items()))}


def _after(world: World, case: Case, request: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The state when nothing dies, and how many steps that takes."""
    done, steps = world.copy("after"), Steps()
    answer = done.ask(case.verb, request, steps)
    assert answer["ok"], answer
    return done.snapshot(), steps.done


@pytest.mark.parametrize("interrupted_at", [12, 20])
def test_recover_itself_may_die_at_every_step(world, interrupted_at):
    assert world.dies("rollback", NEXT, interrupted_at)
    assert world.pending(), "the rollback was begun"
    whole = world.copy("reference")
    assert whole.ask("recover", {})["ok"]
    after = whole.snapshot()
    deaths = 0
    for here in world.deaths("recover", {}):
        deaths += 1
        assert here.ask("recover", {})["ok"]
        assert here.snapshot() == after
        assert here.pending() == []
    assert deaths > 8


def outcomes(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["verb"], each["outcome"]) for each in answer["recovered"]]


def test_an_interrupted_stop_does_not_end_an_engine_that_was_started_after_it(world):
    journal = world.node().journal
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
    node = world.node()
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
    world.node().journal.append("rollback", "intent", detail)
    (ended,) = world.ask("recover", {})["recovered"]
    assert ended["outcome"] in ("undone", "left")
    assert ended["why"]


def test_long_work_is_left_to_its_own_verb(world):
    journal = world.node().journal
    journal.append("adopt", "intent", {})
    journal.append("engram", "intent", {})
    answer = world.ask("recover", {})
    assert [(each["verb"], each["outcome"]) for each in answer["recovered"]] == [
        ("adopt", "left"),
        ("engram", "undone"),
    ]
    assert world.pending() == ["adopt"]
