"""Before a launch: each single fault of one node fails its own check on its own rank, and tactics follow the policy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from trispark.gate_result import GateResult
from trispark.images.launch_gate import judge_launch
from trispark.resolve import Resolution

OTHER = "registry:5000/trispark/lab-engine@sha256:" + "c" * 64
CHECKS = ("launch.image", "launch.adapters", "launch.autotune")
ADAPTER = "trispark_hooks/lab_wo_a_w8.py"


def healthy(resolution: Resolution) -> dict[str, Any]:
    image = resolution.resolved["image"]
    answer = {
        "ok": True,
        "generation": resolution.id,
        "staged": {"hash": "x", "files": 2, "listed": dict(resolution.resolved["adapters"])},
        "image": {"reference": image, "id": "sha256:" + "b" * 64, "digests": [image]},
        "storage_driver": "overlay2",
        "autotune": {"state": "same", "image": image, "made_under": image, "files": 1},
        "running": None,
    }
    return {f"spark{rank}": copy.deepcopy(answer) for rank in range(3)}


def bad(results: tuple[GateResult, ...]) -> set[tuple[str, int | None]]:
    return {(result.check_id, result.rank) for result in results if not result.ok}


def test_equal_nodes_pass_every_check(baseline: Resolution) -> None:
    judged = judge_launch(baseline.resolved, healthy(baseline), "serve")
    assert bad(judged.results) == set()
    assert [(result.check_id, result.rank) for result in judged.results] == [
        (check, rank) for check in CHECKS for rank in range(3)
    ]
    assert judged.clear_autotune is False


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(answer: dict[str, Any]) -> None:
        target = answer
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "check", "words"),
    [
        (put("image", "id", value=None), "launch.image", "image id none"),
        (put("image", "digests", value=[]), "launch.image", "no digest"),
        (put("image", "digests", value=[OTHER]), "launch.image", OTHER),
        (put("image", "id", value="sha256:" + "c" * 64), "launch.image", "the odd node spark1"),
        (put("image", value=None), "launch.image", "no digest"),
        (
            put("staged", "listed", ADAPTER, value="0" * 64),
            "launch.adapters",
            f"spark1: {ADAPTER} is {'0' * 12}, planned",
        ),
        (put("staged", "listed", "more.py", value="0" * 64), "launch.adapters", "more.py not planned"),
        (put("staged", "listed", value={}), "launch.adapters", "sitecustomize.py missing"),
        (put("staged", value=None), "launch.adapters", "the staged adapters were not read"),
        (put("autotune", value={"state": "other", "made_under": OTHER, "files": 3}), "launch.autotune", OTHER),
        (
            put("autotune", value={"state": "unknown", "made_under": None, "files": 3}),
            "launch.autotune",
            "spark1: 3 files made under an unknown image",
        ),
    ],
)
def test_one_fault_fails_its_check_on_its_rank(
    baseline: Resolution, edit: Callable[[dict[str, Any]], None], check: str, words: str
) -> None:
    answers = healthy(baseline)
    edit(answers["spark1"])
    judged = judge_launch(baseline.resolved, answers, "serve")
    assert bad(judged.results) == {(check, 1)}
    (result,) = [each for each in judged.results if not each.ok]
    assert words in result.observed
    assert result.remedy
    assert not judged.clear_autotune


@pytest.mark.parametrize("lost", [None, {}])
def test_a_node_without_an_answer_fails_each_check(baseline: Resolution, lost: Any) -> None:
    answers = {**healthy(baseline), "spark2": lost}
    assert bad(judge_launch(baseline.resolved, answers, "serve").results) == {(check, 2) for check in CHECKS}


def test_ids_of_different_stores_are_not_compared(baseline: Resolution) -> None:
    """As in the field: the config's hash on one node, the index's on another."""
    answers = healthy(baseline)
    answers["spark1"]["storage_driver"] = "overlayfs"
    answers["spark1"]["image"]["id"] = "sha256:" + "d" * 64
    assert bad(judge_launch(baseline.resolved, answers, "serve").results) == set()
    answers["spark1"]["image"]["digests"] = [OTHER]
    assert bad(judge_launch(baseline.resolved, answers, "serve").results) == {("launch.image", 1)}


@pytest.mark.parametrize(
    ("policy", "purpose", "state", "passes", "clears"),
    [
        ("refuse", "serve", "same", True, False),
        ("refuse", "serve", "empty", True, False),
        ("refuse", "serve", "other", False, False),
        ("refuse", "trial", "unknown", False, False),
        ("clear", "serve", "other", True, True),
        ("clear", "serve", "same", True, False),
        ("refuse", "rollback", "other", True, True),
        ("refuse", "rollback", "same", True, False),
    ],
)
def test_tactics_of_another_image(
    baseline: Resolution, policy: Any, purpose: str, state: str, passes: bool, clears: bool
) -> None:
    answers = healthy(baseline)
    answers["spark2"]["autotune"]["state"] = state
    judged = judge_launch(baseline.resolved, answers, purpose, policy)
    assert (bad(judged.results) == set(), judged.clear_autotune) == (passes, clears)


def test_an_engine_without_tactics_passes(baseline: Resolution) -> None:
    answers = healthy(baseline)
    for answer in answers.values():
        answer["autotune"] = None
    assert bad(judge_launch(baseline.resolved, answers, "serve").results) == set()


def test_an_image_of_dockers_own_registry_is_listed_under_its_short_name(baseline: Resolution) -> None:
    digest = str(baseline.resolved["image"]).partition("@")[2]
    resolved = {**baseline.resolved, "image": f"docker.io/lmsysorg/sglang@{digest}"}
    answers = healthy(baseline)
    for answer in answers.values():
        answer["image"]["digests"] = [f"lmsysorg/sglang@{digest}"]
    assert bad(judge_launch(resolved, answers, "serve").results) == set()
    answers["spark1"]["image"]["digests"] = [f"somebody/sglang@{digest}"]
    assert bad(judge_launch(resolved, answers, "serve").results) == {("launch.image", 1)}
