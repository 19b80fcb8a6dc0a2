"""The corpora are what their hashes say, and a site's measurement is made of them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from trispark.bench_plan import PROTOCOL, bench_input, client_input, input_changes
from trispark.errors import TrisparkError
from trispark.filler import filler
from trispark.site import BenchSettings, Site
from trispark.workloads import FILE, SHORT, read_corpora, recorded_hashes
from trispark_bench.cells import cells_of
from trispark_bench.plan import PROTOCOL as CLIENTS
from trispark_bench.plan import BenchPlan

ROOT = Path(__file__).resolve().parents[3]


def test_every_corpus_has_its_hash() -> None:
    assert recorded_hashes(ROOT) == read_corpora(ROOT).hashes(), "a text that changed is another corpus"


def test_the_review_s_kinds_of_text_are_there() -> None:
    corpora = read_corpora(ROOT)
    assert {"prose", "code", "structured", "chat", "retrieval"} <= set(corpora.prompts)
    assert corpora.workload("chat")["temperature"] > 0
    assert {corpora.workload(name)["temperature"] for name in corpora.prompts if name != "chat"} == {0.0}
    assert corpora.context(SHORT) == ""
    assert len(corpora.context("long")) > 100_000


def test_a_needle_lies_once_in_its_text() -> None:
    for prompt, needle in zip(
        read_corpora(ROOT).prompts["retrieval"], ("7413", "walnut-58", "Ottilie Marn", "26"), strict=True
    ):
        assert prompt.count(needle) == 1
        assert "{filler" not in prompt


def test_filler_is_the_same_everywhere() -> None:
    assert filler(2, 7) == (filler(3, 7)[: len(filler(2, 7))])
    assert filler(20, 1) != filler(20, 2)
    assert filler(0, 1) == ""


def test_a_name_that_is_not_there_is_refused(site: Site) -> None:
    for change in ({"workloads": ("verse",)}, {"contexts": ("endless",)}):
        other = site.model_copy(update={"bench": site.bench.model_copy(update=change)})
        with pytest.raises(TrisparkError) as caught:
            client_input(other, ROOT)
        assert caught.value.id == "TS-WORKLOAD-UNKNOWN"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("chat: {temperature: 0.7", "talk: {temperature: 0.7"),
        ("temperature: 0.7", "temperature: 7"),
        ("schema_version: 1", "schema_version: 2"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, old: str, new: str) -> None:
    text = (ROOT / FILE).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(TrisparkError) as caught:
        read_corpora(tmp_path)
    assert caught.value.id == "TS-WORKLOAD-SCHEMA"


def planned(site: Site, **change: Any) -> dict[str, Any]:
    bench = BenchSettings.model_validate({**site.bench.model_dump(), **change})
    return client_input(site.model_copy(update={"bench": bench}), ROOT)


def test_the_client_reads_what_the_controller_plans(site: Site) -> None:
    assert PROTOCOL == CLIENTS
    given = planned(site, contexts=("short", "long"), mixed=(3,), concurrency=(1, 4), thinking=True)
    plan = BenchPlan.from_json(given)
    assert [cell.tag for cell in cells_of(plan)] == [
        "c1-prose",
        "c1-code",
        "c4",
        "c1-prose-long",
        "c1-code-long",
        "c4-long",
        "mixed-c3",
    ]
    assert plan.thinking


def test_every_part_of_the_input_is_part_of_its_record(site: Site) -> None:
    """Two boots that differ in one of them did other work, and say so."""
    plain = bench_input({"rank": 1, "image": "i", "input": planned(site)})
    for change in (
        {"repetitions": 6},
        {"max_tokens": 9},
        {"warmup_tokens": 9},
        {"concurrency": (1, 2)},
        {"workloads": ("prose", "chat")},
        {"contexts": ("long",)},
        {"mixed": (1,)},
        {"seed": 2},
        {"thinking": True},
        {"reasoning_effort": "high"},
    ):
        other = bench_input({"rank": 1, "image": "i", "input": planned(site, **change)})
        assert other != plain, change
        assert input_changes(plain, other), change
    assert input_changes(plain, copy.deepcopy(plain)) == {}


def test_a_record_of_the_first_client_says_less_and_differs_by_its_protocol(site: Site) -> None:
    now = bench_input({"rank": 1, "image": "i", "input": planned(site)})
    first = ("repetitions", "max_tokens", "warmup_tokens", "concurrency", "image", "rank", "workloads")
    assert input_changes({name: now[name] for name in first}, now) == {"protocol": (1, PROTOCOL)}


def test_contexts_and_mixed_cells_have_their_time(site: Site) -> None:
    plain = site.bench.deadline_s
    more = BenchSettings.model_validate({**site.bench.model_dump(), "contexts": ("short", "long"), "mixed": (3,)})
    assert more.deadline_s > 2 * plain - 60
