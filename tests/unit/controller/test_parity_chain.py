"""The chain of `images verify`: equal ranks, each single odd rank, no engine, half a fleet."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.controller.conftest import identity

from trispark.images.rank_chain import STEPS, make_chain, published, wants_files
from trispark.images.rank_chain_text import lines
from trispark.images.site_images import SiteImages
from trispark.resolve import Resolution

NODES = {0: "spark0", 1: "spark1", 2: "spark2"}
SAME_SET = ("*/numpy/*",)
OTHER = "sha256:" + "e" * 64


@pytest.fixture
def answers(baseline: Resolution) -> dict[str, Any]:
    image = baseline.resolved["image"]
    adapters = identity(baseline, 0)["adapters"]["hash"]

    def answer(rank: int) -> dict[str, Any]:
        return {
            "ok": True,
            "generation": baseline.id,
            "staged": {"hash": adapters, "files": 2, "listed": dict(baseline.resolved["adapters"])},
            "image": {"reference": image, "id": "sha256:" + "b" * 64, "digests": [image]},
            "storage_driver": "overlay2",
            "autotune": {"state": "same", "image": image, "made_under": image, "files": 1},
            "running": {
                "container_id": f"c{rank}",
                "generation": baseline.id,
                "boot_id": "b1",
                "image_ref": image,
                "image_id": "sha256:" + "b" * 64,
                "image_digests": [image],
                "identity": identity(baseline, rank),
            },
        }

    return {node: copy.deepcopy(answer(rank)) for rank, node in NODES.items()}


CANARY = "registry:5000/engine-canary@sha256:" + "d" * 64


def made(answers: dict[str, Any], reference: str | None = None, **named: str) -> dict[str, Any]:
    return published(make_chain("lab", SiteImages(reference, named), NODES, answers, SAME_SET), Path())


def odd(found: dict[str, Any]) -> set[tuple[str, str]]:
    """(step, node), of the steps that compare ranks."""
    return {(step["step"], node) for step in found["steps"] for node in step["odd"] if "_name" not in step["step"]}


def named(found: dict[str, Any], step: str) -> list[str | None]:
    return [rank[step] for rank in found["ranks"]]


def test_equal_ranks(answers: dict[str, Any], baseline: Resolution) -> None:
    found = made(answers, baseline.resolved["image"])
    assert (found["equal"], found["running"], found["unreachable"]) == (True, list(NODES.values()), [])
    assert [step["step"] for step in found["steps"]] == list(STEPS)
    assert all(step["equal"] for step in found["steps"])
    first, second, third = found["ranks"]
    assert {**first, "node": "", "libraries": ""} == {**second, "node": "", "libraries": ""}
    assert second["libraries"] == third["libraries"] == "2 loaded"
    assert first["libraries"] == "3 loaded", "the head serves an API"
    assert first["manifest_digest"] == baseline.image_digest
    assert found["image"]["reference"] == baseline.resolved["image"]
    assert json.loads(json.dumps(found)) == found
    assert lines(found)[-1] == "equal on 3 ranks; an engine runs on spark0, spark1, spark2"
    assert not wants_files(answers)


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(answer: dict[str, Any]) -> None:
        target = answer
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "steps"),
    [
        (put("image", "reference", value="x@" + OTHER), {"reference", "manifest_digest"}),
        (put("image", "digests", value=[]), {"manifest_digest"}),
        (put("image", "id", value=OTHER), {"image_id", "container_image_id"}),
        (put("image", "id", value=None), {"image_id", "container_image_id"}),
        (put("running", "image_id", value=OTHER), {"container_image_id"}),
        (put("running", "generation", value="g" + "0" * 16), {"container_image_id"}),
        (put("staged", "listed", "more.py", value="0" * 64), {"adapters_staged"}),
        (put("staged", value=None), {"adapters_staged", "adapters"}),
        (put("running", "identity", "adapters", "hash", value="0" * 64), {"adapters"}),
        (put("running", "identity", "source", "hash", value="0" * 64), {"source"}),
        (put("running", "identity", "source", value={"problem": "gone"}), {"source"}),
        (put("running", "identity", "libraries", "listed", "/usr/lib/libc.so.6", value="0" * 64), {"libraries"}),
        (put("running", value=None), {"container_image_id", "adapters", "source", "libraries"}),
        (put("autotune", "state", value="other"), {"autotune"}),
    ],
)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_odd_rank_is_named_at_its_step(
    answers: dict[str, Any], edit: Callable[[dict[str, Any]], None], steps: set[str], rank: int
) -> None:
    edit(answers[NODES[rank]])
    found = made(answers)
    assert odd(found) == {(step, NODES[rank]) for step in steps}
    assert not found["equal"]
    text = "\n".join(lines(found))
    assert f"{NODES[rank]}: " in text
    assert text.endswith(
        "not equal on 3 ranks, NOT AN IMAGE OF THIS SITE; an engine runs on " + ", ".join(found["running"])
    )


def test_a_changed_source_file_is_named_with_both_hashes(answers: dict[str, Any]) -> None:
    whole = {"/opt/engine/a.py": "1" * 64, "/opt/engine/b.py": "2" * 64}
    for node, answer in answers.items():
        files = {**whole, "/opt/engine/b.py": "3" * 64} if node == "spark1" else whole
        answer["running"]["identity"]["source"] = {"hash": (node == "spark1" and "4" * 64) or "5" * 64, "listed": files}
    assert wants_files(answers)
    (step,) = [step for step in made(answers)["steps"] if step["step"] == "source"]
    assert step["problems"] == {
        "spark1": f"the odd node spark1: /opt/engine/b.py is {'3' * 12}, spark0, spark2 have {'2' * 12}"
    }


def test_nothing_runs(answers: dict[str, Any]) -> None:
    for answer in answers.values():
        answer["running"] = None
    found = made(answers, answers["spark0"]["image"]["reference"])
    assert (found["equal"], found["running"]) == (True, [])
    silent = {step["step"] for step in found["steps"] if step["equal"] is None}
    assert silent == {"container_image_id", "container_image_name", "adapters", "source", "libraries"}
    assert lines(found)[-1] == "equal on 3 ranks; nothing runs"
    answers["spark2"]["image"]["digests"] = []
    assert odd(made(answers)) == {("manifest_digest", "spark2")}


def test_nothing_was_ever_staged(answers: dict[str, Any]) -> None:
    for answer in answers.values():
        answer.update(generation=None, staged=None, image=None, autotune=None, running=None)
    found = made(answers)
    assert not found["equal"]
    assert found["image"]["reference"] is None
    assert lines(found)[0].split(maxsplit=1) == ["image", "the site has none yet"]
    assert named(found, "image_name") == [None] * 3
    assert found["of_site"], "nothing is there that could be another site's"


@pytest.mark.parametrize("lost", [None, {}])
def test_a_silent_node_is_no_equal_one(answers: dict[str, Any], lost: Any) -> None:
    answers["spark1"] = lost
    found = made(answers)
    assert (found["equal"], found["unreachable"]) == (False, ["spark1"])
    assert odd(found) == set(), "the others agree"
    assert "spark1  no answer" in lines(found)


def test_the_image_s_provenance_is_a_part_of_the_chain(answers: dict[str, Any], baseline: Resolution) -> None:
    """Here nothing is kept of it, which is said and is no difference between ranks."""
    image = baseline.resolved["image"]
    found = made(answers, image)
    provenance = found["image"]["provenance"]
    assert (provenance["image"], provenance["digest"]) == (image, baseline.image_digest)
    assert provenance["problem"]["id"] == "TS-PROVENANCE-NONE"
    assert found["equal"]
    assert made(answers)["image"]["provenance"] is None


def test_the_same_edit_on_every_rank_is_not_the_plan(answers: dict[str, Any]) -> None:
    for answer in answers.values():
        answer["damage"] = "changed adapters/hook.py"
    (step,) = [step for step in made(answers)["steps"] if step["step"] == "adapters_staged"]
    assert step["problems"] == dict.fromkeys(answers, "not as planned: changed adapters/hook.py")
    assert not made(answers)["equal"]


def test_the_site_s_image_is_told_as_such(answers: dict[str, Any], baseline: Resolution) -> None:
    found = made(answers, baseline.resolved["image"], canary=CANARY)
    assert found["of_site"]
    assert named(found, "image_name") == named(found, "container_image_name") == ["site"] * 3


def test_another_image_of_the_site_is_told_by_its_name(answers: dict[str, Any], baseline: Resolution) -> None:
    """As in a trial of an image: right, and not what the site's own name stands for."""
    own = baseline.resolved["image"]
    found = made(answers, CANARY, canary=own, older=OTHER)
    assert (found["equal"], found["of_site"]) == (True, True)
    assert named(found, "image_name") == named(found, "container_image_name") == ["canary"] * 3
    assert {line.split()[0]: line.split()[1] for line in lines(found) if "_name" in line} == {
        "image_name": "canary",
        "container_image_name": "canary",
    }


