"""How the production engine is started on three nodes, to the last option: golden files, read by eye against the field.

`PYTHONPATH=src python tests/unit/controller/test_production_launch.py` writes the golden files anew.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from trispark.adapters import carried, read_adapters
from trispark.allowlist import ENGINE_IMAGE, Scope, Support
from trispark.catalog import Catalog, Engine, load_catalog
from trispark.catalog_model import FeatureEvidence
from trispark.errors import TrisparkError
from trispark.resolve import Resolution, compare, resolve, resolve_arms
from trispark.site import Site, load_site
from trispark_node import engine_state
from trispark_node.containers import Identity, engine_config
from trispark_node.fields import Fields
from trispark_node.generations import StageRequest
from trispark_node.layout import Layout
from trispark_node.node import Node
from trispark_node.spec import parse_spec

REPOSITORY = Path(__file__).resolve().parents[3]
GOLDEN = REPOSITORY / "tests" / "unit" / "controller" / "data" / "production"
EPOCH = 6


@pytest.fixture(scope="module")
def sparks() -> Site:
    return load_site(REPOSITORY / "inventory" / "sparks")


@pytest.fixture(scope="module")
def production(sparks: Site, catalog: Catalog) -> Resolution:
    return resolve(sparks, catalog, None, None, REPOSITORY)


def launched(resolution: Resolution, rank: int) -> dict[str, Any]:
    """What the agent sends to the node's Engine for the first boot of a generation; its id is left open."""
    spec = parse_spec(resolution.specs[resolution.nodes[rank]])
    node = Node(Layout(Path("/var/lib/trispark")))
    who = Identity("engine", spec.generation, "b1", EPOCH, rank)
    config = engine_config(spec, engine_state.places(node, spec), who)
    kept = {key: value for key, value in config.items() if key not in ("Env", "Labels")}
    return json.loads(json.dumps(kept).replace(resolution.id, "<generation>"))


def golden(rank: int) -> Path:
    return GOLDEN / f"rank{rank}.json"


@pytest.mark.parametrize("rank", range(3))
def test_argv_and_host_config(production: Resolution, rank: int) -> None:
    expected = json.loads(golden(rank).read_text(encoding="utf-8"))
    assert launched(production, rank) == expected, "read the difference; then run this file to write it anew"


@pytest.mark.parametrize("rank", range(3))
def test_options_of_the_field(production: Resolution, rank: int) -> None:
    """Field 1.6, one by one, so that a golden file written anew cannot lose one."""
    config = launched(production, rank)
    host = config["HostConfig"]
    assert (host["NetworkMode"], host["IpcMode"], host["ShmSize"]) == ("host", "host", 32 * 2**30)
    assert host["CapAdd"] == ["IPC_LOCK"]
    assert {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]} == {
        "memlock": (-1, -1),
        "stack": (67108864, 67108864),
    }
    assert [device["PathOnHost"] for device in host["Devices"]] == ["/dev/infiniband"]
    assert host["DeviceRequests"][0]["Capabilities"] == [["gpu"]]
    assert host["RestartPolicy"]["Name"] == "no"
    assert config["Entrypoint"] == [""]
    writable = {mount["Target"] for mount in host["Mounts"] if not mount["ReadOnly"]}
    assert writable == {"/state", "/root/.cache", "/root/.cache/sglang/flashinfer/autotune"}
    ours = [mount["Source"] for mount in host["Mounts"] if mount["Target"] in writable]
    assert all(source.startswith("/var/lib/trispark/engine-") for source in ours)


def test_health_check_starts_no_hook_and_waits_half_an_hour(production: Resolution) -> None:
    check = launched(production, 0)["Healthcheck"]
    assert check["Test"][:3] == ["CMD", "python3", "-S"]
    assert "http://127.0.0.1:8888/health" in check["Test"][-1]
    seconds = [check[key] / 1e9 for key in ("Interval", "Timeout", "StartPeriod")]
    assert (seconds, check["Retries"]) == ([30, 30, 1800], 3)
    compile(check["Test"][-1], "health check", "exec")


