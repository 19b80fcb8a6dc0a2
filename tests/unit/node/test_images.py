"""`image-ensure`: what is refused before a pull, what a pull survives, and what each failure is called."""

from __future__ import annotations

from typing import Any

import pytest
from stored_image import StoredImage

from trispark_node.docker_client import Image
from trispark_node.images import MINIMUM_FREE_BYTES, PAUSES_S, UNPACKED

ARM = "linux/arm64"
"""Of the fake node."""


@pytest.fixture
def stored(bench: Any) -> StoredImage:
    """An image of 1,200 bytes that the registry has and describes."""
    image = StoredImage(ARM, {"base": 1000, "own": 200})
    bench.registry.answers |= image.served()
    bench.docker.registry[image.reference] = Image("sha256:1", (image.reference,), {}, ARM)
    return image


def pulls(bench: Any) -> int:
    return sum(event.startswith("pull ") for event in bench.docker.events)


def test_the_size_is_known_before_the_pull(bench: Any, stored: StoredImage) -> None:
    answer = bench.ask("image-ensure", image=stored.reference, check=True)
    assert (answer["changed"], answer["bytes_to_pull"], pulls(bench)) == (True, 1200, 0)
    answer = bench.ask("image-ensure", image=stored.reference)
    assert (answer["pulled"], answer["attempts"], answer["bytes_to_pull"]) == (True, 1, 1200)
    bench.registry.asked.clear()
    assert bench.ask("image-ensure", image=stored.reference)["changed"] is False
    assert bench.registry.asked == [], "what is there needs no registry"


@pytest.mark.parametrize("free", [-1, 0])
@pytest.mark.parametrize(("shared", "size"), [(False, 1200), (True, 200)])
def test_the_disk_is_looked_at_before_anything_is_pulled(
    bench: Any, stored: StoredImage, free: int, shared: bool, size: int
) -> None:
    """One byte less than needed is too little; layers that another image has need no room."""
    bench.docker.layers = [(stored.layers[0].diff_id, "sha256:other")] if shared else []
    bench.docker.free_bytes = UNPACKED * size + 5000 + free
    ask = {"image": stored.reference, "minimum_free_bytes": 5000}
    if free == 0:
        assert bench.ask("image-ensure", **ask)["bytes_to_pull"] == size
        return
    error = bench.refused("image-ensure", **ask)
    assert (error["id"], pulls(bench)) == ("TS-AGENT-IMAGE-SPACE", 0)
    assert f"{size} bytes of them to pull" in error["expected"]
    assert error["observed"] == f"{bench.docker.free_bytes} bytes free"
    assert not bench.node.layout.journal.exists(), "nothing was begun"


def test_a_registry_that_says_nothing_leaves_the_declared_minimum(bench: Any, stored: StoredImage) -> None:
    bench.registry.answers.clear()
    bench.docker.free_bytes = MINIMUM_FREE_BYTES - 1
    error = bench.refused("image-ensure", image=stored.reference)
    assert (error["id"], error["expected"]) == ("TS-AGENT-IMAGE-SPACE", f"{MINIMUM_FREE_BYTES} bytes free")
    bench.docker.free_bytes += 1
    answer = bench.ask("image-ensure", image=stored.reference)
    assert (answer["pulled"], answer["bytes_to_pull"]) == (True, None)


def test_an_image_for_another_platform_is_refused_before_it_is_pulled(bench: Any) -> None:
    image = StoredImage("linux/amd64", {"base": 1000})
    bench.registry.answers |= image.served()
    error = bench.refused("image-ensure", image=image.reference)
    assert (error["id"], error["expected"], error["observed"]) == ("TS-AGENT-IMAGE-PLATFORM", ARM, "linux/amd64")
    assert pulls(bench) == 0
    reference, served = StoredImage.index(image, StoredImage("linux/riscv64", {"base": 1}))
    bench.registry.answers |= served
    assert bench.refused("image-ensure", image=reference)["observed"] == "linux/amd64, linux/riscv64"


