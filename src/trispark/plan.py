"""What a trial would do, worked out offline: both configurations, their difference, boots, hours, evidence, refusals.

A plan is a JSON object without time and randomness, so the same tree gives the same bytes:
    schema_version, id (`p` and 16 hex digits of the hash of all the rest), site, engine
    image, bench_image      references of the site's engine image and the load client's, or "not in the inventory yet"
    stage, feature, value, title
    base        features that both arms hold because the tried one needs them
    overrides   what `--set` gave and both arms hold
    promoted    settings by which the site's own baseline differs from the shipped one, and the record behind it
    baseline, candidate     {generation, image, settings, withheld}; generation is None where the arm cannot be
                resolved, image is what it runs, None where the site has none of that name; candidate is None where
                nothing is tried; withheld are names whose values may not be shown
    difference  {NAME: [baseline, candidate]}
    decision    the rules by which it is decided (decision_rules.DecisionRules), None where nothing is tried
    boots       [{slot, arm, counted, check, generation, why}] in their order; check: a candidate that compares results
    cells       [{cell, concurrency, workload, prompts, repetitions, max_tokens, metrics}]: what a counted boot measures
    hours       {boots, per_boot_min, total}; the boot that restores the baseline is among the boots
    confirms    of a confirmation alone: the promotions whose keys make the difference (confirm.Part)
    evidence    {arm: {must, must_not: {rank: [evidence id]}}}; besides the arms `check` where such a boot is planned
    budget      {model, verdict, better_bundle, baseline, candidate}, None where the site names no memory model
    refusals    [{id, what, where, expected, observed, remedy}]; with one of them the trial does not start
    notes       what a reader should know besides
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from trispark.allowlist import ENGINE_IMAGE, SITE_IMAGE, Value, format_value
from trispark.bench_plan import client_input
from trispark.benchstats import metric_names
from trispark.canonical import canonical_sha256
from trispark.catalog import Catalog, Choice, Feature, Kind, load_catalog
from trispark.confirm import Part, parts_of, with_confirmation
from trispark.decision_rules import BOOTS_PER_ARM, LOOKS, DecisionRules, arms_of, rules_for
from trispark.errors import TrisparkError
from trispark.noise_floor import SiteNoise, kept_noise
from trispark.promoted import cached, settings_of
from trispark.records import RecordCache
from trispark.resolve import Resolution, arm_problems, resolve, resolve_arms
from trispark.site import LAB, Site, load_site
from trispark.stage_playbook import CONFIRM, is_confirmation
from trispark.workloads import SHORT
from trispark_node.canonical import sha256_hex

PLAN_VERSION: Final = 1
PLACEHOLDER_IMAGE: Final = "not-built.invalid/engine@sha256:" + "0" * 64
"""Stands for an image that does not exist yet (the lab's are made by `lab up`). For planning alone: nothing can pull
it, and whoever runs asks the site for its own (TS-SITE-IMAGES)."""
NO_IMAGE: Final = "not in the inventory yet"
VERDICTS: Final = ("fits", "edge", "unsafe")
"""Of a memory budget, from the best to the worst."""
HIDDEN: Final = "(value not shown)"
KEPT_PLANS: Final = 200
_ID: Final = re.compile(r"p[0-9a-f]{16}")
_DIGITS: Final = 10
"""Of a number that is read as one."""
AUTOTUNE_KEEP: Final = "DSV41_AUTOTUNE_KEEP"
_OVERRIDE: Final = "override "
"""How the resolver names the place of an override."""


class Judged(Protocol):
    """What the memory budget says of one configuration."""

    @property
    def verdict(self) -> str: ...

    @property
    def lines(self) -> Sequence[str]: ...

    @property
    def better_bundle(self) -> str | None: ...

    def as_dict(self) -> dict[str, Any]: ...


Budgeter = Callable[[Path, Site, Mapping[str, Value], Catalog, Mapping[str, Value] | None], Judged | None]
"""Of one configuration; the last argument are the settings that a way back leads to."""


@dataclass(frozen=True)
class Ground:
    """What all plans of a site are made from. `site` has the placeholder where it has no image; `confirms`: the
    promotions that a confirmation is of, empty for every other trial."""

    root: Path
    site: Site
    catalog: Catalog
    promoted: Mapping[str, Value]
    promoted_by: Mapping[str, Any] | None
    image: str
    noise: SiteNoise | None = None
    confirms: tuple[Part, ...] = ()

    @property
    def compared(self) -> Mapping[str, Value]:
        """By what the baseline of a trial differs from the shipped one: the site's own, but for a confirmation."""
        return {} if self.confirms else self.promoted

    def for_stage(self, stage: str) -> Ground:
        """Itself; for the confirmation with its entry in the catalog. Raises TS-CONFIRM-*, TS-RECORD-READ."""
        if not is_confirmation(stage) or self.confirms:
            return self
        by = self.promoted_by or {"record": "", "record_hash": ""}
        records = RecordCache(self.root / ".trispark" / self.site.name / "records").list()
        parts = parts_of(self.promoted, str(by["record"]), str(by["record_hash"]), self.catalog, records)
        return replace(self, catalog=with_confirmation(self.catalog, self.promoted, parts), confirms=parts)

    @classmethod
    def load(cls, root: Path, site_name: str) -> Ground:
        """Raises TS-SITE-*, TS-CATALOG-*, TS-YAML-*, TS-BASELINE-READ, TS-STATS-NOISEFILE."""
        site, catalog = load_site(root / "inventory" / site_name, images="optional"), load_catalog(root)
        catalog = catalog.on(site.engine)
        image = site.engine_image or NO_IMAGE
        if site.engine_image is None:
            site = with_placeholders(site, catalog)
        promoted = cached(root, site_name)
        by = None if promoted is None else {"record": promoted.record, "record_hash": promoted.record_hash}
        return cls(root, site, catalog, settings_of(promoted, catalog), by, image, kept_noise(root, site_name))


def with_placeholders(site: Site, catalog: Catalog) -> Site:
    """A site without images with stand-ins for them: for its engine, and in the lab, where `lab up` makes all of them,
    for each that a feature names."""
    named: set[str] = set()
    if site.name == LAB:
        named = {str(entry.sets[ENGINE_IMAGE]) for entry in catalog.features.values() if ENGINE_IMAGE in entry.sets}
    further = {name: _stand_in(name) for name in sorted(named)}
    return site.model_copy(
        update={"engine_image": PLACEHOLDER_IMAGE, "engine_images": {**further, **site.engine_images}}
    )


def _stand_in(name: str) -> str:
    """A reference of no image, another one for each name."""
    return f"not-built.invalid/engine@sha256:{sha256_hex(name.encode())}"


def plan_budget(
    root: Path, site: Site, settings: Mapping[str, Value], catalog: Catalog, back_to: Mapping[str, Value] | None = None
) -> Judged | None:
    """The memory budget of one configuration on the site's nodes; None where the site names no memory model."""
    if site.memory_model is None:
        return None
    # Here, because a site without a model, as the lab, is planned without it.
    from trispark.site_budget import judge_site

    return judge_site(root, site, settings, catalog, back_to)


def unsafe(judged: Judged, arm: str, model: str | None) -> TrisparkError:
    """The refusal of a configuration whose verdict is `unsafe`."""
    found = judged.as_dict()
    back = ", ".join(f"{name}={format_value(value)}" for name, value in (found.get("way_back") or {}).items())
    return TrisparkError(
        "TS-BUDGET-UNSAFE",
        f"the {arm} does not fit the memory of a node",
        where=f"memory model {model}",
        expected="a budget that fits, or one at the edge",
        observed="; ".join(reason["text"] for reason in found.get("reasons", ())) or "".join(judged.lines[-1:]),
        remedy=f"try {judged.better_bundle}"
        if judged.better_bundle
        else f"go back to {back}"
        if back
        else "see its budget with ./trispark plan (docs/memory.md)",
    )


def make_plan(
    root: Path,
    site_name: str,
    stage: str,
    feature: str | None,
    value: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    boots: int | None = None,
    budget: Budgeter = plan_budget,
) -> dict[str, Any]:
    """The plan of a trial of `feature` in `stage` (`c` or `stage_c`; `confirm` has one feature), with so many counted
    boots an arm (None: the site's number).

    A sweep without `value` gives {schema_version, site, engine, stage, feature, plans: one a value}. Without a feature
    it is the plan of a stage that has no trials. Refusals of the trial are part of the plan. What leaves nothing to
    plan raises: TS-CONFIRM-*, TS-STAGE-UNKNOWN, TS-FEATURE-MISSING, TS-FEATURE-UNKNOWN, TS-FEATURE-VALUE,
    TS-PLAN-BOOTS, and as `Ground.load` does.
    """
    return plan_on(Ground.load(root, site_name), stage, feature, value, overrides, boots=boots, budget=budget)


def plan_on(
    ground: Ground,
    stage: str,
    feature: str | None,
    value: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    boots: int | None = None,
    budget: Budgeter = plan_budget,
) -> dict[str, Any]:
    """`make_plan` from data that is loaded already."""
    ground = ground.for_stage(stage)
    catalog = ground.catalog
    if ground.confirms:
        feature = feature or CONFIRM
    count = require_boots(ground.site.trial_boots if boots is None else boots)
    letter = catalog.stage_letter(stage)
    if not feature:
        catalog.select(letter, None, ground.site.engine)
        return _Maker(ground, letter, None, dict(overrides or {}), count, budget).plan()
    if feature not in catalog.features:
        catalog.select(letter, feature, ground.site.engine)
    held = {**catalog.baseline, **ground.compared}
    if catalog.require_feature(feature).sweep is None or value:
        choices: tuple[Choice, ...] = (catalog.choose(feature, value, held),)
    else:
        choices = catalog.choices(feature, held)
    plans = [_Maker(ground, letter, choice, dict(overrides or {}), count, budget).plan() for choice in choices]
    if len(plans) == 1 and (value or plans[0]["value"] is None):
        return plans[0]
    head = {name: plans[0][name] for name in ("schema_version", "site", "engine", "stage", "feature")}
    return {**head, "plans": plans}


def plans_of(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The single plans of what `make_plan` gave."""
    return list(plan["plans"]) if "plans" in plan else [dict(plan)]


def plan_id(plan: Mapping[str, Any]) -> str:
    """The id that a plan must have."""
    return "p" + canonical_sha256({key: part for key, part in plan.items() if key != "id"})[:16]


class _Maker:
    """Makes one plan; `refusals` are collected on the way, so that none hides another or the rest of the plan."""

    def __init__(
        self,
        ground: Ground,
        letter: str,
        choice: Choice | None,
        overrides: dict[str, str],
        count: int,
        budget: Budgeter,
    ) -> None:
        self.ground = ground
        self.letter = letter
        self.choice = choice
        self.entry = None if choice is None else ground.catalog.features[choice.feature]
        self.overrides = overrides
        self.count = count
        self.budget = budget
        self.refusals: list[TrisparkError] = []
        self.remarks: list[str] = []
        self.base: tuple[str, ...] = ()
        self.check: _Arm | None = None

    def plan(self) -> dict[str, Any]:
        ground, choice, site = self.ground, self.choice, self.ground.site
        self._judge_choice()
        baseline, candidate = self._arms()
        self._judge_build(baseline, candidate)
        self._judge_exclusions(baseline.settings, None if candidate is None else candidate.settings)
        cells = self._cells()
        budget = self._judge_budget(baseline, candidate)
        decision = self._decision(baseline, candidate)
        boots = self._boots(baseline, candidate, decision)
        plan: dict[str, Any] = {
            "schema_version": PLAN_VERSION,
            "site": site.name,
            "engine": site.engine,
            "image": ground.image,
            "bench_image": site.bench_image or NO_IMAGE,
            "stage": self.letter,
            "feature": None if choice is None else choice.feature,
            "value": None if choice is None or choice.value is None else format_value(choice.value),
            "title": ground.catalog.stages[self.letter].title if self.entry is None else self.entry.title,
            "base": list(self.base),
            "overrides": self._shown_overrides(),
            "promoted": None if ground.promoted_by is None else {**ground.promoted_by, **self._shown(ground.promoted)},
            "baseline": self._side(baseline),
            "candidate": None if candidate is None else self._side(candidate),
            "difference": self._difference(baseline, candidate),
            "decision": None if decision is None else decision.as_dict(),
            "boots": boots,
            "cells": cells,
            "hours": hours(site, boots, restores=candidate is not None and bool(boots)),
            "evidence": {
                arm: self._evidence(side.settings)
                for arm, side in (("baseline", baseline), ("candidate", candidate), ("check", self.check))
                if side is not None
            },
            "budget": budget,
            "refusals": self._refused(),
            "notes": self._notes(cells),
        }
        if ground.confirms:
            plan["confirms"] = [part.as_dict() for part in ground.confirms]
        return {**plan, "id": plan_id(plan)}

    @property
    def _same_arms(self) -> bool:
        return self.entry is not None and self.entry.same_arms

    def _refuse(self, error: TrisparkError) -> None:
        if error.as_dict() not in [known.as_dict() for known in self.refusals]:
            self.refusals.append(error)

    def _judge_choice(self) -> None:
        """Whether the feature belongs to this stage and can be run on this engine."""
        if self.choice is None:
            return
        catalog, feature, engine = self.ground.catalog, self.choice.feature, self.ground.site.engine
        for judge in (
            lambda: catalog.select(self.letter, feature, engine),
            lambda: catalog.require_available(feature, engine),
        ):
            try:
                judge()
            except TrisparkError as error:
                self._refuse(error)

    def _judge_build(self, baseline: _Arm, candidate: _Arm | None) -> None:
        """Whether the image of each arm may be used, and the adapters of the feature and of what both arms hold for it
        bind to it."""
        tried = () if self.choice is None else (self.choice.feature,)
        arms = (
            [(baseline, self.base)] if candidate is not None and self._image(candidate) != self._image(baseline) else []
        )
        for side, names in [*arms, (candidate or baseline, (*tried, *self.base))]:
            image = self._image(side)
            refused, notes = self.ground.catalog.judge_build(names, self.ground.site.engine, image or NO_IMAGE)
            for error in refused:
                self._refuse(error)
            self.remarks += [note for note in notes if note not in self.remarks]

    def _image(self, side: _Arm) -> str | None:
        """What an arm runs, NO_IMAGE where its site has no images yet; None where the site has none of that name."""
        try:
            image = self.ground.site.image_named(str(side.settings.get(ENGINE_IMAGE, SITE_IMAGE)))
        except TrisparkError:
            return None
        return NO_IMAGE if self.ground.image == NO_IMAGE else image

    def _side(self, side: _Arm) -> dict[str, Any]:
        return {"generation": side.generation, "image": self._image(side), **self._shown(side.settings)}

    def _arms(self) -> tuple[_Arm, _Arm | None]:
        """Both arms as far as they can be resolved. An override that is refused is left out of them."""
        choice, ground = self.choice, self.ground
        # Exclusions are judged apart, each by itself.
        catalog = replace(ground.catalog, exclusions={})
        for name in sorted(name for name in self.overrides if ground.catalog.allowlist.get(name) is None):
            probe = {name: self.overrides[name]}
            for error in judge_excluded(ground.catalog, probe, None, where=f"{_OVERRIDE}{name}")[0]:
                self._refuse(error)
                self.overrides.pop(name, None)
        sets = {} if choice is None else choice.sets
        site = self._with_images(sets)
        while True:
            try:
                if choice is None or not (sets or self._same_arms):
                    alone = resolve(site, catalog, None, self.overrides, ground.root, promoted=ground.promoted)
                    return self._arm(alone), None
                value = None if choice.value is None else format_value(choice.value)
                arms = resolve_arms(
                    site,
                    catalog,
                    choice.feature,
                    self.overrides,
                    ground.root,
                    value=value,
                    promoted=ground.compared,
                    judge=False,
                )
            except TrisparkError as error:
                self._refuse(error)
                name = error.where.removeprefix(_OVERRIDE)
                if error.where.startswith(_OVERRIDE) and name in self.overrides:
                    del self.overrides[name]
                    continue
                return self._settings_alone()
            self.base = arms.base
            self.check = None if arms.check is None else self._arm(arms.check)
            for problem in arm_problems(site, ground.catalog, arms):
                self._refuse(problem)
            return self._arm(arms.baseline), self._arm(arms.candidate)

    def _with_images(self, sets: Mapping[str, Value]) -> Site:
        """The site, with a stand-in for each image that an arm names and it has not, which is refused: the rest of the
        plan is worked out all the same."""
        site = self.ground.site
        held = {**self.ground.catalog.baseline, **self.ground.compared}
        for name in sorted({str(each[ENGINE_IMAGE]) for each in (held, sets) if ENGINE_IMAGE in each}):
            try:
                site.image_named(name)
            except TrisparkError as error:
                self._refuse(error)
                site = site.model_copy(update={"engine_images": {**site.engine_images, name: _stand_in(name)}})
        return site

    def _arm(self, resolution: Resolution) -> _Arm:
        """Without the generation where its image is a stand-in of `_with_images`."""
        arm = _Arm.of(resolution)
        return arm if self._image(arm) is not None else replace(arm, generation=None)

    def _settings_alone(self) -> tuple[_Arm, _Arm | None]:
        """The keys of both arms where the site's files or the engine's entry give no whole configuration."""
        catalog = self.ground.catalog
        settings: dict[str, Value] = {**catalog.baseline, **self.ground.compared}
        for name, text in self.overrides.items():
            variable = catalog.allowlist.get(name)
            if variable is not None:
                settings[name] = variable.parse(text, f"{_OVERRIDE}{name}")
        if self.choice is None or not (self.choice.sets or self._same_arms):
            return _Arm(None, settings), None
        self.base = tuple(
            name for name in catalog.required_by(self.choice.feature) if not catalog.is_active(name, settings)
        )
        for name in self.base:
            settings.update(catalog.sets_of(name))
        return _Arm(None, settings), _Arm(None, {**settings, **self.choice.sets})

    def _judge_exclusions(self, baseline: Mapping[str, Value], candidate: Mapping[str, Value] | None) -> None:
        """What both arms hold is said once."""
        catalog, promoted = self.ground.catalog, self.ground.compared
        where = "the baseline" if candidate is None else "both arms"
        shared, notes = judge_excluded(catalog, baseline, None, promoted, where)
        own: list[TrisparkError] = []
        if candidate is not None:
            own, more = judge_excluded(catalog, candidate, self.choice, promoted)
            notes += [note for note in more if note not in notes]
        known = {(error.id, error.what) for error in shared}
        for error in [*shared, *(error for error in own if (error.id, error.what) not in known)]:
            self._refuse(error)
        self.remarks += notes

    def _decision(self, baseline: _Arm, candidate: _Arm | None) -> DecisionRules | None:
        """The order of later blocks follows from what is compared, so that the same tree gives the same plan."""
        if candidate is None or self.entry is None:
            return None
        seed = f"{self.letter} {self.entry.title} {baseline.generation} {candidate.generation}"
        return rules_for(self.entry, self.count, seed, self.ground.noise)

    def _boots(self, baseline: _Arm, candidate: _Arm | None, decision: DecisionRules | None) -> list[dict[str, Any]]:
        boots = trial_boots(
            self.entry,
            baseline.settings,
            None if candidate is None else candidate.settings,
            ("A",) if decision is None else decision.order,
        )
        sides = {"baseline": baseline, "candidate": candidate}
        for boot in boots:
            side = self.check if boot["check"] else sides[boot["arm"]]
            boot["generation"] = None if side is None else side.generation
        return boots

    def _judge_budget(self, baseline: _Arm, candidate: _Arm | None) -> dict[str, Any] | None:
        ground = self.ground
        judged: dict[str, Judged] = {}
        for arm, side in (("baseline", baseline), ("candidate", candidate)):
            if side is None:
                continue
            try:
                back_to = None if side is baseline else baseline.settings
                found = self.budget(ground.root, ground.site, side.settings, ground.catalog, back_to)
            except TrisparkError as error:
                self._refuse(error)
                continue
            if found is None:
                return None
            judged[arm] = found
            if found.verdict == "unsafe":
                self._refuse(unsafe(found, arm, ground.site.memory_model))
        if not judged:
            return None
        worst = max(judged.values(), key=lambda each: VERDICTS.index(each.verdict))
        return {
            "model": ground.site.memory_model,
            "verdict": worst.verdict,
            "better_bundle": worst.better_bundle,
            **{
                arm: {
                    **each.as_dict(),
                    "verdict": each.verdict,
                    "lines": list(each.lines),
                    "better_bundle": each.better_bundle,
                }
                for arm, each in judged.items()
            },
        }

    def _cells(self) -> list[dict[str, Any]]:
        """What each counted boot measures, with the hash of its prompts and the metrics that it gives."""
        site, root = self.ground.site, self.ground.root
        try:
            planned = client_input(site, root)
        except TrisparkError as error:
            self._refuse(error)
            return []
        bench = site.bench
        common = {"repetitions": bench.repetitions, "max_tokens": bench.max_tokens}
        cells: list[dict[str, Any]] = []
        for context in bench.contexts:
            end = "" if context == SHORT else f"-{context}"
            for streams in bench.concurrency:
                for workload in bench.workloads if streams == 1 else (None,):
                    cell = f"c{streams}{end}" if workload is None else f"c{streams}-{workload}{end}"
                    names = bench.workloads if workload is None else (workload,)
                    used = {name: planned["workloads"][name] for name in names}
                    cells.append(
                        {
                            "cell": cell,
                            "concurrency": streams,
                            "workload": workload,
                            "context": context,
                            "prompts": canonical_sha256([planned["contexts"][context], used])[:16],
                            **common,
                            "metrics": metric_names(cell, streams),
                        }
                    )
        for width in bench.mixed:
            cell = f"mixed-c{width}"
            cells.append(
                {
                    "cell": cell,
                    "concurrency": width,
                    "workload": None,
                    "context": SHORT,
                    "prompts": canonical_sha256([planned["mixed"], planned["workloads"]])[:16],
                    **common,
                    "metrics": metric_names(cell, width) + metric_names(f"{cell}-prefill", 1),
                }
            )
        return cells

    def _shown(self, settings: Mapping[str, Value]) -> dict[str, Any]:
        allowlist = self.ground.catalog.allowlist
        shown = {
            name: settings[name]
            for name in sorted(settings)
            if (variable := allowlist.get(name)) is not None and variable.loggable
        }
        return {"settings": shown, "withheld": sorted(set(settings) - set(shown))}

    def _shown_overrides(self) -> dict[str, str]:
        allowlist = self.ground.catalog.allowlist
        return {
            name: text if (variable := allowlist.get(name)) is not None and variable.loggable else HIDDEN
            for name, text in sorted(self.overrides.items())
        }

    def _difference(self, baseline: _Arm, candidate: _Arm | None) -> dict[str, list[Any]]:
        if candidate is None:
            return {}
        result: dict[str, list[Any]] = {}
        for name in sorted({*baseline.settings, *candidate.settings}):
            pair = [side.settings.get(name) for side in (baseline, candidate)]
            variable = self.ground.catalog.allowlist.get(name)
            if pair[0] != pair[1]:
                hidden = variable is None or not variable.loggable
                result[name] = [HIDDEN, HIDDEN] if hidden else pair
        return result

    def _evidence(self, settings: Mapping[str, Value]) -> dict[str, dict[str, list[str]]]:
        ranks = [node.rank for node in self.ground.site.nodes]
        rules = self.ground.catalog.evidence_rules(settings, len(ranks), self.ground.site.engine)
        return {
            kind: {
                str(rank): sorted({rule.id for rule in rules if rule.must_appear is must and rank in rule.ranks})
                for rank in ranks
            }
            for kind, must in (("must", True), ("must_not", False))
        }

    def _refused(self) -> list[dict[str, str]]:
        """Without the place of this checkout, which is no part of a plan, and without what UTF-8 cannot hold."""
        here = f"{self.ground.root}/"
        return [
            {name: _plain(text.replace(here, "")) for name, text in error.as_dict().items()} for error in self.refusals
        ]

    def _notes(self, cells: Sequence[Mapping[str, Any]]) -> list[str]:
        site, entry, choice = self.ground.site, self.entry, self.choice
        notes = list(self.remarks)
        if self.ground.image == NO_IMAGE:
            until = "site_engine_image is set"
            if site.name == LAB:
                until = "./trispark lab up, which takes kept images where they are there"
            notes.append(
                f"image: not in the inventory until {until}: generations are those of a placeholder, another plan "
                "follows then"
            )
        if not site.configured and site.name != LAB:
            notes.append("the site is not configured: planned from the files as they are")
        if site.boot_minutes is None:
            notes.append(
                "site_boot_minutes is not set: a boot is taken to need the site's start and stop deadlines together, "
                "its measurement not counted"
            )
        if site.memory_model is None:
            notes.append("the site names no memory model (site_memory_model): no memory budget was judged")
        if entry is None or choice is None:
            return notes
        if entry.control:
            arms = "A/A, both arms are the baseline" if entry.same_arms else "a harm is planted in the candidate"
            notes.append(f"{choice.label} is a control of the measurement, never KEEP: {arms}")
        elif not choice.sets:
            notes.append(f"{choice.feature} sets nothing: there is no candidate")
        if entry.members:
            notes.append(f"a bundle of {', '.join(entry.members)}: tried and rolled back as one")
        notes += [f"goes with {name}" for name in entry.couples if name not in self.base]
        if entry.needs is not None:
            notes.append(
                f"worth a trial only when the newest valid boot of the baseline measured {entry.needs.metric} above "
                f"{entry.needs.above:g}: {entry.needs.reason}"
            )
        if self.ground.noise is None:
            notes.append("the site has no floor yet: ./trispark stats floor measures how equal boots differ")
        if self.count < min(look for looks in LOOKS.values() for look, _ in looks):
            decides = "1 boot an arm decides" if self.count == 1 else f"{self.count} boots an arm decide"
            notes.append(f"{decides} nothing: the trial ends INCONCLUSIVE (site_trial_boots)")
        if entry.shifts_cost_balance:
            notes.append("a promotion of it makes the verdicts of earlier sweeps stale")
        tags = {cell["cell"] for cell in cells}
        notes += [
            f"mechanism metric {each.metric} is not among what site_bench measures, so the trial is never KEEP"
            for each in entry.moves
            if each.metric.partition(".")[0] not in tags
        ]
        measured = {metric for cell in cells for metric in cell["metrics"]}
        notes += [
            f"{kind} metric {metric} is not among what site_bench measures"
            for kind, metrics in (("primary", entry.primaries), ("guard", entry.guards))
            for metric in metrics
            if metric not in measured
        ]
        return notes


@dataclass(frozen=True)
class _Arm:
    generation: str | None
    settings: Mapping[str, Value]

    @classmethod
    def of(cls, resolution: Resolution) -> _Arm:
        return cls(resolution.id, resolution.settings)


def judge_excluded(
    catalog: Catalog,
    settings: Mapping[str, Any],
    choice: Choice | None,
    promoted: Collection[str] = (),
    where: str = "the candidate",
) -> tuple[list[TrisparkError], list[str]]:
    """(one refusal for each exclusion that stops a plan, one note for each that does not) of a configuration.

    `choice` is what is tried in it, None for a baseline; `promoted` are names that the site's own baseline holds.
    """
    sets, feature = ({}, None) if choice is None else (choice.sets, choice.feature)
    found = catalog.judge_exclusions(settings, sets, feature=feature, promoted=promoted)
    notes = [each.note() for each in found if not each.refused]
    return [each.error(where) for each in found if each.refused], notes


def trial_boots(
    entry: Feature | None,
    baseline: Mapping[str, Value],
    candidate: Mapping[str, Value] | None,
    order: Sequence[str] = ("AB",),
) -> list[dict[str, Any]]:
    """The boots of a trial in their order; `order`: of the counted ones, by block (decision_rules.block_order).

    A candidate that compares results goes first, for nothing else is worth its time before that. Boots that tune
    follow, so that the counted ones of both arms lie next to each other in time.
    """

    def boot(arm: str, why: str, *, counted: bool = False, check: bool = False) -> dict[str, Any]:
        return {"arm": arm, "counted": counted, "check": check, "why": why}

    boots: list[dict[str, Any]] = []
    if candidate is None and entry is not None and entry.kind is not Kind.BASELINE:
        return boots
    if candidate is not None and entry is not None and entry.check_boot is not None:
        boots.append(boot("candidate", entry.check_boot.why, check=True))
    if candidate is not None:
        for arm, settings in (("baseline", baseline), ("candidate", candidate)):
            if settings.get(AUTOTUNE_KEEP) == 1:
                boots.append(boot(arm, "tunes kernels, which the next boot reuses"))
            elif arm == "candidate" and entry is not None and entry.retunes:
                boots.append(boot(arm, "the change makes kernels tune anew"))
    for arm in arms_of(order):
        if arm == "baseline" or candidate is not None:
            boots.append(boot(arm, f"measures the {arm}", counted=True))
    return [{"slot": slot, **each} for slot, each in enumerate(boots)]


def require_boots(count: int | None, given: str = "") -> int:
    """Raises TS-PLAN-BOOTS for a number of counted boots an arm that no trial has. None is no number, `given` its
    text.
    """
    if count is None or count not in BOOTS_PER_ARM:
        raise TrisparkError(
            "TS-PLAN-BOOTS",
            "a trial has no such number of boots",
            where="boots",
            expected=f"one of {', '.join(map(str, BOOTS_PER_ARM))}, counted boots an arm",
            observed=(given or str(count))[:80],
            remedy="plan 6, or 1 to try the way out",
        )
    return count


def read_boots(text: str) -> int | None:
    """A number as `-e` gives it; None for an empty one. Raises TS-PLAN-BOOTS."""
    if not text:
        return None
    whole = text.isascii() and text.isdigit() and len(text) < _DIGITS
    return require_boots(int(text) if whole else None, text)


def hours(site: Site, boots: Sequence[Mapping[str, Any]], *, restores: bool) -> dict[str, Any]:
    """How long the boots take at this site; the restored baseline is one more boot.

    `site_boot_minutes` is the site's figure for a whole boot; without it the start and the stop deadline together stand
    for it, which no boot exceeds before its measurement.
    """
    given = site.boot_minutes
    minutes = round((site.start_deadline_s + site.stop_deadline_s) / 60 if given is None else given, 2)
    count = len(boots) + (1 if restores else 0)
    return {"boots": count, "per_boot_min": minutes, "total": round(count * minutes / 60, 2)}


def _plain(text: str) -> str:
    """A text that UTF-8 can hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def plan_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names of what differs between two plans, the deepest names that say it."""
    names: list[str] = []
    for key in sorted({*before, *now} - {"id"}):
        old, new = before.get(key), now.get(key)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            names += [f"{key}.{name}" for name in plan_changes(old, new)]
        else:
            names.append(key)
    return names


def require_same_plan(expected: str, now: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
    """Raises TS-PLAN-CHANGED unless `now` has the id of the plan that was agreed on.

    `before` is that plan where it was kept (`kept_plan`): the line then names what changed.
    """
    if plan_id(now) == now.get("id") == expected:
        return
    names = plan_changes(before, now) if before is not None and before.get("id") == expected else []
    shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    raise TrisparkError(
        "TS-PLAN-CHANGED",
        "the plan is not the one that was agreed on",
        where=f"stage {now.get('stage')} {now.get('feature') or ''}".strip(),
        expected=expected,
        observed=f"{plan_id(now)}; " + (f"changed: {shown}" if names else "what changed is not known, it was not kept"),
        remedy="look at the new plan with ./trispark plan, then start with its id",
    )


def plans_directory(root: Path, site_name: str) -> Path:
    """Where the controller keeps plans by id."""
    return root / ".trispark" / site_name / "plans"


def keep_plan(root: Path, plan: Mapping[str, Any]) -> Path:
    """Write a plan under its id, once; the newest KEPT_PLANS stay. Raises OSError."""
    directory = plans_directory(root, str(plan["site"]))
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    target = directory / f"{plan['id']}.json"
    if not target.exists():
        temporary = target.with_suffix(".tmp")
        temporary.write_text(json.dumps(plan, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
        temporary.replace(target)
        kept = sorted(directory.glob("p*.json"), key=lambda path: (path.stat().st_mtime, path.name))
        for path in kept[:-KEPT_PLANS]:
            path.unlink(missing_ok=True)
    return target


def kept_plan(root: Path, site_name: str, identity: str) -> dict[str, Any] | None:
    """The plan with this id, None when it was not kept or is not what its id says."""
    if _ID.fullmatch(identity) is None:
        return None
    try:
        plan = json.loads((plans_directory(root, site_name) / f"{identity}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return plan if isinstance(plan, dict) and plan_id(plan) == identity else None
