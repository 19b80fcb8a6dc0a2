"""One node's part of the way back: stopped, proved, repointed, remembered; whatever state an incident left."""

from __future__ import annotations

import errno
import io
import json

import pytest

from trispark_node import cli, room
from trispark_node.disk import Disk
from trispark_node.rollback import SCHEMA_VERSION

OLD_BOOT, NEW_BOOT = "b1", "b2"


@pytest.fixture
def two(bench, active, stage_request):
    """(target, serving): `target` is good; `serving` is current and runs as boot b1 with epoch 5."""
    other = stage_request("two")
    bench.ask("stage", **other)
    bench.ask("good-mark", generation=active["generation"], boot_id="b0", time="2026-01-02T03:04:05Z")
    bench.ask("activate", generation=other["generation"])
    bench.ask("start", boot_id=OLD_BOOT, epoch=5)
    return active["generation"], other["generation"]


def pending(bench):
    path = bench.node.layout.rollback
    return json.loads(path.read_text()) if path.exists() else None


def test_the_engine_is_stopped_and_the_good_generation_current_in_one_call(bench, two):
    good, serving = two
    answer = bench.ask("rollback", epoch=6, boot_id=NEW_BOOT, missing=["spark2"], by="rollback.yml")
    assert (answer["changed"], answer["generation"], answer["previous"], answer["epoch"]) == (True, good, serving, 6)
    assert answer["stop"]["exit_code"] == 0
    assert set(answer["seconds"]) == {"stopped", "repointed"}
    status = bench.ask("status")
    assert (status["current"], status["engine"], status["epoch"]) == (good, None, 6)
    assert status["rollback"] == {
        "schema_version": SCHEMA_VERSION,
        "target": good,
        "epoch": 6,
        "boot_id": NEW_BOOT,
        "since": "2026-01-02T03:04:05.000Z",
        "missing": ["spark2"],
        "by": "rollback.yml",
    }
    assert status["pending"] == []
    tree = bench.tree()
    assert not bench.ask("rollback", epoch=6, boot_id=NEW_BOOT, missing=["spark2"], by="rollback.yml")["changed"]
    assert bench.tree() == tree


def test_the_boot_that_follows_starts_under_the_epoch_of_the_rollback(bench, two):
    good, _ = two
    bench.ask("rollback", epoch=6, boot_id=NEW_BOOT)
    assert not bench.ask("fence", epoch=6, boot_id=NEW_BOOT)["changed"]
    assert bench.ask("start", epoch=6, boot_id=NEW_BOOT)["generation"] == good


def test_check_mode_changes_nothing_and_says_what_would_be(bench, two):
    good, serving = two
    tree, events = bench.tree(), list(bench.docker.events)
    answer = bench.ask("rollback", epoch=6, check=True)
    assert answer["changed"]
    assert answer["diff"]["before"] == f"current {serving}\nengine trispark-engine running\n"
    assert answer["diff"]["after"] == f"current {good}\nengine absent\n"
    assert (bench.tree(), bench.docker.events) == (tree, events)


@pytest.mark.parametrize(("epoch", "boot"), [(4, NEW_BOOT), (5, NEW_BOOT), (5, None)])
def test_an_older_rollback_is_refused_and_touches_nothing(bench, two, epoch, boot):
    tree = bench.tree()
    error = bench.refused("rollback", epoch=epoch, boot_id=boot)
    assert error["id"] == "TS-AGENT-EPOCH"
    assert bench.tree() == tree
    assert bench.docker.container("trispark-engine").alive


def test_a_damaged_good_generation_is_passed_over_and_without_another_nothing_is_touched(bench, two):
    good, _ = two
    (bench.node.layout.generation(good) / "launch.args").write_text("other\n")
    error = bench.refused("rollback", epoch=6)
    assert (error["id"], error["observed"]) == ("TS-AGENT-NO-TARGET", f"none whole of {good}")
    assert bench.docker.container("trispark-engine").alive
    assert bench.refused("rollback", to=good, epoch=6)["id"] == "TS-AGENT-DAMAGED"
    assert bench.refused("rollback", to="g0123456789abcdef", epoch=6)["id"] == "TS-AGENT-NOT-STAGED"


