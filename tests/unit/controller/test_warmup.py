"""The warm-up batch is Latin prose, or the gate fails: it is no warning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.catalog import Catalog
from trispark.gates import evaluate, failed
from trispark.resolve import Resolution, resolve
from trispark.site import load_site
from trispark.warmup import ascii_share, batch_problems, batch_requests, foreign_scripts, text_problem

REPOSITORY = Path(__file__).resolve().parents[3]
PROSE = "The harbour lay quiet; at 6 o'clock the first boats came in (three of them), heavy with fish."


@pytest.fixture(scope="module")
def production(catalog: Catalog) -> Resolution:
    return resolve(load_site(REPOSITORY / "inventory" / "sparks"), catalog, None, None, REPOSITORY)


def answer(text: Any = PROSE, status: int = 200) -> dict[str, Any]:
    return {"status": status, "body": {"choices": [{"message": {"content": text}}]}}


def test_one_request_a_slot(production: Resolution, baseline: Resolution) -> None:
    for resolution in (production, baseline):
        requests = batch_requests(resolution.resolved)
        assert len(requests) == resolution.settings["MAX_RUNNING_REQUESTS"] == 4
        assert {request["body"]["max_tokens"] for request in requests} == {48}
        assert {request["body"]["temperature"] for request in requests} == {0}
        assert {request["url"] for request in requests} == {"http://127.0.0.1:8888/v1/chat/completions"}


def test_prompts_differ_and_thinking_is_off_where_the_engine_could_think(production: Resolution) -> None:
    bodies = [request["body"] for request in batch_requests(production.resolved)]
    assert all(body["chat_template_kwargs"] == {"thinking": False} for body in bodies)
    assert len({body["messages"][0]["content"] for body in bodies}) == 4


def test_a_generation_from_before_there_was_a_batch_asks_for_none(baseline: Resolution) -> None:
    gates = {key: value for key, value in baseline.resolved["gates"].items() if key != "batch"}
    assert batch_requests({**baseline.resolved, "gates": gates}) == []


def test_prose_passes(production: Resolution) -> None:
    other = "Zwölf Boote, größer als früher: naïve prose, still mostly ASCII."
    assert batch_problems(production.resolved, [answer(), answer(other), answer(), answer()]) == []


BAD: list[tuple[dict[str, Any], str]] = [
    ({"error": "TS-AGENT-HTTP: the address gives no answer"}, "TS-AGENT-HTTP"),
    (answer(status=500), "HTTP 500"),
    ({"status": 200, "body": "no JSON"}, "no chat completion"),
    (answer(None), "no chat completion"),
    (answer(""), "no text"),
    (answer(" \n\t"), "no text"),
    (answer(PROSE + " 港"), "other scripts: U+6E2F"),
    (answer(PROSE + " 항구"), "U+D56D"),
    (answer(PROSE + " カ"), "U+30AB"),
    (answer("→→→→→→→→ ok"), "20% ASCII"),
    (answer("Κάποτε σε ένα λιμάνι"), "0% ASCII"),
]


@pytest.mark.parametrize(("bad", "said"), BAD)
def test_one_bad_answer_is_named(production: Resolution, bad: dict[str, Any], said: str) -> None:
    (problem,) = batch_problems(production.resolved, [answer(), bad, answer(), answer()])
    assert problem.startswith("request 1: ")
    assert said in problem


@pytest.mark.parametrize("count", [0, 3, 5])
def test_every_request_has_its_answer(production: Resolution, count: int) -> None:
    assert batch_problems(production.resolved, [answer()] * count) == [f"{count} answers to 4 requests"]


@pytest.mark.parametrize(
    ("answers", "fails"),
    [([answer()] * 4, set()), ([answer()] * 3 + [answer("→")], {"warmup.batch"}), ([], {"warmup.batch"})],
)
def test_it_is_a_gate_of_the_fleet(
    baseline: Resolution,
    healthy: Callable[..., dict[str, dict[str, Any]]],
    canary: dict[str, Any],
    engram_rows: dict[int, int],
    answers: list[dict[str, Any]],
    fails: set[str],
) -> None:
    results = evaluate(baseline, healthy(baseline), canary, engram_rows, None, answers)
    assert {result.check_id for result in failed(results)} == fails
    assert [result.rank for result in results if result.check_id == "warmup.batch"] == [None]


@given(st.text())
def test_any_text_is_judged(text: str) -> None:
    assert 0 <= ascii_share(text) <= 1
    problem = text_problem(text, 0.7)
    assert problem is not None or (text.strip() and not foreign_scripts(text) and ascii_share(text) >= 0.7)


@given(
    st.text("abcXYZ ,.;'0123\n", min_size=1).filter(str.strip),
    st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF),
)
def test_one_character_of_another_script_is_enough(prose: str, character: str) -> None:
    assert text_problem(prose, 0.7) is None
    assert text_problem(prose + character, 0.0) is not None
