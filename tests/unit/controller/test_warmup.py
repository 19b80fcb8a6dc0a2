"""The warm-up batch is Latin prose, or the check fails: it is no warning."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.catalog import BatchCheck, Catalog
from trispark.warmup import ascii_share, batch_requests, foreign_scripts, judge_batch, text_problem

PROSE = "The harbour lay quiet; at 6 o'clock the first boats came in (three of them), heavy with fish."


@pytest.fixture(params=["lab", "sglang"])
def check(request: pytest.FixtureRequest, catalog: Catalog) -> BatchCheck:
    return catalog.engines[request.param].batch_check


def answer(text: Any = PROSE, status: int = 200) -> dict[str, Any]:
    return {"ok": True, "status": status, "body": {"choices": [{"message": {"content": text}}]}}


def test_one_request_a_slot_in_order(check: BatchCheck) -> None:
    requests = batch_requests(check, {"MAX_RUNNING_REQUESTS": 6}, "http://127.0.0.1:8888/v1/chat/completions", "m")
    assert len(requests) == 6
    assert {request["body"]["max_tokens"] for request in requests} == {48}
    assert [request["body"]["messages"][0]["content"] for request in requests[: len(check.prompts)]] == list(
        check.prompts
    )


def test_thinking_is_off_where_the_engine_could_think(catalog: Catalog) -> None:
    (request,) = batch_requests(catalog.engines["sglang"].batch_check, {"MAX_RUNNING_REQUESTS": 1}, "http://x/", "m")
    assert request["body"]["chat_template_kwargs"] == {"thinking": False}


def test_prose_passes(check: BatchCheck) -> None:
    result = judge_batch(
        check, [answer(), answer("Zwölf Boote, größer als früher: naïve café prose, still mostly ASCII.")]
    )
    assert (result.check_id, result.rank, result.ok) == ("warmup.batch", None, True)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (None, "no answer"),
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
    ],
)
def test_one_bad_answer_fails_the_check_and_is_named(check: BatchCheck, bad: dict[str, Any] | None, said: str) -> None:
    result = judge_batch(check, [answer(), bad, answer()])
    assert not result.ok
    assert said in result.observed
    assert result.observed.startswith("request 1: ")
    assert result.remedy


def test_nothing_asked_is_no_pass(check: BatchCheck) -> None:
    assert not judge_batch(check, []).ok


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
