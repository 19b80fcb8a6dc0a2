"""The trial of wo_a, refusals of a stage, gates that stop a boot, and the way back, judged from outside."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

pytestmark = pytest.mark.lab

COUNTED = re.compile(r"Engram layer=\d+ lookups=(\d+) hit_rate=0\.0% reads=(\d+) ")


def last_record(lab, kind: str) -> dict:
    """The newest record of a kind on rank 0's node."""
    names = lab.node("spark0", "ls", "/var/lib/trispark/records").decode().split()
    for name in sorted(names, reverse=True):
        record = json.loads(lab.node("spark0", "cat", f"/var/lib/trispark/records/{name}"))
        if record["kind"] == kind:
            return record
    raise AssertionError(f"no {kind} record")


def test_the_trial_of_wo_a_ends_inconclusive_with_the_baseline_serving(serving) -> None:
    """Run from playbooks/, the other working directory; stage A is run from the root by its own tests."""
    baseline = serving.inspect("spark0")["Config"]["Labels"]["trispark.generation"]
    played = serving.play("stage_c", serving.root / "playbooks", "", feature="wo_a")
    assert played.rc == 0, played.output[-4000:]
    record = last_record(serving, "trial")
    assert record["outcome"]["verdict"] == "INCONCLUSIVE"
    assert "two boots decide nothing" in record["outcome"]["reason"]
    assert record["resolved"]["changed"] == {"DSV41_WO_A_W8": {"baseline": 0, "candidate": 1}}
    assert [boot["arm"] for boot in record["boots"]] == ["baseline", "candidate"]
    assert record["outcome"]["restored"] == baseline
    ratios = {name: ratio["ratio"] for name, ratio in record["outcome"]["differences"].items()}
    assert {"c1-prose.decode_tps", "c1-code.decode_tps", "c4.agg_tps"} <= set(ratios)
    assert last_record(serving, "boot")["requested"]["trial"] == record["id"]
    for name in serving.nodes:
        state = serving.inspect(name)
        assert state["Config"]["Labels"]["trispark.generation"] == baseline
        assert "DSV41_WO_A_W8=0" in state["Config"]["Env"]
        candidate = record["boots"][1]["boot_id"]
        kept = serving.node(name, "cat", f"/var/lib/trispark/boots/{candidate}/engine.log").decode()
        assert "[wo_a_w8] fp8 twins for 2 wo_a weights, 0 left" in kept
        assert "[wo_a_w8]" not in serving.log(name)


@pytest.mark.parametrize(
    ("extra", "error"),
    [
        ({}, "TS-FEATURE-MISSING"),
        ({"feature": "no_such"}, "TS-FEATURE-UNKNOWN"),
        ({"feature": "wo_a", "DSPARK_BLOCK_SIZE": "5"}, "TS-PLAN-PLACE"),
    ],
)
def test_a_refused_trial_names_what_the_stage_has_and_touches_nothing(serving, extra, error) -> None:
    engines = {name: serving.inspect(name)["Id"] for name in serving.nodes}
    played = serving.play("stage_c", **extra)
    assert played.rc != 0
    assert error in played.output
    assert error == "TS-PLAN-PLACE" or "wo_a" in played.output
    assert {name: serving.inspect(name)["Id"] for name in serving.nodes} == engines


