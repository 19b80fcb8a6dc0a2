"""oneshot: input in, output out, nothing left, whatever happens in between."""

from __future__ import annotations

import json

import pytest

from trispark_node import cli
from trispark_node.containers import OWNER_LABEL

BENCH_LABELS = {**OWNER_LABEL, "trispark.role": "bench"}


@pytest.fixture
def ask(active):
    return {"image": active["spec"]["container"]["image"], "command": ["bench"], "input": {"n": 1}, "deadline_s": 5}


def ending(bench, after_s=1.0, output=None, exit_code=0, link=None):
    """The container reads its input, works for `after_s`, writes its output."""
    inputs = []

    def begin(container_id):
        work = bench.root / "run" / "trispark-bench.work"
        inputs.append(json.loads((work / "input.json").read_text()))
        begun = bench.clock.time

        def end(now):
            container = bench.docker.containers.get(container_id)
            if container is not None and container.alive and now - begun >= after_s:
                if output is not None:
                    (work / "output.json").write_text(output)
                if link is not None and not (work / link[0]).is_symlink():
                    (work / link[0]).symlink_to(link[1])
                bench.docker.change(container_id, status="exited", exit_code=exit_code)

        bench.clock.on_sleep.append(end)

    bench.docker.on_start = begin
    return inputs


def nothing_left(bench):
    return bench.docker.containers == {} and list((bench.root / "run").iterdir()) == []


@pytest.mark.parametrize(("output", "exit_code", "parsed"), [('{"tok_s": 3}', 0, {"tok_s": 3}), (None, 7, None)])
def test_a_run(bench, ask, output, exit_code, parsed):
    inputs = ending(bench, output=output, exit_code=exit_code)
    answer = bench.ask("oneshot", **ask)
    assert (answer["exit_code"], answer["output"], answer["log_tail"]) == (exit_code, parsed, [])
    assert inputs == [{"n": 1}]
    config = bench.docker.configs[-1]
    assert config["Labels"].items() >= BENCH_LABELS.items()
    assert config["HostConfig"]["NetworkMode"] == "host"
    assert config["HostConfig"]["Mounts"] == [
        {"Type": "bind", "Source": str(bench.root / "run/trispark-bench.work"), "Target": "/work", "ReadOnly": False}
    ]
    assert nothing_left(bench)


@pytest.mark.parametrize(
    ("raw", "rows"),
    [
        (b'{"n": 1}\n{"n": 2}\n', [{"n": 1}, {"n": 2}]),
        (b'{"n": 1}\n{"n": ', [{"n": 1}]),
        (b'{"n": 1}\nnothing\n{"n": 3}\n', [{"n": 1}]),
        (b'{"n"', []),
        (b"", []),
        (None, []),
    ],
)
def test_a_program_whose_output_found_no_room_leaves_its_rows(bench, ask, raw, rows):
    ending(bench, exit_code=1)
    begin = bench.docker.on_start

    def write(container_id):
        begin(container_id)
        if raw is not None:
            (bench.root / "run" / "trispark-bench.work" / "raw.jsonl").write_bytes(raw)

    bench.docker.on_start = write
    answer = bench.ask("oneshot", **ask)
    assert (answer["output"], answer["rows"]) == (None, rows)
    assert nothing_left(bench)


def test_a_program_with_an_output_has_no_rows_besides(bench, ask):
    ending(bench, output='{"tok_s": 3}')
    assert "rows" not in bench.ask("oneshot", **ask)


def test_an_isolated_run_has_no_network_and_no_rights(bench, ask):
    ending(bench, output="{}")
    bench.ask("oneshot", **ask, isolated=True)
    host = bench.docker.configs[-1]["HostConfig"]
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["CapDrop"]) == ("none", True, ["ALL"])
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert 0 < host["PidsLimit"] <= 64
    assert 0 < host["Memory"] == host["MemorySwap"]
    assert [mount["Target"] for mount in host["Mounts"]] == ["/work"]
    assert nothing_left(bench)


