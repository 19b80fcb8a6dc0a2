"""Every problem of the files is named, each by its own line; none is made up by what another one leaves behind."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trispark.catalog import load_catalog
from trispark.errors import TrisparkError
from trispark.plan import Ground, plan_on
from trispark.validation import catalog_problems, problems_of

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("experiments", "inventory", "templates", "adapters"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    return tmp_path


def change(tree: Path, file: str, *edits: Callable[[Any], object]) -> None:
    """Edit the data of a file of experiments/ or inventory/."""
    path = tree / file
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    for edit in edits:
        edit(data)
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")


def lines(tree: Path, site: str = "lab") -> list[str]:
    found = problems_of(tree, site)
    assert all(str(tree) not in str(problem) for problem in found)
    return [f"{problem.id} {problem.where}: {problem.what}" for problem in found]


@pytest.mark.parametrize("site", ["lab", "sparks"])
def test_the_shipped_files_have_no_problem(site: str) -> None:
    assert problems_of(REPOSITORY, site) == []
    assert catalog_problems(REPOSITORY)[0] is not None


def test_every_file_is_judged_even_when_another_cannot_be_read(tree: Path) -> None:
    (tree / "experiments" / "stages.yml").write_text(": [", encoding="utf-8")
    (tree / "experiments" / "engines.yml").unlink()
    change(
        tree,
        "experiments/features.yml",
        lambda d: d["features"]["wo_a"].update(colour="red"),
        lambda d: d["features"]["wo_a_mid"].pop("title"),
    )
    change(tree, "experiments/exclusions.yml", lambda d: d["exclusions"]["ep2"].pop("reason"))
    found = lines(tree)
    assert [line.split(" ")[0] for line in found].count("TS-YAML-SYNTAX") == 1
    assert any(line.startswith("TS-YAML-MISSING experiments/engines.yml") for line in found)
    assert "TS-CATALOG-SCHEMA experiments/features.yml: unknown key features.wo_a.colour" in found
    assert "TS-CATALOG-SCHEMA experiments/features.yml: the key features.wo_a_mid.title is missing" in found
    assert "TS-CATALOG-SCHEMA experiments/exclusions.yml: the key exclusions.ep2.reason is missing" in found
    assert len(found) == 5


def reference(entry: dict[str, Any], kind: str, identity: str) -> None:
    entry["evidence"][kind].append({"id": identity, "ranks": "all"})


def test_every_reference_that_leads_nowhere_is_named(tree: Path) -> None:
    change(
        tree,
        "experiments/features.yml",
        lambda d: d["features"]["wo_a"].update(excludes=["nobody", "noone"], couples=["nothing"]),
        lambda d: reference(d["features"]["wo_a"], "must", "no.such"),
        lambda d: d["features"]["engram_prefetch"].update(requires=["nowhere"]),
        lambda d: d["features"]["engram_prefetch"]["sets"].update(NO_SUCH=1, SERVER_PORT=1),
        lambda d: d["features"]["engram_prefetch"].update(stages=["c", "a"]),
        lambda d: d["features"]["wo_a_mid"].update(unavailable_on={"nothing": "no reason"}),
    )
    change(tree, "experiments/exclusions.yml", lambda d: d["exclusions"]["ep2"].update(values=["x"]))
    found = "\n".join(lines(tree))
    for what in (
        "features.yml wo_a: it names the feature nobody",
        "features.yml wo_a: it names the feature noone",
        "features.yml wo_a: it names the feature nothing",
        "features.yml wo_a: it names the evidence no.such",
        "features.yml engram_prefetch: it names the feature nowhere",
        "features.yml engram_prefetch: NO_SUCH is not in the allowlist",
        "features.yml engram_prefetch: it sets SERVER_PORT",
        "features.yml engram_prefetch: stage a has no trials",
        "features.yml wo_a_mid: it names the engine nothing",
        "exclusions.yml ep2: EP_SIZE has a wrong value",
    ):
        assert what in found, what
    assert len(found.splitlines()) == 10


def test_what_is_put_aside_makes_no_problem_of_its_own(tree: Path) -> None:
    """wo_a is required and coupled by others; its own mistake must not become theirs."""
    change(tree, "experiments/features.yml", lambda d: d["features"]["wo_a"].update(excludes=["nobody"]))
    assert lines(tree) == [
        "TS-CATALOG-REFERENCE experiments/features.yml wo_a: it names the feature nobody, which is not another entry"
    ]


def test_every_key_of_the_baseline_is_judged(tree: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        settings = data["settings"]
        settings.update(TP_SIZE="three", CONTEXT_LENGTH=-1, NOPE=1, SERVER_PORT=8888)
        del settings["NCCL_NET"], settings["HOST"]

    change(tree, "experiments/baseline.yml", edit)
    found = lines(tree)
    assert sorted(line.partition(": ")[2].split(" is ")[0] for line in found) == [
        "CONTEXT_LENGTH has a wrong value",
        "NOPE",
        "SERVER_PORT",
        "TP_SIZE has a wrong value",
        "the key HOST",
        "the key NCCL_NET",
    ]
    # The loader, which stops at the first one, has the same words; what was expected is not what was observed.
    problems = {problem.what: problem for problem in problems_of(tree, "lab")}
    port, host = problems["SERVER_PORT is no key of the baseline"], problems["the key HOST is missing"]
    assert (port.expected, port.observed) == ("a variable whose source is baseline", "its source is site.api_port")
    assert (host.expected, host.observed) == ("every key explicit, also HOST", "nothing")
    assert all(problem.expected and problem.observed for problem in problems.values())
    with pytest.raises(TrisparkError) as caught:
        load_catalog(tree)
    assert caught.value.as_dict() == problems_of(tree, "lab")[0].as_dict()


def test_the_baseline_and_the_features_are_judged_in_one_go(tree: Path) -> None:
    change(tree, "experiments/baseline.yml", lambda d: d["settings"].update(TP_SIZE="three"))
    change(tree, "experiments/features.yml", lambda d: d["features"]["wo_a"].update(excludes=["nobody"]))
    assert [line.split(" ")[0] for line in lines(tree)] == ["TS-ENV-TYPE", "TS-CATALOG-REFERENCE"]


def test_every_exclusion_that_the_baseline_breaks_is_named(tree: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["settings"].update(EP_SIZE=2, DSV41_TP_PAD=0, MEM_FRACTION_STATIC=0.98)

    change(tree, "experiments/baseline.yml", edit)
    found = "\n".join(lines(tree))
    for identity in ("ep2", "tp-pad-off", "memory-fraction-high"):
        assert f"exclusion {identity}" in found
    assert found.count("TS-PLAN-EXCLUDED") == len(found.splitlines()) == 3


def variable(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in data["variables"] if entry["name"] == name)


def test_the_allowlist_and_what_refers_to_it_are_judged_in_one_go(tree: Path) -> None:
    change(
        tree,
        "experiments/env_allowlist.yml",
        lambda d: variable(d, "TP_SIZE")["engines"].pop("lab"),
        lambda d: variable(d, "EP_SIZE")["engines"].pop("sglang"),
    )
    change(tree, "experiments/evidence.yml", lambda d: d["evidence"]["wo_a.left"].update(pattern="<NO_SUCH>"))
    found = lines(tree)
    assert [line.split(": ")[0].split(" ", 1)[1] for line in found] == [
        "experiments/env_allowlist.yml EP_SIZE",
        "experiments/env_allowlist.yml TP_SIZE",
        "experiments/evidence.yml wo_a.left",
    ]


def test_missing_stages_are_named_one_by_one(tree: Path) -> None:
    change(tree, "experiments/stages.yml", lambda d: d["stages"].pop("f"))
    change(tree, "experiments/features.yml", lambda d: d["features"]["wo_a"].update(excludes=["nobody"]))
    found = lines(tree)
    assert "the stage f is missing" in found[0]
    assert "nobody" in found[1]


def test_a_stage_that_names_no_feature_is_named_once_and_ends(tree: Path) -> None:
    change(
        tree,
        "experiments/stages.yml",
        lambda d: d["stages"]["d"]["entry"].append({"id": "verdicts", "says": "x", "features": ["nobody"]}),
    )
    change(tree, "experiments/features.yml", lambda d: d["features"]["wo_a"].update(excludes=["noone"]))
    assert [line.split(": ")[1] for line in lines(tree)] == [
        "it names nobody, which is no feature",
        "it names the feature noone, which is not another entry",
    ]


def test_the_site_is_judged_with_the_catalog(tree: Path) -> None:
    change(
        tree,
        "inventory/lab/group_vars/all/site.yml",
        lambda d: d.update(site_api_port=0, site_colour="red"),
        lambda d: d["site_bench"].update(workloads=["nothing"]),
    )
    found = "\n".join(lines(tree))
    for what in ("site_api_port", "site_colour", "nothing"):
        assert what in found
    assert len(found.splitlines()) == 3


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda d: d.update(sets={"DSV41_DRAFT_TAU": 1}), "TS-PLAN-ONECHANGE experiments/features.yml draft_tau"),
        (lambda d: d.update(adapters=["no.py"]), "TS-FEATURE-ADAPTER experiments/features.yml draft_tau"),
        (lambda d: d.update(sets={"NCCL_BUFFSIZE": 2097152}), "TS-ENV-INERT experiments/features.yml draft_tau"),
        (lambda d: d.update(sets={"EP_SIZE": 2}), "TS-PLAN-EXCLUDED experiments/features.yml draft_tau"),
    ],
)
def test_each_feature_that_can_be_run_is_judged_with_the_baseline(
    tree: Path, edit: Callable[[dict[str, Any]], object], named: str
) -> None:
    change(
        tree,
        "experiments/features.yml",
        lambda d: edit(d["features"]["draft_tau"]),
        lambda d: d["features"]["engram_prefetch"].update(adapters=["neither.py"]),
    )
    found = lines(tree)
    assert any(line.startswith(named) for line in found)
    assert any("engram_prefetch" in line for line in found)


def test_what_an_engine_cannot_run_is_not_judged_on_it(tree: Path) -> None:
    change(
        tree,
        "experiments/features.yml",
        lambda d: d["features"]["engram_prefetch"].update(adapters=["no.py"], unavailable_on={"lab": "no kernel"}),
    )
    assert lines(tree) == []


def test_a_broken_template_is_named(tree: Path) -> None:
    (tree / "templates" / "engine.env.j2").write_text("{{ nothing }}\n", encoding="utf-8")
    assert [line.split(" ")[0] for line in lines(tree)] == ["TS-RENDER-TEMPLATE"]


def test_a_damaged_promoted_baseline_is_named(tree: Path) -> None:
    path = tree / ".trispark" / "lab" / "baseline.json"
    path.parent.mkdir(parents=True)
    path.write_text("{", encoding="utf-8")
    assert [line.split(" ")[0] for line in lines(tree)] == ["TS-BASELINE-READ"]


def grown(tree: Path, count: int) -> None:
    """The catalog with many more features."""

    def edit(data: dict[str, Any]) -> None:
        features = data["features"]
        names = [name for name in features if not features[name].get("members") and not features[name].get("only_in")]
        number = 0
        while len(features) < count:
            name = names[number % len(names)]
            features[f"{name}_{number}"] = json.loads(json.dumps(features[name]))
            number += 1

    change(tree, "experiments/features.yml", edit)


def test_two_hundred_features_take_no_two_seconds(tree: Path) -> None:
    """Of this process's own time, so that a busy machine is no failure; the imports take about half a second more."""
    grown(tree, 200)
    assert len(load_catalog(tree).features) == 200
    began = time.process_time()
    ground = Ground.load(tree, "lab")
    plan_on(ground, "c", "wo_a")
    planned = time.process_time()
    assert problems_of(tree, "lab") == []
    validated = time.process_time()
    assert planned - began < 1.5
    assert validated - planned < 1.5
