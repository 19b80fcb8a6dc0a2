"""The playbooks as sequences of agents' calls: generators that stop before each call, so that a controller can be
killed or held there, and another one be at work meanwhile.

What a playbook decides is decided here by the same functions of the product; which call follows which is compared with
the YAML files by tests/unit/fleet/test_fleet_order.py.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fleet_node import GENERATIONS, NAMES, STAGES, Fleet, site_request, token_of_host

from trispark import (
    agent_steps,
    boot_outcome,
    fleet_lock,
    promoted,
    record_chain,
    recovery,
    rollback,
    rollback_outcome,
)
from trispark.boot_plan import Moment, next_epoch
from trispark.errors import TrisparkError
from trispark.gate_result import GateResult
from trispark.measurement import read_measurement
from trispark.preflight import refuse_damage
from trispark.record_follow import follow
from trispark.records import head_of, record_hash
from trispark_node.canonical import generation_id


def _filters() -> Any:
    path = Path(__file__).resolve().parents[2] / "plugins/filter/trispark.py"
    spec = importlib.util.spec_from_file_location("trispark_filters", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FILTERS = _filters()
Result = dict[str, Any]
Results = dict[str, Result]


class Call(NamedTuple):
    """One call of an agent that a playbook is about to do."""

    node: str
    verb: str
    request: Mapping[str, Any]

    @property
    def verbs(self) -> list[str]:
        """What it asks for: more than one verb where it has steps."""
        return [str(each["verb"]) for each in self.request.get(agent_steps.STEPS, [])] or [self.verb]


Steps = Generator[Call, Result, Any]


class Ended(Exception):
    """The playbook ends with this failure."""


class Cache:
    """A controller's copies of the records, as record_chain asks for them."""

    def __init__(self, records: Iterable[dict[str, Any]] = ()) -> None:
        self.records = list(records)
        self.aside: list[dict[str, Any]] = []

    @property
    def directory(self) -> Cache:
        """It stands for its own directory, of which nothing is asked but to be renamed."""
        return self

    def with_name(self, _name: str) -> Cache:
        return Cache()

    def exists(self) -> bool:
        return False

    def rename(self, _target: Cache) -> None:
        self.aside += self.records
        self.records = []

    def list(self, limit: int | None = None) -> list[dict[str, Any]]:
        return list(self.records if limit is None else self.records[max(0, len(self.records) - limit) :])

    def head(self) -> dict[str, Any] | None:
        return head_of(self.records[-1]) if self.records else None

    def add(self, record: Mapping[str, Any]) -> bool:
        known = [each for each in self.records if each["seq"] == record["seq"]]
        if known:
            if record_hash(known[0]) != record_hash(record):
                raise TrisparkError("TS-RECORD-FORK", "two records", "here", "one", str(record["seq"]), "compare")
            return False
        self.records.append(dict(record))
        self.records.sort(key=lambda each: int(each["seq"]))
        return True


@dataclass
class Controller:
    """A host that runs playbooks, one at a time; its copies of the records outlive them."""

    host: str
    cache: Cache = field(default_factory=Cache)


class Play:
    """The hosts that a play still has: whoever fails is dropped, unless the task says otherwise."""

    def __init__(self) -> None:
        self.hosts = list(NAMES)
        self.failed: dict[str, Result] = {}

    def drop(self, bad: Mapping[str, Result]) -> None:
        self.failed |= bad
        self.hosts = [name for name in self.hosts if name not in bad]


HEAD, WORKERS = (NAMES[0],), NAMES[1:]
Request = Mapping[str, Any] | Callable[[str], Mapping[str, Any]]