@pytest.mark.parametrize("rank", [0, 2])
def test_what_is_staged_and_what_runs_are_told_apart(answers: dict[str, Any], baseline: Resolution, rank: int) -> None:
    answers[NODES[rank]]["running"]["image_ref"] = CANARY
    found = made(answers, baseline.resolved["image"], canary=CANARY)
    assert named(found, "image_name") == ["site"] * 3
    assert named(found, "container_image_name")[rank] == "canary"
    assert named(found, "container_image_name").count("site") == 2


@pytest.mark.parametrize(
    ("reference", "further", "words"),
    [
        (None, {}, "and the site names no image yet"),
        (CANARY, {}, "which is not site_engine_image, the only one of this site"),
        (CANARY, {"b": CANARY, "a": CANARY}, "which is neither site_engine_image nor of site_engine_images (a, b)"),
    ],
)
def test_an_image_that_the_site_does_not_name(
    answers: dict[str, Any], baseline: Resolution, reference: str | None, further: dict[str, str], words: str
) -> None:
    found = made(answers, reference, **further)
    assert (found["equal"], found["of_site"]) == (True, False), "the ranks agree with one another all the same"
    said = {step["step"]: step["problems"] for step in found["steps"] if step["problems"]}
    own = baseline.resolved["image"]
    assert said == {
        "image_name": dict.fromkeys(answers, f"it is to run {own}, {words}"),
        "container_image_name": dict.fromkeys(answers, f"it runs {own}, {words}"),
    }
    text = lines(found)
    assert text[-1].startswith("equal on 3 ranks, NOT AN IMAGE OF THIS SITE; ")
    assert any("NONE OF THIS SITE: spark0 none" in line for line in text)


