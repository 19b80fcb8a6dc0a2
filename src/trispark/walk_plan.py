"""The boots that a stage walks, worked out from its plans: which boot comes when, in which arm of which trial.

A plan (trispark.plan) is one trial. A sweep gives one plan a value; its trials share the boot of the baseline where
each plan counts one boot of it alone and all plan the same baseline. A walk has an id, with which it can be resumed,
and is kept on the controller in `.trispark/<site>/walks/<id>/plan.json`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from trispark.errors import TrisparkError
from trispark.plan import NO_IMAGE, Ground, kept_plan, plan_on, plans_of, require_same_plan
from trispark.resolve import resolve, resolve_arms
from trispark.stage_playbook import CONFIRM, playbook_of
from trispark_node.plain_json import parse_json

WALK_VERSION: Final = 1
PLAN_FILE: Final = "plan.json"
WALK_ID: Final = re.compile(r"t[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4,16}")
ArmName = Literal["baseline", "candidate"]


@dataclass(frozen=True)
class Slot:
    """One boot of a walk. `trials`: indices of the trials that it counts for, or, uncounted, prepares; `check`: a
    candidate that compares results."""

    slot: int
    arm: ArmName
    counted: bool
    check: bool
    trials: tuple[int, ...]
    value: str | None
    label: str
    generation: str
    why: str


@dataclass(frozen=True)
class TrialOfWalk:
    """One trial: its record's id, its plan's id, and both configurations by generation."""

    record: str
    plan: str
    value: str | None
    label: str
    base: tuple[str, ...]
    baseline: str
    candidate: str
    rules: Mapping[str, Any] | None = None
    """How it is decided (decision_rules.DecisionRules), as its plan has it."""


@dataclass(frozen=True)
class WalkPlan:
    """All boots of one stage and feature. `site_baseline`: what serves before and after; `resolved`: by generation;
    `boots`: counted boots an arm that were asked for, None for as many as the site says; `confirms`: of a confirmation
    the promotions that it is of (confirm.Part)."""

    walk: str
    site: str
    stage: str
    feature: str
    value: str | None
    site_baseline: str
    promoted: str | None
    slots: tuple[Slot, ...]
    trials: tuple[TrialOfWalk, ...]
    resolved: Mapping[str, Mapping[str, Any]]
    boots: int | None = None
    confirms: tuple[Mapping[str, Any], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return json.loads(json.dumps({"schema_version": WALK_VERSION, **asdict(self)}))  # type: ignore[no-any-return]

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> WalkPlan:
        """From its JSON form. Raises KeyError, TypeError and ValueError for another one."""
        content = dict(value)
        if content.pop("schema_version") != WALK_VERSION:
            raise ValueError("another schema_version")
        slots = [Slot(**{**slot, "trials": tuple(slot["trials"])}) for slot in content.pop("slots")]
        trials = [TrialOfWalk(**{**trial, "base": tuple(trial["base"])}) for trial in content.pop("trials")]
        confirms = tuple(content.pop("confirms", ()))
        return cls(**content, slots=tuple(slots), trials=tuple(trials), confirms=confirms)

    @property
    def plans(self) -> tuple[str, ...]:
        """Ids of the plans, one a trial."""
        return tuple(trial.plan for trial in self.trials)

    @property
    def label(self) -> str:
        """`wo_a`, `block_size=5`, or `block_size` for all values of the sweep."""
        return self.trials[0].label if len(self.trials) == 1 else self.feature

    def lines(self) -> list[str]:
        """For a person: what each trial changes, and how many boots there are."""
        found = [
            f"site {self.site}: {trial.label} changes {self.changed(trial)}; "
            f"baseline {trial.baseline}, candidate {trial.candidate}, plan {trial.plan}"
            for trial in self.trials
        ]
        found += [
            f"promoted by {part['record']} ({part['feature']}): {', '.join(part['keys'])}" for part in self.confirms
        ]
        return [*found, f"trial {self.walk}: {len(self.slots)} boots, then the baseline {self.site_baseline} again"]

    def changed(self, trial: TrialOfWalk) -> dict[str, list[Any]]:
        """{setting: [baseline, candidate]} of a trial."""
        old, new = (self.resolved[name]["settings"] for name in (trial.baseline, trial.candidate))
        return {name: [old.get(name), new.get(name)] for name in sorted({*old, *new}) if old.get(name) != new.get(name)}


def plan_walk(
    ground: Ground,
    walk: str,
    stage: str,
    feature: str | None,
    value: str | None = None,
    agreed: str = "",
    boots: int | None = None,
) -> WalkPlan:
    """The walk of a feature (all values of a sweep without `value`) in a stage, with so many counted boots an arm.

    `agreed`: ids of the plans that it must have, with commas between them; empty for any. Raises TS-PLAN-CHANGED for
    others, the first refusal of a plan as the error that it is, and what `plan_on` raises.
    """
    ground = ground.for_stage(stage)
    feature = feature or (CONFIRM if ground.confirms else None)
    catalog, site, root = ground.catalog, ground.site, ground.root
    selected = catalog.select(stage, feature or None, site.engine)
    if selected is None:
        raise TrisparkError(
            "TS-STAGE-TRIAL",
            f"stage {stage} has no trials",
            where="experiments/stages.yml",
            expected="a stage with trials",
            observed=stage,
            remedy=f"playbooks/stage_{catalog.stage_letter(stage)}.yml without a feature",
        )
    catalog.require_available(selected, site.engine)
    plans = plans_of(plan_on(ground, stage, selected, value or None, boots=boots))
    for plan in plans:
        for refusal in plan["refusals"]:
            raise TrisparkError(**refusal)
    _require_agreed(ground, plans, agreed)
    if ground.image == NO_IMAGE:
        site.model_copy(update={"engine_image": None}).require_engine_image()
    resolved: dict[str, Mapping[str, Any]] = {}
    trials: list[TrialOfWalk] = []
    for plan in plans:
        arms = resolve_arms(site, catalog, selected, None, root, value=plan["value"], promoted=ground.compared)
        resolved |= {arm.id: arm.resolved for arm in (arms.baseline, arms.candidate)}
        known = {*resolved, *([] if arms.check is None else [arms.check.id])}
        for boot in plan["boots"]:
            if boot["generation"] not in known:
                raise plan_changed(f"boot {boot['slot']} of plan {plan['id']}", boot["generation"], ", ".join(known))
        suffix = "" if len(plans) == 1 else "." + re.sub(r"[^A-Za-z0-9._-]", "-", str(plan["value"]))
        trials.append(
            TrialOfWalk(
                record=f"{walk}{suffix}",
                plan=plan["id"],
                value=plan["value"],
                label=arms.choice.label,
                base=arms.base,
                baseline=arms.baseline.id,
                candidate=arms.candidate.id,
                rules=plan["decision"],
            )
        )
    promoted = None if ground.promoted_by is None else str(ground.promoted_by["record"])
    return WalkPlan(
        walk=walk,
        site=site.name,
        stage=catalog.stage_letter(stage),
        feature=selected,
        value=value or None,
        site_baseline=resolve(site, catalog, None, None, root, promoted=ground.promoted).id,
        promoted=promoted,
        slots=tuple(_slots(plans, trials)),
        trials=tuple(trials),
        resolved=resolved,
        boots=boots,
        confirms=tuple(part.as_dict() for part in ground.confirms),
    )


def _slots(plans: Sequence[Mapping[str, Any]], trials: Sequence[TrialOfWalk]) -> list[Slot]:
    """All boots in order; the baseline's boots of the first plan stand for those of the others where they can."""
    shared = len(plans) > 1 and _can_share(plans)
    slots: list[Slot] = []
    for index, (plan, trial) in enumerate(zip(plans, trials, strict=True)):
        boots = list(plan["boots"])
        if shared:
            # One baseline, first of all; then nothing but candidates.
            boots = [boot for boot in boots if boot["arm"] == "candidate"]
            if index == 0:
                boots = [boot for boot in plan["boots"] if boot["arm"] == "baseline"] + boots
        for boot in boots:
            baseline = boot["arm"] == "baseline"
            slots.append(
                Slot(
                    slot=len(slots),
                    arm=boot["arm"],
                    counted=boot["counted"],
                    check=boot["check"],
                    trials=tuple(range(len(plans))) if shared and baseline else (index,),
                    value=None if baseline else trial.value,
                    label="baseline" if baseline else trial.label,
                    generation=boot["generation"],
                    why=boot["why"],
                )
            )
    return slots


