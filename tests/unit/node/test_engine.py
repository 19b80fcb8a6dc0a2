"""start, stop, wait, fence and save-log against the fake Engine: order, refusals, whose container it is."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from trispark_node import containers
from trispark_node.http_request import Response
from trispark_node.watching import HEALTH_TIMEOUT_S

URL = "http://127.0.0.1:8888/health"


def start(bench, boot="b1", epoch=5):
    return bench.ask("start", boot_id=boot, epoch=epoch)


def test_start_hands_the_engine_exactly_the_spec(bench, stage_request):
    request = stage_request(
        mounts=[{"source": str(bench.root), "target": "/engram", "read_only": False}],
        ipc_mode="host",
        shm_size="32g",
        ulimits=[{"name": "memlock", "soft": -1, "hard": -1}],
        devices=["/dev/infiniband"],
        gpus=True,
        privileged=True,
    )
    bench.ask("stage", **request)
    bench.ask("activate", generation=request["generation"])
    bench.ask("fence", epoch=6)
    answer = start(bench, "b7", 6)
    assert (answer["changed"], answer["rendezvous_port"], answer["generation"]) == (True, 20002, request["generation"])
    config = dict(bench.docker.configs[0])
    host = config.pop("HostConfig")
    assert config == {
        "Image": request["spec"]["container"]["image"],
        "Cmd": ["python3", "-m", "trispark_lab", "--dist-init-addr", "10.77.0.10:20002"],
        "Env": ["DSPARK_BLOCK_SIZE=3", "RENDEZVOUS=20002", "TAG=one", "X_API_KEY=sekret-key"],
        "Labels": {
            "trispark": "1", "trispark.role": "engine", "trispark.generation": request["generation"],
            "trispark.boot": "b7", "trispark.epoch": "6", "trispark.rank": "1",
        },
        "Tty": False,
        "OpenStdin": False,
        "StopSignal": "SIGTERM",
        "StopTimeout": 15,
        "Healthcheck": {"Test": ["NONE"]},
    }  # fmt: skip
    adapters = str(bench.root / "generations" / request["generation"] / "adapters")
    assert host == {
        "NetworkMode": "host",
        "IpcMode": "host",
        "ShmSize": 32 * 2**30,
        "Privileged": True,
        "CapAdd": [],
        "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
        "Devices": [
            {"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband", "CgroupPermissions": "rwm"}
        ],
        "DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}],
        "Mounts": [
            {"Type": "bind", "Source": str(bench.root), "Target": "/engram", "ReadOnly": False},
            {"Type": "bind", "Source": adapters, "Target": "/opt/trispark/adapters", "ReadOnly": True},
        ],
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "256m", "max-file": "4"}},
        "AutoRemove": False,
    }


@pytest.mark.parametrize(("epoch", "port"), [(5, 20001), (6, 20002), (8, 20000)])
def test_the_epoch_picks_the_port(bench, active, epoch, port):
    bench.ask("fence", epoch=epoch, boot_id="b1")
    assert start(bench, epoch=epoch)["rendezvous_port"] == port


@pytest.mark.parametrize(
    ("epoch", "boot", "accepted"), [(5, "b1", True), (4, "b1", False), (6, "b1", False), (5, "b2", False)]
)
def test_start_of_another_epoch_or_owner_is_refused(bench, active, epoch, boot, accepted):
    if accepted:
        assert start(bench, boot, epoch)["changed"]
    else:
        assert bench.refused("start", boot_id=boot, epoch=epoch)["id"] == "TS-AGENT-EPOCH"
        assert bench.docker.events == []


@pytest.mark.parametrize(
    ("fences", "last_ok"),
    [
        ([(1, "a"), (2, "b")], True),
        ([(2, "a"), (2, "a")], True),
        ([(2, "a"), (2, "b")], False),
        ([(2, None), (2, None)], False),
        ([(2, "a"), (2, None)], False),
        ([(2, None), (2, "a")], False),
        ([(3, "a"), (2, "a")], False),
    ],
)
def test_fence(bench, fences, last_ok):
    *before, (epoch, boot) = fences
    for number, owner in before:
        bench.ask("fence", epoch=number, boot_id=owner)
    if last_ok:
        bench.ask("fence", epoch=epoch, boot_id=boot)
        assert bench.ask("status")["epoch"] == epoch
    else:
        assert bench.refused("fence", epoch=epoch, boot_id=boot)["id"] == "TS-AGENT-EPOCH"
        assert bench.ask("status")["epoch"] == before[-1][0]


def restart(bench):
    """The node goes down and comes back: another start of its first process."""
    stat = bench.procfs / "1/stat"
    name, _, rest = stat.read_text().rpartition(")")
    fields = rest.split()
    fields[19] = str(int(fields[19]) + 1000)
    stat.write_text(f"{name}) {' '.join(fields)}\n")


def test_an_epoch_does_not_outlive_its_nodes_start(bench, active):
    before = bench.ask("status")["host_boot"]
    restart(bench)
    assert bench.ask("status")["host_boot"] != before
    error = bench.refused("start", boot_id="b1", epoch=5)
    assert (error["id"], before in error["observed"]) == ("TS-AGENT-EPOCH", True)
    assert "boot again" in error["remedy"]
    assert bench.docker.events == []
    assert bench.refused("fence", epoch=5, boot_id="b1")["id"] == "TS-AGENT-EPOCH", "not even for the same boot"
    bench.ask("fence", epoch=6, boot_id="b1")
    assert start(bench, epoch=6)["changed"]


def test_an_epoch_of_an_older_agent_holds_until_the_next_fence(bench, active):
    """It has no `host_boot`: an upgrade must not stop a boot that is under way."""
    bench.node.layout.epoch.write_text('{"boot_id":"b1","epoch":5}\n')
    assert not bench.ask("fence", epoch=5, boot_id="b1")["changed"]
    assert start(bench)["changed"]
    bench.ask("fence", epoch=6, boot_id="b2")
    assert "host_boot" in json.loads(bench.node.layout.epoch.read_text())


def test_start_names_every_missing_mount_source(bench, stage_request):
    gone = [str(bench.root / "no-engram"), str(bench.root / "no-models")]
    request = stage_request(mounts=[{"source": s, "target": f"/m{i}", "read_only": True} for i, s in enumerate(gone)])
    bench.ask("stage", **request)
    bench.ask("activate", generation=request["generation"])
    bench.ask("fence", epoch=5)
    error = bench.refused("start", boot_id="b1", epoch=5)
    assert (error["id"], error["where"]) == ("TS-AGENT-MOUNT", ", ".join(gone))
    assert bench.docker.events == []


@pytest.mark.parametrize("verb", ["start", "can-start"])
def test_a_mount_source_that_never_answers_is_named(bench, stage_request, monkeypatch, verb):
    """A hard mount whose server is gone: whoever looks waits in the kernel, and so would the Engine."""
    dead, real = str(bench.root / "models"), Path.exists
    request = stage_request(mounts=[{"source": dead, "target": "/models", "read_only": True}])
    bench.ask("stage", **request)
    bench.ask("activate", generation=request["generation"])
    bench.ask("fence", epoch=5)

    def exists(path, **options):
        if str(path) == dead:
            time.sleep(600)
        return real(path, **options)

    monkeypatch.setattr(Path, "exists", exists)
    monkeypatch.setattr(containers, "SOURCE_S", 0.5)
    asked = {"boot_id": "b1", "epoch": 5} if verb == "start" else {"generation": request["generation"]}
    began = time.monotonic()
    error = bench.refused(verb, **asked)
    assert (error["id"], error["where"]) == ("TS-AGENT-MOUNT", dead)
    assert "does not answer" in error["what"]
    assert time.monotonic() - began < 60
    assert bench.docker.events == []


def test_start_without_the_image(bench, active):
    bench.docker.images.clear()
    assert bench.refused("start", boot_id="b1", epoch=5)["id"] == "TS-AGENT-IMAGE"


def test_can_start_says_yes_and_touches_nothing(bench, stage_request):
    """Before the generation is active, with no fence and while an engine of ours runs."""
    request = stage_request(mounts=[{"source": "/", "target": "/models", "read_only": True}])
    bench.ask("stage", **request)
    before = bench.tree()
    answer = bench.ask("can-start", generation=request["generation"])
    adapters = str(bench.node.layout.generation(request["generation"]) / "adapters")
    assert (answer["generation"], answer["image"]) == (request["generation"], request["resolved"]["image"])
    assert answer["mounts"] == ["/", adapters]
    assert bench.tree() == before
    bench.ask("activate", generation=request["generation"])
    bench.ask("fence", epoch=5, boot_id="b1")
    start(bench)
    bench.docker.events.clear()
    assert bench.ask("can-start", generation=request["generation"], check=True)["ok"]
    assert bench.docker.events == []


def generation_directory(bench):
    return next(bench.node.layout.generations.iterdir())


CANNOT_START = {
    "damaged": (lambda bench: shutil.rmtree(generation_directory(bench) / "adapters"), "TS-AGENT-DAMAGED", "missing"),
    "gone": (lambda bench: shutil.rmtree(generation_directory(bench)), "TS-AGENT-NOT-STAGED", ""),
    "no image": (lambda bench: bench.docker.images.clear(), "TS-AGENT-IMAGE", "@sha256:"),
    "no mount source": (lambda bench: (bench.root / "engram").rmdir(), "TS-AGENT-MOUNT", "engram"),
    "foreign, running": (lambda bench: bench.docker.add("trispark-engine"), "TS-AGENT-FOREIGN", "trispark-engine"),
    "foreign, ended": (
        lambda bench: bench.docker.add("trispark-engine", "exited", {"trispark": "1"}),
        "TS-AGENT-FOREIGN",
        "trispark-engine",
    ),
}


@pytest.mark.parametrize("obstacle", CANNOT_START)
def test_can_start_refuses_what_start_refuses(bench, stage_request, obstacle):
    request = stage_request(mounts=[{"source": str(bench.root / "engram"), "target": "/engram", "read_only": True}])
    bench.ask("stage", **request)
    (bench.root / "engram").mkdir()
    bench.ask("activate", generation=request["generation"])
    bench.ask("fence", epoch=5, boot_id="b1")
    change, error_id, words = CANNOT_START[obstacle]
    change(bench)
    before = bench.tree()
    error = bench.refused("can-start", generation=request["generation"])
    assert (error["id"], words in f"{error['where']} {error['observed']}") == (error_id, True)
    assert bench.refused("start", boot_id="b1", epoch=5) == error
    assert (bench.tree(), bench.docker.events) == (before, [])


@pytest.mark.parametrize(
    "labels", [{}, {"trispark": "1"}, {"trispark": "1", "trispark.role": "bench"}, {"trispark.role": "engine"}]
)
@pytest.mark.parametrize("status", ["running", "exited", "created"])
@pytest.mark.parametrize(
    ("verb", "request_fields"), [("start", {"boot_id": "b1", "epoch": 5}), ("stop", {"deadline_s": 1})]
)
def test_a_foreign_container_is_never_touched(bench, active, labels, status, verb, request_fields):
    bench.docker.add("trispark-engine", status, labels)
    before = dict(bench.docker.containers)
    error = bench.refused(verb, **request_fields)
    assert error["id"] == "TS-AGENT-FOREIGN"
    assert (bench.docker.containers, bench.docker.events) == (before, [])
    assert bench.ask("status")["foreign"] == ["trispark-engine"]


def test_stale_container_of_ours_is_saved_and_removed(bench, active, engine_labels):
    bench.docker.add("trispark-engine", "exited", engine_labels("b0"), b"old line\n")
    assert start(bench)["removed_stale"] == ["trispark-engine"]
    assert bench.docker.events == ["log", "remove trispark-engine", "create trispark-engine", "start trispark-engine"]
    assert bench.node.layout.boot_log("b0").read_bytes() == b"old line\n"


def test_only_the_generation_that_is_meant_is_started(bench, active):
    meant = active["generation"]
    error = bench.refused("start", boot_id="b1", epoch=5, generation="g0123456789abcdef")
    assert (error["id"], error["expected"], error["observed"]) == ("TS-AGENT-NOT-CURRENT", "g0123456789abcdef", meant)
    assert bench.docker.events == []
    assert bench.ask("start", boot_id="b1", epoch=5, generation=meant)["generation"] == meant


def test_another_running_engine_of_ours_is_no_stale_one(bench, active, engine_labels):
    bench.docker.add("trispark-engine", "running", engine_labels("b0"))
    assert bench.refused("start", boot_id="b1", epoch=5)["id"] == "TS-AGENT-RUNNING"
    assert bench.docker.events == []


def test_a_boot_id_runs_once(bench, active):
    start(bench)
    bench.docker.change(next(iter(bench.docker.containers)), status="exited", exit_code=3)
    assert bench.refused("start", boot_id="b1", epoch=5)["id"] == "TS-AGENT-BOOT-USED"
    bench.ask("stop", deadline_s=1)
    assert bench.refused("start", boot_id="b1", epoch=5)["id"] == "TS-AGENT-BOOT-USED"


def test_a_start_cut_off_between_create_and_start_can_be_repeated(bench, active):
    def killed(_id):
        raise KeyboardInterrupt

    bench.docker.on_start = killed
    with pytest.raises(KeyboardInterrupt):
        start(bench)
    bench.docker.change(next(iter(bench.docker.containers)), status="created")
    assert [entry["verb"] for entry in bench.ask("status")["pending"]] == ["start"]
    bench.docker.on_start = None
    assert start(bench)["changed"]
    assert len(bench.docker.containers) == 1
    assert bench.ask("status")["pending"] == []


def test_start_that_the_engine_refuses_leaves_nothing(bench, active):
    bench.docker.start_error = "exec: no such file"
    error = bench.refused("start", boot_id="b1", epoch=5)
    assert (error["id"], error["observed"]) == ("TS-AGENT-START", "exec: no such file")
    assert bench.docker.containers == {}
    bench.docker.start_error = ""
    assert start(bench)["changed"]


@pytest.mark.parametrize(
    ("exits_on", "events", "killed", "exit_code", "seconds"),
    [
        (("SIGTERM", "SIGKILL"), ["SIGTERM trispark-engine"], False, 0, 0.0),
        (("SIGKILL",), ["SIGTERM trispark-engine", "SIGKILL trispark-engine"], True, 137, 3.0),
    ],
)
def test_stop(bench, active, exits_on, events, killed, exit_code, seconds):
    start(bench)
    bench.docker.exits_on = exits_on
    bench.docker.logs[next(iter(bench.docker.containers))] = b"line 1\nline 2\n"
    bench.docker.events.clear()
    answer = bench.ask("stop", deadline_s=3)
    # The log is saved whole before the container goes.
    assert bench.docker.events == [*events, "log", "remove trispark-engine"]
    assert (answer["changed"], answer["killed"], answer["exit_code"]) == (True, killed, exit_code)
    assert seconds <= answer["seconds"] < seconds + 0.3
    log = bench.node.layout.boot_log("b1")
    assert (answer["log"], log.read_bytes()) == (str(log), b"line 1\nline 2\n")
    again = bench.ask("stop", deadline_s=3)
    assert (again["changed"], again["log"]) == (False, None)


def test_stop_of_a_paused_engine(bench, active):
    start(bench)
    bench.docker.change(next(iter(bench.docker.containers)), status="paused")
    bench.ask("stop", deadline_s=3)
    assert bench.docker.events[-4:] == [
        "unpause trispark-engine",
        "SIGTERM trispark-engine",
        "log",
        "remove trispark-engine",
    ]


def test_stop_names_processes_that_outlive_the_container(bench, active):
    start(bench)
    container_id = next(iter(bench.docker.containers))
    for pid, group in (
        ("41", f"0::/docker/{container_id}\n"),
        ("42", "0::/other\n"),
        ("43", f"5:pids:/system.slice/docker-{container_id}.scope\n"),
    ):
        (bench.procfs / pid).mkdir()
        (bench.procfs / pid / "cgroup").write_text(group)
    error = bench.refused("stop", deadline_s=1)
    assert error["id"] == "TS-AGENT-PROCESS-LEFT"
    assert error["observed"].endswith("PIDs 41, 43")
    assert "remove trispark-engine" not in bench.docker.events


def test_stop_that_cannot_kill_says_so(bench, active):
    start(bench)
    bench.docker.exits_on = ()
    assert bench.refused("stop", deadline_s=1)["id"] == "TS-AGENT-PROCESS-LEFT"
    assert len(bench.docker.containers) == 1


def test_a_container_that_the_engine_removes_and_still_has_is_named(bench, active, monkeypatch):
    """A stop that believed the answer would let the next boot meet the old container's name."""
    start(bench)
    monkeypatch.setattr(bench.docker, "remove", lambda container_id: None)
    error = bench.refused("stop", deadline_s=1)
    assert (error["id"], error["observed"]) == ("TS-AGENT-CONTAINER-LEFT", "the Engine still lists it")
    assert "trispark-engine" in error["where"]
    monkeypatch.undo()
    bench.ask("stop", deadline_s=1)
    assert bench.docker.containers == {}


