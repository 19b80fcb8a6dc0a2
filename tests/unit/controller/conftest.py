"""A small project tree, the lab site and fake observations of its three ranks."""

from __future__ import annotations

import copy
import functools
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from trispark.bench_plan import bench_input, client_input
from trispark.catalog import Catalog, load_catalog
from trispark.gate_result import GateResult
from trispark.project import ProjectState
from trispark.records import build_boot_record, head_of
from trispark.resolve import Resolution, resolve
from trispark.site import Site, load_site
from trispark_node.file_tree import hash_of

# A busy machine is no failure: no time limit for an example.
settings.register_profile("trispark", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trispark")

REPOSITORY = Path(__file__).resolve().parents[3]
DIGEST = "sha256:" + "a" * 64
HOSTS = """\
sparks:
  hosts:
    spark0:
      ansible_host: 127.77.0.10
      node_rank: 0
      node_address: 10.77.0.10
      node_pair_links:
        - {peer: 1, local: 10.77.1.10, remote: 10.77.1.11}
        - {peer: 2, local: 10.77.2.10, remote: 10.77.2.12}
    spark1:
      ansible_host: 127.77.0.11
      node_rank: 1
      node_address: 10.77.0.11
      node_pair_links:
        - {peer: 0, local: 10.77.1.11, remote: 10.77.1.10}
        - {peer: 2, local: 10.77.3.11, remote: 10.77.3.12}
    spark2:
      ansible_host: 127.77.0.12
      node_rank: 2
      node_address: 10.77.0.12
      node_pair_links:
        - {peer: 0, local: 10.77.2.12, remote: 10.77.2.10}
        - {peer: 1, local: 10.77.3.12, remote: 10.77.3.11}
"""
SITE = """\
site_name: lab
site_engine: lab
site_root: /var/lib/trispark
site_world_size: 3
site_api_port: 8888
site_served_model_name: deepseek-v4.1-flash
site_checkpoint_dir: /srv/models/DeepSeek-V4.1-Flash
site_checkpoint_mount: /models/DeepSeek-V4.1-Flash
site_engram_dir: /srv/engram
site_engram_mount: /engram
site_rendezvous_ports: [20000, 20001, 20002, 20003]
site_stats_seconds: 1
site_decode_log_interval: 40
site_start_deadline_s: 60
site_stop_deadline_s: 15
site_watch_interval_s: 0.5
site_trial_boots: 1
site_bench: {repetitions: 5, max_tokens: 64, warmup_tokens: 16, concurrency: [1, 4], workloads: [prose, code]}
"""
IMAGES = f"""\
site_engine_image: registry:5000/trispark/lab-engine@{DIGEST}
site_bench_image: registry:5000/trispark/bench@{DIGEST}
"""
ROWS = {1: 200_001, 14: 200_005}


def write_site(directory: Path, hosts: str = HOSTS, site: str = SITE, images: str | None = IMAGES) -> Path:
    """An inventory directory with the given texts."""
    group = directory / "group_vars" / "all"
    group.mkdir(parents=True)
    (directory / "hosts.yml").write_text(hosts, encoding="utf-8")
    (group / "site.yml").write_text(site, encoding="utf-8")
    (group / "ansible.yml").write_text(
        "ansible_user: trispark\nansible_become_pass: !vault |\n  $x\n", encoding="utf-8"
    )
    if images is not None:
        (group / "images.yml").write_text(images, encoding="utf-8")
    return directory


ENGINE_ADAPTERS = tuple(
    sorted(
        {
            file
            for feature in load_catalog(REPOSITORY).features.values()
            for file in feature.adapters
            if file.startswith("trispark_adapters/")
        }
    )
)
"""Files that features need on SGLang."""


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with the real templates and experiments and a small adapter tree."""
    root = tmp_path_factory.mktemp("project")
    for name in ("templates", "experiments"):
        shutil.copytree(REPOSITORY / name, root / name)
    (root / "adapters" / "tests").mkdir(parents=True)
    (root / "adapters" / "trispark_hooks").mkdir()
    (root / "adapters" / "trispark_hooks" / "lab_wo_a_w8.py").write_text("# twins\n", encoding="utf-8")
    (root / "adapters" / "trispark_adapters").mkdir()
    for name in ENGINE_ADAPTERS:
        (root / "adapters" / name).write_text("# inside the engine\n", encoding="utf-8")
    (root / "adapters" / "sitecustomize.py").write_text("# hooks, UTF-8: \u00e4\n", encoding="utf-8")
    (root / "adapters" / "tests" / "test_x.py").write_text("", encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog(REPOSITORY)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return load_site(write_site(tmp_path_factory.mktemp("inventory") / "lab"))


@pytest.fixture(scope="session")
def baseline(site: Site, catalog: Catalog, project: Path) -> Resolution:
    return resolve(site, catalog, None, None, project)


@pytest.fixture(scope="session")
def candidate(site: Site, catalog: Catalog, project: Path) -> Resolution:
    return resolve(site, catalog, "wo_a", None, project)


def rank_log(rank: int, *, packed: bool = True, wo_a: bool = False, left: int = 0) -> str:
    """The log of a healthy rank."""
    prefix = f"[2026-09-25 10:00:00 TP{rank} EP{rank}] "
    state = f"packed={packed}"
    tail = f"scales=0.0GiB threads=96 {state}"
    lines = [
        f"server_args={{'tp_size': 3, 'ep_size': 3, 'node_rank': {rank}, 'max_running_requests': 4, "
        "'chunked_prefill_size': 1024, 'min_free_slots_delay': 0, 'speculative_dspark_block_size': 3}"
    ]
    for layer, rows in ROWS.items():
        first, end = rows * rank // 3, rows * (rank + 1) // 3
        lines.append(
            f"Exact nvme Engram layer={layer} rank={rank} rows=[{first},{end}) cache=0.0GiB (0 slots, 4-way, "
            f"0.0% of owned rows) scales=0.0GiB io_threads=96 {state}"
        )
    if wo_a:
        lines.append(f"[wo_a_w8] fp8 twins for {4 - left} wo_a weights, {left} left on float32")
    for layer in ROWS:
        reads = 160 if packed else 320
        lines.append(f"Engram layer={layer} lookups=160 hit_rate=0.0% reads={reads} cache=0.0GiB(4-way) {tail}")
    if rank == 0:
        lines.append("The server is fired up and ready to roll!")
    if wo_a:
        lines.append("[wo_a_w8] calls twin=24 dense=3")
    return "\n".join(prefix + line for line in lines) + "\n"


HASH = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("numpy", "http", "c", "tactics")}


def identity(resolution: Resolution, rank: int) -> dict[str, Any]:
    """What the agent hashes on a healthy rank. The head has loaded what serves its API; tactics are a rank's own."""
    source = {f"/opt/engine/{name}.py": hashlib.sha256(name.encode()).hexdigest() for name in "abc"}
    adapters = dict(resolution.resolved["adapters"])
    loaded = {"/usr/lib/libc.so.6": HASH["c"], "/opt/site-packages/numpy/core.so": HASH["numpy"]}
    if rank == 0:
        loaded["/opt/site-packages/aiohttp/http.so"] = HASH["http"]
    tactics = {f"d06a/rank_tp{rank}.json": HASH["tactics"]}
    return {
        "source": {"hash": hash_of(source), "files": len(source), "bytes": 3},
        "adapters": {"hash": hash_of(adapters), "files": len(adapters), "bytes": 9},
        "libraries": {"hash": hash_of(loaded), "files": len(loaded), "bytes": 7, "listed": loaded, "made_here": []},
        "autotune": {"hash": hash_of(tactics), "files": 1, "bytes": 2, "listed": tactics},
        "seconds": 0.06,
    }


def observation(resolution: Resolution, rank: int, *, wo_a: bool = False) -> dict[str, Any]:
    """What the agent's `observe` answers for a healthy rank in epoch 6."""
    entry = resolution.resolved["ranks"][rank]
    places = {"{generation}": "generations", "{engine_state}": "engine-state"}
    image_env = {"PATH": "/usr/bin", "PYTHONPATH": "/opt/trispark/adapters:/opt/site-packages"}
    return {
        "ok": True,
        "container_id": f"c{rank}",
        "image_id": "sha256:" + "b" * 64,
        "image_ref": resolution.resolved["image"],
        "image_digests": [resolution.resolved["image"]],
        "env": {**image_env, **{k: v.replace("{rendezvous_port}", "20002") for k, v in entry["env"].items()}},
        "image_env": image_env,
        "command": [argument.replace("{rendezvous_port}", "20002") for argument in entry["command"]],
        "mounts": [
            {
                **mount,
                "source": functools.reduce(
                    lambda text, place: text.replace(place[0], f"/var/lib/trispark/{place[1]}/{resolution.id}"),
                    places.items(),
                    mount["source"],
                ),
            }
            for mount in entry["mounts"]
        ],
        "labels": {
            "trispark": "1",
            "trispark.generation": resolution.id,
            "trispark.boot": "b1",
            "trispark.epoch": "6",
            "trispark.rank": str(rank),
        },
        "started_at": "2026-09-25T10:00:00Z",
        "adapters": dict(resolution.resolved["adapters"]),
        "versions": {
            "engine": "trispark-lab 0.1.0",
            "packages": {"numpy": "2.3.0", "aiohttp": "3.12.0"},
            "kernel": {"release": "6.1.0", "packages": {"linux-image-amd64": "6.1.1"}},
        },
        "identity": identity(resolution, rank),
        "log": rank_log(rank, wo_a=wo_a),
    }


@pytest.fixture
def healthy() -> Callable[..., dict[str, dict[str, Any]]]:
    """Observations of three healthy ranks of a resolution, free to be changed."""

    def make(resolution: Resolution, *, wo_a: bool = False) -> dict[str, dict[str, Any]]:
        return {f"spark{rank}": copy.deepcopy(observation(resolution, rank, wo_a=wo_a)) for rank in range(3)}

    return make


@pytest.fixture
def canary() -> dict[str, Any]:
    """The right answer."""
    body = {"choices": [{"message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}]}
    return {"ok": True, "status": 200, "body": body}


@pytest.fixture
def engram_rows() -> dict[int, int]:
    return dict(ROWS)


@pytest.fixture
def make_log() -> Callable[..., str]:
    return rank_log


@pytest.fixture
def make_site(tmp_path: Path) -> Callable[..., Path]:
    """Writes a site whose texts differ from the lab's by replacements [(old, new)]."""

    def make(
        hosts: list[tuple[str, str]] | None = None,
        site: list[tuple[str, str]] | None = None,
        images: str | None = IMAGES,
        extra: str = "",
    ) -> Path:
        texts = {"hosts": HOSTS, "site": SITE}
        for name, replacements in (("hosts", hosts), ("site", site)):
            for old, new in replacements or []:
                assert old in texts[name]
                texts[name] = texts[name].replace(old, new)
        return write_site(tmp_path / "lab", texts["hosts"], texts["site"] + extra, images)

    return make


BENCH_IMAGE = f"registry:5000/trispark/bench@{DIGEST}"


@pytest.fixture
def boot_record(
    baseline: Resolution,
    candidate: Resolution,
    catalog: Catalog,
    site: Site,
    project: Path,
    healthy: Callable[..., Any],
) -> Callable[..., dict[str, Any]]:
    """Records of valid, measured boots of `project`'s lab site in one chain: `boot_record("candidate", trial="t1")`."""
    records: list[dict[str, Any]] = []

    def make(
        arm: str = "baseline",
        *,
        resolution: Resolution | None = None,
        change: Callable[[dict[str, dict[str, Any]]], object] = lambda seen: None,
        boot_id: str | None = None,
        commit: str = "f" * 40,
        outcome: str = "valid",
        **requested: Any,
    ) -> dict[str, Any]:
        resolution = resolution or (candidate if arm == "candidate" else baseline)
        seen = healthy(resolution, wo_a=arm == "candidate")
        change(seen)
        planned = client_input(site, project)
        measured = bench_input({"rank": 1, "image": BENCH_IMAGE, "input": planned})
        bench = {"requests": [], "waves": [], "server_info": [], "input": measured}
        boot = boot_id or f"b2026010{len(records) + 1}T000000Z-000{len(records)}"
        gate = GateResult("canary.text", None, outcome == "valid", "42", "42")
        record = build_boot_record(
            record_id=boot,
            site="lab",
            resolution=resolution,
            allowlist=catalog.allowlist,
            project=ProjectState("0.1.0", commit, False),
            requested={"stage": "c", "arm": arm, "purpose": "trial", **requested}
            | ({"feature": "wo_a"} if arm == "candidate" else {}),
            boot_id=boot,
            epoch=len(records) + 1,
            observations=seen,
            timings={"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:01:00Z", "phases": {}},
            gates=[gate],
            bench=bench,
            summary=None,
            outcome={"state": outcome, "reason": "all gates passed", "good": False},
            previous=head_of(records[-1]) if records else None,
        )
        records.append(record)
        return record

    return make
