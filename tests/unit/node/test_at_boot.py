"""What the boot unit does after a node's start: logs kept, containers gone, a stale engine stopped, a good one left."""

from __future__ import annotations

from pathlib import Path

import pytest

from trispark_node.cli import answer

ROOT = Path(__file__).resolve().parents[3]


def restart(bench):
    (bench.procfs / "sys/kernel/random/boot_id").write_text("0a0b0c0d-0000-4000-8000-000000000002\n")


def start(bench):
    bench.ask("start", boot_id="b1", epoch=5)
    (container_id,) = bench.docker.containers
    bench.docker.logs[container_id] = b"last words\n"
    bench.docker.events.clear()
    return container_id


def test_a_node_with_nothing_left_changes_nothing(bench):
    assert not bench.ask("at-boot")["changed"]
    assert bench.tree() == {"lock": ""}


def test_an_engine_that_ended_with_its_node_leaves_its_log(bench, active):
    container_id = start(bench)
    bench.docker.change(container_id, status="exited", exit_code=137)
    restart(bench)
    said = bench.ask("at-boot")
    assert (said["changed"], said["removed"], said["exit_codes"], said["stopped"]) == (True, ["b1"], {"b1": 137}, [])
    assert bench.docker.containers == {}
    assert bench.node.layout.boot_log("b1").read_bytes() == b"last words\n"
    assert not bench.ask("at-boot")["changed"]
    entry = next(entry for entry in bench.node.journal.read().entries if entry.verb == "at-boot")
    assert entry.detail["removed"] == ["b1"]


def test_one_that_never_ran_leaves_no_log(bench, engine_labels):
    bench.docker.add("trispark-engine", "created", engine_labels("b9"))
    bench.ask("at-boot")
    assert bench.docker.events == [f"remove {'trispark-engine'}"]
    assert not bench.node.layout.boot_log("b9").exists()


@pytest.mark.parametrize("why", ["the host restarted", "another epoch", "paused, the host restarted"])
def test_an_engine_of_a_stale_epoch_is_stopped(bench, active, why):
    container_id = start(bench)
    if why == "another epoch":
        bench.ask("fence", epoch=6, boot_id="b2")
    else:
        restart(bench)
    if why.startswith("paused"):
        bench.docker.change(container_id, status="paused")
    said = bench.ask("at-boot")
    assert (said["stopped"], said["removed"], said["killed"]) == (["b1"], [], False)
    assert bench.docker.containers == {}
    assert bench.node.layout.boot_log("b1").read_bytes() == b"last words\n"


@pytest.mark.parametrize("fenced_by", ["this agent", "an older agent"])
def test_an_engine_that_serves_rightly_is_left_alone(bench, active, fenced_by):
    """The unit started by hand, or an agent that is replaced while the engine serves."""
    start(bench)
    if fenced_by == "an older agent":
        bench.node.layout.epoch.write_text('{"boot_id":"b1","epoch":5}\n')
    said = bench.ask("at-boot")
    assert (said["changed"], said["stopped"], said["problems"]) == (False, [], [])
    assert bench.docker.events == []


def test_an_epoch_that_cannot_be_read_stops_nothing_and_is_named(bench, active):
    start(bench)
    bench.node.layout.epoch.write_text("{")
    said = bench.ask("at-boot")
    assert (said["changed"], said["stopped"]) == (False, [])
    assert said["problems"][0].startswith("TS-AGENT-DAMAGED")
    assert len(bench.docker.containers) == 1


def test_containers_of_others_are_left_alone(bench):
    bench.docker.add("trispark-engine", "exited")
    bench.docker.add("database", "running")
    assert not bench.ask("at-boot")["changed"]
    assert len(bench.docker.containers) == 2


def test_what_is_left_is_said(bench):
    bench.know_site()
    bench.process(9, "nc -l")
    bench.listen(8888, 9)
    said = bench.ask("at-boot")
    assert [problem["id"] for problem in said["proof"]["problems"]] == ["TS-AGENT-PORT-LEFT"]


def test_check_mode_touches_nothing(bench, active):
    container_id = start(bench)
    bench.docker.change(container_id, status="exited", exit_code=0)
    before = bench.tree()
    assert bench.ask("at-boot", check=True)["removed"] == ["b1"]
    assert (bench.tree(), bench.docker.events) == (before, [])


def test_a_death_at_any_step_is_ended_by_the_next_one(bench, active, crashes):
    container_id = start(bench)
    bench.docker.change(container_id, status="exited", exit_code=1)
    ended = bench.docker.containers[container_id]
    log = bench.node.layout.boot_log("b1")

    def reset():
        log.unlink(missing_ok=True)
        bench.docker.containers[container_id] = ended

    for where in crashes(lambda disk: answer(bench.with_disk(disk), "at-boot", "{}"), reset):
        # The dead child's fake Engine died with it: this one still has the container.
        assert bench.ask("at-boot")["changed"], where
        assert (log.read_bytes(), bench.docker.containers) == (b"last words\n", {}), where


def test_the_unit_and_the_lab_node_call_the_agent_where_it_is_installed():
    unit = (ROOT / "templates/trispark-boot.service").read_text(encoding="utf-8")
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))
    agent = "/var/lib/trispark/bin/trispark-node"
    assert settings["ExecStart"] == f"{agent} at-boot"
    assert settings["ConditionFileIsExecutable"] == agent
    assert (settings["Type"], settings["After"], settings["StandardInput"]) == ("oneshot", "docker.service", "null")
    assert int(settings["TimeoutStartSec"]) > 0
    script = (ROOT / "Dockerfiles/lab-node/lab-node.sh").read_text(encoding="utf-8")
    assert f"agent={agent}\n" in script
    assert '"$agent" at-boot </dev/null' in script
