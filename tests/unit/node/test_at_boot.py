"""What the boot unit does after a node's start: logs kept, containers gone, a stale engine stopped, a good one left."""

from __future__ import annotations

import configparser
import io
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from trispark import agent_deadline
from trispark_node import NODE_ROOT, at_boot, cli, docker_client, engine, left_engines, stopped
from trispark_node.cli import answer
from trispark_node.errors import AgentError
from trispark_node.lock import held

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
    assert (said["changed"], said["stopped"], said["left_alone"]) == (False, [], ["b1"])
    assert bench.docker.events == []


def test_an_epoch_that_cannot_be_read_stops_nothing_and_is_a_failure(bench, active):
    """Nobody looks at a boot unit that ended well."""
    start(bench)
    bench.node.layout.epoch.write_text("{")
    said, status = answer(bench.process_of_agent(), "at-boot", "{}")
    assert (said["ok"], status, said["error"]["id"]) == (False, 1, "TS-AGENT-DAMAGED")
    assert "boot b1" in said["error"]["what"]
    assert (said["changed"], said["stopped"], said["left_alone"]) == (False, [], ["b1"])
    assert len(bench.docker.containers) == 1


def test_an_epoch_that_cannot_be_read_fails_nothing_where_no_engine_runs(bench, active):
    container_id = start(bench)
    bench.docker.change(container_id, status="exited", exit_code=1)
    bench.node.layout.epoch.write_text("{")
    assert bench.ask("at-boot")["removed"] == ["b1"]


def test_a_journal_that_cannot_be_read_keeps_no_stale_engine_running(bench, active):
    start(bench)
    restart(bench)
    journal = bench.node.layout.journal
    journal.unlink()
    journal.mkdir()
    said, status = answer(bench.process_of_agent(), "at-boot", "{}")
    assert (said["ok"], status, said["stopped"]) == (False, 1, ["b1"])
    assert (said["error"]["id"], bench.docker.containers) == ("TS-AGENT-OS", {})


def docker_error(observed):
    return AgentError("TS-AGENT-DOCKER", "x", where="x", expected="x", observed=observed, remedy="x")


def lines_of(bench, monkeypatch):
    monkeypatch.setattr(cli, "Node", lambda _layout: bench.process_of_agent())
    out = io.StringIO()
    assert cli.main(["at-boot", "--lines"], io.StringIO(), out) == 1
    return out.getvalue().splitlines()


def test_a_journal_that_cannot_be_read_is_told_also_where_the_stop_fails(bench, active, monkeypatch):
    start(bench)
    restart(bench)
    bench.know_site()
    bench.process(9, "nc -l")
    bench.listen(8888, 9)
    journal = bench.node.layout.journal
    journal.unlink()
    journal.mkdir()

    def refuse(*_):
        raise docker_error("in the stop")

    monkeypatch.setattr(bench.docker, "signal", refuse)
    said, status = answer(bench.process_of_agent(), "at-boot", "{}")
    assert (said["ok"], status, said["error"]["id"]) == (False, 1, "TS-AGENT-OS")
    assert ["in the stop" in problem for problem in said["problems"]] == [True]
    assert [problem["id"] for problem in said["proof"]["problems"]] == ["TS-AGENT-PORT-LEFT"]
    assert not {"stopped", "removed", "left_alone"} & set(said), "nothing is said of what failed"
    lines = lines_of(bench, monkeypatch)
    assert [line.split(":")[0] for line in lines[:3]] == ["TS-AGENT-OS", "TS-AGENT-DOCKER", "TS-AGENT-PORT-LEFT"]
    assert "no engine of ours was there" not in lines


def test_a_lock_that_is_held_keeps_nothing_from_being_judged(bench, active):
    start(bench)
    bench.node.layout.epoch.write_text("{")
    with held(bench.node.layout.lock("state"), bench.clock, 0, "stop"):
        said, status = answer(bench.process_of_agent(), "at-boot", "{}")
    assert (said["ok"], status, said["error"]["id"]) == (False, 1, "TS-AGENT-DAMAGED")
    assert [problem.split(":")[0] for problem in said["problems"]] == ["TS-AGENT-LOCKED"], "once, though twice met"
    assert said["proof"]["clean"]


@pytest.mark.parametrize("failure", [docker_error, OSError, RuntimeError], ids=["foreseen", "system", "defect"])
def test_each_part_is_tried_and_each_failure_told(bench, monkeypatch, failure):
    asked = []

    def refuse(_labels):
        asked.append(0)
        raise failure(f"call {len(asked)}")

    monkeypatch.setattr(bench.docker, "labelled", refuse)
    said, status = answer(bench.process_of_agent(), "at-boot", "{}")
    assert (said["ok"], status, len(asked)) == (False, 1, 3)
    assert "call 1" in said["error"]["observed"]
    assert [f"call {number}" in problem for number, problem in enumerate(said["problems"], 2)] == [True, True]
    asked.clear()
    lines = lines_of(bench, monkeypatch)
    assert [line.split(":")[0] for line in lines] == [said["error"]["id"]] * 3


@pytest.mark.parametrize(("late_s", "comes"), [(0.0, True), (59.0, True), (70.0, False)])
def test_docker_is_waited_for_and_no_longer_than_a_minute(bench, active, late_s, comes):
    container_id = start(bench)
    bench.docker.change(container_id, status="exited", exit_code=1)
    began = bench.clock.time

    def connect():
        if bench.clock.time - began < late_s:
            raise AgentError("TS-AGENT-DOCKER", "x", where="x", expected="x", observed="x", remedy="x")
        return bench.docker

    said, status = answer(replace(bench.node, connect=connect), "at-boot", "{}")
    assert (said["ok"], status) == (comes, 0 if comes else 1)
    assert bench.clock.time - began <= at_boot.DOCKER_WAIT_S + 1
    assert (bench.docker.containers == {}) is comes
    if not comes:
        assert said["error"]["id"] == "TS-AGENT-DOCKER"


