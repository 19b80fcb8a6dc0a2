"""One resolved configuration per request: stable ids, exact files, one change."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trispark.adapters import carried
from trispark.allowlist import Allowlist, AllowlistFile
from trispark.canonical import generation_id
from trispark.catalog import Catalog, Kind, Sweep, load_catalog
from trispark.errors import TrisparkError
from trispark.render import parse_args, parse_env
from trispark.resolve import Resolution, check_one_change, compare, make_spec, resolve, resolve_arms, restore
from trispark.site import Site, load_site
from trispark_node.fields import Fields
from trispark_node.generations import StageRequest

REPOSITORY = Path(__file__).resolve().parents[3]


def refusal(
    site: Site, catalog: Catalog, root: Path, feature: str | None = None, overrides: dict[str, str] | None = None
) -> TrisparkError:
    with pytest.raises(TrisparkError) as caught:
        resolve(site, catalog, feature, overrides, root)
    return caught.value


def test_spec_is_what_the_files_say(baseline: Resolution) -> None:
    for rank, node in baseline.nodes.items():
        container = baseline.specs[node]["container"]
        assert container["env"] == parse_env(baseline.files[node]["engine.env"])
        assert container["command"] == parse_args(baseline.files[node]["launch.args"])
        assert container["command"][:3] == ["python3", "-m", "trispark_lab"]
        assert baseline.specs[node] == make_spec(baseline.id, json.loads(json.dumps(baseline.resolved)), rank)


def test_spec_has_the_contract_s_shape(baseline: Resolution) -> None:
    spec = baseline.specs["spark1"]
    assert {**spec, "container": None} == {
        "spec_version": 1,
        "generation": baseline.id,
        "rank": 1,
        "world_size": 3,
        "rendezvous_ports": [20000, 20001, 20002, 20003],
        "container": None,
        "ready": {"url": "http://127.0.0.1:8888/health"},
        "observe": {
            "packages": ["numpy", "aiohttp"],
            "version_command": ["python3", "-m", "trispark_lab", "--version"],
            "identity": {
                "sources": ["/opt/trispark_lab_pkg/trispark_lab"],
                "compiled": [],
                "autotune": "/state/autotune",
            },
        },
    }
    assert spec["container"]["mounts"] == [
        {
            "source": "/srv/models/DeepSeek-V4.1-Flash",
            "target": "/models/DeepSeek-V4.1-Flash",
            "read_only": True,
        },
        {"source": "/srv/engram", "target": "/engram", "read_only": True},
        {"source": "{generation}/adapters", "target": "/opt/trispark/adapters", "read_only": True},
        {"source": "{engine_state}/state", "target": "/state", "read_only": False},
    ]
    assert spec["container"]["stop_timeout_s"] == 15


def test_agent_accepts_what_is_staged(baseline: Resolution) -> None:
    request = {
        "generation": baseline.id,
        "resolved": baseline.resolved,
        "spec": baseline.specs["spark2"],
        "files": baseline.files["spark2"],
        "adapters": carried(baseline.adapters),
    }
    parsed = StageRequest.parse(Fields(json.loads(json.dumps(request)), "request"))
    assert parsed.generation == baseline.id


def test_ranks_differ_only_in_rank_and_links(baseline: Resolution) -> None:
    first, second = (baseline.resolved["ranks"][rank] for rank in (1, 2))
    assert first["env"] == second["env"]
    differing = [(a, b) for a, b in zip(first["command"], second["command"], strict=True) if a != b]
    assert differing == [
        ("1", "2"),
        ("0:10.77.1.11:10.77.1.10", "0:10.77.2.12:10.77.2.10"),
        ("2:10.77.3.11:10.77.3.12", "1:10.77.3.12:10.77.3.11"),
    ]


def test_resolved_holds_nothing_of_a_boot_or_a_feature(candidate: Resolution) -> None:
    text = json.dumps(candidate.resolved)
    assert "boot" not in text
    assert "epoch" not in text
    assert '"wo_a"' not in text
    assert "10.77.0.10:{rendezvous_port}" in text


def test_feature_is_exactly_one_change(baseline: Resolution, candidate: Resolution) -> None:
    difference = compare(baseline, candidate)
    assert difference.settings == {"DSV41_WO_A_W8": (0, 1)}
    assert difference.other == tuple(f"DSV41_WO_A_W8 of rank {rank}" for rank in range(3))
    assert candidate.changed_keys == ("DSV41_WO_A_W8",)
    assert candidate.feature == "wo_a"
    assert baseline.id != candidate.id
    assert not compare(baseline, baseline)


def test_adapters_come_without_tests_and_caches(baseline: Resolution, catalog: Catalog) -> None:
    named = {file for feature in catalog.features.values() for file in feature.adapters}
    engine = sorted(file for file in named if file.startswith("trispark_adapters/"))
    assert list(baseline.adapters) == ["sitecustomize.py", *engine, "trispark_hooks/lab_wo_a_w8.py"]
    assert set(baseline.resolved["adapters"]) == set(baseline.adapters)


def test_id_survives_a_restart_and_another_hash_seed(site: Site, baseline: Resolution, project: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from trispark.site import load_site; "
        "from trispark.catalog import load_catalog; from trispark.resolve import resolve; "
        "site, root = Path(sys.argv[1]), Path(sys.argv[2]); "
        "print(resolve(load_site(site), load_catalog(root), None, None, root).id)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(REPOSITORY / "src")}
    command = [sys.executable, "-c", code, str(site.path), str(project)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == baseline.id


def test_id_does_not_depend_on_the_layout_of_the_files(
    make_site: Callable[..., Path], baseline: Resolution, project: Path, tmp_path: Path
) -> None:
    """Every YAML file written again with its keys backwards, in flow style and with other blanks."""
    root = tmp_path / "root"
    shutil.copytree(project, root)
    files = [*(root / "experiments").glob("*.yml"), make_site() / "group_vars" / "all" / "site.yml"]
    files.append(tmp_path / "lab" / "hosts.yml")
    for path in files:
        data = backwards(yaml.safe_load(path.read_text(encoding="utf-8")))
        text = yaml.safe_dump(data, sort_keys=False, default_flow_style=True, indent=6, width=50)
        path.write_text(f"\n\n# again\n{text}\n", encoding="utf-8")
    again = resolve(load_site(tmp_path / "lab"), load_catalog(root), None, None, root)
    assert again.id == baseline.id
    assert again.files == baseline.files


def backwards(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: backwards(value[key]) for key in reversed(list(value))}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [backwards(item) for item in reversed(value)]
    return value


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_change_of_a_setting_changes_the_id(
    data: st.DataObject, site: Site, catalog: Catalog, project: Path, baseline: Resolution
) -> None:
    changes = {
        "CONTEXT_LENGTH": st.integers(4096, 1048576),
        "MAX_RUNNING_REQUESTS": st.integers(1, 15),
        "DSPARK_BLOCK_SIZE": st.integers(1, 5),
        "DSV41_IO_THREADS": st.integers(1, 256),
        "MEM_FRACTION_STATIC": st.decimals("0.944", "0.979", places=3),
        "RANDOM_SEED": st.integers(0, 2**32 - 1),
    }
    name = data.draw(st.sampled_from(sorted(changes)))
    text = str(data.draw(changes[name]))
    variable = catalog.allowlist.require(name, "test")
    changed = resolve(site, catalog, None, {name: text}, project)
    same = variable.parse(text, "test") == baseline.settings[name]
    assert (changed.id == baseline.id) is same
    assert changed.changed_keys == ()


@pytest.mark.parametrize(
    "replacement",
    [
        ("site_api_port: 8888", "site_api_port: 8889"),
        ("/srv/engram", "/srv/engram2"),
        ("site_stop_deadline_s: 15", "site_stop_deadline_s: 16"),
        ("20003]", "20004]"),
        ("site_stats_seconds: 1", "site_stats_seconds: 1.5"),
    ],
)
def test_what_reaches_a_node_changes_the_id(
    make_site: Callable[..., Path],
    catalog: Catalog,
    project: Path,
    baseline: Resolution,
    replacement: tuple[str, str],
) -> None:
    other = resolve(load_site(make_site(site=[replacement])), catalog, None, None, project)
    assert other.id != baseline.id


def test_changed_adapter_changes_the_id(
    site: Site, catalog: Catalog, project: Path, baseline: Resolution, tmp_path: Path
) -> None:
    shutil.copytree(project, tmp_path / "root")
    (tmp_path / "root" / "adapters" / "trispark_hooks" / "lab_wo_a_w8.py").write_text("# other\n", encoding="utf-8")
    other = resolve(site, catalog, None, None, tmp_path / "root")
    assert compare(baseline, other).other == ("adapters/trispark_hooks/lab_wo_a_w8.py",)
    with pytest.raises(TrisparkError) as caught:
        check_one_change(
            baseline, resolve(site, catalog, "wo_a", None, tmp_path / "root"), catalog, catalog.choose("wo_a")
        )
    assert caught.value.id == "TS-PLAN-ONECHANGE"
    assert caught.value.observed == "adapters/trispark_hooks/lab_wo_a_w8.py"


@pytest.mark.parametrize(
    ("overrides", "error_id"),
    [
        ({"DSV41_NONSENSE": "1"}, "TS-ENV-UNLISTED"),
        ({"DSPARK_BLOCK_SIZE": "9"}, "TS-ENV-RANGE"),
        ({"DSPARK_BLOCK_SIZE": "three"}, "TS-ENV-TYPE"),
        ({"DSPARK_BLOCK_SIZE": 3}, "TS-ENV-TYPE"),
        ({"SERVER_PORT": "8889"}, "TS-PLAN-PLACE"),
        ({"NODE_RANK": "1"}, "TS-PLAN-PLACE"),
        ({"EP_SIZE": "2"}, "TS-PLAN-EXCLUDED"),
        ({"DSV41_SHARED_PAD_K": "1"}, "TS-PLAN-EXCLUDED"),
        ({"MEM_FRACTION_STATIC": "0.98"}, "TS-PLAN-EXCLUDED"),
        ({"TP_SIZE": "2"}, "TS-PLAN-WORLD"),
        ({"NCCL_BUFFSIZE": "4194304"}, "TS-ENV-INERT"),
        ({"NCCL_DEBUG": "WARN"}, "TS-ENV-INERT"),
        ({"API_KEY": "hunter2"}, "TS-ENV-REFUSED"),
        ({"WARMUP": "1"}, "TS-ENV-REFUSED"),
        ({"SLEEP_ON_IDLE": "0"}, "TS-ENV-REFUSED"),
        ({"DSPARK_BLOCK_SIZE": "6"}, "TS-PLAN-DEFERRED"),
        ({"DSV41_VERIFY_CAP": "conf:0.1"}, "TS-PLAN-EXCLUDED"),
    ],
)
def test_overrides_are_refused(
    site: Site, catalog: Catalog, project: Path, overrides: dict[str, str], error_id: str
) -> None:
    assert refusal(site, catalog, project, None, overrides).id == error_id


def test_override_holds_in_both_arms(site: Site, catalog: Catalog, project: Path) -> None:
    both = {"DSPARK_BLOCK_SIZE": "2"}
    base = resolve(site, catalog, None, both, project)
    trial = resolve(site, catalog, "wo_a", both, project)
    assert check_one_change(base, trial, catalog, catalog.choose("wo_a")).settings == {"DSV41_WO_A_W8": (0, 1)}


def test_smuggled_second_change_is_named(site: Site, catalog: Catalog, project: Path, baseline: Resolution) -> None:
    trial = resolve(site, catalog, "wo_a", {"DSPARK_BLOCK_SIZE": "2"}, project)
    with pytest.raises(TrisparkError) as caught:
        check_one_change(baseline, trial, catalog, catalog.choose("wo_a"))
    assert caught.value.id == "TS-PLAN-ONECHANGE"
    assert caught.value.observed.startswith("DSPARK_BLOCK_SIZE")


def test_change_smuggled_into_a_rank_is_named(catalog: Catalog, baseline: Resolution, candidate: Resolution) -> None:
    resolved = json.loads(json.dumps(candidate.resolved))
    resolved["ranks"][2]["env"]["DSV41_IO_THREADS"] = "32"
    resolved["ranks"][1]["command"][-1] = "4"
    smuggled = dataclasses.replace(candidate, resolved=resolved, id=generation_id(resolved))
    with pytest.raises(TrisparkError) as caught:
        check_one_change(baseline, smuggled, catalog, catalog.choose("wo_a"))
    assert caught.value.observed == "--tp of rank 1, DSV41_IO_THREADS of rank 2"


def test_feature_that_changes_nothing_is_refused(site: Site, catalog: Catalog, project: Path) -> None:
    promoted = dataclasses.replace(catalog, baseline={**catalog.baseline, "DSV41_WO_A_W8": 1})
    error = refusal(site, promoted, project, "wo_a")
    assert error.id == "TS-PLAN-ONECHANGE"
    assert "already" in str(error)


def test_key_of_the_feature_cannot_be_overridden(site: Site, catalog: Catalog, project: Path) -> None:
    assert refusal(site, catalog, project, "wo_a", {"DSV41_WO_A_W8": "0"}).id == "TS-PLAN-PLACE"


@pytest.mark.parametrize(
    ("field", "value", "error_id"),
    [
        ("adapters", ("gone.py",), "TS-FEATURE-ADAPTER"),
        ("sets", {"NCCL_DEBUG": "WARN"}, "TS-ENV-INERT"),
        ("sets", {"EP_SIZE": 2}, "TS-PLAN-EXCLUDED"),
    ],
)
def test_feature_that_cannot_act_is_refused(
    site: Site, catalog: Catalog, project: Path, field: str, value: object, error_id: str
) -> None:
    changed = catalog.features["wo_a"].model_copy(update={field: value})
    assert refusal(site, dataclasses.replace(catalog, features={"wo_a": changed}), project, "wo_a").id == error_id


def test_relations_between_features(site: Site, catalog: Catalog, project: Path) -> None:
    wo_a = catalog.features["wo_a"]
    other = wo_a.model_copy(update={"sets": {"DSPARK_BLOCK_SIZE": 2}})
    needs = {"wo_a": wo_a.model_copy(update={"requires": ("other",)}), "other": other}
    excludes = {"wo_a": wo_a.model_copy(update={"excludes": ("other",)}), "other": other}
    block_2 = {"DSPARK_BLOCK_SIZE": "2"}
    arms = resolve_arms(site, dataclasses.replace(catalog, features=needs), "wo_a", None, project)
    assert arms.base == ("other",)
    assert arms.baseline.settings["DSPARK_BLOCK_SIZE"] == 2, "what is required is set in both arms"
    assert arms.difference.settings == {"DSV41_WO_A_W8": (0, 1)}
    arms = resolve_arms(site, dataclasses.replace(catalog, features=needs), "wo_a", block_2, project)
    assert arms.base == (), "it is set already"
    error = refusal(site, dataclasses.replace(catalog, features=excludes), project, "wo_a", block_2)
    assert error.id == "TS-FEATURE-EXCLUDES"


def test_catalog_key_in_group_vars_is_refused(make_site: Callable[..., Path], catalog: Catalog, project: Path) -> None:
    error = refusal(load_site(make_site(extra="DSV41_WO_A_W8: 1\n")), catalog, project)
    assert error.id == "TS-PLAN-PLACE"
    assert "site.yml" in error.where


def test_unknown_engine_is_refused(make_site: Callable[..., Path], catalog: Catalog, project: Path) -> None:
    other = load_site(make_site(site=[("site_engine: lab", "site_engine: vllm")]))
    assert refusal(other, catalog, project).id == "TS-SITE-ENGINE"


def test_a_tree_without_adapters_is_refused(site: Site, catalog: Catalog, project: Path, tmp_path: Path) -> None:
    """None is not the same as an empty set of them: engines would start without any hook."""
    shutil.copytree(project, tmp_path / "root")
    shutil.rmtree(tmp_path / "root" / "adapters")
    assert refusal(site, catalog, tmp_path / "root").id == "TS-ADAPTER-MISSING"


def test_symbolic_link_among_the_adapters_is_refused(
    site: Site, catalog: Catalog, project: Path, tmp_path: Path
) -> None:
    shutil.copytree(project, tmp_path / "root")
    (tmp_path / "root" / "adapters" / "link.py").symlink_to("sitecustomize.py")
    assert refusal(site, catalog, tmp_path / "root").id == "TS-ADAPTER-LINK"


LIBRARY = b"\x7fELF\x00\xff\r\n\xc3"


def test_a_library_among_the_adapters_reaches_the_agent_byte_for_byte(
    site: Site, catalog: Catalog, project: Path, tmp_path: Path
) -> None:
    shutil.copytree(project, tmp_path / "root")
    (tmp_path / "root" / "adapters" / "lib").mkdir()
    (tmp_path / "root" / "adapters" / "lib" / "x.so").write_bytes(LIBRARY)
    resolution = resolve(site, catalog, root=tmp_path / "root")
    assert resolution.resolved["adapters"]["lib/x.so"] == hashlib.sha256(LIBRARY).hexdigest()
    request = {
        "generation": resolution.id,
        "resolved": resolution.resolved,
        "spec": resolution.specs["spark2"],
        "files": resolution.files["spark2"],
        "adapters": carried(resolution.adapters),
    }
    assert request["adapters"]["sitecustomize.py"] == "# hooks, UTF-8: \u00e4\n"
    parsed = StageRequest.parse(Fields(json.loads(json.dumps(request)), "request"))
    assert parsed.content["adapters/lib/x.so"] == LIBRARY
    assert parsed.content["adapters/sitecustomize.py"] == resolution.adapters["sitecustomize.py"]


def test_other_adapters_than_libraries_are_text(site: Site, catalog: Catalog, project: Path, tmp_path: Path) -> None:
    shutil.copytree(project, tmp_path / "root")
    (tmp_path / "root" / "adapters" / "latin.py").write_bytes(b"# \xe4\n")
    error = refusal(site, catalog, tmp_path / "root")
    assert (error.id, Path(error.where).name) == ("TS-ADAPTER-TEXT", "latin.py")


def test_restored_from_a_node_s_copy(candidate: Resolution) -> None:
    copy = json.loads(json.dumps(candidate.resolved))
    restored = restore(copy)
    assert (restored.id, restored.specs) == (candidate.id, candidate.specs)
    assert restored.evidence == candidate.evidence
    with pytest.raises(TrisparkError) as caught:
        restore({**copy, "schema_version": 2})
    assert caught.value.id == "TS-RESOLVED-VERSION"


@settings(max_examples=30, deadline=None)
@given(overrides=st.dictionaries(st.sampled_from(["DSPARK_BLOCK_SIZE", "EP_SIZE", "X"]) | st.text(), st.text()))
def test_overrides_never_give_a_traceback(
    site: Site, catalog: Catalog, project: Path, overrides: dict[str, str]
) -> None:
    try:
        result = resolve(site, catalog, None, overrides, project)
    except TrisparkError:
        return
    assert result.id == generation_id(result.resolved)


def test_neutral_values_are_not_delivered(catalog: Catalog, project: Path) -> None:
    """Switches are flags without a value; a neutral value is left to the engine; a changed one is one change."""
    fleet = load_site(REPOSITORY / "inventory" / "sparks", images="optional")
    fleet = fleet.model_copy(update={"engine_image": "registry:5000/engine@sha256:" + "a" * 64})
    baseline = resolve(fleet, catalog, None, None, project)
    (command, *_), (env, *_) = ([entry[key] for entry in baseline.resolved["ranks"]] for key in ("command", "env"))
    for switch in ("--enable-metrics", "--sleep-on-idle"):
        at = command.index(switch)
        assert command[at + 1 : at + 2] == [] or command[at + 1].startswith("--")
    assert "--enable-cache-report" not in command
    assert "--max-queued-requests" not in command
    assert "SGLANG_DSPARK_FOLDED_SAMPLING" not in env
    assert baseline.settings["SGLANG_DSPARK_FOLDED_SAMPLING"] == 1
    for feature, names in (
        ("folded_sampling", {"SGLANG_DSPARK_FOLDED_SAMPLING"}),
        ("fp4_indexer", {"--enable-deepseek-v4-fp4-indexer"}),
    ):
        arms = resolve_arms(fleet, catalog, feature, None, project)
        assert set(arms.difference.other) == {f"{name} of rank {rank}" for name in names for rank in range(3)}
    eight = resolve_arms(fleet, catalog, "slots", None, project, value="8")
    assert "--min-free-slots-delay" in eight.candidate.resolved["ranks"][2]["command"]
    kept = resolve_arms(fleet, catalog, "slots", {"MIN_FREE_SLOTS_DELAY": "1"}, project, value="6")
    assert kept.difference.settings == {"MAX_RUNNING_REQUESTS": (4, 6)}


def test_what_is_for_the_head_reaches_no_worker(site: Site, catalog: Catalog, project: Path) -> None:
    rows = [
        row.model_copy(update={"ranks": "head"}) if row.name in ("DSV41_DRAFT_TAU", "RANDOM_SEED") else row
        for row in catalog.allowlist.variables()
    ]
    allowlist = Allowlist(AllowlistFile(schema_version=1, variables=tuple(rows)))
    baseline = resolve(site, dataclasses.replace(catalog, allowlist=allowlist), None, None, project)
    ranks = baseline.resolved["ranks"]
    assert ["DSV41_DRAFT_TAU" in rank["env"] for rank in ranks] == [True, False, False]
    assert ["--random-seed" in rank["command"] for rank in ranks] == [True, False, False]


def test_check_boot_is_the_candidate_and_its_comparison(site: Site, catalog: Catalog, tmp_path: Path) -> None:
    for name in ("adapters", "templates"):
        shutil.copytree(REPOSITORY / name, tmp_path / "root" / name)
    arms = resolve_arms(site, catalog, "engram_prefetch", None, tmp_path / "root")
    assert arms.check is not None
    settings = ("DSV41_ENGRAM_PREFETCH", "DSV41_ENGRAM_PREFETCH_CHECK")
    assert [arms.candidate.settings[name] for name in settings] == [1, 0]
    assert [arms.check.settings[name] for name in settings] == [1, 1]
    assert arms.check.changed_keys == settings
    assert {rule.id for rule in arms.check.evidence} - {rule.id for rule in arms.candidate.evidence} == {
        "prefetch.equal"
    }
    assert resolve_arms(site, catalog, "wo_a", None, tmp_path / "root").check is None


def sweep(catalog: Catalog, **changes: object) -> Catalog:
    """The catalog with a sweep of the block size."""
    fields = {"kind": Kind.SWEEP, "sets": {}, "sweep": Sweep(name="DSPARK_BLOCK_SIZE", values=(2, 3, 5), **changes)}
    return dataclasses.replace(catalog, features={"block_size": catalog.features["wo_a"].model_copy(update=fields)})


def test_sweep_is_one_candidate_a_value_without_the_baselines_own(site: Site, catalog: Catalog, project: Path) -> None:
    swept = sweep(catalog, also={"5": {"MAX_RUNNING_REQUESTS": 8}})
    assert [choice.label for choice in swept.choices("block_size")] == ["block_size=2", "block_size=5"]
    assert resolve_arms(site, swept, "block_size", None, project, value="2").difference.settings == {
        "DSPARK_BLOCK_SIZE": (3, 2)
    }
    assert resolve_arms(site, swept, "block_size", None, project, value="5").difference.settings == {
        "DSPARK_BLOCK_SIZE": (3, 5),
        "MAX_RUNNING_REQUESTS": (4, 8),
    }


@pytest.mark.parametrize("value", [None, "", "3", "4", " 2", "2.0"])
def test_sweep_refuses_other_values_with_the_list(
    site: Site, catalog: Catalog, project: Path, value: str | None
) -> None:
    with pytest.raises(TrisparkError) as caught:
        resolve_arms(site, sweep(catalog), "block_size", None, project, value=value)
    assert caught.value.id == "TS-FEATURE-VALUE"
    assert "one of 2, 5" in str(caught.value)


def test_promoted_baseline_is_the_start_of_both_arms(site: Site, catalog: Catalog, project: Path) -> None:
    arms = resolve_arms(site, catalog, "wo_a", None, project, promoted={"DSPARK_BLOCK_SIZE": 5})
    assert (arms.baseline.settings["DSPARK_BLOCK_SIZE"], arms.candidate.settings["DSPARK_BLOCK_SIZE"]) == (5, 5)
    assert arms.difference.settings == {"DSV41_WO_A_W8": (0, 1)}
    with pytest.raises(TrisparkError) as caught:
        resolve(site, catalog, None, None, project, promoted={"SERVER_PORT": 1})
    assert caught.value.id == "TS-PLAN-PLACE"
