"""An image as the one change of a trial: which arm runs which, what follows from it, and what is refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from trial_records import walk_id

from trispark.catalog import Catalog
from trispark.cli.plan import plan_lines
from trispark.confirm import Part, with_confirmation
from trispark.drift import boot_drift, declared_names
from trispark.errors import TrisparkError
from trispark.gates import evaluate
from trispark.node_site import node_requests
from trispark.plan import NO_IMAGE, Ground, plan_on, with_placeholders
from trispark.resolve import Arms, check_one_change, compare, resolve, resolve_arms
from trispark.site import Site, load_site
from trispark.walk_plan import plan_walk
from trispark_lab import __version__
from trispark_node import engine_state
from trispark_node.layout import Layout
from trispark_node.node import Node
from trispark_node.spec import CACHE_TOKEN, parse_spec

REPOSITORY = Path(__file__).resolve().parents[3]
CANARY = "registry:5000/trispark/lab-engine-canary@sha256:" + "c" * 64
IMAGE = "ENGINE_IMAGE"


@pytest.fixture
def two(site: Site) -> Site:
    """The lab with a second image of the engine."""
    return site.model_copy(update={"engine_images": {"canary": CANARY}})


@pytest.fixture
def arms(two: Site, catalog: Catalog, project: Path) -> Arms:
    return resolve_arms(two, catalog, "canary_image", None, project)


def refused(call: Callable[[], object]) -> TrisparkError:
    with pytest.raises(TrisparkError) as caught:
        call()
    assert all(caught.value.as_dict().values()), "every field of an error line"
    return caught.value


def ground(site: Site, catalog: Catalog, root: Path) -> Ground:
    return Ground(root, site, catalog.on(site.engine), {}, None, str(site.engine_image))


def sparks(canary: str) -> Site:
    """The shipped fleet with an image named canary."""
    return load_site(REPOSITORY / "inventory" / "sparks").model_copy(update={"engine_images": {"canary": canary}})


def test_each_arm_has_its_own_image_on_every_rank(arms: Arms, two: Site) -> None:
    for arm, image in ((arms.baseline, two.engine_image), (arms.candidate, CANARY)):
        assert arm.resolved["image"] == image
        assert {spec["container"]["image"] for spec in arm.specs.values()} == {image}
    assert dict(arms.difference.settings) == {IMAGE: ("site", "canary")}
    assert arms.difference.other == ("image",)
    assert arms.baseline.id != arms.candidate.id
    # It reaches no container, neither by name nor by value.
    for rank in arms.candidate.resolved["ranks"]:
        assert IMAGE not in rank["env"]
        assert "canary" not in " ".join([*rank["env"].values(), *rank["command"]])


def test_compiled_kernels_of_the_two_images_lie_apart(arms: Arms) -> None:
    node = Node(Layout(Path("/var/lib/trispark")))
    sources = [
        engine_state.places(node, parse_spec(arm.specs["spark1"]))[CACHE_TOKEN]
        for arm in (arms.baseline, arms.candidate)
    ]
    assert sources[0] != sources[1]


def test_a_site_without_that_image_is_refused_and_told_what_to_set(site: Site, catalog: Catalog, project: Path) -> None:
    error = refused(lambda: resolve_arms(site, catalog, "canary_image", None, project))
    assert (error.id, error.remedy) == ("TS-PLAN-IMAGE-MISSING", "run ./trispark lab up")
    assert "site_engine_images: {canary: name@sha256:" in error.expected
    plan = plan_on(ground(site, catalog, project), "f", "canary_image")
    assert [refusal["id"] for refusal in plan["refusals"]] == ["TS-PLAN-IMAGE-MISSING"]
    assert plan["candidate"]["image"] is None
    shown = [plan[arm]["generation"] for arm in ("baseline", "candidate")]
    assert shown == [resolve(site, catalog, None, None, project).id, None], "the rest is worked out all the same"
    assert [boot["generation"] for boot in plan["boots"] if boot["arm"] == "candidate"] == [None, None]
    assert "not-built.invalid" not in str(plan)
    fleet = load_site(REPOSITORY / "inventory" / "sparks")
    assert fleet.engine_images == {}
    error = refused(lambda: resolve_arms(fleet, catalog, "canary_image", None, REPOSITORY))
    assert (error.id, error.remedy) == ("TS-PLAN-IMAGE-MISSING", "set site_engine_images.canary, by digest")
    digest = "example/x@sha256:" + "1" * 64
    for there, remedy in (
        (site, "name one that there is: site, canary"),
        (fleet, "set site_engine_images.canry, by digest; or name one that there is: site, canary"),
    ):
        held = there.model_copy(update={"engine_images": {"canary": digest}})
        error = refused(partial(held.image_named, "canry"))
        assert (error.id, error.remedy) == ("TS-PLAN-IMAGE-MISSING", remedy)


@pytest.mark.parametrize("repository", ["registry:5000/trispark/lab-engine", "registry:5000/other"])
def test_one_digest_under_two_names_is_no_change(site: Site, catalog: Catalog, project: Path, repository: str) -> None:
    same = f"{repository}@{str(site.engine_image).partition('@')[2]}"
    twice = site.model_copy(update={"engine_images": {"canary": same}})
    assert refused(lambda: resolve_arms(twice, catalog, "canary_image", None, project)).id == "TS-PLAN-IMAGE-SAME"


def test_another_image_is_no_part_of_another_change(two: Site, catalog: Catalog, project: Path) -> None:
    arms = resolve_arms(two, catalog, "wo_a", None, project)
    moved = two.model_copy(update={"engine_image": CANARY})
    other = resolve(moved, catalog, "wo_a", None, project)
    error = refused(lambda: check_one_change(arms.baseline, other, catalog, arms.choice))
    assert (error.id, error.observed) == ("TS-PLAN-ONECHANGE", "image")


def test_a_promoted_image_is_the_baselines(arms: Arms, two: Site, site: Site, catalog: Catalog, project: Path) -> None:
    promoted = {IMAGE: "canary"}
    after = resolve(two, catalog, None, None, project, promoted=promoted)
    assert (after.id, after.resolved["image"]) == (arms.candidate.id, CANARY)
    held = resolve_arms(two, catalog, "wo_a", None, project, promoted=promoted)
    assert {held.baseline.resolved["image"], held.candidate.resolved["image"]} == {CANARY}
    assert held.difference.other == tuple(f"DSV41_WO_A_W8 of rank {rank}" for rank in range(3))
    gone = refused(lambda: resolve(site, catalog, None, None, project, promoted=promoted))
    assert gone.id == "TS-PLAN-IMAGE-MISSING"
    again = refused(lambda: resolve_arms(two, catalog, "canary_image", None, project, promoted=promoted))
    assert again.id == "TS-PLAN-ONECHANGE"
    part = Part("t1", "0" * 64, "canary_image", None, (IMAGE,))
    confirm = with_confirmation(catalog, promoted, (part,))
    whole = resolve_arms(two, confirm, "confirm", None, project)
    assert (whole.baseline.id, whole.candidate.id) == (arms.baseline.id, arms.candidate.id)


def test_a_setting_goes_with_the_image_where_the_engine_takes_it(arms: Arms, catalog: Catalog) -> None:
    fleet = resolve_arms(sparks(CANARY), catalog, "canary_image", None, REPOSITORY)
    assert dict(fleet.difference.settings) == {
        IMAGE: ("site", "canary"),
        "SGLANG_DSPARK_FOLDED_SAMPLING": (1, 2),
        "SGLANG_RUST_BUILD_MODE": ("auto", "never"),
    }
    assert fleet.candidate.resolved["ranks"][2]["env"]["SGLANG_DSPARK_FOLDED_SAMPLING"] == "2"
    assert arms.choice.sets == {IMAGE: "canary"}
    narrowed = catalog.on("sglang")
    assert narrowed.on("sglang") is narrowed
    assert catalog.features["canary_image"].sets == {IMAGE: "canary"}, "the catalog itself is as it was"


def test_only_the_canary_proves_itself(arms: Arms) -> None:
    found = [
        [(rule.must_appear, rule.ranks) for rule in arm.evidence if rule.id == "engine.build"]
        for arm in (arms.baseline, arms.candidate)
    ]
    assert found == [[(False, (0, 1, 2))], [(True, (0, 1, 2))]]
    pattern = re.compile(next(rule.pattern for rule in arms.candidate.evidence if rule.id == "engine.build"))
    line = "[2026-09-25 10:00:00 TP1 EP1] Engine build: {} (trispark_lab {})"
    assert pattern.search(line.format("canary", __version__))
    for other in ("unnamed", "canary-2", "my-canary"):
        assert not pattern.search(line.format(other, __version__))


def test_the_gate_compares_with_the_image_of_the_arm(
    arms: Arms, healthy: Callable[..., Any], canary: dict[str, Any], engram_rows: dict[int, int]
) -> None:
    for arm, other in ((arms.baseline, arms.candidate), (arms.candidate, arms.baseline)):
        seen = healthy(arm)
        wrong = [str(other.resolved["image"])]
        seen["spark1"] |= {"image_digests": wrong, "image_ref": wrong[0]}
        results = evaluate(arm, seen, canary, engram_rows)
        judged = {result.rank: result.ok for result in results if result.check_id == "identity.image_digest"}
        assert judged == {0: True, 1: False, 2: True}


def test_what_another_image_brings_with_it_is_no_drift(arms: Arms, boot_record: Callable[..., dict[str, Any]]) -> None:
    def newer(seen: dict[str, dict[str, Any]]) -> None:
        for each in seen.values():
            each["image_id"] = "sha256:" + "d" * 64
            each["versions"]["packages"]["numpy"] = "2.4.0"

    first = boot_record(resolution=arms.baseline, trial="t1")
    second = boot_record("candidate", resolution=arms.candidate, change=newer, trial="t1")
    assert boot_drift(first, second, declared_names(compare(arms.baseline, arms.candidate))) == ()
    assert "image" in {drift.name for drift in boot_drift(first, second)}
    assert second["resolved"]["image"] == CANARY


def test_the_plan_shows_the_image_of_each_arm(two: Site, catalog: Catalog, project: Path) -> None:
    plan = plan_on(ground(two, catalog, project), "f", "canary_image", boots=1)
    assert plan["refusals"] == []
    assert [plan[arm]["image"] for arm in ("baseline", "candidate")] == [two.engine_image, CANARY]
    assert plan["difference"] == {IMAGE: ["site", "canary"]}
    assert [(boot["arm"], boot["counted"]) for boot in plan["boots"]] == [
        ("candidate", False),
        ("baseline", True),
        ("candidate", True),
    ]
    lines = list(plan_lines(plan))
    assert f"  candidate   {plan['candidate']['generation']}, image: {CANARY}" in lines
    assert f"  baseline    {plan['baseline']['generation']}" in lines
    other = two.model_copy(update={"engine_images": {"canary": CANARY[:-1] + "d"}})
    assert plan_on(ground(other, catalog, project), "f", "canary_image", boots=1)["id"] != plan["id"]


def test_before_lab_up_the_plan_has_a_stand_in_for_each_image(two: Site, catalog: Catalog, project: Path) -> None:
    bare = two.model_copy(update={"engine_image": None, "engine_images": {}})
    made = Ground(project, with_placeholders(bare, catalog), catalog, {}, None, NO_IMAGE)
    plan = plan_on(made, "f", "canary_image")
    assert plan["refusals"] == []
    assert plan["candidate"]["image"] == plan["baseline"]["image"] == NO_IMAGE
    assert plan["baseline"]["generation"] != plan["candidate"]["generation"]
    fleet = sparks(CANARY).model_copy(update={"engine_image": None, "engine_images": {}})
    assert with_placeholders(fleet, catalog).engine_images == {}, "nothing makes the images of a fleet"


def test_the_image_of_each_arm_is_judged_by_its_build(catalog: Catalog) -> None:
    assert catalog.builds is not None
    digest = "sha256:" + "2" * 64
    release = catalog.builds.builds["sglang==0.5.22"].model_copy(update={"images": (digest,)})
    builds = catalog.builds.model_copy(update={"builds": {**catalog.builds.builds, "sglang==0.5.22": release}})
    known = replace(catalog, builds=builds)
    fleet = sparks(f"r.invalid/engine@{digest}")
    plan = plan_on(ground(fleet, known, REPOSITORY), "f", "canary_image", boots=1)
    assert [(each["id"], each["where"]) for each in plan["refusals"]] == [("TS-PLAN-IMAGE", "sglang==0.5.22")]
    assert plan_on(ground(fleet, known, REPOSITORY), "c", "wo_a", boots=1)["refusals"] == []
    swapped = fleet.model_copy(
        update={"engine_image": f"r.invalid/engine@{digest}", "engine_images": {"canary": CANARY}}
    )
    plan = plan_on(ground(swapped, known, REPOSITORY), "f", "canary_image", boots=1)
    assert [each["id"] for each in plan["refusals"]] == ["TS-PLAN-IMAGE"], "the baseline's image counts too"


def test_every_node_is_told_of_every_image(two: Site) -> None:
    images = [two.engine_image, CANARY, two.bench_image]
    assert list(two.images) == images
    assert all(request["images"] == images for request in node_requests(two).values())
    assert two.model_copy(update={"bench_image": two.engine_image}).images == (two.engine_image, CANARY)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{{site: {CANARY}}}", "the name of site_engine_image"),
        ("{canary: registry:5000/engine:canary}", "@sha256:"),
        (f"{{Canary: {CANARY}}}", "Canary"),
        (f"[{CANARY}]", "site_engine_images"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(make_site: Callable[..., Path], text: str, shown: str) -> None:
    error = refused(lambda: load_site(make_site(extra=f"site_engine_images: {text}\n")))
    assert (error.id, shown in str(error)) == ("TS-SITE-SCHEMA", True)


def test_the_walk_of_the_trial_holds_both_images(two: Site, catalog: Catalog, project: Path) -> None:
    walk = plan_walk(ground(two, catalog, project), walk_id(1), "f", "canary_image", boots=1)
    (trial,) = walk.trials
    images = [walk.resolved[generation]["image"] for generation in (trial.baseline, trial.candidate)]
    assert images == [two.engine_image, CANARY]
    assert walk.changed(trial) == {IMAGE: ["site", "canary"]}
