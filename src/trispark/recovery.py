"""What a controller that died left behind, from the nodes' own answers, and what ends it.

Three things can be left: an agent's interrupted verb (its journal has it), a boot without a record, and a rollback that
is not complete because nodes were missing. A boot that runs without a record serves unjudged: it is stopped on every
node and recorded as failed. Read here, carried out by playbooks/recover_first.yml.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trispark.boot_plan import Moment, plan_stored
from trispark.errors import TrisparkError
from trispark.moot import OUR_BOOT, moot_rollbacks

Answers = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Orphan:
    """A boot without a record, and why it has none; `generation` and `epoch` as its containers say."""

    boot_id: str
    generation: str
    epoch: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Incomplete:
    """A rollback that nodes remember. `waited`: nodes that were missing then; `still_missing`: those without an answer
    now."""

    target: str
    epoch: int
    since: str
    waited: tuple[str, ...]
    still_missing: tuple[str, ...]


@dataclass(frozen=True)
class Recovery:
    """What is to be done. `agents`: nodes whose journal has an interrupted verb; `stop`: whether every rank's engine is
    to be stopped; `clear`: nodes whose rollback is moot; `by_hand`: boots of a person, `untold`: boots of which it is
    not known whether they have a record; both are left alone. `answering`: nodes that can be told anything."""

    agents: tuple[str, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    stop: bool = False
    incomplete: Incomplete | None = None
    clear: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    answering: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def completes(self) -> str:
        """Target of the rollback that waited for nodes which are back; empty when there is none. One whose boot failed
        waited for nobody: what fails once is not started again by itself."""
        if self.incomplete is None or self.missing or not self.incomplete.waited:
            return ""
        return self.incomplete.target

    def lines(self) -> list[str]:
        found = [f"{node}: an interrupted verb of the agent is ended" for node in self.agents]
        newest = max((each.epoch for each in self.orphans), default=0)
        found += [
            f"boot {each.boot_id} has no record, its controller ended: it is stopped"
            f"{' and recorded as failed' if each.epoch == newest else ''}"
            for each in self.orphans
        ]
        if self.stop and not self.orphans:
            found.append("an engine of a boot that was judged and is not valid still runs: it is stopped")
        if self.stop and self.missing:
            found.append(f"{', '.join(self.missing)} cannot be told: rolling back what answers")
        if self.incomplete is not None:
            found.append(f"the rollback to {self.incomplete.target} since {self.incomplete.since}: {self._how_far()}")
        found += [f"{node}: a rollback that is moot is forgotten" for node in self.clear]
        found += [f"boot {boot} was started by hand and has no record; it is left" for boot in self.by_hand]
        found += [f"boot {boot}: whether it has a record cannot be told; it is left" for boot in self.untold]
        return found

    def _how_far(self) -> str:
        if self.incomplete is not None and self.incomplete.still_missing:
            return f"still missing: {', '.join(self.incomplete.still_missing)}"
        return "all nodes are back, it is completed" if self.completes else "its boot did not end well"


def judge(results: Mapping[str, Mapping[str, Any]], outcomes: Mapping[str, str]) -> Recovery:
    """`results`: what the task with the agent's verb `status` registered, by node; `outcomes`: {boot id: state} of all
    records that the controller has. A node without an answer is `missing`."""
    answers = {node: result["answer"] for node, result in results.items() if (result.get("answer") or {}).get("ok")}
    missing = {
        node: " ".join(str(result.get("msg") or "no answer").split())[:300]
        for node, result in sorted(results.items())
        if node not in answers
    }
    known = {**outcomes, **_recorded(answers)}
    orphans, by_hand, untold = _unrecorded(answers, known)
    not_valid = any(
        known.get(str(engine["boot_id"])) not in (None, "valid")
        for status in answers.values()
        if (engine := status.get("engine")) and engine["state"] in ("running", "paused", "restarting")
    )
    moot = moot_rollbacks(answers, len(results), known)
    return Recovery(
        agents=tuple(node for node, status in sorted(answers.items()) if status.get("pending")),
        orphans=orphans,
        stop=bool(orphans) or not_valid,
        incomplete=_incomplete({node: status for node, status in answers.items() if node not in moot}, missing),
        clear=tuple(sorted(moot)),
        by_hand=by_hand,
        untold=untold,
        answering=tuple(sorted(answers)),
        missing=missing,
    )


def _recorded(answers: Answers) -> dict[str, str]:
    """{boot id: state} as the nodes' own records have it, for a controller that has no copy of them yet."""
    engines = [status["engine"] for status in answers.values() if status.get("engine")]
    return {str(engine["boot_id"]): str(engine["record"]) for engine in engines if engine.get("record")}