def test_by_hand_takes_the_next_epoch_once(bench, two):
    good, _ = two
    assert bench.ask("rollback")["epoch"] == 6
    again = bench.ask("rollback")
    assert (again["changed"], again["epoch"], again["generation"]) == (False, 6, good)


def test_a_container_that_is_not_ours_is_left_alone_and_named(bench, two):
    bench.docker.containers.clear()
    bench.docker.add("trispark-engine")
    error = bench.refused("rollback", epoch=6)
    assert error["id"] == "TS-AGENT-FOREIGN"
    assert bench.docker.container("trispark-engine").alive
    assert pending(bench)["epoch"] == 6, "the rollback is not forgotten"


def test_current_that_leads_astray_is_replaced(bench, two):
    good, _ = two
    bench.node.layout.current.unlink()
    bench.node.layout.current.symlink_to("/etc")
    assert bench.ask("rollback", epoch=6)["previous"] is None
    assert bench.ask("status")["current"] == good


class FullDisk(Disk):
    """Takes nothing while the reserve lies on it, as a disk that is full to the last block."""

    def __init__(self, bench, error=errno.ENOSPC):
        self.reserve = bench.node.layout.reserve
        self.error = error
        super().__init__(self.check)

    def check(self, step, path):
        writes = step in ("create", "write", "symlink", "mkdir")
        if writes and (self.error != errno.ENOSPC or self.reserve.exists()):
            raise OSError(self.error, "No space left on device", str(path))


def ask_with(bench, disk, verb, **request):
    return cli.answer(bench.with_disk(disk), verb, json.dumps(request))


def test_a_full_disk_does_not_hinder_a_rollback(bench, two, stage_request):
    good, _ = two
    assert bench.node.layout.reserve.stat().st_size == room.RESERVE_BYTES
    answer, code = ask_with(bench, FullDisk(bench), "rollback", epoch=6)
    assert (answer["ok"], code) == (True, 0), answer
    status = bench.ask("status")
    assert (status["current"], status["engine"], status["epoch"]) == (good, None, 6)
    assert not bench.node.layout.reserve.exists()
    bench.ask("stage", **stage_request("three"))
    assert bench.node.layout.reserve.exists(), "the next stage makes it again"


class TightDisk(FullDisk):
    """Full; the reserve makes room for small things, not for the engine's whole log."""

    def check(self, step, path):
        """What is tiny still finds room, so that the log is the first that does not."""

    def write_all(self, descriptor, path, data):
        if len(data) > (4096 if self.reserve.exists() else room.RESERVE_BYTES):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().write_all(descriptor, path, data)


def test_a_log_that_a_full_disk_does_not_take_is_cut_and_the_way_back_goes_on(bench, two):
    good, _ = two
    container = bench.docker.container("trispark-engine")
    bench.docker.logs[container.id] = b"begin\n" + b"x" * 2 * room.RESERVE_BYTES + b"\nend\n"
    answer, _code = ask_with(bench, TightDisk(bench), "stop")
    assert answer["error"]["id"] == "TS-AGENT-LOG", "a plain stop keeps the container and says so"
    answer, _code = ask_with(bench, TightDisk(bench), "rollback", epoch=6)
    assert answer["ok"], answer
    kept = bench.node.layout.boot_log(OLD_BOOT).read_bytes()
    assert kept.startswith(b"begin\n[trispark: ")
    assert kept.endswith(b"end\n")
    assert bench.ask("status")["current"] == good


def test_a_read_only_disk_still_lets_the_engine_be_stopped_and_is_named(bench, two):
    _, serving = two
    answer, code = ask_with(bench, FullDisk(bench, errno.EROFS), "rollback", epoch=6)
    assert (answer["ok"], code) == (False, 1)
    assert bench.docker.container("trispark-engine") is None or not bench.docker.container("trispark-engine").alive
    assert bench.ask("status")["current"] == serving, "what is true is said"
    assert answer["error"]["id"] == "TS-AGENT-LOG"


