"""What `uninstall` removes, what it leaves, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trispark_node import epoch, uninstall
from trispark_node.lock import held
from trispark_node.mutation import Mode, mutate

GOES = {"generations", "current", "epoch", "good.jsonl", "journal.jsonl", "boots"}


@pytest.fixture
def used(bench, active):
    """A node with every kind of state, the agent's own file, and a file of somebody else."""
    bench.ask("good-mark", generation=active["generation"], boot_id="b1", time="2026-01-02T03:04:05Z")
    bench.ask("record-append", record={"id": "r1", "seq": 1, "previous": None}, previous=None)
    for name in ("bin/trispark-node", "run/agent-1/manifest.json", "adopted/a1/start.json", "boots/b0/engine.log"):
        path = bench.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    (bench.root / "notes.txt").write_text("a person's\n")
    (bench.root / ".epoch.new").write_text("left by a crash\n")
    return bench


def names(bench) -> set[str]:
    return {path.name for path in bench.root.iterdir()}


def test_everything_but_records_goes_and_again_nothing(used):
    planned = used.ask("uninstall", check=True)
    before = used.tree()
    assert set(planned["remove"]) >= GOES | {".epoch.new"}
    assert planned["keep"] == ["adopted", "records"]
    assert planned["foreign"] == ["notes.txt"]
    assert used.tree() == before
    done = used.ask("uninstall")
    assert done == planned
    assert names(used) == {"adopted", "records", "bin", "run", "notes.txt"}
    assert (used.root / "records/000001-r1.json").is_file()
    again = used.ask("uninstall")
    assert not again["changed"]
    assert names(used) == {"adopted", "records", "bin", "run", "notes.txt"}


def test_the_command_whose_lock_it_takes_away_leaves_none_behind(used):
    """Its lease is renewed at the end of each call; nothing is made for that on a node without state."""
    ana = {"token": "0123456789abcdef-1-1", "host": "h", "pid": 1, "user": "ana", "reason": "uninstall"}
    used.ask("lock-take", owner=ana)
    used.ask("uninstall", owner=ana)
    assert names(used) == {"adopted", "records", "bin", "run", "notes.txt"}


def test_records_and_the_way_back_go_when_asked(used):
    assert used.ask("uninstall", records="remove")["keep"] == []
    assert names(used) == {"bin", "run", "notes.txt"}
    assert used.refused("uninstall", records="all")["id"] == "TS-AGENT-REQUEST"


def test_a_node_that_never_had_an_agent(bench):
    assert not bench.ask("uninstall")["changed"]
    assert not bench.root.exists()


def test_ended_containers_of_ours_go_and_no_other(used, engine_labels):
    used.docker.add("trispark-engine", "exited", engine_labels())
    used.docker.add("somebody", "running")
    used.docker.add("somebody-ended", "exited")
    assert used.ask("uninstall")["containers"] == ["trispark-engine"]
    assert {each.name for each in used.docker.containers.values()} == {"somebody", "somebody-ended"}


@pytest.mark.parametrize("status", ["running", "paused", "restarting"])
def test_an_engine_that_runs_is_named_and_nothing_goes(used, engine_labels, status):
    used.docker.add("trispark-engine", status, engine_labels("b7"))
    before = used.tree()
    error = used.refused("uninstall")
    assert error["id"] == "TS-UNINSTALL-ENGINE"
    assert "trispark-engine" in error["where"]
    assert "b7" in error["observed"]
    assert used.tree() == before


def test_a_mounted_share_is_named_and_one_of_another_boot_is_not(used):
    boot = (used.procfs / "sys/kernel/random/boot_id").read_text().strip()
    kept = {"boot_id": boot, "device": "0:1", "directory": "/models", "source": "head:/models"}
    (used.root / "share.json").write_text(json.dumps(kept))
    assert used.refused("uninstall")["id"] == "TS-UNINSTALL-SHARE"
    (used.root / "share.json").write_text(json.dumps({**kept, "boot_id": "another"}))
    assert "share.json" in used.ask("uninstall")["remove"]


def test_an_agent_at_work_is_refused(used):
    with held(used.root / "lock.engram", used.clock, 0, "engram pack"):
        assert used.refused("uninstall")["id"] == "TS-UNINSTALL-BUSY"
    assert "lock.engram" in used.ask("uninstall")["remove"]


def test_after_a_crash_at_every_step_the_same_again_ends_it(make_bench, crashes, stage_request, quick_path):
    """The journal goes last, so that whatever a crash left is still known as begun."""
    number = 0
    bench = None

    def reset() -> None:
        nonlocal number, bench
        number += 1
        bench = make_bench(quick_path / str(number))
        bench.ask("stage", **stage_request())
        bench.ask("record-append", record={"id": "r1", "seq": 1, "previous": None}, previous=None)

    def operation(disk) -> None:
        node, mode = bench.with_disk(disk), Mode(check=False, lock_wait_s=1)
        mutate(node, "fence", mode, lambda: epoch.plan_fence(node, epoch.FenceRequest(7, "b7")))
        uninstall.uninstall(node, uninstall.UninstallRequest("keep"), mode)

    for where in crashes(operation, reset):
        left = {path.name for path in Path(bench.root).iterdir()} - {"lock", "records"}
        assert not left or "journal.jsonl" in left, where
        bench.ask("uninstall")
        assert {path.name for path in bench.root.iterdir()} == {"records"}, where
