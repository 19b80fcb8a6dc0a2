"""site.json: written as it was told, equal again, damaged and bad requests named, whole at every crash."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trispark_node import site_facts
from trispark_node.cli import answer
from trispark_node.errors import AgentError


def test_what_was_told_is_read_back_and_equal_again(bench):
    assert site_facts.read(bench.node) is None
    request = bench.know_site()
    before = bench.tree()
    facts = site_facts.read(bench.node)
    assert facts is not None
    assert json.loads(json.dumps(facts.json())) == request
    assert not bench.ask("site-set", **request)["changed"]
    assert bench.tree() == before


def test_another_value_replaces_it_and_check_mode_changes_nothing(bench):
    request = bench.know_site()
    before = bench.tree()
    other = {**request, "keep_boots": 7}
    said = bench.ask("site-set", **other, check=True)
    assert (said["changed"], bench.tree()) == (True, before)
    assert "keep_boots 7" in said["diff"]["after"]
    bench.ask("site-set", **other)
    assert site_facts.read(bench.node).keep_boots == 7


BAD = {
    "no site": {"site": None},
    "a site's name with a slash": {"site": "../lab"},
    "another version": {"schema_version": 2},
    "a rank beyond the nodes": {"rank": 3},
    "another rank": {"rank": 0},
    "a node of another site": {"node": "spark9"},
    "two nodes of three": {"nodes": ["spark0", "spark1"]},
    "no port": {"ports": []},
    "a port too large": {"ports": [70000]},
    "memory from nowhere": {"memory": {"source": "guess", "available_bytes": None}},
    "memory as text": {"memory": {"source": "meminfo", "available_bytes": "2g"}},
    "memory with more": {"memory": {"source": "meminfo", "available_bytes": None, "unit": "GiB"}},
    "nothing kept": {"keep_generations": 0},
    "no boot kept": {"keep_boots": 0},
    "an endless stop": {"stop_deadline_s": 1e9},
    "a misspelt key": {"keep_boot": 3},
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_changes_nothing(bench, case):
    request = bench.know_site()
    before = bench.tree()
    assert bench.refused("site-set", **{**request, **BAD[case]})["id"] == "TS-AGENT-REQUEST"
    assert bench.tree() == before


CONTENTS = [b"", b"{", b"[]", b"null", b"{}", b'{"schema_version": 1}', b"\xff\xfe", b"x" * 70000]


@pytest.mark.parametrize("content", CONTENTS)
def test_a_damaged_file_is_named_and_the_next_boot_repairs_it(bench, content):
    request = bench.know_site()
    bench.node.layout.site.write_bytes(content)
    with pytest.raises(AgentError) as caught:
        site_facts.read(bench.node)
    assert (caught.value.id, caught.value.where) == ("TS-AGENT-DAMAGED", str(bench.node.layout.site))
    assert bench.ask("site-set", **request)["changed"]
    assert site_facts.read(bench.node) is not None


KEYS = st.sampled_from(["schema_version", "memory", "nodes", "rank"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_content_ends_in_a_traceback(bench, content):
    bench.root.mkdir(exist_ok=True)
    bench.node.layout.site.write_bytes(content)
    with pytest.raises(AgentError) as caught:
        site_facts.read(bench.node)
    assert caught.value.id == "TS-AGENT-DAMAGED"


def test_a_death_at_any_step_leaves_the_old_or_the_new_one(bench, crashes):
    old = bench.know_site()
    new = {**old, "keep_generations": 3}

    def reset():
        bench.ask("site-set", **old)

    seen = set()
    for _ in crashes(lambda disk: answer(bench.with_disk(disk), "site-set", json.dumps(new)), reset):
        facts = site_facts.read(bench.node)
        assert facts is not None
        seen.add(facts.keep_generations)
    assert seen == {3, 10}