def test_a_rank_that_dies_while_starting_ends_the_boot_on_all_ranks_with_logs_kept(known) -> None:
    """Rank 2's engine is killed as soon as it has said something, so ranks 0 and 1 alone would wait for it."""
    known.play("stop")
    boot = subprocess.Popen(
        known.command("boot"),
        cwd=known.root,
        env=known.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        while not known.node("spark2", "docker", "logs", "trispark-engine", check=False):
            assert boot.poll() is None, "the boot ended before rank 2 had begun"
        known.node("spark2", "docker", "kill", "trispark-engine")
        output, _ = boot.communicate(timeout=240 * known.patience)
    finally:
        boot.kill()
    assert boot.returncode != 0
    assert "boot.ready" in output, output[-3000:]
    assert "rank 2" in output
    record = last_record(known, "boot")
    assert record["outcome"]["state"] == "failed"
    for rank, name in enumerate(known.nodes):
        assert known.inspect(name) is None, "every rank is stopped"
        kept = known.node(name, "ls", f"/var/lib/trispark/boots/{record['boot_id']}").decode().split()
        assert "engine.log" in kept
        assert (known.root / ".trispark/lab/boots" / record["boot_id"] / f"rank{rank}.log").stat().st_size > 0


def test_rollback_needs_no_registry_and_brings_back_the_last_good_generation(known) -> None:
    """From whatever an incident left: rank 1's engine is killed when it runs, else nothing runs at all."""
    marks = known.node("spark0", "cat", "/var/lib/trispark/good.jsonl").decode().splitlines()
    good = json.loads(marks[-1])["generation"]
    if known.inspect("spark1"):
        known.node("spark1", "docker", "kill", "trispark-engine", check=False)
    registry = "trispark-lab-registry"
    subprocess.run(["docker", "pause", registry], check=True, capture_output=True)
    try:
        played = known.play("rollback")
    finally:
        subprocess.run(["docker", "unpause", registry], check=True, capture_output=True)
    assert played.rc == 0, played.output[-4000:]
    assert f"{good} serves again" in played.output
    boots = {known.inspect(name)["Config"]["Labels"]["trispark.boot"] for name in known.nodes}
    assert len(boots) == 1
    record = last_record(known, "boot")
    assert {record["boot_id"]} == boots
    assert (record["outcome"]["state"], record["requested"]["purpose"]) == ("valid", "rollback")


def test_a_rank_that_silently_falls_back_fails_its_gate_and_every_rank_is_stopped(known) -> None:
    """ramfs refuses O_DIRECT, so rank 2 reads the checkpoint instead of its shard, as in the field without an error."""
    known.node("spark2", "sh", "-c", "mkdir -p /srv/aside && cp /srv/engram/* /srv/aside/")
    known.node("spark2", "mount", "-t", "ramfs", "ramfs", "/srv/engram")
    try:
        known.node("spark2", "sh", "-c", "cp /srv/aside/* /srv/engram/")
        played = known.play("boot")
    finally:
        known.play("stop")
        known.node("spark2", "sh", "-c", "umount /srv/engram && rm -r /srv/aside")
    assert played.rc != 0
    assert "engram.packed on rank 2" in played.output
    record = last_record(known, "boot")
    assert record["outcome"]["state"] == "invalid"
    bad = {(gate["check_id"], gate["rank"]) for gate in record["gates"] if not gate["ok"]}
    assert ("engram.packed", 2) in bad
    assert not {rank for check, rank in bad if check == "engram.packed"} - {2}
    for name in known.nodes:
        assert known.inspect(name) is None
        kept = known.node(name, "cat", f"/var/lib/trispark/boots/{record['boot_id']}/engine.log").decode()
        assert ("packed=False" in kept) == (name == "spark2")
        reads_a_row = 2 if name == "spark2" else 1
        counted = [(int(lookups), int(reads)) for lookups, reads in COUNTED.findall(kept)]
        assert counted
        assert all(reads == reads_a_row * lookups for lookups, reads in counted)


@pytest.mark.slow
def test_a_node_that_hangs_under_load_makes_the_boot_invalid_and_catches_up_later(serving) -> None:
    """Nothing of the boot may count, the other ranks are stopped, and the node gets its records when it is back."""
    boot = subprocess.Popen(
        serving.command("stage_a"),
        cwd=serving.root,
        env=serving.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        while b"trispark-bench" not in serving.node("spark1", "docker", "ps", "--format", "{{.Names}}"):
            assert boot.poll() is None, "the boot ended before its measurement began"
        subprocess.run(["docker", "pause", "spark2"], check=True, capture_output=True)
        output, _ = boot.communicate(timeout=240)
    finally:
        subprocess.run(["docker", "unpause", "spark2"], check=False, capture_output=True)
        boot.kill()
    assert boot.returncode != 0, output[-3000:]
    record = last_record(serving, "boot")
    assert record["outcome"]["state"] == "invalid", output[-3000:]
    assert not record["outcome"]["good"]
    for name in ("spark0", "spark1"):
        assert serving.inspect(name) is None, f"{name} is stopped"
    assert serving.play("stage_a").rc == 0
    chains = {name: serving.node(name, "ls", "/var/lib/trispark/records") for name in serving.nodes}
    assert len(set(chains.values())) == 1, "the node that was away has every record"
