"""What the memory budget says of a whole site, and that nothing is booted which it calls unsafe."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from trispark.boot_plan import Moment, Project, plan_arm, plan_stored
from trispark.catalog import Catalog
from trispark.errors import TrisparkError
from trispark.plan import Ground, plan_on
from trispark.site import Site
from trispark.site_budget import judge_site

NODES = ("spark0", "spark1", "spark2")
MOMENT = Moment(datetime(2026, 1, 2, tzinfo=UTC), "ffff")
W8 = {"DSV41_WO_A_W8": 1}


@pytest.fixture
def modelled(site: Site) -> Site:
    """A site whose nodes have memory that is judged."""
    return site.model_copy(update={"memory_model": "gb10"})


@pytest.fixture
def small_head(modelled: Site) -> Site:
    """Its head gives less memory than the others."""
    head, *others = modelled.nodes
    return modelled.model_copy(update={"nodes": (head.model_copy(update={"mem_fraction": 0.945}), *others)})


def statuses(**settings: Any) -> dict[str, dict[str, Any]]:
    promoted = {
        "schema_version": 1, "settings": settings, "record": "t1", "record_hash": "0" * 64,
        "time": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    held = promoted if settings else None
    return {node: {"epoch": 1, "current": None, "engine": None, "baseline": held} for node in NODES}


def boot(project: Project, **asked: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "stage": "", "feature": "", "arm": "baseline", "purpose": "serve", "trial": "", "measure": False,
        "statuses": statuses(), "misplaced": {}, "seen_site": {}, "moment": MOMENT,
    }  # fmt: skip
    return plan_arm(project, **{**given, **asked})


def refusal(project: Project, **asked: Any) -> TrisparkError:
    with pytest.raises(TrisparkError) as caught:
        boot(project, **asked)
    return caught.value


@pytest.mark.parametrize(
    "asked",
    [
        {"stage": "a"},
        {"arm": "baseline"},
        {"stage": "c", "purpose": "trial", "feature": "wo_a", "arm": "baseline", "trial": "t1"},
        {"arm": "candidate", "feature": "wo_a"},
    ],
    ids=["stage a", "site", "baseline of a trial", "boot of a feature"],
)
def test_no_boot_of_what_is_unsafe(project: Path, modelled: Site, catalog: Catalog, asked: dict[str, Any]) -> None:
    """The graphs of 15 slots take more than a rank has left, in every known state of a node."""
    held = statuses(MAX_RUNNING_REQUESTS=15)
    error = refusal(Project(project, modelled, catalog), **asked, statuses=held)
    assert error.id == "TS-BUDGET-UNSAFE"
    assert "gb10" in error.where
    assert "MiB are missing on a rank" in error.observed


def test_a_site_without_a_memory_model_boots_it(project: Path, site: Site, catalog: Catalog) -> None:
    assert boot(Project(project, site, catalog), statuses=statuses(MAX_RUNNING_REQUESTS=15))["generation"]


def test_what_may_not_boot_is_no_obstacle(project: Path, modelled: Site, catalog: Catalog) -> None:
    assert boot(Project(project, modelled, catalog), arm="candidate", feature="wo_a")["generation"]


def test_what_served_before_a_trial_and_what_the_nodes_hold_come_back(
    project: Path, modelled: Site, catalog: Catalog
) -> None:
    held = statuses(MAX_RUNNING_REQUESTS=15)
    back = boot(Project(project, modelled, catalog), purpose="restore", statuses=held)
    stored = {node: {"generation": back["generation"], "resolved": back["resolved"]} for node in NODES}
    again = plan_stored(purpose="rollback", stored=stored, statuses=held, moment=MOMENT)
    assert again["generation"] == back["generation"]


def test_a_stored_configuration_that_is_not_its_id_is_refused(project: Path, modelled: Site, catalog: Catalog) -> None:
    """The copies agree with one another, and none with the id under which it is kept."""
    held = statuses(MAX_RUNNING_REQUESTS=15)
    back = boot(Project(project, modelled, catalog), purpose="restore", statuses=held)
    stored = {node: {"generation": "g" + "0" * 16, "resolved": back["resolved"]} for node in NODES}
    with pytest.raises(TrisparkError) as caught:
        plan_stored(purpose="rollback", stored=stored, statuses=held, moment=MOMENT)
    assert caught.value.id == "TS-ROLLBACK-HASH"
    assert (caught.value.expected, caught.value.observed) == ("g" + "0" * 16, back["generation"])


def test_a_node_is_judged_by_its_own_fraction(
    project: Path, modelled: Site, small_head: Site, catalog: Catalog
) -> None:
    """The twins of wo_a may boot at 0.95, and cannot at 0.945."""
    asked = {"arm": "candidate", "feature": "wo_a"}
    assert boot(Project(project, modelled, catalog), **asked)["generation"]
    error = refusal(Project(project, small_head, catalog), **asked)
    assert error.id == "TS-BUDGET-UNSAFE"
    assert error.observed.startswith("spark0: the pool of tokens stays empty")
    assert "spark1" not in error.observed
    assert boot(Project(project, small_head, catalog))["generation"], "the baseline is at the edge there"


def test_a_plan_says_which_node_it_is(project: Path, small_head: Site, catalog: Catalog) -> None:
    ground = Ground(project, small_head, catalog, {}, None, small_head.require_engine_image())
    plan = plan_on(ground, "c", "wo_a")
    assert [refused["id"] for refused in plan["refusals"]] == ["TS-BUDGET-UNSAFE"]
    assert plan["budget"]["verdict"] == "unsafe"
    assert plan["budget"]["candidate"]["nodes"] == {
        "spark0": {"fraction": 0.945, "verdict": "unsafe"},
        "spark1": {"fraction": 0.95, "verdict": "edge"},
        "spark2": {"fraction": 0.95, "verdict": "edge"},
    }
    lines = plan["budget"]["candidate"]["lines"]
    assert [line for line in lines if line.startswith("on ")] == ["on spark0:", "on spark1, spark2:"]


def test_a_way_back_does_not_lead_to_another_fraction_where_the_node_has_its_own(
    project: Path, small_head: Site, catalog: Catalog
) -> None:
    found = judge_site(project, small_head, {**catalog.baseline, **W8}, catalog)
    assert found is not None
    assert dict(found.worst.way_back) == {"DSV41_WO_A_W8": 0}


def test_the_way_back_of_a_trial_leads_to_its_own_baseline(project: Path, modelled: Site, catalog: Catalog) -> None:
    """Not to the shipped one, where the site has promoted another."""
    ground = Ground(project, modelled, catalog, {"MAX_RUNNING_REQUESTS": 8}, None, modelled.require_engine_image())
    budget = plan_on(ground, "c", "wo_a")["budget"]
    assert budget["baseline"]["way_back"] == {"MAX_RUNNING_REQUESTS": 4}
    assert budget["candidate"]["verdict"] == "edge"
    assert budget["candidate"]["way_back"] == {"DSV41_WO_A_W8": 0}