def test_stop_keeps_the_container_when_the_log_cannot_be_saved(bench, active):
    start(bench)
    bench.node.layout.boots.write_text("in the way")
    error = bench.refused("stop", deadline_s=1)
    assert error["id"] == "TS-AGENT-LOG"
    assert [c.status for c in bench.docker.containers.values()] == ["exited"]


def test_stop_works_with_a_full_disk(bench, active, monkeypatch):
    start(bench)

    def full(path, line, mode=0):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(bench.node.disk, "append_line", full)
    assert bench.ask("stop", deadline_s=1)["changed"]
    assert bench.refused("fence", epoch=9)["id"] == "TS-AGENT-SPACE"  # everything else waits for its intent
    assert bench.ask("status")["epoch"] == 5


def test_stop_without_any_generation(bench, engine_labels):
    bench.docker.add("other-name", "running", engine_labels("b0"), b"x\n")
    bench.docker.add("innocent", "running", {"trispark": "2"})
    bench.ask("stop", deadline_s=1)
    assert [container.name for container in bench.docker.containers.values()] == ["innocent"]


def ready_at(bench, seconds):
    begin = bench.clock.time

    def answer(now):
        status = 200 if now - begin >= seconds else 503
        bench.http.answers[URL] = Response(status, "", b"")

    bench.clock.on_sleep.append(answer)
    answer(begin)


