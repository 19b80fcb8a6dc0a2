"""What a playbook takes from the results that its tasks registered."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def filters() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "plugins" / "filter" / "trispark.py"
    spec = importlib.util.spec_from_file_location("trispark_filters", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFUSAL: dict[str, Any] = {"failed": True, "answer": {"ok": False, "error": {"id": "TS-AGENT-ABSENT"}}}


def test_a_refusal_is_no_answer(filters: ModuleType) -> None:
    assert filters.answer({"seen": {"answer": {"ok": True, "current": "g1"}}}, "seen") == {"ok": True, "current": "g1"}
    assert filters.answer({"seen": REFUSAL}, "seen") is None
    assert filters.answer({"seen": {"unreachable": True}}, "seen") is None


def test_a_rank_whose_observation_was_refused_was_not_observed(filters: ModuleType) -> None:
    """Else the record would show a rank that was seen, with nothing in it, in place of what was seen before."""
    earlier = {"answer": {"ok": True, "log": "x"}}
    facts = filters.boot_facts({"engine_observation": earlier, "engine_after_load": REFUSAL, "bench_run": REFUSAL})
    assert (facts["observation"], facts["after_load"], facts["bench"]) == (earlier["answer"], None, {})


def test_rows_of_a_load_client_that_its_node_ended_are_handed_on(filters: ModuleType) -> None:
    refused = {"failed": True, "msg": "TS-AGENT-DEADLINE: it", "answer": {"ok": False, "rows": [{"n": 1}]}}
    assert filters.boot_facts({"bench_run": refused})["bench"] == {
        "rows": [{"n": 1}],
        "log_tail": ["TS-AGENT-DEADLINE: it"],
    }
    for nothing in (
        None,
        {},
        {"msg": "it"},
        {**refused, "answer": {"ok": False, "rows": []}},
        {**refused, "answer": None},
    ):
        assert filters.boot_facts({"bench_run": nothing})["bench"] == {}


def test_every_image_of_the_site_is_pulled_once(filters: ModuleType) -> None:
    assert filters.images("e@1", {"canary": "c@1", "next": "e@1"}, "b@1") == ["e@1", "c@1", "b@1"]
    assert filters.images("e@1", {}, "") == ["e@1"], "a site without a load client's image"
