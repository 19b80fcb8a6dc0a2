"""The stage F trial of an image with two images of the lab's engine, and the way back without a registry."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.lab, pytest.mark.slow]

REGISTRY = "trispark-lab-registry"
CANARY = "Engine build: canary "


def records_of(lab: Any) -> list[dict[str, Any]]:
    script = "for f in /var/lib/trispark/records/*.json; do cat $f; done"
    return [json.loads(line) for line in lab.node("spark0", "sh", "-c", script).decode().splitlines()]


def images_of(lab: Any) -> tuple[str, str]:
    """(the site's own engine image, its canary) as `lab up` wrote them."""
    found = yaml.safe_load((lab.root / "inventory/lab/group_vars/all/images.yml").read_text())
    return str(found["site_engine_image"]), str(found["site_engine_images"]["canary"])


def on_node(lab: Any, name: str, reference: str) -> dict[str, Any] | None:
    """An image as that node's own Docker Engine describes it; None when it has none."""
    found = json.loads(lab.node(name, "docker", "image", "inspect", reference, check=False) or b"[]")
    return dict(found[0]) if found else None


def runs(lab: Any) -> set[tuple[str, str]]:
    """{(image reference, image id)} of the engines that serve now, as the nodes' Engines say."""
    states = [lab.inspect(name) for name in lab.nodes]
    assert all(state and state["State"]["Running"] for state in states)
    return {(state["Config"]["Image"], state["Image"]) for state in states}


def without_registry(lab: Any, playbook: str, **extra: str) -> Any:
    subprocess.run(["docker", "pause", REGISTRY], check=True, capture_output=True)
    try:
        return lab.play(playbook, **extra)
    finally:
        subprocess.run(["docker", "unpause", REGISTRY], check=True, capture_output=True)


@pytest.fixture
def tried(serving: Any) -> tuple[Any, list[dict[str, Any]]]:
    """(the lab, records of a whole trial of the canary)."""
    count = len(records_of(serving))
    played = serving.play("stage_f", feature="canary_image", boots="1", timeout_s=900)
    assert played.rc == 0, played.output[-4000:]
    return serving, records_of(serving)[count:]


def test_each_arm_ran_its_own_image_and_a_rollback_needs_no_registry(tried: tuple[Any, list[dict[str, Any]]]) -> None:
    """One trial, which takes minutes: its boots, its verdict, what serves after it, then the way back."""
    lab, records = tried
    site_image, canary = images_of(lab)
    assert site_image.partition("@")[2] != canary.partition("@")[2]

    (trial,) = [record for record in records if record["kind"] == "trial"]
    assert trial["outcome"]["verdict"] == "INCONCLUSIVE", "one boot an arm decides nothing"
    assert trial["resolved"]["changed"] == {"ENGINE_IMAGE": {"baseline": "site", "candidate": "canary"}}
    boots = {record["boot_id"]: record for record in records if record["kind"] == "boot"}
    expected = {"baseline": site_image, "candidate": canary}
    ids: dict[str, set[str]] = {}
    for boot in boots.values():
        if boot["requested"]["purpose"] != "trial":
            continue
        assert boot["outcome"]["state"] == "valid", boot["outcome"]
        image = expected[boot["requested"]["arm"]]
        assert boot["resolved"]["image"] == image
        for rank in boot["observed"]["ranks"]:
            assert image in rank["image_digests"]
            ids.setdefault(image, set()).add(rank["image_id"])
    assert {image: len(found) for image, found in ids.items()} == {site_image: 1, canary: 1}
    assert ids[site_image] != ids[canary]

    arms = {boot["arm"]: boot["boot_id"] for boot in trial["boots"]}
    for name in lab.nodes:
        logs = {
            arm: lab.node(name, "cat", f"/var/lib/trispark/boots/{boot}/engine.log").decode()
            for arm, boot in arms.items()
        }
        assert CANARY in logs["candidate"], f"{name}: the canary says what it is"
        assert "Engine build: " in logs["baseline"]
        assert CANARY not in logs["baseline"]
        for reference in (site_image, canary):
            image = on_node(lab, name, reference)
            assert image is not None, f"{name} keeps {reference}"
            assert reference in image["RepoDigests"]

    # The baseline is back, on its own image.
    assert trial["outcome"]["restored"] == trial["resolved"]["baseline"]
    assert runs(lab) == {(site_image, *ids[site_image])}

    # The canary serves outside a trial, then an incident: what was before comes from what the nodes hold.
    played = without_registry(lab, "boot", feature="canary_image")
    assert played.rc == 0, played.output[-4000:]
    assert runs(lab) == {(canary, *ids[canary])}
    played = without_registry(lab, "rollback", rollback_to=trial["resolved"]["baseline"])
    assert played.rc == 0, played.output[-4000:]
    assert runs(lab) == {(site_image, *ids[site_image])}
    for name in lab.nodes:
        engine = lab.inspect(name)
        assert engine["Config"]["Labels"]["trispark.generation"] == trial["resolved"]["baseline"]
        assert CANARY not in lab.log(name)
    # A prune that may take images leaves those of kept generations and of the site.
    played = lab.play("prune", images="true")
    assert played.rc == 0, played.output[-4000:]
    assert all(on_node(lab, name, reference) for name in lab.nodes for reference in (site_image, canary))


def test_a_registry_that_is_away_is_named_before_the_trial_touches_an_engine(serving: Any) -> None:
    """With the canary gone from one node the trial needs the registry; what serves goes on serving."""
    site_image, canary = images_of(serving)
    before = {name: serving.inspect(name)["Id"] for name in serving.nodes}
    assert serving.play("images").rc == 0
    serving.node("spark1", "docker", "image", "rm", canary)
    assert on_node(serving, "spark1", canary) is None
    subprocess.run(["docker", "stop", REGISTRY], check=True, capture_output=True)
    try:
        played = serving.play("stage_f", feature="canary_image", boots="1")
    finally:
        subprocess.run(["docker", "start", REGISTRY], check=True, capture_output=True)
    assert played.rc != 0
    assert "TS-AGENT-IMAGE-PULL" in played.output
    assert "spark1" in played.output
    assert {name: serving.inspect(name)["Id"] for name in serving.nodes} == before
    assert {image for image, _ in runs(serving)} == {site_image}
    played = serving.play("images")
    assert played.rc == 0, played.output[-4000:]
    assert on_node(serving, "spark1", canary) is not None, "a second run completes"