@pytest.mark.parametrize(
    ("reference", "digests", "name"),
    [
        ("elsewhere:5000/other@sha256:" + "d" * 64, [], "canary"),
        ("engine:latest", [CANARY], "canary"),
        ("engine:latest", ["x@" + OTHER], None),
        ("sha256:" + "d" * 64, [], None),
        (None, [CANARY], "canary"),
        ("x@" + OTHER, [CANARY], None),
    ],
)
def test_the_digest_says_which_image_runs(
    answers: dict[str, Any], baseline: Resolution, reference: str | None, digests: list[str], name: str | None
) -> None:
    """Of a container that was started by a tag, what the node knows of its image; an image's id is no digest."""
    answers["spark1"]["running"].update(image_ref=reference, image_digests=digests)
    found = made(answers, baseline.resolved["image"], canary=CANARY)
    assert named(found, "container_image_name") == ["site", name, "site"]
    assert found["of_site"] is (name is not None)


def test_two_names_of_one_digest_are_the_site_s(answers: dict[str, Any], baseline: Resolution) -> None:
    own = baseline.resolved["image"]
    assert named(made(answers, own, canary=own), "image_name") == ["site"] * 3


FACT = {"signer": "builder@example", "key": "ED25519 SHA256:abc"}
PROBLEM = {"id": "TS-PROVENANCE-SIGNER", "what": "w", "where": "x", "expected": "e", "observed": "o", "remedy": "r"}


@pytest.mark.parametrize(
    ("demanded", "provenance", "line"),
    [
        (
            True,
            {"verified": True, "fact": FACT, "problem": None},
            "signed by builder@example with ED25519 SHA256:abc, ",
        ),
        (True, {"verified": False, "problem": PROBLEM}, "a boot of it is refused: TS-PROVENANCE-SIGNER: w; "),
        (False, {"verified": False, "problem": PROBLEM}, "the site demands none; TS-PROVENANCE-SIGNER: w; "),
        (False, {"verified": False, "signed": True, "problem": None}, "a statement is kept, with a signature, which "),
        (False, {"verified": False, "signed": False, "problem": None}, "a statement is kept, with no signature: the "),
    ],
)
def test_the_line_on_provenance(
    answers: dict[str, Any], baseline: Resolution, demanded: bool, provenance: dict[str, Any], line: str
) -> None:
    found = made(answers, baseline.resolved["image"])
    found["image"].update(demanded=demanded, provenance=provenance)
    (said,) = [each for each in lines(found) if each.startswith("provenance ")]
    assert said.split(maxsplit=1)[1].startswith(line)


def test_no_line_on_the_provenance_of_no_image(answers: dict[str, Any]) -> None:
    assert not [line for line in lines(made(answers)) if line.startswith("provenance")]


def test_a_signer_s_line_feed_makes_no_line_of_its_own(answers: dict[str, Any], baseline: Resolution) -> None:
    found = made(answers, baseline.resolved["image"])
    fact = {**FACT, "signer": "x\nprovenance  signed by builder@example"}
    found["image"]["provenance"] = {"verified": True, "fact": fact, "problem": None}
    assert all("\n" not in line for line in lines(found))


def test_an_image_of_dockers_own_registry_is_what_docker_lists_it_as(answers: dict[str, Any]) -> None:
    digest = str(answers["spark0"]["image"]["reference"]).partition("@")[2]
    written, listed = f"docker.io/lmsysorg/sglang@{digest}", f"lmsysorg/sglang@{digest}"
    for answer in answers.values():
        answer["image"].update(reference=written, digests=[listed])
        answer["running"].update(image_ref=written, image_digests=[listed])
    found = made(answers, written)
    assert (found["equal"], odd(found)) == (True, set())
    step = next(each for each in found["steps"] if each["step"] == "manifest_digest")
    assert set(step["values"].values()) == {digest}