LINES = {
    "nothing": (lambda bench: None, 0, ["no engine of ours was there"]),
    "ended": (
        lambda bench: bench.docker.change(start(bench), status="exited", exit_code=137),
        0,
        ["removed: the engine of boot b1, which had ended (exit status 137); its log is kept"],
    ),
    "never ran": (
        lambda bench: bench.docker.change(start(bench), status="created"),
        0,
        ["removed: the engine of boot b1, which never ran"],
    ),
    "stale": (
        lambda bench: (start(bench), restart(bench)),
        0,
        ["stopped: the engine of boot b1, whose epoch no longer holds; its log is kept"],
    ),
    "stubborn": (
        lambda bench: (start(bench), restart(bench), setattr(bench.docker, "exits_on", ("SIGKILL",))),
        0,
        ["stopped: the engine of boot b1, whose epoch no longer holds (it had to be killed); its log is kept"],
    ),
    "serves": (lambda bench: start(bench), 0, ["left alone: the engine of boot b1 runs"]),
    "recovered": (
        lambda bench: bench.node.journal.append("stop", "intent", {"deadline_s": 1.0}),
        0,
        ["stop of 2026-01-02T03:04:05.000Z: finished"],
    ),
    "unjudged": (
        lambda bench: (start(bench), bench.node.layout.epoch.write_text("{")),
        1,
        ["TS-AGENT-DAMAGED: the epoch file cannot be read, and an engine runs: boot b1; whether it may is not known",
         "left alone: the engine of boot b1 runs"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LINES)
def test_the_nodes_log_gets_lines_and_no_value_of_the_environment(bench, active, case, monkeypatch):
    """As the unit calls it: no terminal, no request."""
    prepare, status, expected = LINES[case]
    prepare(bench)
    monkeypatch.setattr(cli, "Node", lambda _layout: bench.process_of_agent())
    out = io.StringIO()
    assert cli.main(["at-boot", "--lines"], io.StringIO(), out) == status
    lines = out.getvalue().splitlines()
    assert len(lines) == len(expected) + 1
    for line, wanted in zip(lines, expected, strict=False):
        assert line.startswith(wanted)
    assert lines[-1].startswith("not checked: ports and memory")
    assert "sekret-key" not in out.getvalue()


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


def settings_of_the_unit():
    """{section: {name: value}}; none is given twice."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string((ROOT / "templates/trispark-boot.service").read_text(encoding="utf-8"))
    return {section: dict(parser[section]) for section in parser.sections()}


def test_the_unit_and_the_lab_node_call_the_agent_where_it_is_installed():
    unit = settings_of_the_unit()
    agent = f"{NODE_ROOT}/bin/trispark-node"
    defaults = yaml.safe_load((ROOT / "roles/agent/defaults/main.yml").read_text(encoding="utf-8"))
    assert defaults["agent_path"] == agent
    assert unit["Service"]["ExecStart"] == f"{agent} at-boot --lines"
    assert (unit["Service"]["Type"], unit["Service"]["StandardInput"]) == ("oneshot", "null")
    script = (ROOT / "Dockerfiles/lab-node/lab-node.sh").read_text(encoding="utf-8")
    assert f"agent={agent}\n" in script
    assert '"$agent" at-boot --lines </dev/null' in script


def test_the_unit_runs_after_docker_whenever_that_comes_and_starts_none_itself():
    unit = settings_of_the_unit()
    assert unit["Unit"]["After"] == "docker.service"
    assert unit["Install"]["WantedBy"].split() == ["multi-user.target", "docker.service"]
    assert not {"Wants", "Requires", "BindsTo", "PartOf"} & set(unit["Unit"])
    assert unit["Unit"]["RequiresMountsFor"] == NODE_ROOT


def test_a_node_whose_agent_is_gone_fails_its_unit_instead_of_passing_over_it():
    unit = settings_of_the_unit()
    assert not [name for name in unit["Unit"] if name.startswith(("Condition", "Assert"))]
    assert "SuccessExitStatus" not in unit["Service"]


def test_systemd_ends_no_agent_that_is_still_at_work():
    limit = int(settings_of_the_unit()["Service"]["TimeoutStartSec"])
    waits = at_boot.DOCKER_WAIT_S + 4 * docker_client.QUICK_S + 2 * at_boot.LOCK_WAIT_S
    stops = 2 * (left_engines.MOST_STOP_S + engine.KILL_WAIT_S + stopped.STOP_WAIT_S)
    kept_logs = 2 * 120
    assert waits + stops + kept_logs < limit <= agent_deadline.DEADLINES["at-boot"].own_s


@pytest.mark.parametrize(("site_s", "most"), [(4, 4), (420, 60)])
@pytest.mark.parametrize("pending", [False, True], ids=["restarted by itself", "and a stop was interrupted"])
def test_an_engine_that_serves_nobody_gets_no_long_time_to_end(bench, active, site_s, most, pending):
    start(bench)
    bench.know_site(stop_deadline_s=site_s)
    restart(bench)
    bench.docker.exits_on = ("SIGKILL",)
    if pending:
        bench.node.journal.append("stop", "intent", {"deadline_s": float(site_s)})
    began = bench.clock.time
    bench.ask("at-boot")
    assert most <= bench.clock.time - began <= most + 1
    assert bench.docker.containers == {}
