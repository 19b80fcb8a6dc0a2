"""Files of ranks side by side: what differs is named with its rank, its path and both hashes, and nothing else is."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.images.identity_record import MOST_LISTED, compact, of_nodes
from trispark.images.parity import MOST_NAMED, against, compare, differ, libraries, trees
from trispark_node.file_tree import hash_of

NODES = {0: "spark0", 1: "spark1", 2: "spark2"}


def sha(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


A, B, C = sha("a"), sha("b"), sha("c")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([{"x": A}, {"x": A}, {"x": A}], {}),
        ([{}, {}, {}], {}),
        ([{"x": A}, {"x": B}, {"x": A}], {1: f"the odd node spark1: x is {B[:12]}, spark0, spark2 have {A[:12]}"}),
        ([{}, {"x": A}, {"x": A}], {0: f"the odd node spark0: x missing, spark1, spark2 have {A[:12]}"}),
        ([{}, {}, {"x": A}], {2: f"the odd node spark2: x is {A[:12]}, spark0, spark1 have none"}),
        (
            [{"x": A}, {"x": B}, {"x": C}],
            {
                0: f"no majority, spark0: x is {A[:12]}, spark1 has {B[:12]}; spark2 has {C[:12]}",
                1: f"no majority, spark1: x is {B[:12]}, spark0 has {A[:12]}; spark2 has {C[:12]}",
                2: f"no majority, spark2: x is {C[:12]}, spark0 has {A[:12]}; spark1 has {B[:12]}",
            },
        ),
        (
            [{"x": "a link to /etc"}, {"x": A}, {"x": A}],
            {0: f"the odd node spark0: x is a link to /etc, spark1, spark2 have {A[:12]}"},
        ),
        # Two ranks differ in different files: each is odd in its own.
        (
            [{"x": A, "y": A}, {"x": B, "y": A}, {"x": A, "y": B}],
            {
                1: f"the odd node spark1: x is {B[:12]}, spark0, spark2 have {A[:12]}",
                2: f"the odd node spark2: y is {B[:12]}, spark0, spark1 have {A[:12]}",
            },
        ),
    ],
)
def test_odd_ranks(files: list[dict[str, str]], said: dict[int, str]) -> None:
    compared = compare(dict(enumerate(files)), NODES)
    assert {rank: compared.words(rank, NODES[rank]) for rank in NODES if compared.words(rank, NODES[rank])} == said
    assert compared.equal is (not said)


def test_two_ranks_that_differ_have_no_majority() -> None:
    compared = compare({0: {"x": A}, 1: {"x": B}}, NODES)
    assert set(compared.odd) == {0, 1}
    assert compared.words(1, "spark1").startswith("no majority, spark1: ")


def test_a_line_is_bounded_and_says_how_many_more() -> None:
    many = {f"f{number:03}": A for number in range(50)}
    compared = compare({0: many, 1: dict.fromkeys(many, B), 2: many}, NODES)
    words = compared.words(1, "spark1")
    assert words.count(B[:12]) == MOST_NAMED
    assert words.endswith(f"; and {50 - MOST_NAMED} more")
    assert len(compared.odd[1]) == 50


TREES = st.dictionaries(st.sampled_from(["a.py", "b.py", "c/d.py", "e.so"]), st.binary(min_size=1), min_size=1)


@given(tree=TREES, rank=st.sampled_from(sorted(NODES)), data=st.data())
def test_any_changed_byte_of_any_rank_is_named(tree: dict[str, bytes], rank: int, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(tree)))
    content = bytearray(tree[path])
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    then, now = sha(tree[path]), sha(bytes(content))
    whole = {name: sha(each) for name, each in tree.items()}
    files = {each: {**whole, path: now} if each == rank else whole for each in NODES}

    compared = compare(files, NODES)
    assert set(compared.odd) == {rank}
    assert [odd.path for odd in compared.odd[rank]] == [path]
    line = compared.words(rank, NODES[rank])
    assert f"the odd node {NODES[rank]}: {path} is {now[:12]}" in line
    assert then[:12] in line

    planned = against(whole, files, NODES)
    assert set(planned) == {rank}
    assert f"{NODES[rank]}: {path} is {now[:12]}, planned {then[:12]}" in planned[rank]

    for listed in (False, True):
        identities = {each: {"source": tree_of(files[each], listed=listed)} for each in NODES}
        check = trees("source", identities, NODES)
        assert set(check.problems) == {rank}
        assert (path in check.problems[rank]) is listed, "files are named where they were asked for"
        assert hash_of(files[rank])[:12] in check.problems[rank] or listed
        assert differ({NODES[each]: identity for each, identity in identities.items()})


def tree_of(files: dict[str, str], *, listed: bool = False) -> dict[str, Any]:
    return {"hash": hash_of(files), "files": len(files), "bytes": 1, **({"listed": files} if listed else {})}


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"problem": "/opt/engine: no such directory"}, "/opt/engine: no such directory"),
        ({}, "it was not read"),
        (None, "it was not read"),
    ],
)
def test_a_tree_that_was_not_read_is_no_equal_one(own: Any, problem: str) -> None:
    identities = {rank: {"source": tree_of({"x": A})} for rank in (0, 2)} | {1: {"source": own}}
    assert trees("source", identities, NODES).problems == {1: problem}
    assert trees("source", {}, NODES).problems == dict.fromkeys(NODES, "it was not read")


def test_the_files_are_asked_for_only_where_trees_differ() -> None:
    same = {"source": tree_of({"x": A}), "adapters": tree_of({"y": A})}
    assert not differ({"spark0": same, "spark1": same, "spark2": None})
    assert not differ({})
    assert differ({"spark0": same, "spark1": {**same, "adapters": tree_of({"y": B})}})
    assert differ({"spark0": same, "spark1": {**same, "source": {"problem": "x"}}})


def loaded(*each: dict[str, str]) -> dict[int, dict[str, Any]]:
    return {rank: {"libraries": {"listed": files}} for rank, files in enumerate(each)}


SAME_SET = ("*/libnccl.so*",)
NCCL = "/opt/torch/lib/libnccl.so.2"


@pytest.mark.parametrize(
    ("files", "odd", "problems"),
    [
        ([{"/l": A, "/api": B}, {"/l": A}, {"/l": A}], set(), set()),
        ([{"/l": A}, {"/l": B}, {"/l": A}], {1}, set()),
        ([{"/l": A, "/api": B}, {"/l": A, "/api": C}, {"/l": A}], {0, 1}, set()),
        ([{NCCL: A}, {NCCL: A}, {NCCL: A}], set(), set()),
        # The field's: one rank loads the mounted copy, the others torch's own.
        ([{NCCL: A}, {"/mnt/nccl/libnccl.so.2": A}, {NCCL: A}], {1}, set()),
        ([{NCCL: A}, {NCCL: A, "/mnt/nccl/libnccl.so.2": A}, {NCCL: A}], {1}, set()),
        ([{"/l": A}, {}, {"/l": A}], set(), {1}),
        ([{"/l": A}, {"/l": A, "/m": "replaced or removed since it was loaded"}, {"/l": A}], set(), {1}),
    ],
)
def test_libraries(files: list[dict[str, str]], odd: set[int], problems: set[int]) -> None:
    compared, said = libraries(loaded(*files), NODES, SAME_SET)
    assert (set(compared.odd), set(said)) == (odd, problems)


def test_ranks_that_all_lack_what_is_needed_are_equal_and_wrong() -> None:
    """A pattern that matches nothing anywhere would be satisfied by all ranks alike."""
    compared, said = libraries(loaded({"/l": A}, {"/l": A}, {"/l": A, NCCL: B}), NODES, (), SAME_SET)
    assert set(said) == {0, 1}
    assert "*/libnccl.so*" in said[0]
    assert set(compared.odd) == set()


def identity(**trees_of: dict[str, str]) -> dict[str, Any]:
    libs = {"hash": hash_of({"/l": A}), "files": 1, "bytes": 1, "listed": {"/l": A}, "made_here": []}
    named = {name: tree_of(files, listed=True) for name, files in trees_of.items()}
    return {"source": None, "adapters": None, "libraries": libs, "autotune": None, "seconds": 0.1, **named}


def test_a_record_lists_files_only_where_ranks_differ_and_not_without_bounds() -> None:
    many = {f"f{number:04}": A for number in range(MOST_LISTED + 50)}
    kept = compact({"spark0": identity(source=many), "spark1": identity(source={**many, "f0001": B, "g": A})})
    assert kept["spark1"]["differing"] == {"source": {"f0001": B, "g": A}}
    assert kept["spark0"]["differing"] == {"source": {"f0001": A, "g": None}}
    assert kept["spark0"]["source"] == {"hash": hash_of(many), "files": len(many), "bytes": 1, "problem": ""}
    assert kept["spark0"]["adapters"] is None
    whole = compact({"spark0": identity(source=many), "spark1": identity(source=dict.fromkeys(many, B))})
    assert len(whole["spark0"]["differing"]["source"]) == MOST_LISTED
    same = compact({"spark0": identity(source=many), "spark1": identity(source=many)})
    assert [each["differing"] for each in same.values()] == [{}, {}]
    assert compact({}) == {}


def test_the_listing_takes_the_place_of_the_short_answer() -> None:
    short, long = {"source": tree_of({"x": A})}, {"source": tree_of({"x": A}, listed=True)}
    seen = {"spark0": {"identity": short}, "spark1": {"identity": short}, "spark2": None}
    listed = {"spark1": {"running": {"identity": long}}, "spark0": {"running": None}, "spark2": None}
    assert of_nodes(seen, listed) == {"spark0": short, "spark1": long}


def test_sources_that_are_nowhere_are_not_equal() -> None:
    empty = {"source": {"hash": hash_of({}), "files": 0, "bytes": 0, "listed": {}}}
    nodes = {0: "spark0", 1: "spark1", 2: "spark2"}
    assert trees("source", dict.fromkeys(nodes, empty), nodes).problems == dict.fromkeys(nodes, "no file is there")