def _can_share(plans: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one boot of the baseline can stand in every trial: it is the same one and each plan counts it once."""

    def counted(plan: Mapping[str, Any]) -> int:
        return sum(boot["arm"] == "baseline" and boot["counted"] for boot in plan["boots"])

    return all(counted(plan) == 1 and plan["baseline"] == plans[0]["baseline"] for plan in plans)


def _require_agreed(ground: Ground, plans: Sequence[Mapping[str, Any]], agreed: str) -> None:
    """Raises TS-PLAN-CHANGED, naming what changed where the plan that was agreed on was kept."""
    wanted = [part.strip() for part in agreed.split(",") if part.strip()]
    if not wanted:
        return
    found = [plan["id"] for plan in plans]
    if len(wanted) != len(found):
        raise plan_changed(f"stage {plans[0]['stage']} {plans[0]['feature']}", ", ".join(wanted), ", ".join(found))
    for identity, plan in zip(wanted, plans, strict=True):
        require_same_plan(identity, plan, kept_plan(ground.root, ground.site.name, identity))


def require_same_walk(kept: WalkPlan, now: WalkPlan) -> None:
    """Raises TS-PLAN-CHANGED when what is planned now is not what the walk was begun with."""
    for name in ("site", "stage", "feature", "value", "site_baseline", "promoted", "plans", "slots"):
        before, after = getattr(kept, name), getattr(now, name)
        if before != after:
            shown = [_shown(before), _shown(after)]
            raise plan_changed(f"{name} of trial {kept.walk}", *shown)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(each.generation if isinstance(each, Slot) else str(each) for each in value)
    return str(value)


def plan_changed(where: str, expected: str, observed: str) -> TrisparkError:
    return TrisparkError(
        "TS-PLAN-CHANGED",
        "the plan is not the one that was agreed on",
        where=where,
        expected=expected,
        observed=observed,
        remedy="look at the plan of now (./trispark plan), then start anew; do not edit the project during a trial",
    )


def require_feature(
    kept: WalkPlan, stage: str, feature: str, value: str, agreed: str = "", boots: int | None = None
) -> None:
    """Raises TS-WALK-OTHER when a begun trial is not of what was asked for; what is empty was not asked for."""
    plans = ", ".join(part.strip() for part in agreed.split(",") if part.strip())
    asked = {
        "stage": (stage.removeprefix("stage_"), kept.stage),
        "feature": (feature, kept.feature),
        "value": (value, kept.value or ""),
        "plan": (plans, ", ".join(kept.plans)),
        "boots": (str(boots or ""), "as many as the site says" if kept.boots is None else str(kept.boots)),
    }
    for name, (wanted, own) in asked.items():
        if wanted and wanted != own:
            raise TrisparkError(
                "TS-WALK-OTHER",
                "the trial that was begun is another one",
                where=f"trial {kept.walk}",
                expected=f"{name} {own or 'none, all values are tried'}",
                observed=wanted,
                remedy=f"playbooks/{playbook_of(kept.stage)}.yml -e resume={kept.walk}, without what it was begun with",
            )


def was_begun(root: Path, site: str, walk: str) -> bool:
    """Whether a trial with this id was begun here. Raises TS-WALK-ID for what is no id."""
    if not walk:
        return False
    if WALK_ID.fullmatch(walk) is None:
        raise TrisparkError(
            "TS-WALK-ID",
            "this is no id of a trial",
            where="trial",
            expected=WALK_ID.pattern,
            observed=walk[:80],
            remedy="-e resume=ID goes on with a trial that was begun; a new one gets its id by itself",
        )
    return (walks_directory(root, site) / walk / PLAN_FILE).exists()


def walks_directory(root: Path, site: str) -> Path:
    """Where the controller keeps the walks of a site."""
    return root / ".trispark" / site / "walks"


def keep_walk(directory: Path, walk: WalkPlan) -> None:
    """Write the plan of a walk into its own directory, once and durably."""
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    partial = directory / f"{PLAN_FILE}.tmp"
    with partial.open("w", encoding="utf-8") as file:
        json.dump(walk.as_dict(), file, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(directory / PLAN_FILE)


def kept_walk(root: Path, site: str, walk: str) -> WalkPlan:
    """The plan of a walk that was begun here. Raises TS-WALK-UNKNOWN, TS-WALK-DAMAGED."""
    directory = walks_directory(root, site)
    path = directory / walk / PLAN_FILE
    try:
        if WALK_ID.fullmatch(walk) is None:
            raise FileNotFoundError(walk)
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        known = sorted(each.parent.name for each in directory.glob(f"*/{PLAN_FILE}"))
        raise TrisparkError(
            "TS-WALK-UNKNOWN",
            "no trial with this id was begun here",
            where=str(directory),
            expected=f"one of {', '.join(known[-5:])}" if known else "none was begun yet",
            observed=walk,
            remedy="start it without resume",
        ) from None
    try:
        found = parse_json(content)
        if not isinstance(found, dict):
            raise ValueError(type(found).__name__)
        return WalkPlan.of(found)
    except (KeyError, TypeError, ValueError) as error:
        raise TrisparkError(
            "TS-WALK-DAMAGED",
            "the plan of a begun trial cannot be read",
            where=str(path),
            expected="what the walk wrote",
            observed=f"{type(error).__name__}: {error}"[:200],
            remedy="start the trial anew; its boots stay recorded",
        ) from None