def _unrecorded(
    answers: Answers, known: Mapping[str, str]
) -> tuple[tuple[Orphan, ...], tuple[str, ...], tuple[str, ...]]:
    """Boots without a record: of a controller, of a person, and those of which no node can tell."""
    seen: dict[str, list[str]] = {}
    engines: dict[str, Mapping[str, Any]] = {}
    untold: set[str] = set()
    for node, status in sorted(answers.items()):
        engine = status.get("engine")
        if engine and engine.get("boot_id") and str(engine["boot_id"]) not in known:
            boot = str(engine["boot_id"])
            seen.setdefault(boot, []).append(node)
            engines[boot] = engine
            if "record" not in engine or status.get("record_chain") not in ("ok", "empty"):
                untold.add(boot)
    ours = [boot for boot in sorted(seen) if OUR_BOOT.fullmatch(boot)]
    orphans = tuple(
        Orphan(boot, str(engines[boot]["generation"]), int(engines[boot]["epoch"]), tuple(seen[boot]))
        for boot in ours
        if boot not in untold
    )
    by_hand = tuple(sorted(boot for boot in seen if not OUR_BOOT.fullmatch(boot)))
    return orphans, by_hand, tuple(boot for boot in ours if boot in untold)


def _incomplete(answers: Answers, missing: Collection[str]) -> Incomplete | None:
    found = [status["rollback"] for status in answers.values() if status.get("rollback")]
    if not found:
        return None
    newest = max(found, key=lambda rollback: int(rollback["epoch"]))
    return Incomplete(
        str(newest["target"]),
        int(newest["epoch"]),
        str(newest["since"]),
        tuple(map(str, newest["missing"])),
        tuple(sorted(missing)),
    )


def require_complete(recovery: Recovery) -> None:
    """Raises TS-RECOVER-NODE where a rollback cannot be completed: whoever boots anything needs all nodes."""
    if recovery.incomplete is None or not recovery.missing or recovery.stop:
        return
    raise TrisparkError(
        "TS-RECOVER-NODE",
        f"a rollback to {recovery.incomplete.target} is not complete and nodes are still missing",
        where=", ".join(recovery.missing),
        expected="all ranks, they serve together or not at all",
        observed="; ".join(f"{node}: {why}" for node, why in recovery.missing.items()),
        remedy="bring them back and repeat this; ./trispark play stop gives the rollback up",
    )


def orphan_plan(orphan: Orphan, stored: Answers, statuses: Answers) -> dict[str, Any]:
    """The plan by which a boot without a record is recorded; what it was to do is in the stored generation alone."""
    plan = plan_stored(purpose="interrupted", stored=stored, statuses=statuses, moment=Moment.current())
    match = OUR_BOOT.fullmatch(orphan.boot_id)
    began = datetime.strptime(match[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) if match else datetime.now(UTC)
    return {
        **plan,
        "boot_id": orphan.boot_id,
        "epoch": orphan.epoch,
        "time": f"{began:%Y-%m-%dT%H:%M:%SZ}",
        "started": began.timestamp(),
    }


def orphan_facts(orphan: Orphan, nodes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What a record of it is made from: no observation, and the reason on every node."""
    line = str(
        TrisparkError(
            "TS-RECOVER-BOOT",
            "the controller of this boot ended before it was judged",
            where=orphan.boot_id,
            expected="a record of the boot",
            observed=f"its engine on {', '.join(orphan.nodes)} without one; it was stopped",
            remedy="boot again",
        )
    )
    failure = {"task": "recover", "result": {"msg": line, "check_id": "TS-RECOVER-BOOT"}}
    return {node: {"failure": failure} for node in nodes}
