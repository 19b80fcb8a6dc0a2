"""State as an earlier agent wrote it is read, judged and gone on with by this one.

`data/state-0.1.0.json` has the files that the agent of that release wrote in the node of these tests: a boot, a
promoted baseline, a take-over, a killed call's intent. They are never made
anew: no newer key may be needed to read them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trispark_node import adopt

RELEASES = sorted(Path(__file__).parent.glob("data/state-*.json"))


@pytest.fixture(params=RELEASES, ids=lambda path: path.stem)
def older(request, bench) -> Any:
    files = json.loads(request.param.read_text(encoding="utf-8"))
    for name, kept in files.items():
        path = bench.root / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if "link" in kept:
            path.symlink_to(kept["link"])
        else:
            path.write_text(kept["text"], encoding="utf-8")
            path.chmod(int(kept["mode"], 8))
    return bench


def test_there_is_a_release() -> None:
    assert RELEASES


def test_status_reads_all_of_it(older) -> None:
    status = older.ask("status")
    assert status["problems"] == []
    assert status["damaged"] == {}
    assert len(status["generations"]) == 2
    assert status["current"] == status["good"][-1]["generation"]
    assert status["epoch"] == 5
    assert status["record_chain"] == "ok"
    assert status["record_head"]["id"] == "r2"
    assert status["baseline"]["record"] == "r2"
    assert [each["verb"] for each in status["pending"]] == ["activate"]


def test_every_reading_verb_reads_it(older) -> None:
    current = older.ask("status")["current"]
    assert older.ask("generation-show", generation=current)["generation"] == current
    assert [each["id"] for each in older.ask("record-list")["records"]] == ["r1", "r2"]
    assert older.ask("record-show", id="r2")["record"]["kind"] == "verdict"
    assert older.ask("boot-log", boot_id="b2")["log"] == ""
    assert [taken.id for taken in adopt._all(older.node)] == ["a0123456789abcdef"]


def test_the_next_boot_goes_on_from_it(older) -> None:
    """A fence, which only grows, then the start of what an older agent staged; then the chain goes on."""
    assert older.refused("fence", epoch=5, boot_id="other")["id"] == "TS-AGENT-EPOCH"
    older.ask("fence", epoch=6, boot_id="b3")
    older.ask("start", epoch=6, boot_id="b3")
    assert older.ask("status")["engine"]["boot_id"] == "b3"
    older.ask("stop", deadline_s=1)
    head = older.ask("record-head")["head"]
    previous = {"seq": head["seq"], "hash": head["hash"]}
    assert older.ask("record-append", record={"id": "r3", "seq": 3, "previous": previous}, previous=previous)["changed"]


@pytest.mark.parametrize("content", ['{"boot_id":null,"epoch":3}\n', '{"boot_id":"b1","epoch":3}\n', '{"epoch":3}\n'])
def test_an_epoch_without_newer_keys(bench, content: str) -> None:
    bench.root.mkdir()
    (bench.root / "epoch").write_text(content)
    assert bench.ask("status")["epoch"] == 3
    assert bench.ask("fence", epoch=4, boot_id="b2")["changed"]


def test_a_journal_with_lines_of_a_newer_agent_is_read_by_this_one(older) -> None:
    """A verb that this agent does not have may be pending; the lines of others still count."""
    with (older.root / "journal.jsonl").open("a", encoding="utf-8") as file:
        entry = {
            "seq": 900,
            "time": "2026-01-02T03:04:05.000Z",
            "verb": "of-a-newer-one",
            "phase": "intent",
            "detail": {},
        }
        file.write(json.dumps(entry) + "\n")
    assert [each["verb"] for each in older.ask("status")["pending"]] == ["activate", "of-a-newer-one"]
    assert older.ask("fence", epoch=9, boot_id="b9")["changed"]