def test_flags_of_the_field(production: Resolution) -> None:
    """Field 1.7 with the values of the reviewed baseline; a flag stands once, in one order on all ranks."""
    argv = launched(production, 1)["Cmd"]
    words = argv[3:]
    flags = {word: words[i + 1] if i + 1 < len(words) else "" for i, word in enumerate(words) if word.startswith("--")}
    expected = {
        "--model-path": "/models/DeepSeek-V4.1-Flash",
        "--served-model-name": "deepseek-v4.1-flash",
        "--load-format": "safetensors",
        "--tp": "3",
        "--ep-size": "3",
        "--attention-backend": "dsv4",
        "--moe-runner-backend": "flashinfer_mxfp4",
        "--mem-fraction-static": "0.95",
        "--chunked-prefill-size": "1024",
        "--context-length": "262144",
        "--max-running-requests": "4",
        "--cuda-graph-max-bs-decode": "4",
        "--random-seed": "0",
        "--tool-call-parser": "deepseekv41",
        "--reasoning-parser": "deepseek-v41",
        "--port": "8888",
        "--speculative-algorithm": "DSPARK",
        "--speculative-dspark-block-size": "3",
        "--nnodes": "3",
        "--node-rank": "1",
        "--dist-init-addr": "192.0.2.10:20002",
        "--max-total-tokens": "750000",
        "--fp8-gemm-backend": "flashinfer_cutlass",
        "--watchdog-timeout": "1800",
    }
    assert {flag: flags.get(flag) for flag in expected} == expected
    switches = {"--trust-remote-code", "--enable-decoder-swa-bounded-replay", "--sleep-on-idle", "--enable-metrics"}
    assert switches <= set(flags)
    assert len(flags) == sum(word.startswith("--") for word in words)
    assert [re.sub(r"^[0-2]$", "r", word) for word in launched(production, 2)["Cmd"]] == [
        re.sub(r"^[0-2]$", "r", word) for word in argv
    ]
    assert not {"--speculative-dspark-sps-table-path", "--enable-forward-pass-metrics"} & set(flags)


def test_what_differs_between_ranks_comes_from_the_node(production: Resolution) -> None:
    envs = [rank["env"] for rank in production.resolved["ranks"]]
    differing = {name for name in envs[0] if len({env[name] for env in envs}) > 1}
    assert differing == {"HOST_IP", "VLLM_HOST_IP"}
    for rank, env in enumerate(envs):
        assert env["HOST_IP"] == f"192.0.2.1{rank}"
        assert env["NCCL_IB_HCA"] == "rocep1s0f0,rocep1s0f1"
        assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"], env["NCCL_IB_GID_INDEX"]) == (
            "enP7s7",
            "enP7s7",
            "3",
        )


def test_what_keeps_one_request_from_ending_all_ranks_is_on(production: Resolution, catalog: Catalog) -> None:
    """The prompt-logprob guard, the loop abort and the cap of tokens: in the baseline and in every candidate."""
    safe = {"DSV41_REPLAY_GUARD": 1, "DSV41_LOOP_ABORT": 1, "DSV41_MAX_NEW_TOKENS": 32768}
    assert {name: catalog.baseline[name] for name in safe} == safe
    for rank in production.resolved["ranks"]:
        assert {name: rank["env"][name] for name in safe} == {name: str(value) for name, value in safe.items()}
    touching = [name for name, feature in catalog.features.items() if set(feature.sets) & set(safe)]
    assert touching == []


def test_the_agent_takes_what_is_staged(production: Resolution) -> None:
    for node in production.nodes.values():
        request = {
            "generation": production.id,
            "resolved": production.resolved,
            "spec": production.specs[node],
            "files": production.files[node],
            "adapters": carried(read_adapters(REPOSITORY)),
        }
        assert StageRequest.parse(Fields(json.loads(json.dumps(request)), "request")).generation == production.id


def test_slots_move_the_captured_graphs_with_them(sparks: Site, catalog: Catalog) -> None:
    more = resolve(sparks, catalog, None, {"MAX_RUNNING_REQUESTS": "6"}, REPOSITORY)
    argv = launched(more, 0)["Cmd"]
    assert argv[argv.index("--cuda-graph-max-bs-decode") + 1] == "6"


def test_a_flag_that_follows_a_variable_is_no_second_change(sparks: Site, catalog: Catalog) -> None:
    slots = catalog.features["wo_a"].model_copy(
        update={"sets": {"MAX_RUNNING_REQUESTS": 6}, "evidence": _no_evidence()}
    )
    changed = dataclasses.replace(catalog, features={"wo_a": slots})
    arms = resolve_arms(sparks, changed, "wo_a", None, REPOSITORY)
    assert arms.difference.settings == {"MAX_RUNNING_REQUESTS": (4, 6)}
    assert "--cuda-graph-max-bs-decode of rank 2" in arms.difference.other


def _no_evidence() -> FeatureEvidence:
    return FeatureEvidence(must=(), must_not=(), off_must_not=())


def node_with(sparks: Site, **values: Any) -> Site:
    """The site with other values for its head."""
    head = sparks.nodes[0].model_copy(update=values)
    return sparks.model_copy(update={"nodes": (head, *sparks.nodes[1:])})


