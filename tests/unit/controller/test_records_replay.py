"""A record can be repeated while every pinned input is the same; one that is gone or differs is named."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from trispark.catalog import Catalog
from trispark.errors import TrisparkError
from trispark.plan import plan_id
from trispark.project import ProjectState
from trispark.record_replay import replay
from trispark.records import build_trial_record, head_of, record_hash
from trispark.resolve import Resolution, compare, resolve_arms
from trispark.site import Site
from trispark.verdict import decide

Maker = Callable[..., dict[str, Any]]


@pytest.fixture
def tree(project: Path, tmp_path: Path, make_site: Callable[..., Path]) -> Path:
    """A copy of the project that the records were made in, free to be changed."""
    root = tmp_path / "root"
    shutil.copytree(project, root)
    (root / "inventory").mkdir()
    make_site().rename(root / "inventory" / "lab")
    return root


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def site_file(tree: Path, name: str = "site.yml") -> Path:
    return tree / "inventory" / "lab" / "group_vars" / "all" / name


@pytest.mark.parametrize(
    ("arm", "requested", "command"),
    [
        (
            "candidate",
            {"trial": "t1", "slot": 1},
            "play boot --site lab -e boot_arm=candidate -e boot_purpose=trial -e boot_stage=c -e boot_bench=true "
            "-e feature=wo_a",
        ),
        (
            "baseline",
            {"trial": None, "purpose": "serve", "stage": "a"},
            "play boot --site lab -e boot_arm=baseline -e boot_purpose=serve -e boot_stage=a -e boot_bench=true",
        ),
        (
            "baseline",
            {"trial": None, "purpose": "serve", "stage": None},
            "play boot --site lab -e boot_arm=baseline -e boot_purpose=serve -e boot_bench=true",
        ),
    ],
)
def test_a_boot_is_repeated_by_its_command(
    tree: Path, boot_record: Maker, arm: str, requested: dict[str, Any], command: str
) -> None:
    record = boot_record(arm, **requested)
    found = replay(tree, "lab", record, [record])
    assert " ".join(found["command"]) == command
    assert (found["generation"], found["arm"]) == (record["resolved"]["generation"], arm)
    assert found["slot"] == requested.get("slot")
    assert found["plan"]["id"] == plan_id(found["plan"])
    assert found["plan"][arm]["generation"] == found["generation"]
    assert bool(found["notes"]) is bool(requested.get("trial"))


def test_the_baseline_of_a_trial_holds_what_its_feature_requires(
    tree: Path, boot_record: Maker, site: Site, catalog: Catalog, project: Path
) -> None:
    arms = resolve_arms(site, catalog, "wo_a_mid", None, project)
    baseline = boot_record(resolution=arms.baseline, stage="d", trial="t1")
    candidate = boot_record("candidate", resolution=arms.candidate, stage="d", trial="t1")
    candidate["requested"]["feature"] = "wo_a_mid"
    found = replay(tree, "lab", baseline, [baseline, candidate])
    assert found["command"][-1] == "feature=wo_a_mid"
    assert found["plan"]["base"] == ["wo_a"]
    with pytest.raises(TrisparkError) as caught:
        replay(tree, "lab", baseline, [baseline])
    assert "DSV41_WO_A_W8" in caught.value.observed


@pytest.fixture
def checked(boot_record: Maker, site: Site, catalog: Catalog, tree: Path) -> dict[str, Any]:
    """The boot of a trial that reads everything twice and compares."""
    (tree / "adapters" / "trispark_hooks" / "lab_engram_prefetch.py").write_text(
        "# rows read ahead\n", encoding="utf-8"
    )
    arms = resolve_arms(site, catalog, "engram_prefetch", None, tree)
    assert arms.check is not None
    assert arms.check.id != arms.candidate.id
    record = boot_record("candidate", resolution=arms.check, stage="c", trial="t1", slot=0)
    record["requested"]["feature"] = "engram_prefetch"
    return record


def test_a_boot_that_compares_results_is_repeated_as_one(tree: Path, checked: dict[str, Any]) -> None:
    found = replay(tree, "lab", checked, [checked])
    assert found["command"][found["command"].index("boot_check=true") - 1] == "-e"
    assert found["generation"] == checked["resolved"]["generation"]
    (planned,) = (boot for boot in found["plan"]["boots"] if boot["check"])
    assert planned["generation"] == found["generation"]


def test_an_input_of_a_boot_that_compares_results_is_named(tree: Path, checked: dict[str, Any]) -> None:
    edit(tree / "experiments" / "baseline.yml", "CHUNKED_PREFILL_SIZE: 1024", "CHUNKED_PREFILL_SIZE: 512")
    with pytest.raises(TrisparkError) as caught:
        replay(tree, "lab", checked, [checked])
    assert "CHUNKED_PREFILL_SIZE was 1024, is 512" in caught.value.observed
    assert "PREFETCH_CHECK" not in caught.value.observed


def test_a_rollback_is_repeated_as_one(tree: Path, boot_record: Maker) -> None:
    earlier = boot_record("candidate", trial="t1")
    back = copy.deepcopy(earlier)
    back["requested"] = {
        **back["requested"],
        **dict.fromkeys(("stage", "feature", "arm", "trial")),
        "purpose": "rollback",
    }
    found = replay(tree, "lab", back, [earlier, back])
    assert found["command"] == ["play", "rollback", "--site", "lab", "-e", f"rollback_to={found['generation']}"]
    with pytest.raises(TrisparkError) as caught:
        replay(tree, "lab", back, [back])
    assert "DSV41_WO_A_W8" in caught.value.observed


def other_image(tree: Path) -> None:
    edit(site_file(tree, "images.yml"), "lab-engine@sha256:aaaa", "lab-engine@sha256:bbbb")


def set_experiment(name: str, *edits: tuple[str, str]) -> Callable[[Path], None]:
    def apply(tree: Path) -> None:
        for old, new in edits:
            edit(tree / "experiments" / name, old, new)

    return apply


def rename_feature(tree: Path, old: str, new: str) -> None:
    """Also where other entries name it."""
    for name in ("features", "exclusions"):
        path = tree / "experiments" / f"{name}.yml"
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        entries = {new if key == old else key: entry for key, entry in data[name].items()}
        for entry in entries.values():
            for field, value in entry.items():
                if isinstance(value, list):
                    entry[field] = [new if each == old else each for each in value]
        path.write_text(yaml.safe_dump({**data, name: entries}, sort_keys=False), encoding="utf-8")
    edit(tree / "experiments" / "stages.yml", f"features: [{old}]", f"features: [{new}]")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "image gone": (lambda tree: site_file(tree, "images.yml").unlink(), "image is gone"),
    "image differs": (other_image, "image was registry:5000/trispark/lab-engine@sha256:aaaa"),
    "adapter differs": (
        lambda tree: edit(tree / "adapters" / "sitecustomize.py", "hooks", "other hooks"),
        "adapters/sitecustomize.py was ",
    ),
    "adapter gone": (
        lambda tree: (tree / "adapters" / "sitecustomize.py").unlink(),
        "adapters/sitecustomize.py is gone",
    ),
    "baseline differs": (
        set_experiment("baseline.yml", ("CHUNKED_PREFILL_SIZE: 1024", "CHUNKED_PREFILL_SIZE: 512")),
        "CHUNKED_PREFILL_SIZE was 1024, is 512",
    ),
    "feature gone": (lambda tree: rename_feature(tree, "wo_a", "wo_x"), "TS-FEATURE-UNKNOWN"),
    "no change any more": (
        set_experiment("features.yml", ("DSV41_WO_A_W8: 1", "DSV41_WO_A_W8: 0")),
        "TS-PLAN-ONECHANGE",
    ),
    "node": (lambda tree: edit(tree / "inventory" / "lab" / "hosts.yml", "10.77.1.11", "10.77.1.99"), "of rank "),
    "gates": (
        set_experiment("evidence.yml", ("calls twin=[1-9]\\d*\\b", "calls twin=[1-9]")),
        "launch options, gates or a hidden value was ",
    ),
    "prompts": (
        lambda tree: edit(tree / "experiments" / "workloads" / "prompts.yml", "prose:\n", "prose:\n    - One more.\n"),
        "measurement: prompts of prose was ",
    ),
    "load client": (
        lambda tree: edit(site_file(tree, "images.yml"), "bench@sha256:aaaa", "bench@sha256:bbbb"),
        "measurement: image was ",
    ),
    "tokens": (lambda tree: edit(site_file(tree), "max_tokens: 64", "max_tokens: 65"), "max_tokens was 64, is 65"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_input_that_is_gone_or_differs_is_named(tree: Path, boot_record: Maker, change: str) -> None:
    record = boot_record("candidate", trial="t1")
    assert replay(tree, "lab", record, [record])
    apply, named = CHANGES[change]
    apply(tree)
    with pytest.raises(TrisparkError) as caught:
        replay(tree, "lab", record, [record])
    assert caught.value.id == "TS-RECORD-REPLAY"
    assert named in caught.value.observed
    assert record["project"]["commit"] in caught.value.remedy


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda record: record.update(site="other"), "site was other, is lab"),
        (lambda record: record["requested"].update(overrides={"EP_SIZE": "1"}), "override EP_SIZE is gone"),
    ],
)
def test_what_no_command_can_say_is_refused(
    tree: Path, boot_record: Maker, change: Callable[[dict[str, Any]], object], named: str
) -> None:
    record = boot_record("candidate")
    change(record)
    with pytest.raises(TrisparkError) as caught:
        replay(tree, "lab", record, [record])
    assert named in caught.value.observed


def test_a_promoted_baseline_changes_what_a_record_is_repeated_from(tree: Path, boot_record: Maker) -> None:
    record = boot_record(trial=None, purpose="serve")
    promoted = {
        "schema_version": 1,
        "settings": {"DSV41_WO_A_W8": 1},
        "record": "t1",
        "record_hash": "a" * 64,
        "time": "2026-01-01T00:00:00Z",
    }
    path = tree / ".trispark" / "lab" / "baseline.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(promoted), encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        replay(tree, "lab", record, [record])
    assert "DSV41_WO_A_W8 was 0, is 1" in caught.value.observed


@pytest.fixture
def trial_record(
    boot_record: Maker, baseline: Resolution, candidate: Resolution, catalog: Catalog
) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    boots = [boot_record(trial="t1"), boot_record("candidate", trial="t1")]
    record = build_trial_record(
        record_id="t1",
        site="lab",
        project=ProjectState("0.1.0", "f" * 40, False),
        requested={"stage": "c", "feature": "wo_a", "trial": "t1", "purpose": "trial"},
        baseline=baseline,
        candidate=candidate,
        difference=compare(baseline, candidate),
        allowlist=catalog.allowlist,
        boots=[
            {
                "arm": boot["requested"]["arm"],
                "boot_id": boot["boot_id"],
                "generation": boot["resolved"]["generation"],
                "seq": boot["seq"],
                "hash": record_hash(boot),
                "valid": True,
            }
            for boot in boots
        ],
        verdict=decide([], []),
        restored=None,
        timings={"started_at": "x", "ended_at": "y", "phases": {}},
        previous=head_of(boots[-1]),
    )
    return record, [*boots, record]


def test_a_trial_is_repeated_by_its_stage(
    tree: Path, trial_record: tuple[dict[str, Any], list[Mapping[str, Any]]]
) -> None:
    found = replay(tree, "lab", *trial_record)
    assert found["command"] == ["play", "stage_c", "--site", "lab", "-e", "feature=wo_a"]
    assert found["plan"]["feature"] == "wo_a"


@pytest.mark.parametrize("with_boots", [True, False])
@pytest.mark.parametrize("change", ["image gone", "image differs", "adapter differs", "baseline differs"])
def test_a_trial_needs_the_inputs_of_its_boots(
    tree: Path, trial_record: tuple[dict[str, Any], list[Mapping[str, Any]]], change: str, with_boots: bool
) -> None:
    record, records = trial_record
    apply, named = CHANGES[change]
    apply(tree)
    with pytest.raises(TrisparkError) as caught:
        replay(tree, "lab", record, records if with_boots else [record])
    assert caught.value.id == "TS-RECORD-REPLAY"
    assert (named if with_boots else "is gone" if change == "image gone" else "generation of") in caught.value.observed
