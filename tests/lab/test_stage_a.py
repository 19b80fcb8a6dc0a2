"""Stage A on three nodes, judged from outside: docker inspect, container logs, shard headers and /proc."""

from __future__ import annotations

import hashlib
import json
import re
import struct

import pytest
import yaml

pytestmark = pytest.mark.lab

MAGIC = 0x31344E4531565344
STARTED = re.compile(r"Exact nvme Engram layer=(\d+) rank=(\d+) rows=\[(\d+),(\d+)\).* packed=(True|False)")
COUNTED = re.compile(r"Engram layer=(\d+) lookups=(\d+) hit_rate=0\.0% reads=(\d+) .*packed=(True|False)")
LAYERS = (1, 14)


def rows_of(lab, layer: int) -> int:
    """N of a layer, read from the safetensors header on a node with nothing of the project's."""
    script = (
        "import json,struct,glob,sys\n"
        "for p in sorted(glob.glob('/srv/models/DeepSeek-V4.1-Flash/*.safetensors')):\n"
        "    f=open(p,'rb'); n=struct.unpack('<Q',f.read(8))[0]; h=json.loads(f.read(n))\n"
        f"    e=h.get('layers.{layer}.engram.embed.weight')\n"
        "    if e: print(e['shape'][0])\n"
    )
    return int(lab.node("spark0", "python3", "-c", script))


def records_of(lab, name: str) -> list[dict]:
    files = lab.node(name, "ls", "/var/lib/trispark/records").decode().split()
    return [json.loads(lab.node(name, "cat", f"/var/lib/trispark/records/{file}")) for file in sorted(files)]


def owned(rows: int, rank: int) -> tuple[int, int]:
    return rows * rank // 3, rows * (rank + 1) // 3


def test_every_rank_runs_the_digest_that_the_site_names(serving) -> None:
    wanted = yaml.safe_load((serving.root / "inventory/lab/group_vars/all/images.yml").read_text())["site_engine_image"]
    for name in serving.nodes:
        state = serving.inspect(name)
        assert state["Config"]["Image"] == wanted
        image = json.loads(serving.node(name, "docker", "image", "inspect", state["Image"]))[0]
        assert wanted in image["RepoDigests"]


def test_every_rank_serves_its_own_packed_rows_and_reads_each_once(serving) -> None:
    tables = {layer: rows_of(serving, layer) for layer in LAYERS}
    for rank, name in enumerate(serving.nodes):
        log = serving.log(name)
        started = {int(m[1]): m for m in STARTED.finditer(log)}
        assert set(started) == set(LAYERS), f"{name}: one attach line a layer"
        for layer, line in started.items():
            first, end = owned(tables[layer], rank)
            assert (int(line[2]), int(line[3]), int(line[4]), line[5]) == (rank, first, end, "True")
        counted = COUNTED.findall(log)
        assert counted, f"{name}: no counters in the log"
        assert all(lookups == reads and packed == "True" for _, lookups, reads, packed in counted)
        assert {int(layer) for layer, *_ in counted} == set(LAYERS)


def test_every_shard_has_the_field_header_and_the_checkpoints_rows(serving) -> None:
    for layer in LAYERS:
        total = rows_of(serving, layer)
        for rank, name in enumerate(serving.nodes):
            first, end = owned(total, rank)
            path = f"/srv/engram/engram-l{layer}-r{rank}of3.bin"
            data = serving.node(name, "cat", path)
            assert struct.unpack("<6Q", data[:48]) == (MAGIC, layer, first, end, total, 264)
            assert data[48:4096] == bytes(4048)
            assert len(data) == 4096 + 264 * (end - first)


def test_every_engine_process_lives_in_its_node_and_has_its_shards_open(serving) -> None:
    for rank, name in enumerate(serving.nodes):
        pid = serving.inspect(name)["State"]["Pid"]
        command = serving.node(name, "cat", f"/proc/{pid}/cmdline").split(b"\0")
        assert b"trispark_lab" in command
        assert command[command.index(b"--node-rank") + 1] == str(rank).encode()
        script = f"for f in /proc/{pid}/fd/*; do readlink $f; done"
        lines = serving.node(name, "sh", "-c", script).decode().splitlines()
        # A shard that was packed again since the start is another file: the engine goes on with the one it opened.
        opened = {line.removesuffix(" (deleted)") for line in lines}
        assert {f"/engram/engram-l{layer}-r{rank}of3.bin" for layer in LAYERS} <= opened


def test_the_effective_environment_is_the_rendered_file_on_every_rank(serving) -> None:
    for name in serving.nodes:
        state = serving.inspect(name)
        image = json.loads(serving.node(name, "docker", "image", "inspect", state["Image"]))[0]
        text = serving.node(name, "cat", "/var/lib/trispark/current/engine.env").decode()
        rendered = dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))
        effective = dict(entry.split("=", 1) for entry in state["Config"]["Env"])
        from_image = dict(entry.split("=", 1) for entry in image["Config"]["Env"])
        for key, value in rendered.items():
            assert effective[key] == value or "{rendezvous_port}" in value
        assert set(effective) == set(rendered) | set(from_image)


def test_adapters_inside_the_containers_are_the_trees_bytes(serving) -> None:
    planned = {
        str(path.relative_to(serving.root / "adapters")): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (serving.root / "adapters").rglob("*.py")
        if "__pycache__" not in path.parts
    }
    for name in serving.nodes:
        script = (
            "docker exec trispark-engine sh -c 'cd /opt/trispark/adapters && find . -name \"*.py\" | xargs sha256sum'"
        )
        lines = serving.node(name, "sh", "-c", script).decode().splitlines()
        assert {line.split()[1].removeprefix("./"): line.split()[0] for line in lines} == planned