@pytest.mark.parametrize(
    ("values", "key", "name"),
    [
        ({"management_interface": None}, "node_management_interface", "GLOO_SOCKET_IFNAME"),
        ({"hcas": ()}, "node_hcas", "NCCL_IB_HCA"),
        ({"gid_index": None}, "node_gid_index", "NCCL_IB_GID_INDEX"),
    ],
)
def test_a_node_must_say_what_the_engine_needs(
    sparks: Site, catalog: Catalog, values: dict[str, Any], key: str, name: str
) -> None:
    with pytest.raises(TrisparkError) as caught:
        resolve(node_with(sparks, **values), catalog, None, None, REPOSITORY)
    assert (caught.value.id, caught.value.expected, name in str(caught.value)) == ("TS-SITE-NODE", key, True)
    assert "spark-a" in caught.value.where


def test_pair_links_are_not_needed_where_the_engine_takes_none(sparks: Site, catalog: Catalog) -> None:
    bare = sparks.model_copy(update={"nodes": tuple(n.model_copy(update={"pair_links": ()}) for n in sparks.nodes)})
    assert resolve(bare, catalog, None, None, REPOSITORY).resolved["ranks"][0]["command"]


def test_the_head_s_own_fraction(sparks: Site, catalog: Catalog, production: Resolution) -> None:
    own = node_with(sparks, mem_fraction=0.945)
    resolution = resolve(own, catalog, None, None, REPOSITORY)
    fractions = [
        rank["command"][rank["command"].index("--mem-fraction-static") + 1] for rank in resolution.resolved["ranks"]
    ]
    assert fractions == ["0.945", "0.95", "0.95"]
    assert compare(production, resolution).other == ("--mem-fraction-static of rank 0",)
    for overrides in ({"MEM_FRACTION_STATIC": "0.946"},):
        with pytest.raises(TrisparkError) as caught:
            resolve(own, catalog, None, overrides, REPOSITORY)
        assert (caught.value.id, "spark-a" in str(caught.value)) == ("TS-PLAN-NODE", True)


@pytest.mark.parametrize(("fraction", "error_id"), [(0.98, "TS-PLAN-EXCLUDED"), (0.999, "TS-ENV-RANGE")])
def test_the_head_s_own_fraction_is_judged_as_any(
    sparks: Site, catalog: Catalog, fraction: float, error_id: str
) -> None:
    with pytest.raises(TrisparkError) as caught:
        resolve(node_with(sparks, mem_fraction=fraction), catalog, None, None, REPOSITORY)
    assert caught.value.id == error_id


def test_directories_of_one_node(sparks: Site, catalog: Catalog) -> None:
    own = node_with(sparks, checkpoint_dir="/data/models/flash", engram_dir="/data/engram")
    ranks = resolve(own, catalog, None, None, REPOSITORY).resolved["ranks"]
    assert [mount["source"] for mount in ranks[0]["mounts"][:2]] == ["/data/models/flash", "/data/engram"]
    assert [mount["source"] for mount in ranks[1]["mounts"][:2]] == [sparks.checkpoint_dir, sparks.engram_dir]


def test_privileged_is_the_site_s_choice(sparks: Site, catalog: Catalog, site: Site) -> None:
    without = sparks.model_copy(update={"privileged": False})
    host = launched(resolve(without, catalog, None, None, REPOSITORY), 0)["HostConfig"]
    assert (host["Privileged"], host["CapAdd"], len(host["Devices"])) == (False, ["IPC_LOCK"], 1)
    with pytest.raises(TrisparkError) as caught:
        resolve(site.model_copy(update={"privileged": True}), catalog, None, None, REPOSITORY)
    assert caught.value.id == "TS-SITE-PRIVILEGED"


def with_extra(sparks: Site, extra: dict[str, Any]) -> Site:
    return sparks.model_copy(update={"extra_container_env": extra})


def test_extra_variables_reach_every_rank(sparks: Site, catalog: Catalog) -> None:
    resolution = resolve(with_extra(sparks, {"SGLANG_RECORD_STEP_TIME": 1}), catalog, None, None, REPOSITORY)
    assert {rank["env"]["SGLANG_RECORD_STEP_TIME"] for rank in resolution.resolved["ranks"]} == {"1"}
    assert resolution.settings["SGLANG_RECORD_STEP_TIME"] == 1


