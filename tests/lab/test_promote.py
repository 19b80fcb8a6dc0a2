"""A promotion on the lab. No trial of this version ends with KEEP: the record is made by hand from a real trial's."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.slow]

AGENT = "/var/lib/trispark/bin/trispark-node"


def records_of(lab: Any) -> list[dict[str, Any]]:
    script = "for f in /var/lib/trispark/records/*.json; do cat $f; done"
    return [json.loads(line) for line in lab.node("spark0", "sh", "-c", script).decode().splitlines()]


def ask(lab: Any, name: str, verb: str, **request: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(lab.node(name, AGENT, verb, data=json.dumps(request).encode()))
    assert answer["ok"], answer
    return answer


def digest(record: dict[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def label(lab: Any) -> set[str]:
    return {lab.inspect(name)["Config"]["Labels"]["trispark.generation"] for name in lab.nodes}


@pytest.fixture
def kept(serving: Any) -> Iterator[dict[str, Any]]:
    """The newest trial of wo_a against the baseline of now, as if it had ended with KEEP; undone at the end."""

    def trials() -> list[dict[str, Any]]:
        now = label(serving)
        return [
            record
            for record in records_of(serving)
            if record["kind"] == "trial"
            and record["requested"]["feature"] == "wo_a"
            and {record["resolved"]["baseline"]} == now
        ]

    if not trials():
        assert serving.play("stage_c", feature="wo_a").rc == 0
    last = records_of(serving)[-1]
    record = copy.deepcopy(trials()[-1])
    record.update(seq=last["seq"] + 1, id=f"{record['id']}-kept", previous={"seq": last["seq"], "hash": digest(last)})
    record["outcome"].update(verdict="KEEP", reason="made by hand for a test")
    for name in serving.nodes:
        ask(serving, name, "record-append", record=record, previous=record["previous"])
    yield record
    assert serving.play("promote", revert="true").rc == 0
    played = serving.play("site")
    assert played.rc == 0, played.output[-4000:]
    assert label(serving) == {record["resolved"]["baseline"]}


def test_a_keep_becomes_what_the_site_boots_and_is_undone(serving: Any, kept: dict[str, Any]) -> None:
    inconclusive = kept["id"].removesuffix("-kept")
    refused = serving.play("promote", record=inconclusive)
    assert refused.rc != 0
    assert "TS-PROMOTE-VERDICT" in refused.output
    assert all(ask(serving, name, "baseline-show")["baseline"] is None for name in serving.nodes)

    played = serving.play("promote", record=kept["id"])
    assert played.rc == 0, played.output[-4000:]
    for name in serving.nodes:
        found = ask(serving, name, "status")["baseline"]
        assert (found["settings"], found["record"]) == ({"DSV41_WO_A_W8": 1}, kept["id"])
        assert found["record_hash"] == digest(kept)
    assert label(serving) == {kept["resolved"]["baseline"]}, "a promotion boots nothing"
    cached = json.loads((serving.root / ".trispark/lab/baseline.json").read_text())
    assert cached["record"] == kept["id"]

    played = serving.play("site")
    assert played.rc == 0, played.output[-4000:]
    assert label(serving) == {kept["resolved"]["candidate"]}
    again = serving.play("stage_c", feature="wo_a")
    assert again.rc != 0
    assert "TS-PLAN-ONECHANGE" in again.output, "what the baseline holds already is no change any more"

    ask(serving, "spark1", "baseline-set")
    differs = serving.play("boot")
    assert differs.rc != 0
    assert "TS-BASELINE-DIFFERS" in differs.output
    assert "spark1 shipped" in " ".join(differs.output.split())
    assert serving.play("promote", record=kept["id"]).rc == 0, "the same again completes it"
    assert serving.play("site", options=["--check"]).rc == 0