def test_what_a_read_only_disk_did_not_take_is_named_where_the_engine_is_stopped(bench, two):
    """Without this a controller would believe that the node is repointed, and boot what it must not."""
    _, serving = two
    bench.ask("stop", deadline_s=1)
    answer, code = ask_with(bench, FullDisk(bench, errno.EROFS), "rollback", epoch=6)
    assert (answer["ok"], code, answer["repointed"]) == (False, 1, False)
    assert bench.ask("status")["current"] == serving
    error = answer["error"]
    assert error["id"] == "TS-AGENT-UNWRITTEN"
    assert [each.partition(":")[0] for each in error["observed"].split("; ")] == ["epoch", "rollback.json", "current"]


def test_clear(bench, two):
    assert not bench.ask("rollback-clear", why="x")["changed"]
    bench.ask("rollback", epoch=6)
    answer = bench.ask("rollback-clear", why="serves again")
    assert (answer["changed"], answer["cleared"]) == (True, two[0])
    assert pending(bench) is None
    bench.node.layout.rollback.write_text("{")
    assert any("rollback.json" in problem for problem in bench.ask("status")["problems"])
    assert bench.ask("rollback-clear", why="damaged")["cleared"] == "damaged"


@pytest.mark.parametrize(
    "request_", [{"to": "latest"}, {"epoch": 0}, {"epoch": "6"}, {"deadline_s": -1}, {"missing": "spark2"}, {"too": 1}]
)
def test_bad_requests(bench, request_):
    assert bench.refused("rollback", **request_)["id"] == "TS-AGENT-REQUEST"


def run(bench, monkeypatch, *words, terminal=False):
    class Source(io.StringIO):
        def isatty(self):
            return terminal

    out = io.StringIO()
    monkeypatch.setattr(cli, "Node", lambda _layout: bench.node)
    code = cli.main(list(words), Source(""), out)
    return code, out.getvalue()


def test_by_hand_at_a_terminal(bench, two, monkeypatch):
    good, serving = two
    code, text = run(bench, monkeypatch, "status", terminal=True)
    assert code == 0
    assert f"current {serving}; epoch 5; running, boot b1, generation {serving}, epoch 5" in text
    code, text = run(bench, monkeypatch, "rollback", "--to", good)
    assert code == 0
    assert f"current is {good} (before: {serving}), epoch 6" in text
    assert "--epoch 6" in text
    code, text = run(bench, monkeypatch, "status", terminal=True)
    assert f"rollback to {good} since" in text
    code, text = run(bench, monkeypatch, "start", "--boot", "hand-1", "--epoch", "7")
    assert code == 1
    assert text.startswith("TS-AGENT-EPOCH: ")
    code, text = run(bench, monkeypatch, "start", "--boot", "hand-1", "--epoch", "6")
    assert (code, text) == (0, f"started: boot hand-1, generation {good}, epoch 6\n")
    code, text = run(bench, monkeypatch, "stop", "--deadline", "3")
    assert text.startswith("stopped in ")
    code, text = run(bench, monkeypatch, "recover", terminal=True)
    assert (code, text) == (0, "nothing was begun and not ended\n")


@pytest.mark.parametrize(
    "words",
    [
        ("rollback", "--two", "x"),
        ("rollback", "--epoch", "many"),
        ("fence", "--epoch", "6"),
        ("start", "--boot", "b9"),
        ("recover", "now"),
        ("rollback", "--to"),
    ],
)
def test_a_mistyped_command_line_is_one_line(bench, monkeypatch, words):
    code, text = run(bench, monkeypatch, *words)
    assert code == 2
    assert text.startswith("TS-AGENT-REQUEST: ")
    assert text.count("\n") == 1


def test_by_hand_with_json(bench, two, monkeypatch):
    code, text = run(bench, monkeypatch, "rollback", "--json", "--epoch", "6")
    assert (code, json.loads(text)["epoch"]) == (0, 6)