@pytest.mark.parametrize(
    ("extra", "error_id"),
    [
        ({"NO_SUCH_VARIABLE": 1}, "TS-ENV-UNLISTED"),
        ({"SGLANG_RECORD_STEP_TIME": "yes"}, "TS-ENV-TYPE"),
        ({"SGLANG_RECORD_STEP_TIME": True}, "TS-ENV-TYPE"),
        ({"SGLANG_RECORD_STEP_TIME": 2}, "TS-ENV-RANGE"),
        ({"DSPARK_BLOCK_SIZE": 5}, "TS-PLAN-PLACE"),
        ({"SERVER_PORT": 8889}, "TS-PLAN-PLACE"),
        ({"NCCL_IB_HCA": "mlx5_0"}, "TS-PLAN-PLACE"),
        ({"DSV41_SHARED_PAD_K": 1}, "TS-PLAN-EXCLUDED"),
    ],
)
def test_extra_variables_follow_the_same_rules(
    sparks: Site, catalog: Catalog, extra: dict[str, Any], error_id: str
) -> None:
    with pytest.raises(TrisparkError) as caught:
        resolve(with_extra(sparks, extra), catalog, None, None, REPOSITORY)
    assert caught.value.id == error_id
    assert next(iter(extra)) in str(caught.value)


def test_extra_variables_are_refused_where_the_engine_has_none(site: Site, catalog: Catalog, project: Path) -> None:
    with pytest.raises(TrisparkError) as caught:
        resolve(with_extra(site, {"SGLANG_RECORD_STEP_TIME": 1}), catalog, None, None, project)
    assert caught.value.id == "TS-ENV-REFUSED"


def test_every_variable_of_the_engine_is_delivered(production: Resolution, catalog: Catalog) -> None:
    """Nothing of the allowlist is lost on the way; what only a site's extra mapping gives is left out, and so is the
    image, which is the container's own."""
    rank = production.resolved["ranks"][0]
    lost = [
        variable.name
        for variable in catalog.allowlist.variables()
        if variable.support("sglang") is not Support.REFUSED
        and variable.source != "site.extra_container_env"
        and variable.name != ENGINE_IMAGE
        and not variable.is_omitted(production.settings.get(variable.name, rank["rank"]))
        and not (variable.env and variable.name in rank["env"])
        and not (variable.flag and variable.flag in rank["command"])
        and not variable.is_omitted(production.settings.get(variable.name, ""))
    ]
    assert lost == []
    assert all(name in production.settings for name in rank["env"] if _is_common(catalog, name))


def _is_common(catalog: Catalog, name: str) -> bool:
    variable = catalog.allowlist.get(name)
    return variable is not None and variable.scope is Scope.COMMON


def test_a_fixed_value_is_no_secret(production: Resolution, catalog: Catalog) -> None:
    command = list(production.resolved["ranks"][0]["command"])
    assert catalog.allowlist.withhold_command(command) == command


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fixed_args": ("--tp", "3")}, "TP_SIZE delivers it too"),
        ({"same_as": {"--cuda-graph-max-bs-decode": "NO_SUCH"}}, "NO_SUCH"),
        ({"same_as": {"--x": "NODE_RANK"}}, "not given on every rank"),
        ({"same_as": {"--tp": "TP_SIZE"}}, "TP_SIZE delivers it too"),
        ({"ready_evidence": "no.such"}, "no.such"),
    ],
)
def test_an_engine_entry_that_does_not_fit_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "experiments", tmp_path / "experiments")
    path = tmp_path / "experiments" / "engines.yml"
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    data["engines"]["sglang"].update({key: list(v) if isinstance(v, tuple) else v for key, v in change.items()})
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        load_catalog(tmp_path)
    assert said in str(caught.value)


def test_a_flag_that_is_given_twice_is_refused(catalog: Catalog) -> None:
    values = catalog.engines["sglang"].model_dump()
    with pytest.raises(ValueError, match="--load-format is given twice"):
        Engine(**{**values, "fixed_args": ("--load-format", "a", "--load-format", "b")})


def test_nothing_starts_a_container_by_a_command_line() -> None:
    """Containers are made from a typed spec through the Engine's API; a command line loses values to quoting."""
    argv = ["git", "grep", "-I", "-l", "-E", r"\bdocker( container)? (run|create)\b", "--", ":!tests", ":!docs"]
    found = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert found.stdout.splitlines() == []
    assert found.returncode == 1, found.stderr


def main() -> None:
    resolution = resolve(
        load_site(REPOSITORY / "inventory" / "sparks"), load_catalog(REPOSITORY), None, None, REPOSITORY
    )
    GOLDEN.mkdir(exist_ok=True)
    for rank in resolution.nodes:
        text = json.dumps(launched(resolution, rank), indent=1, ensure_ascii=False)
        golden(rank).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
