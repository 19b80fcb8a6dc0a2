"""That stop means stopped: what is left is named with its PID, nothing of others is ended, the next boot is refused."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_node import listeners, node_memory, stopped

GIB = 2**30


def group_v1(bench, used=1 * GIB, inactive=0, active=0, limit=4 * GIB):
    directory = bench.cgroups / "memory"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (directory / "memory.usage_in_bytes").write_text(f"{used}\n")
    (directory / "memory.stat").write_text(
        f"cache 1\ninactive_file 9\ntotal_inactive_file {inactive}\ntotal_active_file {active}\n"
    )


def group_v2(bench, used=1 * GIB, inactive=0, active=0, limit: int | str = 4 * GIB):
    bench.cgroups.mkdir(parents=True, exist_ok=True)
    (bench.cgroups / "memory.max").write_text(f"{limit}\n")
    (bench.cgroups / "memory.current").write_text(f"{used}\n")
    (bench.cgroups / "memory.high").write_text("max\n")
    (bench.cgroups / "memory.stat").write_text(
        f"anon 5\ninactive_file {inactive}\nactive_file {active}\nslab_reclaimable 0\n"
    )


def proof(bench, wait_s=0):
    return bench.ask("prove-stopped", wait_s=wait_s)


def ids(answer):
    return [problem["id"] for problem in answer["problems"]]


def wants_memory(bench, gib, source="meminfo"):
    bench.know_site(memory={"source": source, "available_bytes": int(gib * GIB)})


def test_a_quiet_node_is_clean(bench):
    bench.know_site()
    answer = proof(bench)
    assert (answer["clean"], answer["problems"]) == (True, [])
    assert answer["unchecked"] == ["memory: the site gives no threshold (site_stopped_memory_gib)"]
    assert answer["memory"]["available"] == 1000 * 1024


def test_a_node_that_was_told_nothing_says_what_it_did_not_check(bench):
    bench.listen(8888)
    answer = proof(bench)
    assert answer["clean"]
    assert answer["unchecked"] == ["ports and memory: the node was not told of its site yet"]


def test_a_damaged_site_file_hides_nothing_else(bench, engine_labels):
    bench.know_site()
    bench.node.layout.site.write_text("{")
    bench.docker.add("trispark-engine", labels=engine_labels())
    answer = proof(bench)
    assert ids(answer) == ["TS-AGENT-RUNNING"]
    assert "TS-AGENT-DAMAGED" in answer["unchecked"][0]


@pytest.mark.parametrize("table", ["tcp", "tcp6"])
def test_a_foreign_process_on_a_port_is_named_and_left_alone(bench, table, monkeypatch):
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("something was signalled"))
    bench.know_site()
    bench.process(4711, "python3 -m http.server --token geheim")
    bench.listen(8888, 4711, table=table)
    (problem,) = proof(bench)["problems"]
    assert (problem["id"], problem["where"]) == ("TS-AGENT-PORT-LEFT", "TCP port 8888")
    assert problem["observed"] == "PID 4711 (python3 -m http.server)"
    assert "geheim" not in json.dumps(problem)


@pytest.mark.parametrize(
    ("port", "state", "left"),
    [(20003, "0A", True), (8888, "01", False), (8888, "06", False), (9999, "0A", False), (22, "0A", False)],
)
def test_only_who_listens_on_an_engines_port_counts(bench, port, state, left):
    bench.know_site()
    bench.process(7)
    bench.listen(port, 7, state=state)
    assert ids(proof(bench)) == (["TS-AGENT-PORT-LEFT"] if left else [])


def test_a_port_whose_owner_cannot_be_seen_is_taken_nevertheless(bench):
    bench.know_site()
    bench.listen(20000)
    (problem,) = proof(bench)["problems"]
    assert (problem["id"], problem["observed"]) == ("TS-AGENT-PORT-LEFT", "a process that cannot be seen from here")


def test_an_unreadable_table_is_said(bench):
    bench.know_site()
    (bench.procfs / "net/tcp").unlink()
    answer = proof(bench)
    assert answer["clean"]
    assert answer["unchecked"][0].startswith("ports: ")


@pytest.mark.parametrize("there", [True, False], ids=["container kept", "container forgotten"])
def test_an_orphan_of_a_container_is_named(bench, active, there):
    """Docker says that it has ended, or nothing at all; the kernel says who is still in its control group."""
    bench.know_site()
    bench.ask("start", boot_id="b1", epoch=5)
    (container_id,) = bench.docker.containers
    if there:
        bench.docker.change(container_id, status="exited", exit_code=137)
    else:
        bench.ask("stop", deadline_s=1)
    bench.process(81, "sglang::scheduler", container_id)
    bench.process(82, "", container_id)
    bench.listen(8888, 81)
    answer = proof(bench)
    assert ids(answer) == ["TS-AGENT-PROCESS-LEFT"]
    assert answer["problems"][0]["observed"] == "PID 81 (sglang::scheduler), PID 82 ([worker])"
    assert "reboot" in answer["problems"][0]["remedy"]


def test_a_process_that_ends_while_it_is_looked_at_is_no_problem(bench, active):
    bench.know_site()
    bench.process(81, "x", "c" * 64)
    (bench.procfs / "81/cgroup").unlink()
    (bench.procfs / "81/fd").rmdir()
    bench.listen(8888)
    assert ids(proof(bench)) == ["TS-AGENT-PORT-LEFT"]


MEMORY = {
    "v1, free": (lambda bench: group_v1(bench, used=GIB), True),
    "v1, held": (lambda bench: group_v1(bench, used=3 * GIB), False),
    "v1, held by files alone": (lambda bench: group_v1(bench, used=3 * GIB, inactive=GIB, active=GIB), True),
    "v2, free": (lambda bench: group_v2(bench, used=GIB), True),
    "v2, held": (lambda bench: group_v2(bench, used=3 * GIB), False),
    "v2, held by files alone": (lambda bench: group_v2(bench, used=3 * GIB, inactive=2 * GIB), True),
}


@pytest.mark.parametrize("case", MEMORY)
def test_memory_of_the_nodes_own_group(bench, case):
    prepare, clean = MEMORY[case]
    prepare(bench)
    wants_memory(bench, 2.5, "cgroup")
    answer = proof(bench)
    assert answer["clean"] is clean
    assert answer["memory"]["total"] == 4 * GIB
    if not clean:
        (problem,) = answer["problems"]
        assert problem["id"] == "TS-AGENT-MEMORY-LEFT"
        assert (problem["expected"], problem["observed"]) == ("2.50 GiB available", "1.00 of 4.00 GiB")
        assert "this node needs a reboot" in problem["remedy"]


UNKNOWN = {
    "v1 without a limit": lambda bench: group_v1(bench, limit=9223372036854771712),
    "v2 without a limit": lambda bench: group_v2(bench, limit="max"),
    "no control group": lambda bench: None,
    "no number": lambda bench: group_v2(bench, limit="much"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_memory_that_cannot_be_known_is_said_and_not_judged(bench, case):
    UNKNOWN[case](bench)
    wants_memory(bench, 2.5, "cgroup")
    answer = proof(bench)
    assert answer["clean"]
    assert answer["memory"]["available"] is None
    assert answer["unchecked"] == [f"memory: {answer['memory']['word']}"]


def test_a_stat_file_without_the_line_is_said(bench):
    group_v2(bench)
    (bench.cgroups / "memory.stat").write_text("anon 5\n")
    assert "inactive_file" in node_memory.read(bench.node, "cgroup").word


def test_memory_is_waited_for_and_no_longer_than_asked(bench):
    wants_memory(bench, 1)
    meminfo = bench.procfs / "meminfo"
    began = bench.clock.time
    assert ids(proof(bench, wait_s=3)) == ["TS-AGENT-MEMORY-LEFT"]
    assert 3 <= bench.clock.time - began < 3.5

    def give_back(now):
        if now - began > 5:
            meminfo.write_text(f"MemTotal: {2 * 2**20} kB\nMemAvailable: {2**20} kB\n")

    bench.clock.on_sleep.append(give_back)
    answer = proof(bench, wait_s=60)
    assert answer["clean"]
    assert answer["waited_s"] < 4


def test_stop_that_leaves_something_fails_and_says_what_it_did(bench, active):
    bench.know_site()
    bench.ask("start", boot_id="b1", epoch=5)
    bench.process(99, "nc -l 8888")
    bench.listen(8888, 99)
    error = bench.refused("stop", deadline_s=1)
    assert (error["id"], error["observed"]) == ("TS-AGENT-PORT-LEFT", "PID 99 (nc -l 8888)")
    assert bench.docker.containers == {}
    assert bench.node.layout.boot_log("b1").exists()
    assert bench.refused("stop", deadline_s=1)["id"] == "TS-AGENT-PORT-LEFT", "the second stop must not say `stopped`"


def test_stop_waits_for_the_memory(bench, active):
    bench.know_site()
    bench.ask("start", boot_id="b1", epoch=5)
    wants_memory(bench, 1)
    began = bench.clock.time
    error = bench.refused("stop", deadline_s=1)
    assert error["id"] == "TS-AGENT-MEMORY-LEFT"
    assert bench.clock.time - began >= stopped.STOP_WAIT_S


LEFT = {
    "a foreign port": (lambda bench: (bench.process(7), bench.listen(20001, 7)), "TS-AGENT-PORT-LEFT"),
    "memory": (lambda bench: wants_memory(bench, 1), "TS-AGENT-MEMORY-LEFT"),
    "an orphan": (
        lambda bench: bench.process(7, "x", bench.docker.add("old", "exited", LABELS)),
        "TS-AGENT-PROCESS-LEFT",
    ),
}
LABELS = {
    "trispark": "1", "trispark.role": "engine", "trispark.generation": "g0000000000000000", "trispark.boot": "b0",
    "trispark.epoch": "1", "trispark.rank": "1",
}  # fmt: skip


@pytest.mark.parametrize("verb", ["start", "can-start"])
@pytest.mark.parametrize("left", LEFT)
def test_the_next_boot_is_refused(bench, active, verb, left):
    prepare, error_id = LEFT[left]
    bench.know_site()
    prepare(bench)
    asked = {"boot_id": "b1", "epoch": 5} if verb == "start" else {"generation": active["generation"]}
    assert bench.refused(verb, **asked)["id"] == error_id
    assert bench.docker.events == []


def test_can_start_beside_a_running_engine_minds_only_what_is_foreign(bench, active):
    bench.know_site()
    bench.ask("start", boot_id="b1", epoch=5)
    (container_id,) = bench.docker.containers
    bench.process(50, "engine", container_id)
    bench.listen(8888, 50)
    wants_memory(bench, 1)
    answer = bench.ask("can-start", generation=active["generation"])
    assert answer["unchecked"] == ["memory: an engine runs"]
    bench.process(51, "intruder")
    bench.listen(20002, 51)
    assert bench.refused("can-start", generation=active["generation"])["observed"] == "PID 51 (intruder)"


def test_the_kernels_own_table(tmp_path):
    """Against this machine: a socket that listens is found with this process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = listeners.listening(Path("/proc"), [port])
        assert found.port == port
        assert os.getpid() in found.pids
    assert listeners.listening(Path("/proc"), [port]) == []


@given(st.lists(st.text(max_size=40), max_size=6))
def test_no_row_of_a_table_ends_in_an_error(tmp_path_factory, rows):
    root = tmp_path_factory.mktemp("proc")
    (root / "net").mkdir()
    (root / "net/tcp").write_text("header\n" + "\n".join(rows), encoding="utf-8")
    assert all(found.port == 8888 for found in listeners.listening(root, [8888]))