@pytest.mark.parametrize(
    ("ready", "timeout", "state"), [(0, 0, "ready"), (3, 10, "ready"), (30, 2, "starting"), (30, 0, "starting")]
)
def test_wait(bench, active, ready, timeout, state):
    start(bench)
    container_id = next(iter(bench.docker.containers))
    bench.docker.logs[container_id] = b"".join(b"line %d\n" % i for i in range(50)) + b"key sekret-key\n\n"
    ready_at(bench, ready)
    begin = bench.clock.time
    answer = bench.ask("wait", timeout_s=timeout)
    assert (answer["state"], answer["exit_code"], answer["last_log"]) == (state, None, "key <redacted>")
    assert len(answer["log_tail"]) == 40
    expected = min(ready, timeout)
    assert expected <= bench.clock.time - begin < expected + 0.3
    assert {timeout_s for *_, timeout_s in bench.http.calls} == {HEALTH_TIMEOUT_S}


@pytest.mark.parametrize("answers", [None, 200])
def test_wait_sees_an_exit_at_once(bench, active, answers):
    """Also when another process answers 200 on the engine's port."""
    start(bench)
    container_id = next(iter(bench.docker.containers))
    bench.docker.logs[container_id] = b"fatal: no row store\n"

    def die(now):
        bench.docker.change(container_id, status="exited", exit_code=3)

    bench.clock.on_sleep.append(die)
    if answers:
        die(0)
        bench.http.answers[URL] = Response(answers, "", b"")
    begin = bench.clock.time
    answer = bench.ask("wait", timeout_s=600)
    assert (answer["state"], answer["exit_code"], answer["last_log"]) == ("exited", 3, "fatal: no row store")
    assert bench.clock.time - begin < 0.3


