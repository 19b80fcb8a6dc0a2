"""Verb `support`: bounded, redacted, and never ended by one damaged part."""

from __future__ import annotations

import json


def test_all_parts_of_a_node_that_served(bench, active):
    bench.ask("start", epoch=5, boot_id="b1")
    container = next(iter(bench.docker.containers))
    bench.docker.logs[container] = b"ready with sekret-key\n"
    before = bench.tree()
    found = bench.ask("support")
    assert bench.tree() == before
    # No route on this machine's own network is of interest here: a part that cannot be read is named.
    assert set(found["unread"]) <= {"host"}
    assert found["running"] == {"b1": "ready with <redacted>\n"}
    assert found["status"]["current"] == active["generation"]
    assert [each["verb"] for each in found["journal"]["entries"]][:1] == ["stage"]
    assert found["state"]["epoch"]
    bench.ask("stop", deadline_s=1)
    stopped = bench.ask("support")
    assert stopped["boots"] == {"b1": "ready with <redacted>\n"}
    assert "sekret-key" not in json.dumps(stopped)
    listed = {each["path"]: each for each in stopped["files"]["listed"]}
    assert listed["boots/b1/engine.log"]["bytes"] == len("ready with sekret-key\n")


def test_bounds(bench, active):
    bench.ask("start", epoch=5, boot_id="b1")
    bench.docker.logs[next(iter(bench.docker.containers))] = b"x" * 79 + b"\n" + b"y\n" * 50_000
    bench.ask("stop", deadline_s=1)
    found = bench.ask("support", log_bytes=2000, journal_lines=2)
    assert len(found["boots"]["b1"]) < 2200
    assert "bytes left out" in found["boots"]["b1"]
    assert len(found["journal"]["entries"]) == 2
    assert bench.ask("support", boots=0)["boots"] == {}
    assert bench.refused("support", boots=21)["id"] == "TS-AGENT-REQUEST"


def test_a_log_whose_secrets_are_not_known_is_left_out_and_named(bench, active):
    bench.ask("start", epoch=5, boot_id="b1")
    bench.ask("stop", deadline_s=1)
    (bench.root / "boots/b1/redact.json").write_text("{")
    found = bench.ask("support")
    assert found["boots"] == {}
    assert found["unread"]["boots/b1"].startswith("TS-AGENT-LOG-REDACT")


def test_an_empty_and_a_damaged_node(bench):
    assert bench.ask("support")["journal"]["total"] == 0
    bench.root.mkdir()
    (bench.root / "journal.jsonl").mkdir()
    found = bench.ask("support")
    assert "journal" in found["unread"]
    assert "status" in found


def test_a_docker_that_does_not_answer_hides_nothing_else(bench, active, monkeypatch):
    def gone(*_given):
        raise ConnectionError("no answer")

    monkeypatch.setattr(type(bench.docker), "labelled", gone)
    monkeypatch.setattr(type(bench.docker), "server", gone)
    found = bench.ask("support")
    assert {"containers", "running"} <= set(found["unread"])
    assert found["journal"]["entries"]