def step(
    verb: str, request: Mapping[str, Any] | None = None, when: bool = True, requests: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """One of a task's `steps`, as the action plugin has it from its arguments."""
    return {"verb": verb, "request": dict(request or {}), "requests": requests, "when": when}


class Run:
    """One ansible-playbook: its owner's token, and the sequences. `tape`: its tasks with agents' verbs, in order."""

    numbers = 0

    def __init__(self, fleet: Fleet, controller: Controller, reason: str, parent: Run | None = None) -> None:
        Run.numbers += 1
        self.fleet, self.controller, self.reason, self.parent = fleet, controller, reason, parent
        self.number = Run.numbers
        self.token: str = parent.token if parent else token_of_host(controller.host, self.number)
        self.breaks = reason == "rollback" and parent is None
        self.tape: list[str] = []
        self.children: list[Run] = []
        self.valid_boot: str | None = None
        self.boot_ids: set[str] = parent.boot_ids if parent else set()
        self.cache = controller.cache

    def owner(self) -> dict[str, Any]:
        named = {"token": self.token, "host": self.controller.host, "pid": self.number, "user": "ops"}
        return {**named, "reason": self.reason, **({"breaks": True} if self.breaks else {})}

    # --- tasks ---

    def task(
        self,
        play: Play,
        verb: str,
        request: Request,
        ranks: Collection[str] = NAMES,
        *,
        ignore: bool = False,
        fatal: bool = False,
    ) -> Generator[Call, Result, Results]:
        """The verb on each host that the play has and `ranks` names. `ignore`: no failure drops a host."""
        results: Results = {}
        noted = False
        for name in [host for host in play.hosts if host in ranks]:
            asked = request(name) if callable(request) else request
            if not noted:
                self.tape.append(verb)
                noted = True
            results[name] = yield Call(name, verb, asked)
        bad = {name: each for name, each in results.items() if each.get("failed") or each.get("unreachable")}
        if not ignore:
            play.drop(bad)
            if fatal and bad:
                raise Ended(f"{verb}: {next(iter(bad.values()))['msg']}")
        return results

    def steps(
        self, play: Play, named: Callable[[str], list[dict[str, Any]]], *, fatal: bool = False
    ) -> Generator[Call, Result, Results]:
        """A task with `steps`: on each host that the play has several verbs in one call."""
        results: Results = {}
        begin, verbs = len(self.tape), [str(each["verb"]) for each in named(NAMES[0])]
        for name in play.hosts:
            asked = agent_steps.asked(named(name))
            if not asked:
                continue
            called = {*self.tape[begin:], *(each["verb"] for each in asked)}
            self.tape[begin:] = [verb for verb in verbs if verb in called]
            results[name] = agent_steps.as_one((yield Call(name, agent_steps.STEPS, {agent_steps.STEPS: asked})))
        bad = {name: each for name, each in results.items() if each.get("failed") or each.get("unreachable")}
        play.drop(bad)
        if fatal and bad:
            raise Ended(f"{verbs[-1]}: {next(iter(bad.values()))['msg']}")
        return results

    def answers(self, results: Results) -> dict[str, dict[str, Any] | None]:
        hostvars = {name: {"found": results.get(name) or {}} for name in NAMES}
        found: dict[str, dict[str, Any] | None] = FILTERS.answers(NAMES, hostvars, "found")
        return found

    # --- lock.yml, unlock.yml ---

    def lock(self) -> Steps:
        if self.parent is not None:
            return
        seen = yield from self.task(Play(), "lock-show", {}, ignore=True)
        refusal = FILTERS.lock_refusal(seen)
        if refusal:
            raise Ended(refusal)
        results = yield from self.task(Play(), "lock-take", {}, ignore=True)
        refusal = FILTERS.lock_refusal(results)
        if not refusal:
            return
        play = Play()
        play.hosts = [name for name, each in results.items() if (each.get("answer") or {}).get("changed")]
        yield from self.task(play, "lock-release", {}, ignore=True)
        raise Ended(refusal)

    def unlock(self, play: Play | None = None) -> Steps:
        if self.parent is None:
            yield from self.task(play or Play(), "lock-release", {}, ignore=True)

    # --- recover_first.yml ---

    def recover_first(self) -> Generator[Call, Result, recovery.Recovery | None]:
        if self.parent is not None:
            return None
        results = yield from self.task(Play(), "status", {}, ignore=True)
        outcomes = {each["boot_id"]: each["outcome"]["state"] for each in self.cache.list() if each["kind"] == "boot"}
        found = recovery.judge(results, outcomes)
        recovery.require_complete(found)
        play = Play()
        yield from self.task(play, "recover", {}, found.agents)
        yield from self.task(play, "rollback-clear", {"why": "the fleet serves"}, found.clear)
        newest = max(found.orphans, key=lambda orphan: orphan.epoch, default=None)
        if newest is not None:
            yield from self.record_orphan(play, newest, found, results)
        if found.stop and not found.missing:
            play = Play()
            yield from self.task(play, "stop", {"deadline_s": 20}, HEAD, fatal=True)
            yield from self.task(play, "stop", {"deadline_s": 20}, WORKERS, fatal=True)
        if found.completes or (found.stop and found.missing):
            yield from self.child(found.completes)
        return found

    def record_orphan(self, play: Play, orphan: recovery.Orphan, found: recovery.Recovery, results: Results) -> Steps:
        play.hosts = [name for name in play.hosts if name in found.answering]
        yield from self.catch_up(play, self.answers(results), set_aside=True)
        shown = yield from self.task(play, "generation-show", {"generation": orphan.generation}, ignore=True)
        if not any((each.get("answer") or {}).get("ok") for each in shown.values()):
            return
        plan = {
            "boot_id": orphan.boot_id, "generation": orphan.generation, "epoch": orphan.epoch,
            "purpose": "interrupted", "arm": None,
        }  # fmt: skip
        facts = recovery.orphan_facts(orphan, sorted(results))
        _record, append = self.build(plan, facts, self.answers(results))
        given = Play()
        given.hosts = list(found.answering)
        yield from self.append(given, append)

    def child(self, to: str) -> Steps:
        """trispark_complete: a rollback as a run of its own, under this one's lock."""
        self.children.append(Run(self.fleet, self.controller, "rollback", self))
        yield from self.children[-1].rollback(to)

    # --- roles/boot_record ---

    def build(
        self, plan: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]], statuses: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
        """The record, kept by this controller first, and what each node is to be given."""
        full = {**plan, "nodes": {name: {"rank": rank} for rank, name in enumerate(NAMES)}, "bench": None}
        gates = boot_outcome._gates(facts)
        measured = read_measurement(full, facts)
        outcome = boot_outcome._outcome(full, gates, boot_outcome.first_failure(full, facts), measured)
        heads = record_chain.heads_of(statuses)
        cache: Any = self.cache
        previous = follow(statuses, cache, plan["purpose"], change=True).head
        record = {
            "id": plan["boot_id"], "boot_id": plan["boot_id"], "kind": "boot", "outcome": outcome,
            "seq": previous["seq"] + 1 if previous else 1,
            "previous": {key: previous[key] for key in ("seq", "hash")} if previous else None,
            "requested": {"arm": plan["arm"], "purpose": plan["purpose"]},
            "resolved": {"generation": plan["generation"]},
        }  # fmt: skip
        append = dict(record_chain.appends(list(statuses), heads, cache, record).appends)
        self.cache.add(record)
        return record, append

    def append(
        self,
        play: Play,
        append: Mapping[str, list[dict[str, Any]]],
        good: Mapping[str, Any] | None = None,
        completes: Collection[str] = (),
    ) -> Steps:
        yield from self.steps(
            play,
            lambda name: [
                step("record-append", requests=append[name]),
                step("good-mark", good or {}, good is not None),
                step("rollback-clear", {"why": "a boot serves"}, name in completes),
            ],
        )

    # --- boot.yml ---

    def boot(self, tag: str, purpose: str, gates_ok: bool) -> Steps:
        yield from self.lock()
        yield from self.recover_first()
        results = yield from self.task(Play(), "status", {}, fatal=True)
        statuses = {name: each["answer"] for name, each in results.items()}
        for name, status in sorted(statuses.items()):
            refuse_damage(name, status)
        promoted.on_nodes(statuses)
        plan = {
            "generation": GENERATIONS[tag], "tag": tag, "purpose": purpose, "epoch": next_epoch(statuses),
            "boot_id": self.moment().boot_id, "arm": "baseline" if tag == "one" else "candidate", "gates_ok": gates_ok,
        }  # fmt: skip
        yield from self.run_boot(plan, statuses)
        yield from self.unlock()

    def moment(self) -> Moment:
        self.fleet.time += 1
        return Moment(datetime.fromtimestamp(1767000000 + self.fleet.time, UTC), f"{self.number % 65536:04x}")

    # --- run_boot.yml ---

    def run_boot(self, plan: dict[str, Any], statuses: Mapping[str, Any]) -> Steps:
        play = Play()
        self.boot_ids.add(str(plan["boot_id"]))
        yield from self.catch_up(play, statuses, set_aside=plan["purpose"] == "rollback")
        stages = STAGES[plan["tag"]] if plan["purpose"] != "rollback" else {}
        yield from self.steps(
            play,
            lambda name: [
                step("site-set", site_request(NAMES.index(name))),
                step("stage", stages.get(name, {}), name in stages),
                step("can-start", {"generation": plan["generation"]}),
            ],
            fatal=True,
        )
        facts, stopped, touched = yield from self.start_and_judge(plan)
        refusal = FILTERS.lock_refusal({name: fact.get("failure") or {} for name, fact in facts.items()})
        refusal = refusal or FILTERS.lock_refusal(stopped)
        if refusal:
            raise Ended(refusal)
        record, append = self.build(plan, facts, statuses)
        outcome = record["outcome"]
        yield from self.recorded(plan, outcome, append, statuses, touched)
        if outcome["state"] != "valid":
            raise Ended(str(outcome["reason"]))

    def start_and_judge(self, plan: Mapping[str, Any]) -> Generator[Call, Result, tuple[Any, Results, set[str]]]:
        """roles/engine: boot and gates; the facts of each node, what the rescue's stop said, who was touched."""
        boot = {"epoch": plan["epoch"], "boot_id": plan["boot_id"]}
        facts: dict[str, dict[str, Any]] = {name: {} for name in NAMES}
        play, touched = Play(), set(NAMES if plan["purpose"] == "rollback" else ())
        try:
            if plan["purpose"] != "rollback":
                yield from self.task(play, "fence", boot)
                self.require_all(play, "been fenced")
                touched |= set(NAMES)
                yield from self.task(play, "stop", {"deadline_s": 15}, HEAD)
                yield from self.task(play, "stop", {"deadline_s": 15}, WORKERS)
                yield from self.task(play, "activate", {"generation": plan["generation"]})
                self.require_all(play, "stopped and made the generation current")
            start = {**boot, "generation": plan["generation"]}
            yield from self.task(play, "start", start, WORKERS)
            yield from self.task(play, "start", start, HEAD)
            self.require_all(play, "been started")
            dead = [name for name in NAMES if not self.fleet.nodes[name].up or not self.fleet.nodes[name].running()]
            play.drop({name: {"failed": True, "msg": "TS-WATCH-ENDED: the engine ended"} for name in dead})
            self.require_all(play, "become ready")
        except Ended as others:
            for name in NAMES:
                own = play.failed.get(name, {"msg": str(others)})
                facts[name] = {} if own.get("unreachable") else {"failure": {"task": "boot", "result": own}}
        else:
            gate = GateResult("TS-GATE-MODEL", None, bool(plan["gates_ok"]), "a canary", "another answer")
            for name in NAMES:
                fact = {"watch": {"state": "ready"}, "observation": {"ok": True}, "gates": {"gates": [gate.as_dict()]}}
                failure = {} if plan["gates_ok"] else {"failure": {"task": "gates", "result": {"msg": gate.line()}}}
                facts[name] = {**fact, **failure}
            if plan["gates_ok"]:
                return facts, {}, touched
        rescue = Play()  # an unreachable host has no rescue
        rescue.hosts = [name for name in NAMES if not play.failed.get(name, {}).get("unreachable")]
        stopped: Results = {}
        if touched:
            stopped = yield from self.task(rescue, "stop", {"deadline_s": 15})
        return facts, stopped, touched

    def require_all(self, play: Play, step: str) -> None:
        """require_all.yml: who is left fails when one is missing."""
        missing = [name for name in NAMES if name not in play.hosts]
        if missing:
            raise Ended(f"{boot_outcome.ALL_RANKS}: not every rank has {step}; observed: missing {', '.join(missing)}")

    def recorded(
        self,
        plan: Mapping[str, Any],
        outcome: Mapping[str, Any],
        append: Mapping[str, list[dict[str, Any]]],
        statuses: Mapping[str, Any],
        touched: Collection[str],
    ) -> Steps:
        """The plays from `Append the record` to the end."""
        play = Play()
        mark = {"generation": plan["generation"], "boot_id": plan["boot_id"], "time": "2026-01-02T03:04:05Z"}
        valid = outcome["state"] == "valid"
        completes = {name for name in NAMES if valid and (plan["purpose"] == "rollback" or statuses[name]["rollback"])}
        yield from self.append(play, append, mark if outcome["good"] else None, completes)
        if not valid and touched:
            yield from self.task(play, "stop", {"deadline_s": 15})
        if outcome["good"] and plan["purpose"] != "rollback":
            yield from self.task(play, "prune", {}, ignore=True)
        if outcome["state"] == "valid":
            self.valid_boot = str(plan["boot_id"])
            if play.failed:
                raise Ended(f"not recorded on {', '.join(play.failed)}")

    # --- stop.yml ---

    def stop(self) -> Steps:
        yield from self.lock()
        play = Play()
        yield from self.task(play, "stop", {"deadline_s": 15}, HEAD)
        yield from self.task(play, "stop", {"deadline_s": 15}, WORKERS)
        yield from self.task(play, "rollback-clear", {"why": "stopped by stop.yml", "fence": True})
        failed = dict(play.failed)
        yield from self.unlock(play)
        if failed:
            raise Ended(f"stop failed on {', '.join(failed)}")

    # --- rollback.yml ---

    def rollback(self, to: str, gates_ok: bool = True) -> Steps:
        results = yield from self.task(Play(), "status", {"quick": True}, ignore=True)
        statuses = self.answers(results)
        silent = {name: str(each.get("msg")) for name, each in results.items() if statuses[name] is None}
        target = rollback.choose(statuses, to, GENERATIONS["one"], silent)
        answered = {name: status for name, status in statuses.items() if status}
        boot_id, number = self.moment().boot_id, next_epoch(answered) + 1
        request = {
            "to": target.generation, "epoch": number, "boot_id": boot_id, "deadline_s": 20,
            "missing": list(target.missing), "by": "rollback.yml",
        }  # fmt: skip
        play = Play()
        play.hosts = [name for name in NAMES if name not in target.missing]
        heads = yield from self.task(play, "rollback", request, HEAD, ignore=True)
        workers = yield from self.task(play, "rollback", request, WORKERS, ignore=True)
        picked = {name: each for name, each in {**heads, **workers}.items() if each}
        retreat = rollback_outcome.judge(target.generation, picked, target.missing, 1.0)
        if retreat.state != rollback_outcome.READY:
            raise Ended(retreat.failure_line())
        looks = [step("generation-show", {"generation": target.generation}), step("status", {})]
        seen = yield from self.steps(Play(), lambda _name: looks, fatal=True)
        shown = [each["answers"]["generation-show"]["resolved"] for each in seen.values()]
        assert {generation_id(each) for each in shown} == {target.generation}
        now: dict[str, Any] = {name: each["answer"] for name, each in seen.items()}
        plan = {
            "generation": target.generation, "purpose": "rollback", "epoch": number, "boot_id": boot_id, "arm": None,
            "gates_ok": gates_ok,
        }  # fmt: skip
        yield from self.run_boot(plan, now)
        yield from self.unlock()

    # --- promote.yml, with the trial's record that it needs ---

    def promote(self, tag: str) -> Steps:
        yield from self.lock()
        play = Play()
        results = yield from self.task(play, "status", {}, fatal=True)
        statuses: dict[str, Any] = {name: each["answer"] for name, each in results.items()}
        yield from self.catch_up(play, statuses, all_of_it=True)
        held = promoted.on_nodes(statuses)
        record = next((each for each in self.cache.list() if each["kind"] == "trial"), None)
        if record is None:
            record, append = self.keep(tag, statuses)
            given = Play()
            yield from self.append(given, append)
            if given.failed:
                raise Ended("the trial's record is not on every node")
        wanted = promoted.Promoted({"MAX_X": 2}, record["id"], record_hash(record), "2026-01-02T03:04:05Z")
        request = {"baseline": wanted.as_dict(), "replaces": promoted.name_of(held)}
        yield from self.task(play, "baseline-set", request)
        failed = dict(play.failed)
        yield from self.unlock(play)
        if failed:
            raise Ended(f"not promoted on {', '.join(failed)}")

    def catch_up(
        self, play: Play, statuses: Mapping[str, Any], *, all_of_it: bool = False, set_aside: bool = False
    ) -> Steps:
        """trispark_catch_up, one node after the other; a failure ends the playbook."""
        cache: Any = self.cache
        heads = record_chain.heads_of(statuses)
        for name in [host for host in play.hosts if statuses.get(host)]:
            head = statuses[name]["record_head"]
            if all_of_it:
                after = record_chain.missing(head, cache)
                lacked = [] if after is None else list(range(after + 1, int(head["seq"]) + 1))
            else:
                if set_aside:
                    chain = record_chain.judge(heads, cache)
                    if chain.copy_fork is not None:
                        record_chain.set_aside_forked_copy(heads, cache)
                    if name in chain.forks:
                        continue
                else:
                    record_chain.refuse_forked_copy(heads, cache)
                    record_chain.judge(heads, cache).require_one()
                lacked = record_chain.needed(head, heads, cache)
            if not lacked:
                continue
            listed = (yield from self.task(play, "record-list", {"limit": 100}, (name,), fatal=True))[name]
            for each in listed["answer"]["records"]:
                if int(each["seq"]) in lacked:
                    asked = yield from self.task(play, "record-show", {"id": each["id"]}, (name,), fatal=True)
                    self.cache.add(asked[name]["answer"]["record"])

    def keep(self, tag: str, statuses: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
        """The record of a trial that ended with KEEP."""
        cache: Any = self.cache
        heads = record_chain.heads_of(statuses)
        previous = record_chain.leading_head(heads, cache)
        record = {
            "id": self.moment().trial_id, "kind": "trial", "outcome": {"verdict": "KEEP"},
            "seq": previous["seq"] + 1 if previous else 1,
            "previous": {key: previous[key] for key in ("seq", "hash")} if previous else None,
            "resolved": {"candidate": GENERATIONS[tag], "baseline": GENERATIONS["one"]},
        }  # fmt: skip
        append = dict(record_chain.appends(list(statuses), heads, cache, record).appends)
        self.cache.add(record)
        return record, append

    # --- recover.yml ---

    def recover(self) -> Steps:
        yield from self.lock()
        found = yield from self.recover_first()
        assert found is not None
        if (found.stop or found.incomplete) and not self.children:
            yield from self.child("" if found.incomplete is None else found.incomplete.target)
        yield from self.unlock()

    # --- prune.yml ---

    def prune(self) -> Steps:
        yield from self.lock()
        play = Play()
        yield from self.task(play, "prune", {"keep": None, "images": False})
        yield from self.unlock(play)
        if play.failed:
            raise Ended(f"prune failed on {', '.join(play.failed)}")


def taken(fleet: Fleet, run: Run, call: Call) -> Result:
    """`lock-show`, `lock-take` and `lock-release` as trispark_lock does them; any other verb as it is."""

    def ask(verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return fleet.nodes[call.node].result(verb, {"owner": run.owner(), **request})

    if call.verb == "lock-show":
        return dict(fleet_lock.look(ask))
    if call.verb == "lock-take":
        return dict(fleet_lock.take(ask))
    if call.verb == "lock-release":
        return dict(fleet_lock.release(ask))
    return ask(call.verb, call.request)


FAILURES = (Ended, TrisparkError)
