"""Records: appended or not, in a chain that shows every change."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trispark_node import records
from trispark_node.errors import AgentError
from trispark_node.fields import Fields
from trispark_node.mutation import Mode, mutate

finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
relaxed = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


def link(head):
    return {"seq": head["seq"], "hash": head["hash"]} if head else None


def append(bench, record_id, **content):
    previous = link(bench.ask("record-head")["head"])
    record = {"id": record_id, "seq": previous["seq"] + 1 if previous else 1, "previous": previous, **content}
    return bench.ask("record-append", record=record, previous=previous)


def files(bench):
    return sorted(path for path in bench.node.layout.records.glob("*.json"))


@relaxed
@given(contents=st.lists(json_values, min_size=1, max_size=4))
def test_what_is_appended_is_shown_again(make_bench, tmp_path_factory, contents):
    bench = make_bench(tmp_path_factory.mktemp("node"))
    for index, content in enumerate(contents):
        answer = append(bench, f"r{index}", content=content)
        text = json.dumps(
            bench.ask("record-show", id=f"r{index}")["record"],
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
        )
        assert answer["head"]["hash"] == hashlib.sha256(text.encode()).hexdigest()
        assert bench.ask("record-show", id=f"r{index}")["record"]["content"] == content
    listed = bench.ask("record-list", limit=2)
    assert listed["total"] == len(contents)
    assert [row["id"] for row in listed["records"]] == [f"r{i}" for i in range(len(contents))][-2:]
    assert bench.ask("status")["record_head"] == listed["records"][-1]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_any_changed_byte_of_any_record_is_found(bench, position):
    for index in range(3):
        append(bench, f"r{index}", note="ab")
    path = files(bench)[position]
    original = path.read_bytes()
    for offset in range(len(original)):
        path.write_bytes(original[:offset] + bytes([original[offset] ^ 1]) + original[offset + 1 :])
        if position == 2 and _is_another_record(path.read_bytes()):
            # Only a later record or the other nodes can tell that the newest one's content changed.
            continue
        assert bench.refused("record-list")["id"] == "TS-RECORD-CHAIN", offset
    path.write_bytes(original)
    assert bench.ask("record-list")["total"] == 3


def _is_another_record(content: bytes) -> bool:
    with suppress(ValueError, KeyError, TypeError):
        record = json.loads(content)
        canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        place = (record["id"], record["seq"], record["previous"]["seq"])
        return canonical == content and place == ("r2", 3, 2) and set(record["previous"]) == {"seq", "hash"}
    return False


def test_a_lost_or_added_record_is_found(bench):
    for index in range(3):
        append(bench, f"r{index}")
    middle = files(bench)[1]
    content = middle.read_bytes()
    middle.unlink()
    assert bench.refused("record-list")["id"] == "TS-RECORD-CHAIN"
    middle.write_bytes(content)
    (middle.parent / "000004-r9.json").write_text('{"id":"r9","previous":null,"seq":4}\n')
    assert bench.refused("record-list")["id"] == "TS-RECORD-CHAIN"


DAMAGES = {
    "newest is no JSON": (2, lambda path: path.write_text("{")),
    "newest is a directory": (2, lambda path: (path.unlink(), path.mkdir())),
    "newest is a FIFO": (2, lambda path: (path.unlink(), os.mkfifo(path))),
    "an older one is a directory": (0, lambda path: (path.unlink(), path.mkdir())),
    "newest is deep": (2, lambda path: path.write_bytes(b"[" * 100_000)),
    "newest is nested": (
        2,
        lambda path: path.write_bytes(
            path.read_bytes().replace(b'"ab"', b"[" * 150 + b"]" * 150),
        ),
    ),
    "newest is no text": (2, lambda path: path.write_bytes(path.read_bytes().replace(b'"ab"', b'"\xff"'))),
    "newest is UTF-16": (2, lambda path: path.write_bytes(path.read_text().encode("utf-16"))),
    "newest is a list": (2, lambda path: path.write_text("[]\n")),
    "its number is a list": (2, lambda path: path.write_bytes(path.read_bytes().replace(b'"seq":3', b'"seq":[3]'))),
    "its predecessor is a list": (2, lambda path: path.write_text('{"id":"r2","previous":[],"seq":3}\n')),
    "an older one is altered": (0, lambda path: path.write_bytes(path.read_bytes().replace(b'"ab"', b'"ac"'))),
    "an older one is lost": (1, lambda path: path.unlink()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_chain_looks_like_none_and_takes_no_record(bench, damage):
    assert bench.ask("status")["record_chain"] == "empty"
    for index in range(3):
        append(bench, f"r{index}", note="ab")
    head = bench.ask("record-head")["head"]
    status = bench.ask("status")
    assert (status["record_chain"], status["record_head"], status["problems"]) == ("ok", head, [])
    position, change = DAMAGES[damage]
    change(files(bench)[position])
    status = bench.ask("status")
    assert (status["record_chain"], status["record_head"]) == ("damaged", None)
    assert [problem.split(":")[0] for problem in status["problems"]] == ["TS-RECORD-CHAIN"]
    assert str(bench.node.layout.records) in status["problems"][0]
    before = [path.name for path in files(bench)]
    for previous in (None, link(head)):
        record = {"id": "r9", "seq": previous["seq"] + 1 if previous else 1, "previous": previous}
        error = bench.refused("record-append", record=record, previous=previous)
        assert error["id"] == "TS-RECORD-DAMAGED"
        assert str(bench.node.layout.records) in error["where"]
    assert [path.name for path in files(bench)] == before


def test_records_that_are_no_directory_are_named(bench):
    bench.root.mkdir()
    bench.node.layout.records.write_text("in the way")
    status = bench.ask("status")
    assert (status["record_chain"], status["record_head"]) == ("damaged", None)
    assert str(bench.node.layout.records) in status["problems"][0]


def test_a_directory_with_the_name_of_a_record_is_named(bench):
    append(bench, "r0")
    (bench.node.layout.records / "000002-r1.json").mkdir()
    status = bench.ask("status")
    assert (status["record_chain"], status["record_head"]) == ("damaged", None)
    (problem,) = status["problems"]
    assert problem.startswith("TS-RECORD-CHAIN")
    assert "000002-r1.json" in problem


def test_fork_is_refused(bench):
    append(bench, "r0")
    head = bench.ask("record-head")["head"]
    other = {"seq": 1, "hash": "0" * 64}
    for previous in (None, other, {"seq": 2, "hash": head["hash"]}):
        record = {"id": "r1", "seq": previous["seq"] + 1 if previous else 1, "previous": previous}
        assert bench.refused("record-append", record=record, previous=previous)["id"] == "TS-RECORD-FORK"
    assert bench.ask("record-head")["head"] == head


def test_the_record_itself_must_name_its_predecessor(bench):
    for record in (
        {"id": "r0", "seq": 1},
        {"id": "r0", "seq": 1, "previous": {"seq": 1, "hash": "0" * 64}},
        {"id": "r0", "previous": None},
        {"id": "r0", "seq": 2, "previous": None},
    ):
        assert bench.refused("record-append", record=record, previous=None)["id"] == "TS-AGENT-REQUEST"


def test_a_repeated_append_changes_nothing_and_an_id_is_used_once(bench):
    record = {"id": "r0", "seq": 1, "previous": None}
    assert bench.ask("record-append", record=record, previous=None)["changed"]
    assert not bench.ask("record-append", record=record, previous=None)["changed"]
    previous = link(bench.ask("record-head")["head"])
    again = {"id": "r0", "seq": 2, "previous": previous}
    assert bench.refused("record-append", record=again, previous=previous)["id"] == "TS-AGENT-REQUEST"
    assert bench.refused("record-show", id="r7")["id"] == "TS-RECORD-MISSING"


def test_append_killed_at_every_step(bench, crashes):
    append(bench, "r0")
    first = bench.ask("record-head")["head"]
    request = {"record": {"id": "r1", "seq": 2, "previous": link(first), "text": "x" * 100}, "previous": link(first)}
    parsed = records.AppendRequest.parse(Fields(request, "request"))

    def operation(disk):
        node = bench.with_disk(disk)
        mutate(node, "record-append", Mode(False, 0), lambda: records.plan_append(node, parsed))

    def reset():
        for path in files(bench)[1:]:
            path.unlink()

    for point in crashes(operation, reset):
        assert bench.ask("record-list")["total"] in (1, 2), point
        bench.ask("record-append", **request)
        assert [row["id"] for row in bench.ask("record-list")["records"]] == ["r0", "r1"], point


def test_good_marks(bench, active, stage_request):
    other = stage_request("two")
    bench.ask("stage", **other)
    marks = [
        (active["generation"], "b1", True),
        (active["generation"], "b2", False),
        (other["generation"], "b3", True),
        (active["generation"], "b4", True),
    ]
    for generation, boot, changed in marks:
        assert bench.ask("good-mark", generation=generation, boot_id=boot, time="t")["changed"] is changed
    assert [mark["boot_id"] for mark in bench.ask("status")["good"]] == ["b1", "b3", "b4"]
    with bench.node.layout.good.open("ab") as file:
        file.write(b'{"generation":"g1')
    assert [mark["boot_id"] for mark in bench.ask("status")["good"]] == ["b1", "b3", "b4"]
    assert (
        bench.refused("good-mark", generation="g0123456789abcdef", boot_id="b", time="t")["id"] == "TS-AGENT-NOT-STAGED"
    )


def test_nan_is_no_record(bench):
    with pytest.raises(AgentError, match="finite"):
        records.AppendRequest.parse(Fields({"record": {"id": "r", "previous": None, "x": float("nan")}}, "request"))