def test_what_the_registry_did_not_say_is_found_after_the_pull_and_taken_away(bench: Any, stored: StoredImage) -> None:
    bench.registry.answers.clear()
    bench.docker.registry[stored.reference] = Image("sha256:1", (stored.reference,), {}, "linux/amd64")
    assert bench.refused("image-ensure", image=stored.reference)["id"] == "TS-AGENT-IMAGE-PLATFORM"
    assert bench.docker.image(stored.reference) is None
    assert not bench.node.layout.pulled.exists()


@pytest.mark.parametrize(("platform", "right"), [("linux/amd64", False), (ARM, True), ("", True)])
def test_an_image_that_is_there_is_looked_at_too(bench: Any, stored: StoredImage, platform: str, right: bool) -> None:
    """One that does not say for what it was built is not refused."""
    bench.docker.images[stored.reference] = Image("sha256:1", (stored.reference,), {}, platform)
    if right:
        assert bench.ask("image-ensure", image=stored.reference)["changed"] is False
    else:
        assert bench.refused("image-ensure", image=stored.reference)["id"] == "TS-AGENT-IMAGE-PLATFORM"


@pytest.mark.parametrize("broken", [1, len(PAUSES_S)])
def test_a_registry_that_goes_down_in_the_middle_is_waited_for(bench: Any, stored: StoredImage, broken: int) -> None:
    bench.docker.pull_errors = ["unexpected EOF"] * broken
    before = bench.clock.monotonic()
    answer = bench.ask("image-ensure", image=stored.reference)
    assert (answer["pulled"], answer["attempts"], pulls(bench)) == (True, broken + 1, broken + 1)
    assert bench.clock.monotonic() - before == sum(PAUSES_S[:broken])


def test_one_that_stays_away_is_named_and_a_second_run_completes(bench: Any, stored: StoredImage) -> None:
    bench.docker.pull_errors = ["dial tcp 10.77.0.2:5000: connect: connection refused"] * (len(PAUSES_S) + 1)
    error = bench.refused("image-ensure", image=stored.reference)
    assert (error["id"], "in 4 attempts" in error["what"]) == ("TS-AGENT-IMAGE-PULL", True)
    assert "connection refused" in error["observed"]
    assert bench.ask("image-ensure", image=stored.reference)["attempts"] == 1


def test_no_attempt_begins_after_the_deadline(bench: Any, stored: StoredImage) -> None:
    bench.docker.pull_errors = ["timeout"] * 9
    error = bench.refused("image-ensure", image=stored.reference, deadline_s=PAUSES_S[0] + 1)
    assert (error["id"], pulls(bench)) == ("TS-AGENT-IMAGE-PULL", 2)
    assert bench.refused("image-ensure", image=stored.reference, deadline_s=0)["what"].endswith("in 1 attempt")


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("manifest for registry:5000/a@sha256:1 not found: manifest unknown: manifest unknown", "ABSENT"),
        ("unknown: blob unknown to registry", "ABSENT"),
        ("error parsing HTTP 404 response body: unexpected end of JSON input", "ABSENT"),
        ("pull access denied for x, repository does not exist or may require 'docker login'", "ABSENT"),
        ("write /var/lib/docker/tmp/x: no space left on device", "SPACE"),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", "PLATFORM"),
    ],
)
def test_what_no_attempt_can_change_is_named_at_once(bench: Any, stored: StoredImage, said: str, named: str) -> None:
    bench.docker.pull_errors = [said]
    error = bench.refused("image-ensure", image=stored.reference)
    assert (error["id"], pulls(bench)) == (f"TS-AGENT-IMAGE-{named}", 1)
    assert said.lower() in error["observed"].lower()
    assert bench.docker.image(stored.reference) is None
    assert not bench.node.layout.pulled.exists()


@pytest.mark.parametrize("name", ["docker.io/lmsysorg/sglang", "lmsysorg/sglang", "index.docker.io/lmsysorg/sglang"])
def test_an_image_of_dockers_own_registry_is_known_by_the_name_that_docker_lists(bench: Any, name: str) -> None:
    digest = "sha256:" + "d" * 64
    bench.docker.registry[f"{name}@{digest}"] = Image("sha256:1", (f"lmsysorg/sglang@{digest}",), {}, ARM)
    assert bench.ask("image-ensure", image=f"{name}@{digest}")["pulled"]
    assert not bench.ask("image-ensure", image=f"{name}@{digest}")["changed"]
