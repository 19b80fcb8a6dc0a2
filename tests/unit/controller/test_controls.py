"""Controls of the measurement: A/A trials and the planted slow-down, from the catalog to the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from trispark.boot_validity import NEEDED, Check
from trispark.catalog import Catalog
from trispark.catalog_model import Feature
from trispark.decision_rules import DecisionRules, rules_for
from trispark.errors import TrisparkError
from trispark.plan import Ground, plan_on
from trispark.resolve import check_one_change, resolve_arms
from trispark.stages import exit_of
from trispark.verdict import BootMetrics, Verdict, decide
from trispark.walk_plan import plan_walk

REPOSITORY = Path(__file__).resolve().parents[3]
WALK = "t20260102T030405Z-a1b2"
PASSED = tuple(Check(rule, "passed", "") for rule in NEEDED)
DELAY = "DSV41_LAB_STEP_DELAY_PCT"


@pytest.fixture
def ground(project: Path, site: Any, catalog: Catalog) -> Ground:
    return Ground(project, site, catalog, {}, None, site.require_engine_image())


# -- the plan


@pytest.mark.parametrize("stage", list("bcdefg"))
@pytest.mark.parametrize("site_name", ["lab", "sparks"])
def test_an_a_a_trial_is_planned_in_every_stage_with_trials(stage: str, site_name: str) -> None:
    plan = plan_on(Ground.load(REPOSITORY, site_name), stage, "none", boots=6)
    assert plan["baseline"] == plan["candidate"]
    assert plan["baseline"]["generation"] is not None
    assert (plan["difference"], plan["decision"]["control"]) == ({}, True)
    counted = [boot["arm"] for boot in plan["boots"] if boot["counted"]]
    assert (counted.count("baseline"), counted.count("candidate"), counted[0]) == (6, 6, "baseline")
    assert {boot["generation"] for boot in plan["boots"]} == {plan["baseline"]["generation"]}
    assert [look["boots"] for look in plan["decision"]["looks"]] == [4, 6]
    assert "none is a control of the measurement, never KEEP: A/A, both arms are the baseline" in plan["notes"]


def test_the_boots_of_an_a_a_trial_are_walked_in_two_arms(ground: Ground) -> None:
    walk = plan_walk(ground, WALK, "c", "none", boots=6)
    (trial,) = walk.trials
    assert trial.baseline == trial.candidate == walk.site_baseline
    assert sorted(slot.arm for slot in walk.slots if slot.counted) == ["baseline"] * 6 + ["candidate"] * 6
    assert walk.changed(trial) == {}


@pytest.mark.parametrize("value", ["5", "20", "100"])
def test_the_planted_slow_down_is_one_change_of_the_lab(ground: Ground, value: str) -> None:
    plan = plan_on(ground, "c", "lab_step_delay", value, boots=4)
    assert plan["refusals"] == []
    assert plan["difference"] == {DELAY: [0, int(value)]}
    assert {"lab_delay.armed", "lab_delay.used"} <= set(plan["evidence"]["candidate"]["must"]["0"])
    assert "lab_delay.used" not in plan["evidence"]["candidate"]["must"]["1"]
    assert "lab_delay.present" in plan["evidence"]["baseline"]["must_not"]["2"]
    arms = resolve_arms(ground.site, ground.catalog, "lab_step_delay", root=ground.root, value=value)
    assert all(rank["env"][DELAY] == value for rank in arms.candidate.resolved["ranks"])
    assert all(DELAY not in rank["env"] for rank in arms.baseline.resolved["ranks"]), "off is not delivered"


def test_no_harm_can_be_planted_on_the_sparks() -> None:
    ground = Ground.load(REPOSITORY, "sparks")
    plan = plan_on(ground, "c", "lab_step_delay", "10")
    assert "TS-FEATURE-UNAVAILABLE" in [refusal["id"] for refusal in plan["refusals"]]
    assert DELAY not in plan["baseline"]["settings"]
    what_if = plan_on(ground, "c", "none", overrides={DELAY: "10"})
    assert [refusal["id"] for refusal in what_if["refusals"]] == ["TS-ENV-REFUSED"]
    assert DELAY not in what_if["candidate"]["settings"]


# -- the one-change rule


def test_arms_of_an_a_a_trial_must_be_one_configuration(ground: Ground) -> None:
    catalog = ground.catalog
    one = resolve_arms(ground.site, catalog, "wo_a", root=ground.root)
    choice = catalog.choose("none")
    assert not check_one_change(one.baseline, one.baseline, catalog, choice)
    with pytest.raises(TrisparkError) as caught:
        check_one_change(one.baseline, one.candidate, catalog, choice)
    assert caught.value.id == "TS-PLAN-ONECHANGE"
    assert "DSV41_WO_A_W8 differs too" in caught.value.what
    assert caught.value.expected == "no change and nothing else"


def test_only_what_is_declared_may_change_nothing(ground: Ground) -> None:
    catalog = ground.catalog
    arms = resolve_arms(ground.site, catalog, "none", root=ground.root)
    choice = replace(catalog.choose("none"), feature="wo_a")
    with pytest.raises(TrisparkError) as caught:
        check_one_change(arms.baseline, arms.candidate, catalog, choice)
    assert caught.value.id == "TS-PLAN-ONECHANGE"
    assert "sets nothing" in caught.value.what


# -- the catalog


@pytest.mark.parametrize("stage", list("bcdefg"))
def test_controls_are_not_among_what_a_stage_offers_or_asks_for(catalog: Catalog, stage: str) -> None:
    with pytest.raises(TrisparkError) as caught:
        catalog.select(stage, None, "lab")
    assert "none" not in caught.value.expected.removeprefix("one of: ").split(", ")
    assert "lab_step_delay" not in caught.value.expected
    assert catalog.select(stage, "none", "lab") == "none"
    says = [judged.observed for judged in exit_of(catalog, stage, "g0", [])]
    assert all("lab_step_delay" not in text and "none not tried" not in text for text in says)


@pytest.mark.parametrize(
    "changes",
    [
        {"primaries": []},
        {"kind": "change"},
        {"kind": "sweep"},
        {"sweep": {"name": DELAY, "values": [5, 10]}, "kind": "change", "sets": {"A": 1}},
    ],
    ids=["no-primary", "a-change-of-nothing", "a-sweep-of-nothing", "a-sweep-that-is-none"],
)
def test_what_is_no_control_is_refused(catalog: Catalog, changes: dict[str, Any]) -> None:
    entry = catalog.features["none"].model_dump(mode="json")
    with pytest.raises(ValidationError):
        Feature.model_validate({**entry, **changes})


# -- the verdict


def judged(rules: DecisionRules, candidate: np.ndarray[Any, Any], baseline: np.ndarray[Any, Any]) -> Verdict:
    def boots(arm: str, levels: np.ndarray[Any, Any]) -> list[BootMetrics]:
        return [
            BootMetrics(
                f"{arm}{number}",
                True,
                {
                    **{each.metric: float(level if each.better == "higher" else 1 / level) for each in rules.watched},
                    **{each.metric: float(1 / level) for each in rules.mechanism},
                },
                "p",
                "c",
                PASSED,
            )
            for number, level in enumerate(levels)
        ]

    return decide(boots("a", baseline), boots("b", candidate), rules)


@settings(max_examples=60, deadline=None)
@given(level=st.floats(0.5, 3.0), sd=st.floats(1e-6, 0.05), seed=st.integers(0, 2**31))
@pytest.mark.parametrize("feature", ["none", "lab_step_delay"])
def test_a_control_is_never_kept(catalog: Catalog, feature: str, level: float, sd: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, sd, (2, 6))
    rules = rules_for(catalog.features[feature], 6, "seed")
    found = judged(rules, level * np.exp(noise[0]), np.exp(noise[1]))
    assert found.verdict != "KEEP"
    kept = judged(rules.model_copy(update={"control": False}), level * np.exp(noise[0]), np.exp(noise[1]))
    assert (kept.verdict == "KEEP") is (found.code == "CONTROL")
    assert kept.verdict == "KEEP" or (kept.verdict, kept.code) == (found.verdict, found.code)


@pytest.mark.parametrize(
    ("feature", "level", "code"), [("none", 1.2, "CONTROL"), ("none", 0.8, "HARM"), ("lab_step_delay", 0.8, "HARM")]
)
def test_a_control_says_a_harm_and_no_gain(catalog: Catalog, feature: str, level: float, code: str) -> None:
    noise = np.random.default_rng(1).normal(0, 0.004, (2, 6))
    rules = rules_for(catalog.features[feature], 6, "seed")
    found = judged(rules, level * np.exp(noise[0]), np.exp(noise[1]))
    assert found.code == code
    assert found.verdict == ("REJECT" if code == "HARM" else "INCONCLUSIVE")
    assert DecisionRules.of(rules.as_dict()) == rules
