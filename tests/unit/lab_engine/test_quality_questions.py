"""The lab engine answers the questions of the quality gates rightly, so that a gate that fails there says something."""

from pathlib import Path
from typing import Any

import pytest

from trispark.catalog import load_catalog
from trispark.quality.answers import Answer
from trispark.quality.judges import code_of, loop_problem, needle, task
from trispark.quality.questions import needle_code, needle_text
from trispark.warmup import text_problem

ROOT = Path(__file__).resolve().parents[3]
QUALITY = load_catalog(ROOT).quality["lab"]


def test_workloads_are_sane_and_have_working_drafts(cached_generator: Any) -> None:
    prompts = [prompt for prompts in QUALITY.workloads.values() for prompt in prompts]
    texts = cached_generator.generate(prompts, QUALITY.max_tokens, 3, ignore_eos=False)
    assert [(text_problem(text, QUALITY.minimum_ascii_share), loop_problem(text)) for text in texts] == [
        (None, None)
    ] * len(prompts)


@pytest.mark.parametrize("asked", [each for each in QUALITY.tasks if each.kind != "tool"], ids=lambda each: each.id)
def test_tasks_are_answered(cached_generator: Any, asked: Any) -> None:
    (text,) = cached_generator.generate([asked.prompt], asked.max_tokens, 3, ignore_eos=False)
    wrong = None
    if asked.kind == "code":
        space: dict[str, Any] = {}
        exec(code_of(text), space)  # our own corpus
        wrong = [check for check in asked.checks if eval(check, space) is not True]
    assert task(asked, Answer(None, text), wrong).ok, text


@pytest.mark.parametrize("depth", QUALITY.needles[0].depths)
def test_needles_are_found(cached_generator: Any, depth: float) -> None:
    hidden = QUALITY.needles[0]
    (count,) = hidden.sentences
    prompt = needle_text(hidden, count, depth)
    (text,) = cached_generator.generate([prompt], hidden.max_tokens, 3, ignore_eos=False)
    assert needle("x", needle_code(hidden, count, depth), Answer(None, text)).ok, text