def test_wait_without_an_engine(bench):
    assert bench.ask("wait", timeout_s=600)["state"] == "absent"


def test_save_log_leaves_the_engine_alone(bench, active):
    start(bench)
    bench.docker.logs[next(iter(bench.docker.containers))] = b"so far\n"
    bench.docker.events.clear()
    answer = bench.ask("save-log")
    assert answer["logs"] == [{"log": str(bench.node.layout.boot_log("b1")), "bytes": 7}]
    assert bench.docker.events == ["log"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"epoch": 0}', b"\xff", None], ids=["empty", "torn", "zero", "bytes", "link"]
)
@pytest.mark.parametrize("runs", [False, True])
def test_a_fence_replaces_a_damaged_epoch_but_never_goes_below_the_engine_that_is_there(bench, active, content, runs):
    if runs:
        start(bench)
    path = bench.node.layout.epoch
    path.unlink()
    if content is None:
        path.symlink_to(path)  # any reader is refused by the system
    else:
        path.write_bytes(content)
    assert bench.refused("start", boot_id="b2", epoch=5)["id"] == "TS-AGENT-DAMAGED"
    if runs:
        for epoch in (4, 5):
            error = bench.refused("fence", epoch=epoch, boot_id="b2")
            assert (error["id"], error["expected"]) == ("TS-AGENT-EPOCH", "more than 5")
    number = 6 if runs else 1
    answer = bench.ask("fence", epoch=number, boot_id="b2")
    assert (answer["changed"], answer["epoch"]) == (True, number)
    assert answer["replaced"].startswith("TS-AGENT-DAMAGED: the epoch file cannot be read")
    assert bench.ask("status")["epoch"] == number
    assert "replaced" not in bench.ask("fence", epoch=number + 1, boot_id="b3")


def test_the_epoch_of_an_engine_that_has_ended_counts_as_well(bench, active):
    start(bench)
    (container_id,) = bench.docker.containers
    bench.docker.change(container_id, status="exited", exit_code=1)
    bench.node.layout.epoch.write_bytes(b"{")
    assert bench.refused("fence", epoch=5, boot_id="b2")["id"] == "TS-AGENT-EPOCH"
    assert bench.ask("fence", epoch=6, boot_id="b2")["changed"]