def test_pairs_of_ranks_talk_over_their_own_network_only(serving) -> None:
    """Each pair of ranks has an established TCP connection on the pair's own network."""
    hosts = yaml.safe_load((serving.root / "inventory/lab/hosts.yml").read_text())
    nodes = hosts["sparks"]["hosts"]
    for name in serving.nodes:
        lines = serving.node(name, "ss", "-Htn", "state", "established").decode().splitlines()
        peers = {line.split()[3].rsplit(":", 1)[0] for line in lines}
        for link in nodes[name]["node_pair_links"]:
            assert link["remote"] in peers, f"{name}: no connection to rank {link['peer']} over their own network"


def test_the_status_playbook_itself_says_what_each_node_runs(serving) -> None:
    played = serving.play("status")
    assert played.rc == 0, played.output[-2000:]
    state = serving.inspect("spark0")["Config"]["Labels"]
    said = " ".join(played.output.split())
    assert f"SERVING: generation {state['trispark.generation']}, boot {state['trispark.boot']}" in said
    for rank, name in enumerate(serving.nodes):
        assert f"{name} rank {rank} running" in said


def test_what_runs_can_be_measured_without_a_boot_or_a_record(serving) -> None:
    before = records_of(serving, "spark0")
    kept = serving.root / ".trispark/lab/bench"
    known = set(kept.glob("*"))
    played = serving.play("bench")
    assert played.rc == 0, played.output
    (file,) = set(kept.glob("*")) - known
    found = json.loads(file.read_text())
    assert found["outcome"] == {"state": "valid", "reason": "complete"}
    assert found["metrics"]["c1-prose.decode_tps"] > 0
    assert found["boots"] == [serving.inspect("spark0")["Config"]["Labels"]["trispark.boot"]]
    assert records_of(serving, "spark0") == before


def images_on(lab, name: str) -> set[bytes]:
    """Ids; images that are reproducible have one time, so that their order says nothing."""
    return set(lab.node(name, "docker", "images", "-q", "--no-trunc").split())


def test_a_second_run_changes_nothing_but_boot_and_record(serving) -> None:
    before = {name: serving.hash_tree(name) for name in serving.nodes}
    images = {name: images_on(serving, name) for name in serving.nodes}
    played = serving.play("stage_a")
    assert played.rc == 0, played.output[-4000:]
    # The engine of the new boot tunes anew and saves its own timings; of all its state these alone may differ.
    allowed = re.compile(
        r"var/lib/trispark/(records|boots)(/|$)|var/lib/trispark/(journal\.jsonl|epoch|lock|fleet-lock\.(json|hold)$)"
        r"|var/lib/trispark/engine-state/[^/]+/state/autotune(/.*)?/rank_tp\d+\.(json|launch)$"
    )
    for name in serving.nodes:
        after = serving.hash_tree(name)
        changed = {path for path in before[name].keys() | after.keys() if before[name].get(path) != after.get(path)}
        assert {path for path in changed if not allowed.match(path)} == set()
        records = [path for path in after.keys() - before[name].keys() if path.startswith("var/lib/trispark/records/")]
        assert len(records) == 1
        assert not [path for path in before[name] if "/records/" in path and before[name][path] != after[path]]
        assert images_on(serving, name) == images[name]


def test_the_record_says_what_the_nodes_say(serving) -> None:
    name = serving.nodes[0]
    listing = serving.node(name, "sh", "-c", "ls /var/lib/trispark/records | sort | tail -n 1").decode().strip()
    texts = {node: serving.node(node, "cat", f"/var/lib/trispark/records/{listing}") for node in serving.nodes}
    assert len(set(texts.values())) == 1, "all nodes hold the same record"
    record = json.loads(texts[name])
    assert record["boot_id"] == serving.inspect(name)["Config"]["Labels"]["trispark.boot"]
    for rank, node in enumerate(serving.nodes):
        state = serving.inspect(node)
        seen = record["observed"]["ranks"][rank]
        assert seen["container_id"] == state["Id"]
        assert {layer["layer"]: layer["packed"] for layer in seen["engram"]} == dict.fromkeys(LAYERS, True)
        effective = dict(entry.split("=", 1) for entry in state["Config"]["Env"])
        assert {key: effective[key] for key in seen["env"]} == seen["env"]


def test_the_record_chain_of_every_node_can_be_recomputed(serving) -> None:
    """Each record names the hash of the one before it; nothing of the project is used to compute it."""
    if not [record for record in records_of(serving, "spark0") if record.get("bench")]:
        assert serving.play("stage_a").rc == 0
    texts = {}
    for name in serving.nodes:
        files = serving.node(name, "ls", "/var/lib/trispark/records").decode().split()
        texts[name] = [serving.node(name, "cat", f"/var/lib/trispark/records/{file}") for file in sorted(files)]
    assert texts["spark0"] == texts["spark1"] == texts["spark2"]
    previous = None
    for number, text in enumerate(texts["spark0"], start=1):
        record = json.loads(text)
        assert (record["seq"], record["previous"]) == (number, previous)
        canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        previous = {"seq": number, "hash": hashlib.sha256(canonical).hexdigest()}
    measured = [record for record in map(json.loads, texts["spark0"]) if record["kind"] == "boot" and record["bench"]]
    assert measured, "stage A measures"
    for request in measured[-1]["bench"]["requests"]:
        assert request["error"] is None
        assert request["completion_tokens"] == measured[-1]["bench"]["input"]["max_tokens"]
        assert request["events"] < request["completion_tokens"], "several tokens an event: events are not tokens"
