"""Quality judges: a healthy engine passes, each single fault fails its own judge, what was not seen has failed."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from quality_answers import CODE, PROSE, completion, healthy, native

from trispark.catalog import Catalog, load_catalog
from trispark.gate_result import GateResult
from trispark.gates import evaluate
from trispark.quality import judges
from trispark.quality.answers import Answer, Steps, Token, chat, generated
from trispark.quality.evaluate import Answered, code_to_run, compare_all, judge_long, judge_short
from trispark.quality.model import EngineQuality
from trispark.quality.questions import Asker, Question, needle_code, needle_text, requests
from trispark.quality.reference import Likeness, compare, packed, unpacked, worst
from trispark.quality.short import short_requests, short_results
from trispark.resolve import Resolution

ROOT = Path(__file__).resolve().parents[3]
Raw = dict[str, Any]


@pytest.fixture(scope="module")
def lab() -> EngineQuality:
    return load_catalog(ROOT).quality["lab"]


def short_of(quality: EngineQuality) -> tuple[Question, ...]:
    return Asker(quality, "m", 4).short(True)


def long_of(quality: EngineQuality) -> list[Question]:
    return [question for asked in Asker(quality, "m", 4).rounds(["prose", "code", "json"]) for question in asked]


def bad(results: list[GateResult]) -> set[str]:
    return {each.check_id for each in results if not each.ok}


def long_results(quality: EngineQuality, edit: Callable[[str, Raw], Raw], **more: Any) -> list[GateResult]:
    asked = long_of(quality)
    raw = [edit(each.name, healthy(quality, each)) for each in asked]
    executed = {name: () for name in CODE}
    given: Any = {"bands": [], "repeat": ["prose", "code", "json"], "executed": executed, **more}
    return judge_long(quality, asked, raw, **given)


def same(_name: str, raw: Raw) -> Raw:
    return raw


# -- a healthy engine, and one that is broken in one way


def test_a_healthy_engine_passes_everything(lab: EngineQuality) -> None:
    asked = short_of(lab)
    short = judge_short(lab, asked, [healthy(lab, each) for each in asked], [(1.5, 6.0)])
    assert bad(short) == set()
    assert [each.check_id for each in short] == [
        *("quality.logprobs", "quality.sane.prose", "quality.acceptance.prose", "quality.repeat.prose"),
        *("quality.task.nodes", "quality.task.weather"),
    ]
    found = long_results(lab, same)
    assert bad(found) == set()
    assert len({each.check_id for each in found}) == len(found) > 20


def starting(prefix: str, value: Raw) -> Callable[[str, Raw], Raw]:
    return lambda name, raw: value if name.startswith(prefix) else raw


def nan_at(name: str, raw: Raw) -> Raw:
    if not name.startswith("logprobs.code.1"):
        return raw
    found = copy.deepcopy(raw)
    found["body"]["choices"][0]["logprobs"]["content"][3]["logprob"] = math.nan
    return found


@pytest.mark.parametrize(
    ("edit", "checks"),
    [
        (nan_at, {"logprobs"}),
        (starting("logprobs.json.0", completion(PROSE)), {"logprobs"}),
        # Fluent text, and no draft was ever accepted: 33 tokens in 32 steps.
        (starting("acceptance.", native(33, 32)), {f"acceptance.{name}" for name in ("prose", "code", "json")}),
        (starting("acceptance.code", native(33, 29)), {"acceptance.code"}),
        (starting("acceptance.code", {"status": 200, "body": {"text": PROSE, "meta_info": {}}}), {"acceptance.code"}),
        (starting("repeat.prose.2", completion(PROSE + " And")), {"repeat.prose"}),
        (starting("logprobs.prose.1", completion("灯塔" * 9, logprobs=True)), {"sane.prose"}),
        (starting("logprobs.code.0", completion("a b c " * 9, logprobs=True)), {"sane.code", "mixed"}),
        (starting("mixed.greedy.prose", completion(PROSE[:-5])), {"mixed"}),
        (starting("mixed.sampled", completion("!? " * 30)), {"sane.sampled"}),
        (starting("task.sum", completion("43")), {"task.sum"}),
        (starting("task.nodes", completion('{"a": 1, "b": 2}')), {"task.nodes"}),
        (starting("task.nodes", completion('{"a": 1, "b": 2, "c": "3"}')), {"task.nodes"}),
        (starting("task.nodes", completion("three nodes")), {"task.nodes"}),
        (starting("task.weather", completion("It rains.")), {"task.weather"}),
        (starting("needle.100.50", completion("It is lost.")), {"needle.100.50"}),
        (starting("needle.100.0", {"error": "TS-AGENT-HTTP: no answer"}), {"needle.100.0"}),
        (starting("task.product", {"status": 500, "body": "x"}), {"task.product"}),
    ],
)
def test_each_fault_fails_its_own_judge(lab: EngineQuality, edit: Callable[[str, Raw], Raw], checks: set[str]) -> None:
    found = {check.removeprefix("quality.") for check in bad(long_results(lab, edit))}
    assert found == checks


def test_what_was_not_seen_has_failed(lab: EngineQuality) -> None:
    asked = long_of(lab)
    found = judge_long(lab, asked, [], [], ["prose"], {})
    assert [each.check_id for each in found if each.ok] == []
    assert [each.check_id for each in judge_short(lab, short_of(lab), [], []) if each.ok] == []
    executed = long_results(lab, same, executed={})
    assert bad(executed) == {f"quality.task.{name}" for name in CODE}, "code that did not run is never right"
    wrong = long_results(lab, same, executed={**{name: () for name in CODE}, "double": ("double(21) == 42 is false",)})
    assert bad(wrong) == {"quality.task.double"}


def test_a_workload_that_need_not_repeat_is_not_judged(lab: EngineQuality) -> None:
    sparks = replace_invariance(lab)
    rounds = Asker(sparks, "m", 4).rounds(["code"])
    names = [question.name for asked in rounds for question in asked]
    assert [name for name in names if name.startswith("repeat.")] == [f"repeat.code.{n}" for n in range(sparks.repeats)]
    assert all(len(asked) == 1 for asked in rounds if asked[0].name.startswith("repeat.")), "one at a time"
    assert len([each for each in Asker(sparks, "m", 4).short(True) if each.name.startswith("logprobs.")]) == 1


def replace_invariance(quality: EngineQuality) -> EngineQuality:
    return quality.model_copy(update={"batch_invariant": False})


def test_a_mixed_batch_of_another_text_is_fine_where_a_batch_may_change_it(lab: EngineQuality) -> None:
    def edit(name: str, raw: Raw) -> Raw:
        return completion(PROSE.upper()) if name.startswith("mixed.greedy") else raw

    assert bad(long_results(lab, edit)) == {"quality.mixed"}
    assert bad(long_results(replace_invariance(lab), edit)) == set()


def test_the_mixed_batch_fills_the_slots_with_greedy_and_sampled_requests(lab: EngineQuality) -> None:
    asked = Asker(lab, "m", 6).rounds([])[-1]
    assert [each.body["temperature"] for each in asked] == [0, 0.7] * 3
    names = [question.name for question in long_of(lab)]
    assert len(set(names)) == len(names)


# -- acceptance


@given(st.lists(st.tuples(st.integers(2, 500), st.integers(1, 500)), min_size=1, max_size=6))
def test_the_floor_is_of_all_steps_together(counts: list[tuple[int, int]]) -> None:
    found = judges.acceptance("prose", [Steps(None, PROSE, tokens, verify) for tokens, verify in counts], [])
    mean = sum(tokens - 1 for tokens, _ in counts) / sum(verify for _, verify in counts)
    assert found.ok is (mean >= 1.2)


@pytest.mark.parametrize("mean", [math.nan, 0.0, 1.0, 1.19, -math.inf])
def test_what_is_no_working_draft_is_never_accepted(mean: float) -> None:
    assert not judges.accepted(mean, [])
    assert not judges.accepted(mean, [(-math.inf, math.inf)])


def test_bands_are_judged_besides_the_floor() -> None:
    counts = [Steps(None, PROSE, 41, 20)]
    assert judges.acceptance("code", counts, [(1.5, 6.0)]).ok
    assert not judges.acceptance("code", counts, [(1.5, 6.0), (2.5, 4.0)]).ok


# -- texts


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        (PROSE, False),
        ("the sea " * 3, False),
        ("yes " * 11, False),
        ("yes " * 12, True),
        ("a b c d " * 4, True),
        (PROSE + " and so it goes on" * 5, True),
        (" ".join(f"line {n}" for n in range(40)), False),
        ("", False),
    ],
)
def test_loops(text: str, loop: bool) -> None:
    assert (judges.loop_problem(text) is not None) is loop


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"error": "x"}, "x"),
        ({"status": 503, "body": {}}, "HTTP 503"),
        ({"status": 200, "body": "<html>"}, "no JSON"),
        ({"status": 200, "body": {}}, "no chat completion"),
        ({"status": 200, "body": []}, "no chat completion"),
        ({"status": 200, "body": {"choices": [{"message": {"content": 7}}]}}, "no chat completion"),
        ({"status": 200, "body": {"choices": [{"message": None}]}}, "no chat completion"),
        ({}, "HTTP None"),
    ],
)
def test_answers_that_are_none(raw: Raw, problem: str) -> None:
    assert chat(raw).problem == problem
    assert generated(raw).problem is not None


def test_a_body_with_nan_is_read_and_judged() -> None:
    body = json.dumps(completion(PROSE, logprobs=True)["body"]).replace("-0.5", "NaN", 1)
    answer = chat({"status": 200, "body": body})
    assert answer.problem is None
    assert not judges.finite_logprobs({"x": answer}).ok


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_no_body_makes_a_reader_fail(body: Any) -> None:
    for raw in ({"status": 200, "body": body}, {"status": 200, "body": {"choices": [body], "meta_info": body}}):
        assert isinstance(chat(raw), Answer)
        assert isinstance(generated(raw), Steps)


def test_a_needle_is_one_word_at_its_depth(lab: EngineQuality) -> None:
    (needle,) = lab.needles
    codes = {needle_code(needle, 100, depth) for depth in (0, 0.25, 0.5, 1)}
    assert len(codes) == 4
    lines = needle_text(needle, 100, 0.5).splitlines()
    assert len(lines) == 101
    assert [n for n, line in enumerate(lines) if needle_code(needle, 100, 0.5) in line] == [50]
    assert not judges.needle("x", "baba", Answer(None, "bababa")).ok


# -- references


def tokens(*values: tuple[str, float], other: str = "x", gap: float = 9.0) -> Answer:
    return Answer(
        None,
        "".join(text for text, _ in values),
        "stop",
        tuple(Token(text, value, ((text, value), (other, value - gap))) for text, value in values),
    )


BASE = tokens(("a", -0.1), ("b", -0.2), ("c", -0.3))


@pytest.mark.parametrize(
    ("answer", "likeness"),
    [
        (BASE, Likeness.IDENTICAL),
        (tokens(("a", -0.1), ("b", -0.23), ("c", -0.3)), Likeness.EQUIVALENT),
        (tokens(("a", -0.1), ("b", -0.9), ("c", -0.3)), Likeness.DIVERGENT),
        (tokens(("a", -0.1), ("b", -0.2)), Likeness.DIVERGENT),
        (tokens(("a", -0.1), ("x", -0.2), other="b", gap=0.1), Likeness.DIVERGENT),
        (tokens(("z", -0.1)), Likeness.DIVERGENT),
        (tokens(("a", math.nan), ("b", -0.2), ("c", -0.3)), Likeness.DIVERGENT),
        (Answer("HTTP 500"), Likeness.DIVERGENT),
        (Answer(None, "abc"), Likeness.DIVERGENT),
    ],
    ids=["same", "near", "far", "shorter", "parts-far-in-the-reference", "other", "nan", "error", "no-logarithms"],
)
def test_likeness(lab: EngineQuality, answer: Answer, likeness: Likeness) -> None:
    allowed = lab.equivalence.model_copy(update={"mean_nats": 0.05, "tie_nats": 0.5})
    assert compare(BASE, answer, allowed).likeness is likeness
    strict = compare(BASE, answer, lab.equivalence).likeness
    assert strict is (Likeness.IDENTICAL if likeness is Likeness.IDENTICAL else Likeness.DIVERGENT)


def test_texts_may_part_at_a_tie_that_both_sides_saw(lab: EngineQuality) -> None:
    allowed = lab.equivalence.model_copy(update={"mean_nats": 0.05, "tie_nats": 0.5})
    near = tokens(("a", -0.1), ("b", -0.2), other="x", gap=0.3)
    assert compare(near, tokens(("a", -0.1), ("x", -0.2), other="b", gap=0.3), allowed).likeness is Likeness.EQUIVALENT
    assert compare(near, tokens(("a", -0.1), ("x", -0.2), other="b", gap=0.6), allowed).likeness is Likeness.DIVERGENT


def test_a_reference_is_kept_whole_and_the_worst_answer_counts(lab: EngineQuality) -> None:
    asked = long_of(lab)
    raw = [healthy(lab, each) for each in asked]
    known = Answered.of(asked, raw).starting("logprobs.")
    again = unpacked(json.loads(json.dumps(packed(known))))
    found = compare_all(lab, again, asked, raw)
    assert len(found) == sum(len(prompts) for prompts in lab.workloads.values())
    assert worst(found)[0] is Likeness.IDENTICAL
    place = next(n for n, each in enumerate(asked) if each.name == "logprobs.code.1")
    raw[place] = completion(PROSE + " And more", logprobs=True)
    assert worst(compare_all(lab, again, asked, raw)) == (
        Likeness.DIVERGENT,
        "logprobs.code.1: 21 tokens, the reference has 19",
    )
    assert worst({})[0] is Likeness.DIVERGENT


# -- from the generation to the gates of a boot


def test_a_boot_is_asked_what_its_generation_holds(
    baseline: Resolution, healthy_short: list[Raw], lab: EngineQuality
) -> None:
    asked = short_requests(baseline.resolved)
    assert {each["url"].rsplit("8888", 1)[1] for each in asked} == {"/v1/chat/completions", "/generate"}
    assert all(each["url"].startswith("http://127.0.0.1:") for each in asked)
    assert bad(short_results(baseline.resolved, healthy_short)) == set()
    broken = [native(33, 32) if "text" in each["body"] else raw for each, raw in zip(asked, healthy_short, strict=True)]
    assert bad(short_results(baseline.resolved, broken)) == {"quality.acceptance.prose"}
    assert short_requests({**baseline.resolved, "gates": {**baseline.resolved["gates"], "quality": None}}) == []


@pytest.fixture
def healthy_short(lab: EngineQuality, baseline: Resolution) -> list[Raw]:
    kept = baseline.resolved["gates"]["quality"]
    asked = Asker(EngineQuality.of(kept["set"]), "m", 4).short(bool(kept["repeat"]))
    return [healthy(lab, each) for each in asked]


def test_the_gates_of_a_boot_have_the_results_of_the_set(baseline: Resolution, healthy_short: list[Raw]) -> None:
    seen = {each.check_id for each in evaluate(baseline, {}, None, {}, quality=healthy_short) if each.ok}
    assert {"quality.logprobs", "quality.acceptance.prose", "quality.task.nodes"} <= seen
    without = evaluate(baseline, {}, None, {})
    assert [each for each in without if each.check_id.startswith("quality.")] == []


def test_code_for_the_sandbox_is_the_code_alone(lab: EngineQuality) -> None:
    asked = long_of(lab)
    found = code_to_run(lab, asked, [healthy(lab, each) for each in asked])
    assert [each["id"] for each in found] == list(CODE)
    assert found[0] == {"id": "double", "code": CODE["double"], "checks": ["double(21) == 42", "double(-1) == -2"]}
    assert code_to_run(lab, asked, [{"error": "x"}] * len(asked)) == []
    assert judges.code_of("x = 1") == "x = 1"
    assert requests(asked[:1], "http://127.0.0.1:1", 9)[0]["timeout_s"] == 9


# -- the file


@pytest.mark.parametrize(
    "edit",
    [
        lambda q: q["short"]["tasks"].append("double"),
        lambda q: q["short"]["tasks"].append("absent"),
        lambda q: q["short"].update(workload="absent"),
        lambda q: q["tasks"].append(q["tasks"][0]),
        lambda q: q["tasks"][0].pop("expect"),
        lambda q: q["tasks"][0].update(checks=["True"]),
        lambda q: q["needles"][0].update(fact="no code"),
    ],
    ids=["code-in-short", "unknown-task", "unknown-workload", "twice", "nothing-expected", "two-kinds", "no-code"],
)
def test_a_set_that_cannot_be_is_refused(lab: EngineQuality, edit: Callable[[Any], None]) -> None:
    value = lab.model_dump(mode="json", exclude_none=True)
    for task in value["tasks"]:
        for name in ("checks", "arguments"):
            if not task[name]:
                del task[name]
    assert EngineQuality.of(value) == lab
    edit(value)
    with pytest.raises(ValidationError):
        EngineQuality.of(value)


def test_every_engine_has_its_questions(catalog: Catalog) -> None:
    assert set(catalog.quality) == set(catalog.engines)
    assert replace(catalog, quality={}).quality == {}


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (chat, "[" * 100_000),
        (generated, "[" * 100_000),
        (generated, '{"text": "x", "meta_info": {"completion_tokens": Infinity, "spec_verify_ct": 1}}'),
        (
            chat,
            '{"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": "'
            + "[" * 100_000
            + '"}}]}}]}',
        ),
        (
            chat,
            '{"choices": [{"message": {}, "logprobs": {"content": [{"token": "x", "logprob": 1' + "0" * 400 + "}]}}]}",
        ),
    ],
)
def test_no_answer_of_a_broken_engine_raises(read: Callable[[Any], Answer | Steps], body: str) -> None:
    read({"status": 200, "body": body})
