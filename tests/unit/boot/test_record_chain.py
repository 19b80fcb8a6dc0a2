"""Nodes that were down catch up; a chain that was changed is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from trispark.errors import TrisparkError
from trispark.record_chain import (
    appends,
    behind,
    heads_of,
    is_level,
    judge,
    leading_head,
    needed,
    refuse_forked_copy,
    set_aside,
    set_aside_forked_copy,
    set_aside_older_chain,
)
from trispark.records import RecordCache, head_of


class Chain:
    """A stand-in for the cache: records that only need number, id and previous."""

    directory = "cache"

    def __init__(self, length: int) -> None:
        self.records: list[dict] = []
        for seq in range(1, length + 1):
            last = head_of(self.records[-1]) if self.records else None
            previous = {"seq": last["seq"], "hash": last["hash"]} if last else None
            self.records.append({"seq": seq, "id": f"r{seq}", "previous": previous})

    def list(self) -> list[dict]:
        return self.records

    def head(self, seq: int | None = None):
        records = self.records if seq is None else self.records[:seq]
        return head_of(records[-1]) if records else None

    def holding(self, *numbers: int) -> Chain:
        """A copy with these records alone."""
        found = Chain(0)
        found.records = [record for record in self.records if record["seq"] in numbers]
        return found


def after(head: dict | None) -> dict:
    previous = {"seq": head["seq"], "hash": head["hash"]} if head else None
    return {"seq": previous["seq"] + 1 if previous else 1, "id": "new", "previous": previous}


def new(chain: Chain) -> dict:
    return after(chain.head())


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_node_gets_what_it_missed_in_order(lag: int) -> None:
    chain = Chain(5)
    heads = {"spark0": chain.head(5), "spark1": chain.head(5 - lag), "spark2": chain.head(5)}
    assert leading_head(heads, chain) == chain.head(5)
    plan = appends(heads, heads, chain, new(chain)).appends
    assert [entry["record"]["seq"] for entry in plan["spark1"]] == list(range(6 - lag, 7))
    assert [entry["record"]["id"] for entry in plan["spark0"]] == ["new"]


def test_empty_chains_begin_at_one() -> None:
    chain = Chain(0)
    heads = {"spark0": None, "spark1": None}
    assert leading_head(heads, chain) is None
    assert all(len(entries) == 1 for entries in appends(heads, heads, chain, new(chain)).appends.values())


@pytest.mark.parametrize(
    "nodes_have", [[4, 4, 4], [5, 4, 4], [4, 3, 4]], ids=["before-appending", "between", "and-down"]
)
def test_a_record_that_a_killed_controller_had_kept_reaches_all_nodes(nodes_have) -> None:
    chain = Chain(5)
    heads = {f"spark{rank}": chain.head(seq) for rank, seq in enumerate(nodes_have)}
    assert leading_head(heads, chain) == chain.head(5)
    plan = appends(heads, heads, chain, new(chain)).appends
    for rank, seq in enumerate(nodes_have):
        assert [entry["record"]["seq"] for entry in plan[f"spark{rank}"]] == list(range(seq + 1, 7))


@pytest.mark.parametrize(("seq", "where"), [(3, "spark1"), (5, "spark1"), (4, "spark1")])
def test_a_changed_chain_is_a_fork(seq: int, where: str) -> None:
    chain = Chain(5)
    odd = {**chain.head(seq), "hash": "f" * 64}
    with pytest.raises(TrisparkError) as caught:
        leading_head({"spark0": chain.head(5), "spark1": odd}, chain)
    assert (caught.value.id, caught.value.where) == ("TS-RECORD-FORK", where)


@pytest.mark.parametrize("seq", [3, 5])
def test_a_copy_that_the_nodes_contradict_is_a_fork(seq: int) -> None:
    chain = Chain(5)
    odd = {**chain.head(seq), "hash": "f" * 64}
    with pytest.raises(TrisparkError) as caught:
        leading_head({"spark0": odd, "spark1": odd}, chain)
    assert (caught.value.id, caught.value.where) == ("TS-RECORD-FORK", "cache")


def test_records_that_nobody_here_holds_are_named_and_keep_no_other_node_from_the_new_one() -> None:
    whole = Chain(5)
    for copy in (whole.holding(), whole.holding(4, 5), whole.holding(1, 5)):
        heads = {"spark0": whole.head(5), "spark1": whole.head(2), "spark2": None}
        assert leading_head(heads, copy) == whole.head(5)
        plan = appends(heads, heads, copy, after(whole.head(5)))
        assert [entry["record"]["id"] for entry in plan.appends["spark0"]] == ["new"]
        assert (plan.appends["spark1"], plan.appends["spark2"]) == ([], [])
        assert {node: problem.id for node, problem in plan.waiting.items()} == {
            "spark1": "TS-RECORD-LOST",
            "spark2": "TS-RECORD-LOST",
        }


def taken(chain: list[dict], entries: list[dict]) -> list[dict]:
    """What a node has after it appended; it refuses what does not follow."""
    for entry in entries:
        head = head_of(chain[-1]) if chain else None
        assert entry["previous"] == ({"seq": head["seq"], "hash": head["hash"]} if head else None)
        chain = [*chain, entry["record"]]
    return chain


@pytest.mark.parametrize("copies", [(), (1, 2), (3,), (4,), (2, 4), (1, 2, 3, 4)])
@pytest.mark.parametrize("have", list(itertools.product([0, 2, 3, 4], repeat=3)))
def test_whatever_nodes_and_controller_hold_of_one_chain_a_record_is_made_and_no_node_refuses_it(
    copies: tuple[int, ...], have: tuple[int, ...]
) -> None:
    whole = Chain(4)
    cache = whole.holding(*copies)
    heads: dict[str, Any] = {f"spark{rank}": whole.head(seq) if seq else None for rank, seq in enumerate(have)}
    leading = leading_head(heads, cache)
    assert (leading["seq"] if leading else 0) == max([*have, *copies])
    record = after(leading)
    plan = appends(heads, heads, cache, record)
    for rank, seq in enumerate(have):
        chain = taken(whole.records[:seq], plan.appends[f"spark{rank}"])
        got = bool(chain) and chain[-1] == record
        assert got is (f"spark{rank}" not in plan.waiting)
        assert got is set(range(seq + 1, record["seq"])).issubset(copies)


def test_a_controller_that_kept_a_record_of_a_chain_it_has_no_copies_of_goes_on_with_it() -> None:
    whole = Chain(6)
    cache = whole.holding(6)
    heads = {"spark0": whole.head(5), "spark1": whole.head(5)}
    assert leading_head(heads, cache) == whole.head(6)
    plan = appends(heads, heads, cache, after(whole.head(6)))
    assert [[entry["record"]["seq"] for entry in plan.appends[node]] for node in heads] == [[6, 7], [6, 7]]


def test_beside_a_fork_the_chain_of_the_copies_leads_else_that_of_most_nodes() -> None:
    chain = Chain(5)
    odd = {**chain.head(5), "hash": "f" * 64}
    heads = {"spark0": odd, "spark1": odd, "spark2": chain.head(5)}
    held, majority = judge(heads, chain), judge(heads, chain.holding())
    assert (held.head, list(held.forks), held.copy_fork) == (chain.head(5), ["spark0", "spark1"], None)
    assert (majority.head, list(majority.forks)) == (odd, ["spark2"])
    plan = appends(heads, heads, chain, after(held.head))
    assert [len(plan.appends[node]) for node in sorted(heads)] == [0, 0, 1]
    assert {problem.id for problem in plan.waiting.values()} == {"TS-RECORD-FORK"}
    lower = {"spark0": chain.head(5), "spark1": {**chain.head(3), "hash": "f" * 64}}
    plan = appends(lower, lower, chain, after(chain.head(5)))
    assert (plan.appends["spark1"], plan.waiting["spark1"].id) == ([], "TS-RECORD-FORK")


def test_copies_are_set_aside_as_often_as_it_takes(tmp_path) -> None:
    for name in ("records-until-2-b2", "records-until-2-b2-2", "records-unreadable"):
        cache = RecordCache(tmp_path / "records")
        cache.directory.mkdir()
        text = "{" if name.endswith("unreadable") else '{"seq": 2, "id": "b2", "kind": "boot"}'
        (cache.directory / "000002-b2.json").write_text(text, encoding="utf-8")
        assert set_aside(cache) == tmp_path / name
        assert cache.list() == []


@pytest.mark.parametrize(
    ("heads", "aside"),
    [
        ({"spark0": None, "spark1": None}, True),
        ({"spark0": None, "spark1": {"seq": 2, "hash": "x"}}, False),
        ({"spark0": None}, False),
        ({}, False),
    ],
    ids=["all-nodes-new", "one-node-new", "one-chain-unknown", "no-chain-known"],
)
def test_a_copy_that_no_node_has_is_kept_aside(tmp_path, heads, aside) -> None:
    cache = RecordCache(tmp_path / "records")
    cache.directory.mkdir()
    (cache.directory / "000002-b2.json").write_text('{"seq": 2, "id": "b2", "kind": "boot"}', encoding="utf-8")
    moved = set_aside_older_chain(["spark0", "spark1"], heads, cache)
    assert (moved is not None) == aside
    assert (tmp_path / "records-until-2-b2" / "000002-b2.json").exists() == aside
    assert set_aside_older_chain(["spark0"], {"spark0": None}, RecordCache(tmp_path / "none")) is None


def test_a_chain_of_which_nothing_is_known_is_no_empty_one() -> None:
    head = {"seq": 2, "id": "r2", "hash": "x"}
    statuses = {
        "whole": {"record_head": head, "record_chain": "ok"},
        "new": {"record_head": None, "record_chain": "empty"},
        "damaged": {"record_head": None, "record_chain": "damaged"},
        "silent": None,
    }
    assert heads_of(statuses) == {"whole": head, "new": None}


def test_where_no_node_answers_the_record_follows_the_controllers_copy() -> None:
    chain = Chain(5)
    assert leading_head({}, chain) == chain.head(5)
    assert behind(["spark0", "spark1"], {"spark0": chain.head(4)}, chain).appends == {
        "spark0": [{"record": chain.records[4], "previous": chain.records[4]["previous"]}],
        "spark1": [],
    }
    plan = appends(["spark0", "spark1"], {"spark0": chain.head(5)}, chain, new(chain)).appends
    assert [entry["record"]["id"] for entry in plan["spark1"]] == ["new"], "its agent says what is wrong with its chain"


@pytest.mark.parametrize("numbers", [(5, 5, 5), (0, 0, 0)])
def test_nodes_that_are_level_need_no_copies(numbers: tuple[int, ...]) -> None:
    chain = Chain(5)
    heads = {f"spark{rank}": chain.head(number) for rank, number in enumerate(numbers)}
    assert all(needed(head, heads, Chain(0)) == [] for head in heads.values())


@pytest.mark.parametrize(
    ("numbers", "held", "level"),
    [
        *(((5, 5, 5), 5, True), ((5, 5, 5), 0, True), ((0, 0, 0), 0, True)),
        *(((5, 4, 5), 5, False), ((5, 5, 5), 6, False), ((5, 5, 5), 3, False), ((5, 0, 5), 5, False)),
    ],
)
def test_only_where_all_end_with_one_record_no_copies_are_looked_for(
    numbers: tuple[int, ...], held: int, level: bool
) -> None:
    """A controller that is ahead or behind, a node that is behind, or another chain: the task that copies judges it."""
    chain = Chain(6)
    heads = {f"spark{rank}": chain.head(number) if number else None for rank, number in enumerate(numbers)}
    assert is_level(heads, chain.holding(*range(1, held + 1))) is level
    other = Chain(0)
    other.records = [{"seq": 1, "id": "other", "previous": None}]
    assert not is_level(heads, other)


@pytest.mark.parametrize("held", [0, 2, 5])
def test_another_hosts_controller_gets_what_a_node_that_is_behind_has_missed(held: int) -> None:
    """Without these its boot would be refused as a fork, or for lost records, with the engine already started."""
    chain, copy = Chain(5), Chain(held)
    heads = {"spark0": chain.head(5), "spark1": chain.head(3), "spark2": chain.head(5)}
    for head in heads.values():
        numbers = needed(head, heads, copy)
        assert not set(numbers) & {record["seq"] for record in copy.records}
        copy.records += [record for record in chain.records if record["seq"] in numbers]
    assert leading_head(heads, copy) == chain.head(5)
    assert [entry["record"]["seq"] for entry in appends(heads, heads, copy, new(chain)).appends["spark1"]] == [4, 5, 6]
    assert needed(heads["spark0"], heads, copy) == []


def test_a_node_without_any_record_gets_all_of_them() -> None:
    chain = Chain(3)
    heads = {"spark0": chain.head(3), "spark1": None}
    assert needed(None, heads, Chain(0)) == []
    assert needed(heads["spark0"], heads, Chain(0)) == [1, 2, 3]


def test_a_copy_that_is_not_the_nodes_chain_is_refused_or_put_aside(tmp_path) -> None:
    """As a controller has it that was killed after it kept a record, where one of another host went on."""
    chain = Chain(4)
    heads = {"spark0": chain.head(4), "spark1": None}
    refuse_forked_copy(heads, Chain(3))
    forked = Chain(4)
    forked.records[3] = {**forked.records[3], "id": "own"}
    with pytest.raises(
        TrisparkError, match=r"TS-RECORD-FORK: .*record 4 .*, as this controller's copy has it"
    ) as caught:
        refuse_forked_copy(heads, forked)
    assert caught.value.where == "spark0"
    place = tmp_path / "records"
    place.mkdir()
    (place / "000004-own.json").write_text("{}")
    forked.directory = place
    forked.list = lambda limit=None: forked.records[-(limit or 9) :]
    assert set_aside_forked_copy(heads, forked) == tmp_path / "records-forked-4-own"
    assert (tmp_path / "records-forked-4-own/000004-own.json").exists()
    assert set_aside_forked_copy(heads, Chain(4)) is None


def test_a_controller_that_holds_only_its_own_newest_record_continues_the_chain() -> None:
    """Killed before it gave its record to any node; the one before was another controller's."""
    whole = Chain(3)
    own = Chain(0)
    own.records = [whole.records[2]]
    heads = dict.fromkeys(("spark0", "spark1"), whole.head(2))
    assert leading_head(heads, own) == whole.head(3)
    own.records = [{**whole.records[2], "previous": {"seq": 2, "hash": "0" * 64}}]
    with pytest.raises(TrisparkError, match="TS-RECORD-FORK"):
        leading_head(heads, own)
