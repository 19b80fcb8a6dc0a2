"""Which configuration a boot is of, from what was given: stage, feature, value, arm and purpose."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from trispark.boot_plan import Moment, Project, plan_arm
from trispark.catalog import Catalog
from trispark.errors import TrisparkError
from trispark.resolve import resolve, resolve_arms
from trispark.site import Site

STATUSES = {f"spark{rank}": {"epoch": 1, "current": None, "engine": None} for rank in range(3)}


@pytest.fixture
def whole(project: Path, site: Site, catalog: Catalog) -> Project:
    return Project(project, site, catalog)


def boot(whole: Project, **asked: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "stage": "", "feature": "", "value": "", "arm": "", "purpose": "serve", "trial": "", "measure": False,
        "statuses": STATUSES, "misplaced": {}, "seen_site": {},
        "moment": Moment(datetime(2026, 1, 2, tzinfo=UTC), "ffff"),
    }  # fmt: skip
    return plan_arm(whole, **{**given, **asked})


@pytest.mark.parametrize(
    ("asked", "arm", "side"),
    [
        ({}, "baseline", "shipped"),
        ({"feature": "wo_a"}, "candidate", "candidate"),
        ({"feature": "wo_a", "arm": "baseline"}, "baseline", "shipped"),
        ({"feature": "wo_a_mid", "stage": "d", "arm": "baseline", "purpose": "trial"}, "baseline", "wo_a"),
        ({"feature": "wo_a_mid", "stage": "d", "arm": "candidate", "purpose": "trial"}, "candidate", "wo_a_mid"),
        ({"feature": "wo_a_mid", "stage": "d", "arm": "baseline", "purpose": "restore"}, "baseline", "shipped"),
        ({"stage": "a", "arm": "baseline"}, "baseline", "shipped"),
    ],
)
def test_a_feature_counts_for_a_candidate_and_the_baseline_of_a_trial(
    whole: Project, asked: dict[str, Any], arm: str, side: str
) -> None:
    shipped = resolve(whole.site, whole.catalog, None, None, whole.root)
    wo_a = resolve_arms(whole.site, whole.catalog, "wo_a", None, whole.root)
    mid = resolve_arms(whole.site, whole.catalog, "wo_a_mid", None, whole.root)
    expected = {
        "shipped": shipped.id,
        "candidate": wo_a.candidate.id,
        "wo_a": mid.baseline.id,
        "wo_a_mid": mid.candidate.id,
    }
    plan = boot(whole, **asked)
    assert (plan["generation"], plan["requested"]["arm"]) == (expected[side], arm)
    assert plan["requested"]["feature"] == (asked["feature"] if arm == "candidate" else None)


def test_a_value_counts_where_its_sweep_does(whole: Project) -> None:
    asked = {"feature": "block_size", "value": "5"}
    assert boot(whole, **asked)["changed"] == {"DSPARK_BLOCK_SIZE": [3, 5]}
    assert boot(whole, **asked, arm="baseline")["requested"]["value"] is None


def test_a_stage_without_trials_takes_no_feature(whole: Project) -> None:
    """It would be left out without a word."""
    with pytest.raises(TrisparkError) as caught:
        boot(whole, stage="a", arm="baseline", feature="wo_a")
    assert caught.value.id.startswith("TS-FEATURE-")
