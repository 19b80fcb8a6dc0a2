"""Records hold what may be recorded, follow the published schema, and form a chain that shows every change."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trispark.benchstats import summarize
from trispark.catalog import Catalog
from trispark.errors import TrisparkError
from trispark.gate_result import GateResult
from trispark.gates import evaluate
from trispark.project import ProjectState
from trispark.records import (
    RecordCache,
    build_boot_record,
    build_trial_record,
    head_of,
    record_hash,
    validate_record,
    verify_chain,
)
from trispark.resolve import Resolution, compare
from trispark.verdict import BootMetrics, decide

REPOSITORY = Path(__file__).resolve().parents[3]
PROJECT = ProjectState("0.1.0", "f" * 40, False)
TIMINGS = {
    "started_at": "2026-09-25T10:00:00Z",
    "ended_at": "2026-09-25T10:01:00Z",
    "phases": {"stop": 1.5, "start": 7.25},
}
BENCH = {
    "requests": [
        {
            "tag": "c1-prose",
            "workload": "prose",
            "index": 0,
            "completion_tokens": 64,
            "prompt_tokens": 9,
            "ttft_s": 0.1,
            "total_s": 1.1,
            "text_sha": "a",
            "error": None,
        }
    ],
    "waves": [{"tag": "c4", "wave": 0, "wall_s": 2.0, "tokens": 256, "errors": 0}],
    "server_info": [],
    "input": {
        "repetitions": 1,
        "max_tokens": 64,
        "warmup_tokens": 8,
        "concurrency": [1, 4],
        "rank": 1,
        "image": "registry:5000/bench@sha256:" + "b" * 64,
        "workloads": {"prose": ["a" * 64]},
    },
}
Maker = Callable[..., dict[str, Any]]


@pytest.fixture
def make(
    candidate: Resolution,
    catalog: Catalog,
    healthy: Callable[..., dict[str, dict[str, Any]]],
    canary: dict[str, Any],
    engram_rows: dict[int, int],
) -> Maker:
    """A boot record of the candidate, with changes."""

    def build(**changes: Any) -> dict[str, Any]:
        observations = healthy(candidate, wo_a=True)
        arguments: dict[str, Any] = {
            "record_id": "b1",
            "site": "lab",
            "resolution": candidate,
            "allowlist": catalog.allowlist,
            "project": PROJECT,
            "requested": {"stage": "c", "feature": "wo_a", "arm": "candidate", "trial": "t1", "purpose": "trial"},
            "boot_id": "b1",
            "epoch": 6,
            "observations": observations,
            "timings": TIMINGS,
            "gates": evaluate(candidate, observations, canary, engram_rows),
            "bench": BENCH,
            "summary": summarize(BENCH),
            "outcome": {"state": "valid", "reason": "all gates passed", "good": False},
            "previous": None,
        }
        return build_boot_record(**{**arguments, **changes})

    return build


def chain(make: Maker, length: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for number in range(1, length + 1):
        previous = head_of(records[-1]) if records else None
        records.append(make(record_id=f"b{number}", previous=previous))
    return records


def test_boot_record_holds_what_the_issue_asks_for(make: Maker, candidate: Resolution) -> None:
    record = make()
    assert record["resolved"]["generation"] == candidate.id
    assert record["resolved"]["changed_keys"] == ["DSV41_WO_A_W8"]
    assert record["project"] == {"version": "0.1.0", "commit": "f" * 40, "dirty": False}
    rank = record["observed"]["ranks"][2]
    assert rank["versions"]["kernel_packages"] == {"linux-image-amd64": "6.1.1"}
    assert rank["engram"][0] == {
        "layer": 1,
        "packed": True,
        "first_row": 133334,
        "end_row": 200001,
        "lookups": 160,
        "reads": 160,
    }
    assert rank["env"]["DSV41_WO_A_W8"] == "1"
    assert rank["env_withheld"] == ["PATH"]
    assert record["observed"]["engine"]["cache_gib"] == 0.0
    assert record["bench"]["summary"]["waves"]["c4"]["agg_tps"]["median"] == 128.0
    assert (record["seq"], record["previous"], record["schema_version"], record["kind"]) == (1, None, 1, "boot")


def test_shape_is_observed_not_assumed(
    make: Maker, candidate: Resolution, healthy: Callable[..., dict[str, dict[str, Any]]]
) -> None:
    assert make()["observed"]["engine"]["graph_batch_sizes"] is None
    seen = healthy(candidate, wo_a=True)
    seen["spark0"]["log"] += (Path(__file__).parent / "data" / "engine-log.txt").read_text(encoding="utf-8")
    shape = make(observations=seen)["observed"]["engine"]
    assert (shape["tp_size"], shape["ep_size"], shape["block_size"], shape["graph_batch_sizes"]) == (
        3,
        3,
        5,
        [1, 2, 3, 4],
    )


def test_secrets_are_never_recorded(
    make: Maker, candidate: Resolution, healthy: Callable[..., dict[str, dict[str, Any]]]
) -> None:
    seen = healthy(candidate, wo_a=True)
    seen["spark1"]["env"]["WANDB_API_KEY"] = "hunter2"
    seen["spark1"]["command"] += ["--api-key", "hunter2", "--token=hunter2"]
    seen["spark1"]["log"] += "key is hunter2\n"
    record = make(observations=seen)
    assert "hunter2" not in json.dumps(record)
    assert "WANDB_API_KEY" in record["observed"]["ranks"][1]["env_withheld"]


def test_rank_that_was_not_seen_stays_empty(make: Maker) -> None:
    record = make(
        observations={}, gates=[], bench=None, summary=None, outcome={"state": "failed", "reason": "x", "good": False}
    )
    assert [rank["seen"] for rank in record["observed"]["ranks"]] == [False, False, False]


@pytest.mark.parametrize(
    "gates",
    [[], [GateResult("env.effective", 1, False, "a", "b", "c"), GateResult("canary.text", None, True, "a", "a")]],
)
def test_boot_without_passed_gates_is_never_valid(make: Maker, gates: list[GateResult]) -> None:
    with pytest.raises(TrisparkError) as caught:
        make(gates=gates)
    assert caught.value.id == "TS-RECORD-SCHEMA"


@pytest.mark.parametrize(
    "changes",
    [
        {"requested": {"purpose": "trial", "colour": "red"}},
        {"requested": {}},
        {"outcome": {"state": "good", "reason": "x", "good": True}},
        {"epoch": -1},
        {"record_id": "../x"},
        {"previous": {"seq": 1, "hash": "short"}},
        {"timings": {"started_at": "x", "ended_at": "y"}},
    ],
)
def test_wrong_shapes_are_refused(make: Maker, changes: dict[str, Any]) -> None:
    with pytest.raises(TrisparkError) as caught:
        make(**changes)
    assert caught.value.id == "TS-RECORD-SCHEMA"


def test_published_schema_is_valid_and_binding(make: Maker) -> None:
    schema = json.loads((REPOSITORY / "schemas" / "record.schema.json").read_text(encoding="utf-8"))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    record = make()
    validate_record(record)
    damages: list[dict[str, Any]] = [{"kind": "other"}, {"schema_version": 2}, {"surprise": 1}, {"gates": [{}]}]
    for damage in damages:
        with pytest.raises(TrisparkError) as caught:
            validate_record({**record, **damage})
        assert caught.value.id == "TS-RECORD-SCHEMA"


def test_trial_record(
    make: Maker, baseline: Resolution, candidate: Resolution, catalog: Catalog, tmp_path: Path
) -> None:
    boot = make()
    boots = [
        {
            "arm": arm,
            "boot_id": "b1",
            "generation": resolution.id,
            "seq": 1,
            "hash": record_hash(boot),
            "valid": True,
        }
        for arm, resolution in (("baseline", baseline), ("candidate", candidate))
    ]
    record = build_trial_record(
        record_id="t1",
        site="lab",
        project=PROJECT,
        requested={"stage": "c", "feature": "wo_a", "purpose": "trial"},
        baseline=baseline,
        candidate=candidate,
        difference=compare(baseline, candidate),
        allowlist=catalog.allowlist,
        boots=boots,
        verdict=decide(
            [BootMetrics("b1", True, {"c4.agg_tps": 10.0})], [BootMetrics("b2", True, {"c4.agg_tps": 11.0})]
        ),
        restored=baseline.id,
        timings=TIMINGS,
        previous=head_of(boot),
    )
    assert record["resolved"]["changed"] == {"DSV41_WO_A_W8": {"baseline": 0, "candidate": 1}}
    assert record["outcome"]["verdict"] == "INCONCLUSIVE"
    assert record["outcome"]["differences"]["c4.agg_tps"]["ratio"] == 1.1
    assert verify_chain([boot, record]) == head_of(record)


def test_record_survives_its_file_form(make: Maker) -> None:
    record = make()
    assert record_hash(json.loads(json.dumps(record, indent=3))) == record_hash(record)


def test_chain_is_verified(make: Maker) -> None:
    records = chain(make, 3)
    assert verify_chain([]) is None
    assert verify_chain(records) == head_of(records[-1])
    assert verify_chain(records[1:]) == head_of(records[-1])


@pytest.mark.parametrize("damage", ["change", "drop", "swap", "renumber", "headless"])
def test_damaged_chain_is_refused(make: Maker, damage: str) -> None:
    records = copy.deepcopy(chain(make, 3))
    match damage:
        case "change":
            records[0]["outcome"]["reason"] = "another"
        case "drop":
            del records[1]
        case "swap":
            records[0], records[1] = records[1], records[0]
        case "renumber":
            records[2]["seq"] = 4
        case _:
            records[0]["seq"] = 2
            del records[1:]
    with pytest.raises(TrisparkError) as caught:
        verify_chain(records)
    assert caught.value.id == "TS-RECORD-CHAIN"


def test_cache(make: Maker, tmp_path: Path) -> None:
    cache = RecordCache(tmp_path / "records")
    assert (cache.list(), cache.head(), cache.verify()) == ([], None, None)
    records = chain(make, 3)
    assert [cache.add(record) for record in records] == [True, True, True]
    assert cache.add(records[1]) is False
    assert cache.list() == records
    assert cache.list(limit=1) == records[2:]
    assert cache.list(limit=0) == []
    assert cache.show("b2") == cache.show("2") == records[1]
    assert cache.head() == cache.verify() == head_of(records[2])
    assert not list((tmp_path / "records").glob("*.tmp"))


def test_cache_names_a_fork(make: Maker, tmp_path: Path) -> None:
    cache = RecordCache(tmp_path)
    cache.add(make())
    for other in (make(epoch=7), make(record_id="b9")):
        with pytest.raises(TrisparkError) as caught:
            cache.add(other)
        assert caught.value.id == "TS-RECORD-FORK"


@pytest.mark.parametrize("key", ["", "x", "b"])
def test_cache_shows_only_one(make: Maker, tmp_path: Path, key: str) -> None:
    cache = RecordCache(tmp_path)
    for record in chain(make, 2):
        cache.add(record)
    with pytest.raises(TrisparkError) as caught:
        cache.show(key)
    assert caught.value.id == "TS-RECORD-UNKNOWN"


NESTED = b"[" * 150 + b"]" * 150
"""Deeper than any record, and not yet too deep for the parser."""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        b'{"seq":' * 100_000,
        b'{"seq":1,"id":"b1","kind":"boot","x":' + NESTED + b"}",
        b'{"seq":1,"id":"b\xff","kind":"boot"}',
        '{"seq":1,"id":"b1","kind":"boot"}'.encode("utf-16"),
        b'{"seq":"1","id":"b1","kind":"boot"}',
        b'{"seq":[1],"id":"b1","kind":"boot"}',
        b'{"seq":1,"id":["b1"],"kind":"boot"}',
        b'{"seq":1,"id":"b1","kind":{}}',
        b'{"seq":' + b"9" * 5000 + b',"id":"b1","kind":"boot"}',
    ],
)
def test_damaged_cache_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "000001-b1.json").write_bytes(content)
    cache = RecordCache(tmp_path)
    for read in (cache.list, cache.head, cache.verify, lambda: cache.show("b1")):
        with pytest.raises(TrisparkError) as caught:
            read()
        assert caught.value.id == "TS-RECORD-READ"
        assert "000001-b1.json" in caught.value.where


def edit(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace("all gates passed", "all gates were fine"), "utf-8")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda files: edit(files[0]), "record 2"),
        (lambda files: edit(files[1]), "record 3"),
        (lambda files: files[0].unlink(), "record 1"),
        (lambda files: (files[0].unlink(), files[1].unlink()), "record 1"),
        (lambda files: files[1].unlink(), "seq 2"),
        (lambda files: files[0].write_bytes(files[1].read_bytes()), "record 1"),
    ],
)
def test_verify_finds_what_list_does_not_look_for(
    make: Maker, tmp_path: Path, damage: Callable[[list[Path]], object], named: str
) -> None:
    cache = RecordCache(tmp_path)
    for record in chain(make, 3):
        cache.add(record)
    files = sorted(tmp_path.glob("*.json"))
    damage(files)
    assert len(cache.list()) == len(list(tmp_path.glob("*.json")))
    with pytest.raises(TrisparkError) as caught:
        cache.verify()
    assert caught.value.id == "TS-RECORD-CHAIN"
    assert named in str(caught.value)