@pytest.mark.parametrize("how", ["late", "unreadable"])
def test_rows_of_a_program_that_is_refused_its_end_are_not_lost(bench, ask, how):
    ending(bench, after_s=100) if how == "late" else ending(bench, output="no JSON")
    begin = bench.docker.on_start

    def write(container_id):
        begin(container_id)
        (bench.root / "run" / "trispark-bench.work" / "raw.jsonl").write_bytes(b'{"n": 1}\n{"n"')

    bench.docker.on_start = write
    answer, _ = cli.answer(bench.node, "oneshot", json.dumps(ask))
    assert answer["error"]["id"] == {"late": "TS-AGENT-DEADLINE", "unreadable": "TS-AGENT-OUTPUT"}[how]
    assert answer["rows"] == [{"n": 1}]
    assert nothing_left(bench)


def test_deadline(bench, ask):
    ending(bench, after_s=100)
    begin = bench.clock.time
    assert bench.refused("oneshot", **ask)["id"] == "TS-AGENT-DEADLINE"
    assert 5 <= bench.clock.time - begin < 6
    assert nothing_left(bench)


@pytest.mark.parametrize("name", ["output.json", "raw.jsonl"])
def test_a_link_that_the_program_left_is_not_followed(bench, ask, tmp_path, name):
    """The agent reads as root: through a link the program would get any file of the node."""
    secret = tmp_path / "secret.json"
    secret.write_text('{"key": "of the node"}\n')
    ending(bench, link=(name, secret))
    answer, _ = cli.answer(bench.node, "oneshot", json.dumps(ask))
    assert "of the node" not in json.dumps(answer)
    assert answer.get("error", {"id": "TS-AGENT-OUTPUT"})["id"] == "TS-AGENT-OUTPUT"
    assert answer["ok"] is (name != "output.json")


def test_output_that_is_no_json(bench, ask):
    ending(bench, output="{")
    assert bench.refused("oneshot", **ask)["id"] == "TS-AGENT-OUTPUT"
    assert nothing_left(bench)


def test_leftovers_of_a_killed_agent_go_first(bench, ask):
    bench.docker.add("trispark-bench", "running", BENCH_LABELS)
    leftover = bench.root / "run" / "trispark-bench.work"
    leftover.mkdir(parents=True)
    (leftover / "output.json").write_text('{"of": "the last one"}')
    ending(bench)
    assert bench.ask("oneshot", **ask)["output"] is None
    assert nothing_left(bench)


def test_foreign_container_image_and_role(bench, ask):
    bench.docker.add("trispark-bench", "running", {})
    assert bench.refused("oneshot", **ask)["id"] == "TS-AGENT-FOREIGN"
    assert len(bench.docker.containers) == 1
    bench.docker.containers.clear()
    assert bench.refused("oneshot", **{**ask, "role": "engine"})["id"] == "TS-AGENT-REQUEST"
    bench.docker.images.clear()
    assert bench.refused("oneshot", **ask)["id"] == "TS-AGENT-IMAGE"
    assert bench.docker.events == []


def test_the_engine_can_be_stopped_meanwhile(bench, ask):
    bench.ask("start", boot_id="b1", epoch=5)
    ending(bench)
    stopped = []

    def stop(_now):
        if not stopped:
            stopped.append(bench.ask("stop", deadline_s=1, lock_wait_s=0)["changed"])

    bench.clock.on_sleep.insert(0, stop)
    bench.ask("oneshot", **ask)
    assert stopped == [True]


def test_check(bench, ask):
    assert bench.ask("oneshot", check=True, **ask)["changed"] is False
    assert bench.docker.events == []


def test_a_container_that_somebody_removes_is_named_and_nothing_is_left(bench, ask):
    ending(bench, after_s=1000.0)
    bench.clock.on_sleep.append(lambda _now: bench.docker.containers.clear())
    error = bench.refused("oneshot", **ask)
    assert (error["id"], error["where"]) == ("TS-AGENT-ABSENT", "container trispark-bench")
    assert nothing_left(bench)
